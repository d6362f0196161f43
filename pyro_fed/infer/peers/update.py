"""How an agent of `P2PVI` solves Eq. (3) in a round: by expected Newton steps, by Adam on the ELBO, or by scores alone.

An instance has settings of its own, ``update=pf.update.SVI(steps=50)``; a name has the defaults, ``update="svi"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pyro_fed.conventions.doors import listing
from pyro_fed.conventions.nested_settings import Variant, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.infer.guides.fitting import GuideFit
from pyro_fed.infer.sites.online_newton import OnlineNewton

__all__ = ["IVON", "SVI", "Name", "Newton", "Update"]
__dir__ = listing(__all__)

#: The kinds by the names that the setting `update` knows them under.
Name = Literal["newton", "svi", "ivon"]


class Update(Variant):
    """How an agent's belief takes in its own data: the settings of one of three ways, `Newton`, `SVI` or `IVON`."""

    what: ClassVar[str] = "belief update"
    door: ClassVar[str] = "pf.update"


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Newton(Update):
    """Expected Newton steps at Sobol points of the belief: natural gradients, in closed form where conjugate.

    The algorithm's `num_points`, `curvature` and `damping` say how the steps are computed and how much of one is made.

    Args:
        steps: steps a round.
        memory: rounds that the acceleration of a single, undamped step remembers; 1 is none, which is also what graphs
            get where a round does not bring the agents together.

    References:
        Khan & Nielsen (2018), Fast yet simple natural-gradient descent for variational inference.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.update.Newton(steps=3)), fed, graph=pf.graph.ring(5))
    """

    steps: int = 1
    memory: int = 4

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "memory")


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(Update):
    """Bayes by backprop: Adam on the evidence lower bound of a Gaussian guide around the belief, afresh every round.

    Args:
        steps: u, Adam's steps a round.
        step_size: Adam's rate, in `units`.
        units: of the rate: "sds" of the belief, which is free of the parameters' units, or "parameters": their own, as
            published; of diagonal beliefs alone.
        round_decay: the rate's factor from one round to the next, in (0, 1]: 0.99 and 0.998 in Tables I and II.
        num_samples: draws of the guide a step.
        batch_size: B, rows a step, weighted to all of the agent's; None takes all.

    References:
        Wang et al., Section V-B1. Blundell et al. (2015), Weight uncertainty in neural networks.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.update.SVI(steps=47, batch_size=50)), fed, graph=pf.graph.ring(5))
    """

    steps: int = 100
    step_size: float = 0.05
    units: Literal["sds", "parameters"] = "sds"
    round_decay: float = 1.0
    num_samples: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "num_samples")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size")
        check_choice(self, "units", ("sds", "parameters"))
        check_between(self, "round_decay", 0, 1)

    @property
    def guide_fit(self) -> GuideFit:
        """The fit of a guide with these settings, at Adam's own β and ε."""
        return GuideFit(
            steps=self.steps,
            step_size=self.step_size,
            samples=self.num_samples,
            batch_size=self.batch_size,
            units=self.units,
        )


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(OnlineNewton, Update):
    """Variational online Newton steps: gradients alone, on minibatches, and diagonal beliefs; for networks.

    Args:
        steps: steps a round.
        pairs: draws a step, each with its opposite: two gradients a pair.
        batch_size: rows a step, weighted to all of the agent's; None takes all.
        rate: of a Newton step; it falls linearly to zero in a round.
        momentum: of the mean's steps, in [0, 1).
        curvature_memory: weight of the curvature so far in a step, in [0, 1).
        longest: no step moves a parameter by more than this many SDs.
        largest_factor: by which a round changes a parameter's precision, up or down.
        most_gain: nats a row that a step may promise; a score that promises more is cut.
        spread: of the draws, in SDs of q̂; far below one scores and curvatures are those at its mean, Laplace's.
        rounds: of a run that is given no number of them; SDs begin narrow and widen over many.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks.

    Example:
        >>> pf.run(pf.P2PVI(update="ivon", covariance="diag"), fed, graph=pf.graph.ring(5))
    """

    # An agent's belief moves by all that it has changed, a server's by the clients' mean: as far in half the rounds.
    rounds: int = 20
