"""Settings of Langevin chains.

The cost of a visit is its number of steps, whatever the rows, and a chain of thousands of parameters never has as many
effective draws of the slowest as requested. The longest visit in preconditioned time does not depend on its steps: with
5 steps in place of 20 each may be up to four times as long. Large models have the same number of chains as others, so
that chains are short: the wider a network, the shorter are its stable steps. With 75,010 parameters even 300 rounds are
below a tenth of a relaxation time, and a chain's predictions are worth little more than those of one draw. With up to
`LARGE_DIM` parameters steps are long, and few chains move farther.
"""

from __future__ import annotations

from pyro_fed.density.traits import LARGE_DIM
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_diagnostics import USUAL_CHAINS
from pyro_fed.infer.langevin.fald import FALD
from pyro_fed.infer.langevin.fedhmc import FedHMC
from pyro_fed.infer.langevin.fsgld import FSGLD
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.saga_ld import SAGALD
from pyro_fed.infer.langevin.step import Measured
from pyro_fed.policy.choice import Case, Decision, Row, Table
from pyro_fed.policy.gaussian import LARGE_BATCH, on_large, parameters
from pyro_fed.policy.refusals import affordable_rows
from pyro_fed.policy.surrogates import SURROGATES

#: Steps of a visit to a large model, and one step in so many that is kept.
STEPS, THIN = 5, 25
#: Numbers in the tables of all chains of SAGA-LD beyond which they are refused: 4 GB in double precision.
LARGEST_TABLES = 500_000_000


def chains_of(case: Case) -> Decision | None:
    """The number of chains."""
    if "num_chains" in case.own or not case.traits.large() or case.traits.dim > LARGE_DIM:
        return None
    return Decision(USUAL_CHAINS, "a small network, whose steps are long: few chains move farther")


def unmeasured_step_of(case: Case) -> Decision | None:
    """Whether the noise of FALD's clients is measured: not on a large model, also if a bound of it is given."""
    step = case.algorithm.step
    if not isinstance(step, Measured) or not case.traits.large():
        return None
    dim = parameters(case.traits.dim)
    return Decision(step.unmeasured(), f"the clients' own noise is not measured on a large model ({dim})")


def tables_are_small(case: Case) -> None:
    """Refuse tables of all rows' gradients that are too large for an algorithm that keeps one for every row and chain.

    Raises:
        SettingError: names the numbers, and what to run.
    """
    rows, dim, chains = case.traits.num_rows, case.traits.dim, case.algorithm.num_chains
    numbers = chains * rows * dim
    if numbers > LARGEST_TABLES:
        raise SettingError(
            f"{type(case.algorithm).__name__}: gradients of {rows} rows in {dim} dimensions for {chains} "
            f"chains are {numbers:.3g} numbers, more than {LARGEST_TABLES:.3g}: take fewer chains, or "
            'SGLD(control_variate="visit"), which is SVRG-LD'
        )


def is_small(case: Case) -> None:
    """Refuse Hamiltonian trajectories in more dimensions than rounds suffice for.

    Raises:
        SettingError: names the number of parameters, and what to run.
    """
    dim = case.traits.dim
    if dim > LARGE_DIM:
        raise SettingError(
            f"{type(case.algorithm).__name__} takes at most {LARGE_DIM:,} parameters, received {dim:,}: each of its "
            "rounds is one step of all chains by all rows, and steps become shorter with every dimension. Use FedEP, "
            "which takes stochastic gradients there, or FSGLD"
        )


FSGLD_ROWS = (
    Row("local_steps", on_large("local_steps", STEPS, "a visit to a large model costs its steps"), "local_steps="),
    Row("batch_size", on_large("batch_size", LARGE_BATCH, "a large model takes minibatches"), "batch_size="),
    Row("thin", on_large("thin", THIN, "draws of a large model are long vectors"), "thin="),
    Row("target_ess", on_large("target_ess", None, "the slowest of many parameters has few draws"), "target_ess="),
    Row("num_chains", chains_of, "num_chains="),
    SURROGATES,
)
STEP = Row(
    "step", unmeasured_step_of, "step=pf.infer.step.Fixed(); local_steps=1 with midpoint=False has no such noise"
)
TABLES = {
    Langevin: Table((SURROGATES,)),
    FedHMC: Table((SURROGATES,), (is_small, affordable_rows)),
    FSGLD: Table(FSGLD_ROWS, (affordable_rows,)),
    FALD: Table((STEP, SURROGATES)),
    SAGALD: Table((SURROGATES,), (tables_are_small,)),
}
