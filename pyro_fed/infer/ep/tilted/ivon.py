"""Diagonal sites by natural-gradient steps from scores alone, on minibatches: "ivon", for networks.

See `sites.online_newton` for the steps, their source and the deviations. A site is what the client has changed of the
cavity's natural parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.sites.online_newton import OnlineNewton


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(TiltedInference):
    """Diagonal sites by variational online Newton steps: gradients alone, on minibatches; for networks.

    Args:
        steps: steps a round.
        pairs: draws a step, each with its opposite: two gradients a pair.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        rate: α, of a Newton step; it falls linearly to zero in a round.
        momentum: β, in [0, 1).
        curvature_memory: 1 - ρ, the weight of the curvature so far in a step, in [0, 1).
        longest: no step moves a parameter by more than this many SDs.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks. Lin et al. (2020).

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.IVON(steps=50), covariance="diag"), fed)
    """

    steps: int = 10
    pairs: int = 1
    batch_size: int | None = 32
    rate: float = 0.3
    momentum: float = 0.9
    curvature_memory: float = 0.9
    longest: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "pairs")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "rate", "longest")
        check_between(self, "momentum", 0, 1, "[)")
        check_between(self, "curvature_memory", 0, 1, "[)")

    @property
    def online_newton(self) -> OnlineNewton:
        """These settings as those of the steps."""
        return OnlineNewton(
            steps=self.steps,
            pairs=self.pairs,
            batch_size=self.batch_size,
            rate=self.rate,
            momentum=self.momentum,
            curvature_memory=self.curvature_memory,
            longest=self.longest,
        )

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Draws, rates and minibatches."""
        return self.online_newton.draw_noise(problem, num_rows, generator)

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the last step.

        Raises:
            SettingError: q has a full covariance.
        """
        if received.q.dense:
            raise SettingError("IVON: its sites are diagonal: take covariance='diag', or client='newton'")
        site = self.online_newton.fit(problem, received.q, received.cavity, data, noise)
        return Tilted(site, site.product(received.cavity).is_proper(), {})
