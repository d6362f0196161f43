"""Stochastic variational inference on the tilted density with a Gaussian guide: "svi".

See `infer.guide_fit` for the objective and the letters. The guide begins at the end m of a Newton step on the tilted
density, with its inverse curvature A A' as covariance, so that the step size has no units; it falls linearly to zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Noise
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.ep.tilted.base import Client, Received, Tilted, site_from, tilted_scale
from pyro_fed.infer.guides.fitting import GuideFit


@dataclass(frozen=True, kw_only=True)
class SVIClient(Client):
    """Adam on the evidence lower bound.

    Args:
        svi_steps: steps a round.
        svi_step_size: Adam's rate, in SDs of the tilted density.
        svi_samples: draws of z a step.
        batch_size: rows a step; None takes all.
        adam: β_1, β_2 and ε.
    """

    svi_steps: int
    svi_step_size: float
    svi_samples: int
    batch_size: int | None
    adam: tuple[float, float, float]

    @property
    def guide_fit(self) -> GuideFit:
        """These settings as those of the fit."""
        return GuideFit(
            steps=self.svi_steps,
            step_size=self.svi_step_size,
            samples=self.svi_samples,
            batch_size=self.batch_size,
            adam=self.adam,
            falling=True,
        )

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The fit's draws and minibatches."""
        return self.guide_fit.draw_noise(problem, num_rows, generator)

    def infer(self, problem: Problem, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the fitted guides."""
        start = tilted_scale(self, problem, received, data)
        return site_from(self.guide_fit.fit(problem, start, received.cavity, data, noise), received.cavity)
