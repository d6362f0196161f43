"""Settings of Langevin chains, of Gaussian surrogates and guides, and of algorithms on pooled data.

On a large model the cost of a visit is proportional to its number of steps. The longest visit in preconditioned time
does not depend on this number: with 5 steps in place of 20, each may be up to four times as long. Large models have as
many chains as others: with 75,010 parameters even 300 rounds are less than a tenth of a relaxation time, and the
predictions of a chain are little better than those of one draw. With up to `LARGE_DIM` parameters steps are long, and a
small number of chains moves farther.
"""

from __future__ import annotations

import inspect

from pyro.infer.autoguide import AutoGuide, AutoNormalizingFlow

from pyro_fed.density.traits import FULL_DIM, LARGE_DIM
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_diagnostics import USUAL_CHAINS
from pyro_fed.infer.langevin.fald import FALD
from pyro_fed.infer.langevin.fedhmc import FedHMC
from pyro_fed.infer.langevin.fsgld import FSGLD
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.saga_ld import SAGALD
from pyro_fed.infer.langevin.step import Measured
from pyro_fed.infer.papers.p2p_finite import P2PFinite
from pyro_fed.infer.papers.pmd import PMD
from pyro_fed.infer.pooled.svi import SVI
from pyro_fed.infer.surrogates.fedais import FedAIS
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.infer.surrogates.surrogates import Given
from pyro_fed.infer.variational.guide_ascent import is_kind
from pyro_fed.infer.variational.p2p_sfvi import P2PSFVI
from pyro_fed.infer.variational.sfvi import SFVI
from pyro_fed.policy.choice import Case, Decision, Row, Table, affordable_rows, few_enough_to_weigh, proper_prior
from pyro_fed.policy.gaussian import LARGE_BATCH, on_large, parameters
from pyro_fed.policy.results import MAX_POINTWISE

#: Steps of a visit for a large model, and its thinning.
STEPS, THIN = 5, 25


def require_dimension(case: Case) -> None:
    """Refuse surrogates given as tensors whose dimension is not the model's."""
    surrogates, dim = case.algorithm.surrogates, case.traits.dim
    if isinstance(surrogates, Given) and surrogates.dim != dim:
        raise SettingError(f"Given: expected surrogates of the model's dimension {dim}, received {surrogates.dim}")


def surrogates_of(case: Case) -> Decision | None:
    """The algorithm that fits the surrogates."""
    require_dimension(case)
    if case.algorithm.surrogates != "auto":
        return None
    dim = case.traits.dim
    if case.traits.few_parameters:
        return Decision("fedep", f"{parameters(dim)}, for which FedEP has a full covariance")
    if case.traits.large():
        return Decision("fedep", f"a network or another large model, {parameters(dim)}: FedEP by stochastic gradients")
    return Decision("laplace", f"{parameters(dim)}, more than FedEP has a full covariance for by default")


def guides_start_of(case: Case) -> Decision | None:
    """The Gaussian to which a guide is fitted before the first round, if it can be computed."""
    require_dimension(case)
    if case.algorithm.surrogates != "auto":
        return None
    return _without_gaussian(case) or surrogates_of(case)


def guides_start_over_graph_of(case: Case) -> Decision | None:
    """The same for agents without a server."""
    if case.algorithm.surrogates != "auto":
        return None
    if (without_gaussian := _without_gaussian(case)) is not None:
        return without_gaussian
    dim = parameters(case.traits.dim)
    if not case.traits.few_parameters:
        return Decision(None, f"{dim}, more than P2PVI has a full covariance for by default")
    return Decision("p2pvi", f"{dim}, for which P2PVI has a full covariance")


def _without_gaussian(case: Case) -> Decision | None:
    """The reason why a guide starts from its own initial values, or None."""
    traits = case.traits
    if is_kind(case.algorithm.guide, AutoNormalizingFlow):
        return Decision(None, "a flow, which ends farther from a posterior that is not Gaussian if it begins as one")
    if traits.large() or traits.layers:
        return Decision(None, "a network or another large model, whose Gaussian costs as many rounds as the guide")
    if traits.without_curvature or traits.non_smooth_scores:
        return Decision(None, "rows without second derivatives: no Gaussian is fitted")
    if traits.improper:
        return Decision(None, f"the priors of {sorted(traits.improper)} are improper: no Gaussian is fitted")
    if case.setup.combination is not None:
        return Decision(None, "the clients' messages are not summed")
    return None


def elbo_on_large_models(case: Case) -> None:
    """Refuse the IWAE bound on large models, for which log-likelihoods are not computed with the scores."""
    if case.algorithm.bound != "elbo" and case.traits.large():
        raise SettingError(
            f"{type(case.algorithm).__name__}: bound={case.algorithm.bound!r} needs every client's log-likelihood at "
            f"each draw, and this is a network or another large model, {parameters(case.traits.dim)}: use bound='elbo'"
        )


def structure_of(case: Case) -> Decision | None:
    """Full or diagonal covariances of draws."""
    if case.algorithm.covariance != "auto":
        return None
    dim = parameters(case.traits.dim)
    if case.traits.few_parameters:
        return Decision("full", f"{dim}, at most {FULL_DIM}")
    return Decision("diag", f"{dim}, more than {FULL_DIM}")


