"""Stochastic variational inference on the tilted density with a Gaussian guide: "svi".

`guides.gaussian_guides` has the objective and the letters. The guide begins at the end m of a Newton step on the tilted
density, with its inverse curvature A A' as covariance, so that the step size has no units; it falls linearly to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_betas, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.guides.gaussian_guides import GuideFit
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference, site_from, tilted_scale


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(TiltedInference):
    """A Gaussian guide fitted to the tilted density by Adam on the evidence lower bound, as Pyro's `SVI` does.

    Args:
        steps: Adam's steps a round.
        step_size: Adam's rate at the beginning, in SDs of the tilted density; it falls linearly to zero.
        num_samples: draws of the guide a step.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        betas: β_1 and β_2 of Adam, each in [0, 1).
        eps: ε of Adam.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Kingma & Ba (2015), Adam.

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.SVI(steps=100)), fed)
    """

    minimises_free_energy: ClassVar[bool] = True

    steps: int = 300
    step_size: float = 0.03
    num_samples: int = 8
    batch_size: int | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        check_at_least(self, 1, "steps", "num_samples")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", "eps")
        check_betas(self)

    @property
    def guide_fit(self) -> GuideFit:
        """The settings of the fit."""
        return GuideFit(
            steps=self.steps,
            step_size=self.step_size,
            samples=self.num_samples,
            batch_size=self.batch_size,
            adam=(*self.betas, self.eps),
            falling=True,
        )

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The fit's draws and minibatches."""
        return self.guide_fit.draw_noise(problem, num_rows, generator)

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the fitted guides."""
        start = tilted_scale(numerics, problem, received, data)
        return site_from(self.guide_fit.fit(problem, start, received.cavity, data, noise), received.cavity)
