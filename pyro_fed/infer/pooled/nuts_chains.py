"""Chains of the No-U-Turn Sampler on a compiled density, and their settings.

Letters: z unconstrained vector (D,), U potential:

    U(z) = -(w log p(z) + log p(y | z) / α)

with the prior to the power w (1, or a share of it in consensus Monte Carlo) and the likelihood to 1/α.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.states import State
from pyro_fed.conventions import progress
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.infer.pooled.nuts_kernel import CompiledNUTS, Density, Leaf, Stopped, leapfrog

#: Leapfrog steps of a tree of five doublings, a usual number.
LEAPFROGS_A_DRAW = 31


@dataclass(frozen=True)
class Potential:
    """U and its gradient, with α `temperature` and w `prior_power`."""

    temperature: float = 1.0
    prior_power: float = 1.0

    def value_and_gradient(self, problem: Problem, z: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∇U(z) and U(z): z (D,) → (D,), ()."""

        def potential(one: Tensor) -> Tensor:
            if self.prior_power == 1.0:
                found = problem.log_joint(one, batch, self.temperature)
            else:
                log_prior, pointwise = problem.log_parts(one, batch.rows)
                found = self.prior_power * log_prior + (pointwise * batch.weight).sum() / self.temperature
            # A float64 constant of the model makes it another dtype, and Pyro's kernel mixes none.
            return -found.to(one.dtype)

        return grad_and_value(potential)(z)

    def leapfrog(self, problem: Problem, *state_and_batch: Any) -> tuple[Tensor, ...]:
        """A leapfrog step, see `nuts_kernel.leapfrog`; a batch comes last."""
        *state, batch = state_and_batch
        return tuple(leapfrog(lambda z: self.value_and_gradient(problem, z, batch), *state))


@dataclass(frozen=True)
class Chains:
    """Settings of chains.

    Args:
        num_samples: kept draws of each chain.
        warmup_steps: draws before the kept ones.
        target_accept_prob: acceptance to which the step size is adapted.
        max_tree_depth: at most 2^max_tree_depth - 1 leapfrog steps for each draw.
        full_mass: adapt a dense mass matrix instead of a diagonal one.
        potential: U.
    """

    num_samples: int
    warmup_steps: int
    target_accept_prob: float
    max_tree_depth: int
    full_mass: bool
    potential: Potential

    def run(self, problem: Problem, batch: Batch, points: Tensor, seeds: Tensor, label: str = "NUTS") -> State:
        """Run chains one after the other: `draws` (chains, S, D) and `nuts_kernel.STATISTICS`, each (chains, S).

        `batch` has a client axis of one, (1, m, ...); the chains start at `points` (chains, D) with `seeds` (chains,),
        and `label` is the progress bar's.

        Raises:
            Stopped: Ctrl-C with draws at hand: the chains that are whole, or else the draws of the first.
        """
        density = self._density(problem, batch, len(points))
        total = (self.warmup_steps + self.num_samples) * len(points)
        bar = progress.begin(label, total, "draw", shown=problem.progress, inner=True)
        with bar, pyro.validation_enabled(False), torch.random.fork_rng(devices=[]):
            chains: list[State] = []
            try:
                for chain, (point, seed) in enumerate(zip(points, seeds.tolist(), strict=True)):
                    where = f"chain {chain + 1} of {len(points)}"
                    torch.manual_seed(seed)
                    chains.append(self._chain(density, point, partial(bar.advance, where)))
            except KeyboardInterrupt as stop:
                begun = [stop.chain] if isinstance(stop, Stopped) and len(stop.chain["draws"]) else []
                if not (chains or begun):
                    raise
                raise Stopped(_stack_chains(chains or begun)) from stop
        return _stack_chains(chains)

    def _chain(self, density: Density, point: Tensor, tick: Callable[[], None]) -> State:
        kernel = CompiledNUTS(
            density,
            target_accept_prob=self.target_accept_prob,
            max_tree_depth=self.max_tree_depth,
            full_mass=self.full_mass,
        )
        with torch.enable_grad():
            return kernel.run(point.clone(), self.warmup_steps, self.num_samples, tick)

    def _density(self, problem: Problem, batch: Batch, num_chains: int) -> Density:
        gradient = problem.mapped(self.potential.value_and_gradient, (0, BATCHES))
        vector = (problem.dim,)
        shapes = (vector, vector, vector, 2 * vector if self.full_mass else vector, (), ())
        state = (torch.zeros(1, *shape, dtype=problem.dtype) for shape in shapes)
        calls = LEAPFROGS_A_DRAW * num_chains * (self.warmup_steps + self.num_samples)
        step = problem.flat(self.potential.leapfrog, (*[0] * 6, BATCHES), (*state, batch), calls)
        rows = pytree.tree_leaves(batch)

        def value_and_gradient(z: Tensor) -> tuple[Tensor, Tensor]:
            slope, value = gradient(z[None], batch)
            return slope[0], value[0]

        def leapfrog_step(*state: Tensor) -> Leaf:
            return Leaf(*step(*state, *rows))

        return Density(value_and_gradient, leapfrog_step)


def _stack_chains(chains: list[State]) -> State:
    return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}
