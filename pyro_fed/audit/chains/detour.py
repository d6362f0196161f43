"""Trajectories through a funnel, in non-centred coordinates: effects in units of their own scale, see `NonCentred`.

A transition in these coordinates has the same posterior as its stationary distribution, so that chains may alternate
between them and the model's own. The draws whiten both. If few rows stand for all in the model's coordinates, they do
so in the non-centred ones as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.audit.chains.hmc import Chains
from pyro_fed.audit.few_rows import near_draws
from pyro_fed.audit.target import Target
from pyro_fed.density.forms import NonCentred, noncentred_form
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import MOST_DRAWS


@dataclass
class Detour:
    """The non-centred coordinates of a model, and chains in them.

    Args:
        form: the model in its non-centred form.
        target: the posterior in non-centred coordinates, whitened by the draws.
        generator: source of randomness.
        chains: the chains of the last transition; None before the first.
    """

    form: NonCentred
    target: Target
    generator: torch.Generator
    chains: Chains | None = None

    @classmethod
    def of(cls, target: Target, draws: Tensor, generator: torch.Generator) -> Detour | None:
        """The detour for draws (S, D) in the model's own coordinates.

        None if no effect has a latent scale, or its coordinates are not finite.
        """
        problem = target.problem
        form = None if problem.looped or isinstance(problem, NonCentred) else noncentred_form(problem)
        if form is None:
            return None
        apart = form.to_noncentred(draws[evenly(len(draws), MOST_DRAWS)].to(form.dtype)).double()
        if not bool(apart.var(0).isfinite().all()):
            return None
        there = Target.of(form, apart, target.temperature)
        if target.few is None:
            return cls(form, near_draws(there, apart), generator)

        def seen_as(white: Tensor) -> Tensor:
            return target.white(form.centred(there.model(white).to(form.dtype)))

        return cls(form, replace(there, few=replace(target.few, seen_as=seen_as)), generator)

    def white_noncentred(self, z: Tensor) -> Tensor:
        """Non-centred, whitened coordinates (S, D) of points z (S, D) in the model's own."""
        return self.target.white(self.form.to_noncentred(z.to(self.form.dtype)))

    def back(self, white: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of points in non-centred, whitened ones (S, D)."""
        return self.form.centred(self.target.model(white).to(self.form.dtype))

    def move(self, chains: Chains) -> None:
        """Move `chains`, in the model's own coordinates, by one trajectory of each in non-centred ones."""
        there = self.white_noncentred(chains.target.model(chains.place))
        if self.chains is None:
            self.chains = Chains.begin(self.target, there, self.generator)
            self.chains.settle()
        else:
            self.chains.put(there)
            self.chains.move()
        chains.put(chains.target.white(self.back(self.chains.place)))