SURROGATES = Row("surrogates", surrogates_of, "surrogates='fedep', 'laplace' or 'local_sgld', or an algorithm")
GUIDES_START = Row("surrogates", guides_start_of, f"{SURROGATES.override}, or None")
AGENTS_START = Row("surrogates", guides_start_over_graph_of, "surrogates='p2pvi' or None")
STRUCTURE = Row("covariance", structure_of, "covariance='full' or 'diag'")


def chains_of(case: Case) -> Decision | None:
    """The number of chains."""
    if "num_chains" in case.own or not case.traits.large() or case.traits.dim > LARGE_DIM:
        return None
    return Decision(USUAL_CHAINS, "a small network, whose steps are long: a few chains move farther")


def unmeasured_step_of(case: Case) -> Decision | None:
    """Whether the noise of FALD's clients is measured: not for a large model, even if a bound on it is set."""
    step = case.algorithm.step
    if not isinstance(step, Measured) or not case.traits.large():
        return None
    dim = parameters(case.traits.dim)
    return Decision(step.unmeasured(), f"the clients' own noise is not measured on a large model ({dim})")


def tables_are_small(case: Case) -> None:
    """Refuse tables of one gradient per row and chain that are too large."""
    rows, dim, chains = case.traits.num_rows, case.traits.dim, case.algorithm.num_chains
    numbers = chains * rows * dim
    if numbers > MAX_POINTWISE:
        raise SettingError(
            f"{type(case.algorithm).__name__}: gradients of {rows} rows in {dim} dimensions for {chains} "
            f"chains are {numbers:.3g} numbers, more than {MAX_POINTWISE:.3g}: take fewer chains, or "
            'SGLD(control_variate="visit"), which is SVRG-LD'
        )


def is_small(case: Case) -> None:
    """Refuse Hamiltonian trajectories in more dimensions than rounds allow."""
    dim = case.traits.dim
    if dim > LARGE_DIM:
        raise SettingError(
            f"{type(case.algorithm).__name__} takes at most {LARGE_DIM:,} parameters, received {dim:,}: each round is "
            "one step of all chains on all rows, and steps become shorter with every dimension. Use FedEP, which "
            "takes stochastic gradients for large models, or FSGLD"
        )


FSGLD_ROWS = (
    Row(
        "local_steps",
        on_large("local_steps", STEPS, "the cost of a visit to a large model is proportional to its steps"),
        "local_steps=",
    ),
    Row("batch_size", on_large("batch_size", LARGE_BATCH, "minibatches are used for a large model"), "batch_size="),
    Row("thin", on_large("thin", THIN, "the draws of a large model need much memory"), "thin="),
    Row(
        "target_ess",
        on_large("target_ess", None, "the slowest of many parameters has few effective draws"),
        "target_ess=",
    ),
    Row("num_chains", chains_of, "num_chains="),
    SURROGATES,
)
STEP = Row(
    "step", unmeasured_step_of, "step=pf.infer.step.Fixed(); local_steps=1 with midpoint=False has no such noise"
)
DRAWN_PARTICLES = proper_prior("its particles start as draws of the prior", "use DSVGD")
DRAWN_CANDIDATES = proper_prior(
    "its candidates are draws of the prior unless they are set",
    "give candidates",
    lambda case: case.algorithm.candidates is None,
)


def support_is_constant(case: Case) -> None:
    """Refuse supports that depend on other sites, because automatic guides fix the support at their first draw."""
    guide, moving = case.algorithm.guide, case.traits.moving_supports
    kind = guide if inspect.isclass(guide) else type(guide)
    if not moving or not issubclass(kind, AutoGuide):
        return
    name, others = next(iter(moving.items()))
    raise SettingError(
        f"{type(case.algorithm).__name__}: {kind.__name__} fixes the support of '{name}' at its first draw, but the "
        f"support depends on {others}, so that the guide would draw impossible values. Write the site in units of its "
        f"bounds, u ~ Uniform(0, 1) and {name} = low + (high - low) * u, or use GVI or FedEP, whose scale follows it"
    )


def likelihood_is_a_factor(case: Case) -> None:
    """Refuse to temper the likelihood if it is not a factor of the joint density, as with rows' own latents."""
    algorithm = case.algorithm
    if algorithm.temperature != 1 and case.traits.row_latents:
        raise SettingError(
            f"{type(algorithm).__name__}: temperature={algorithm.temperature:g} raises the rows' likelihood to a "
            f"power, but is not a factor of the joint density with {list(case.traits.row_latents)} inside the "
            "partitioned plate: use NUTS or FedEP, which integrate these out and have a temperature"
        )


TABLES = {
    FedAIS: Table((SURROGATES,), (few_enough_to_weigh, affordable_rows)),
    LocalSGLD: Table((STRUCTURE,)),
    SFVI: Table((GUIDES_START,), (elbo_on_large_models,)),
    P2PSFVI: Table((AGENTS_START,), (elbo_on_large_models,)),
    Langevin: Table((SURROGATES,)),
    FedHMC: Table((SURROGATES,), (is_small, affordable_rows)),
    FSGLD: Table(FSGLD_ROWS, (affordable_rows,)),
    FALD: Table((STEP, SURROGATES)),
    SAGALD: Table((SURROGATES,), (tables_are_small,)),
    P2PFinite: Table(checks=(DRAWN_CANDIDATES,)),
    PMD: Table(checks=(DRAWN_PARTICLES,)),
    SVI: Table(checks=(support_is_constant, likelihood_is_a_factor)),
}
