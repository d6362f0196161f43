"""Models that an algorithm cannot be run on, said before a run begins."""

from __future__ import annotations

from collections.abc import Callable

from pyro_fed.density.traits import LARGE_DIM
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.policy.choice import Case


def affordable_rows(case: Case) -> None:
    """Refuse a network whose rows' own latents cost too much to be integrated out at many points.

    Raises:
        ModelError: names the latents, the cost and the cures.
    """
    case.traits.require_affordable()


def few_enough_to_weigh(case: Case) -> None:
    """Refuse importance weights of a model with many parameters.

    Raises:
        SettingError: names the number of parameters, and what to run.
    """
    dim = case.traits.dim
    if dim <= LARGE_DIM:
        return
    raise SettingError(
        f"{type(case.algorithm).__name__} cannot weigh draws of {dim:,} parameters: the ratio of two densities varies "
        f"by more nats than there are parameters that the sites miss, so that one draw has all the weight. It takes at "
        f"most {LARGE_DIM:,}; use FedEP, which takes stochastic gradients there, or DSVGD"
    )


def proper_prior(why: str, cure: str, where: Callable[[Case], bool] = lambda case: True) -> Callable[[Case], None]:
    """A check that refuses improper priors by a ModelError, which names the algorithm and the sites.

    Args:
        why: what the algorithm does with the prior, as a clause.
        cure: what to do besides giving proper priors, as a clause.
        where: whether the algorithm does that with its settings.
    """

    def check(case: Case) -> None:
        improper = sorted(case.traits.improper)
        if improper and where(case):
            raise ModelError(
                f"{type(case.algorithm).__name__}: {why}, and the priors of sites {improper} are improper, which have "
                f"no draws and no mean: give them proper priors, or {cure}"
            )

    return check
