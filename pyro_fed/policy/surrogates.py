"""Where Gaussian surrogates come from: of importance sampling, and of Langevin chains."""

from __future__ import annotations

from pyro_fed.density.traits import FULL_DIM
from pyro_fed.infer.surrogates.fedais import FedAIS
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
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


def structure_of(case: Case) -> Decision | None:
    """Full or diagonal covariances of draws."""
    if case.algorithm.covariance != "auto":
        return None
    dim = parameters(case.traits.dim)
    if case.traits.few_parameters:
        return Decision("full", f"{dim}, at most {FULL_DIM}")
    return Decision("diag", f"{dim}, more than {FULL_DIM}")


SURROGATES = Row("surrogates", surrogates_of, "surrogates='fedep', 'laplace' or 'local_sgld', or an algorithm")
STRUCTURE = Row("covariance", structure_of, "covariance='full' or 'diag'")
TABLES = {
    FedAIS: Table((SURROGATES,), (few_enough_to_weigh, affordable_rows)),
    LocalSGLD: Table((STRUCTURE,)),
}
