"""How an agent of `P2PVI` solves Eq. (3) in a round: a tilted inference, as a client of FedEP.

    q̂_i = argmin_π KL(π ‖ q_i) + E_π[-log f(D_i)] = q_i t_i                  the tilted belief q̂_i, and the site t_i

In the paper the agent sends b_i = q̂_i; here `peer_sites` has the public belief b_i that follows from t_i. The belief
q_i takes the place of q, and the belief without the agent's own site that of the cavity, so that any `pf.infer.tilted`
inference solves Eq. (3) if beliefs start as the prior. The classes here add to two of them what an
agent without a server carries over from round to round.

Pass an instance to change settings, ``update=pf.infer.update.SVI(steps=50)``, or a name for the defaults,
``update="svi"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.gaussian_guides import GuideFit
from pyro_fed.infer.ep import tilted
from pyro_fed.infer.ep.tilted import IVON, Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.ep.tilted.base import site_from
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian

__all__ = ["IVON", "SVI", "Newton", "Update"]
__dir__ = public_dir(__all__)


class Update(TiltedInference):
    """The update of an agent's belief by its own data: `Newton` or `SVI`, or any `pf.infer.tilted` inference."""

    what: ClassVar[str] = "belief update"
    door: ClassVar[str] = "pf.infer.update"

    @classmethod
    def kinds(cls) -> dict[str, type[Any]]:
        """The classes of `pf.infer.tilted`; a class of this module replaces the one of the same name."""
        return TiltedInference.kinds() | super().kinds()

    @classmethod
    def includes(cls, value: object) -> bool:
        """Whether a value is an update, or any `pf.infer.tilted` inference."""
        return super().includes(value) or TiltedInference.includes(value)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Newton(tilted.Newton, Update):
    """Expected Newton steps at Sobol points of the belief: natural gradients, in closed form where conjugate.

    The algorithm's `num_points`, `curvature` and `damping` determine how the steps are computed and damped.

    Args:
        memory: rounds in the history of the acceleration of single, undamped steps; 1 turns it off, as does a graph on
            which agents do not agree after a round.

    References:
        Khan & Nielsen (2018), Fast yet simple natural-gradient descent for variational inference.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.infer.update.Newton(steps=3)), fed, graph=pf.graph.ring(5))
    """

    memory: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "memory")


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(GuideFit, Update):
    """Bayes by backprop: Adam on the evidence lower bound of a Gaussian guide around the belief, afresh every round.

    Args:
        steps: u, Adam steps per round.
        step_size: Adam's rate, in `units`.
        batch_size: B, rows per step, weighted to all of the agent's; None takes all.
        units: units of the rate: "sds" of the belief, which do not depend on the parameters' units, or "parameters",
            the parameters' own units as published, for diagonal beliefs only.
        round_decay: factor on the rate from one round to the next, in (0, 1]: 0.99 and 0.998 in Tables I and II.

    References:
        Wang et al., Section V-B1. Blundell et al. (2015), Weight uncertainty in neural networks.

    Example:
        >>> pf.run(pf.P2PVI(update=pf.infer.update.SVI(steps=47, batch_size=50)), fed, graph=pf.graph.ring(5))
    """

    minimises_free_energy: ClassVar[bool] = True
    takes_curvature: ClassVar[bool] = False

    steps: int = 100
    step_size: float = 0.05
    num_samples: int = 1
    units: Literal["sds", "parameters"] = "sds"
    round_decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "units", ("sds", "parameters"))
        check_between(self, "round_decay", 0, 1)

    @property
    def needs_diagonal(self) -> bool:
        """Whether the fit is in the parameters' own units."""
        return self.units == "parameters"

    def rate(self, count: Tensor) -> float:
        """The setting `step_size`, in every step of a round."""
        return self.step_size

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Fit guides to cavity × likelihood: Eq. (3) as published, where the cavity is q_i itself."""
        guide = self.fit(problem, received.q, received.cavity, data, noise, received.pace)
        return site_from(guide, received.cavity)


def check_update(algorithm: PeerGaussian, solver: TiltedInference, accelerates: bool) -> None:
    """Refuse settings of an algorithm that have no effect with its update or contradict it."""
    _check_memory(algorithm, solver, accelerates)
    if solver.newton_steps:
        return
    _check_start(algorithm, solver)
    unused = ("num_points",) if solver.takes_curvature else ("num_points", "curvature")
    refuse_unused(algorithm, "it is a setting of Newton steps; use update='newton'", *unused)
    refuse_unused(
        algorithm, "minibatches of this update are a setting of its own, as pf.infer.update.SVI's", "batch_size"
    )
    _check_covariance(algorithm, solver)


def _check_memory(algorithm: PeerGaussian, solver: TiltedInference, accelerates: bool) -> None:
    """Refuse a history of rounds that are not accelerated."""
    name = type(algorithm).__name__
    remembers = solver.newton_steps and solver.memory not in (1, Newton.memory)
    if remembers and not (accelerates and algorithm.gossip_steps is None):
        raise SettingError(
            f"{name}: memory={solver.memory} has no effect: acceleration is of single, undamped steps with "
            "weighting='exact', all rows in every round and complete consensus (steps=1, damping=1, batch_size=None, "
            "gossip_steps=None)"
        )


def _check_start(algorithm: PeerGaussian, solver: TiltedInference) -> None:
    """Refuse a start at which beliefs are not proper."""
    if algorithm.start in ("consensus", "local"):
        raise SettingError(
            f"{type(algorithm).__name__}: update={solver.kind()!r} works around a proper belief: it needs "
            f"start='prior', which is also what 'auto' takes; received {algorithm.start!r}"
        )


def _check_covariance(algorithm: PeerGaussian, solver: TiltedInference) -> None:
    """Refuse full covariances for an update of diagonal beliefs."""
    if solver.needs_diagonal and algorithm.covariance != "diag":
        raise SettingError(
            f"{type(algorithm).__name__}: {solver!r} moves each parameter of a diagonal belief by itself: it needs "
            f"covariance='diag'; received {algorithm.covariance!r}"
        )
