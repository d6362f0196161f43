"""The search for the traits of a model that need a run of it or a search of its operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.compiling.jumps import prior_turns, scores_jump, scores_turn
from pyro_fed.density.compiling.layers import has_layers
from pyro_fed.density.compiling.predictors import CHECK_ROWS, predictors
from pyro_fed.density.edges import latents_of_moving_support
from pyro_fed.density.forms import NonCentred, effects_of, funnel_hint, latent_scales, necks_of_rows
from pyro_fed.density.latents.latent_checks import check_affordable
from pyro_fed.density.latents.quadrature import GAUSSIAN_ORDER
from pyro_fed.density.observations import observation_distribution
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import cost_of
from pyro_fed.density.traits import Neck, Traits


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelTraits(Traits):
    """The traits of a problem; those that need no rows are stored for other federations of the same model."""

    problem: Problem = field(repr=False)

    @classmethod
    def of(cls, problem: Problem) -> ModelTraits:
        """The record of a problem, with its sizes."""
        return cls(
            dim=problem.dim,
            num_rows=problem.num_rows,
            evaluations=problem.evaluations,
            num_clients=problem.num_clients,
            improper=problem.layout.improper,
            local_dim=problem.local_dim,
            row_latents=tuple(problem.layout.local),
            rows_in_tensors=all(isinstance(leaf, Tensor) for leaf in problem.rows),
            looped=problem.looped,
            in_units_of_scale=problem.in_units_of_scale,
            without_curvature=". ".join(map(str, problem.bound.without_curvature)),
            dtype=problem.dtype,
            device=problem.device,
            centred=problem.model_form.traits if isinstance(problem, NonCentred) and problem.model_form else None,
            problem=problem,
        )

    @cached_property
    def linear_predictors(self) -> bool:
        return predictors(self.problem, CHECK_ROWS) is not None

    @cached_property
    def layers(self) -> bool:
        return has_layers(self.problem)

    @cached_property
    def one_outcome(self) -> bool:
        layout = self.problem.layout
        return len(layout.observed) == 1 and not layout.factors and not layout.local

    @cached_property
    def labels(self) -> bool:
        return self.one_outcome and bool(self._observation().has_enumerate_support)

    @cached_property
    def observed_values(self) -> int:
        if not self.one_outcome:
            return 1
        fn = self._observation()
        # All values of a discrete observation; the nodes of a Gaussian's rule for a continuous one.
        return len(fn.enumerate_support()) if fn.has_enumerate_support else GAUSSIAN_ORDER

    def scores_jump(self, in_predictors: bool) -> bool:
        problem = self.problem

        def find() -> bool:
            parts = predictors(problem, CHECK_ROWS) if in_predictors else None
            if parts is None:
                return scores_turn(problem)
            z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
            return scores_jump(problem, parts, z)

        jump: bool = problem.compiler.find_once("scores jump", find, problem)
        return jump

    @cached_property
    def prior_kinks(self) -> Tensor:
        problem = self.problem
        kinks: Tensor = problem.compiler.find_once("prior turns", lambda: prior_turns(problem), problem)
        return kinks

    @cached_property
    def latent_scales(self) -> bool:
        problem = self.problem
        exist: bool = problem.compiler.find_once(
            "latent scales", lambda: next(latent_scales(problem), None) is not None, problem
        )
        return exist

    @cached_property
    def effects(self) -> tuple[str, ...]:
        return effects_of(self.problem)

    @cached_property
    def moving_supports(self) -> dict[str, list[str]]:
        return latents_of_moving_support(self.problem.bound)

    @cached_property
    def walls(self) -> tuple[str, ...]:
        return tuple(sorted(self.problem.bound.walls))

    @cached_property
    def funnel_hint(self) -> list[str]:
        return funnel_hint(self.problem)

    @cached_property
    def necks_of_rows(self) -> list[Neck]:
        return necks_of_rows(self.problem)

    @cached_property
    def numbers_of_a_row(self) -> float:
        return cost_of(self.problem).numbers

    def require_affordable(self) -> None:
        check_affordable(self.problem)

    def _observation(self) -> Any:
        """The distribution of the first row's observation at the origin."""
        problem = self.problem
        z = torch.zeros(problem.dim, dtype=problem.dtype, device=problem.rows[0].device)
        return observation_distribution(problem, z, tuple(leaf[:1] for leaf in problem.rows))
