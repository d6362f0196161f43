"""Where Gaussian surrogates come from: of importance sampling, of Langevin chains, and of guides."""

from __future__ import annotations

from pyro_fed.density.traits import FULL_DIM
from pyro_fed.errors import SettingError
from pyro_fed.infer.surrogates.fedais import FedAIS
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.infer.variational.p2p_sfvi import P2PSFVI
from pyro_fed.infer.variational.sfvi import SFVI
from pyro_fed.policy.choice import Case, Decision, Row, Table
from pyro_fed.policy.gaussian import parameters
from pyro_fed.policy.refusals import affordable_rows, few_enough_to_weigh


def surrogates_of(case: Case) -> Decision | None:
    """The algorithm that fits the surrogates."""
    if case.algorithm.surrogates != "auto":
        return None
    dim = case.traits.dim
    if case.traits.few_parameters:
        return Decision("fedep", f"{parameters(dim)}, for which FedEP has a full covariance")
    if case.traits.large():
        return Decision("fedep", f"a network or another large model, {parameters(dim)}: FedEP by stochastic gradients")
    return Decision("laplace", f"{parameters(dim)}, more than FedEP has a full covariance for by default")


def guides_start_of(case: Case) -> Decision | None:
    """The Gaussian that a guide is fitted to before the first round, where a fit of it has no conditions of its own."""
    if case.algorithm.surrogates != "auto":
        return None
    traits = case.traits
    if traits.large() or traits.layers:
        return Decision(None, "a network or another large model, whose Gaussian costs as many rounds as the guide")
    if traits.without_curvature or traits.non_smooth_scores:
        return Decision(None, "rows without second derivatives: no Gaussian is fitted")
    if traits.improper:
        return Decision(None, f"the priors of {sorted(traits.improper)} are improper: no Gaussian is fitted")
    if case.setup.combination is not None:
        return Decision(None, "the clients' messages are combined in another way than by sums")
    return surrogates_of(case)


def elbo_on_large_models(case: Case) -> None:
    """Refuse the IWAE bound on a large model, whose log-likelihoods are not computed beside its scores.

    Raises:
        SettingError: names the number of parameters.
    """
    if case.algorithm.bound != "elbo" and case.traits.large():
        raise SettingError(
            f"{type(case.algorithm).__name__}: bound={case.algorithm.bound!r} takes every client's log-likelihood at "
            f"each draw, and this is a network or another large model, {parameters(case.traits.dim)}: take bound='elbo'"
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
STRUCTURE = Row("covariance", structure_of, "covariance='full' or 'diag'")
TABLES = {
    FedAIS: Table((SURROGATES,), (few_enough_to_weigh, affordable_rows)),
    LocalSGLD: Table((STRUCTURE,)),
    SFVI: Table((GUIDES_START,), (elbo_on_large_models,)),
    P2PSFVI: Table((), (elbo_on_large_models,)),
}
