"""Trajectories through a funnel: in coordinates in which effects are in units of their own scale, see `NonCentred`.

A transition there leaves the same posterior as it is, so that chains may alternate between the two coordinates. The
draws whiten these coordinates as they whiten the model's own. If few rows stand for all in the model's coordinates,
they do so there as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.audit.chains.hmc import Chains
from pyro_fed.audit.target import Target
from pyro_fed.density.noncentred import NonCentred, noncentred
from pyro_fed.ops.entries import evenly

#: Draws that whiten the other coordinates, at most.
WHITENED = 1000


@dataclass
class Detour:
    """The other coordinates, and chains there.

    Args:
        form: the model with effects in units of their scale.
        target: the posterior in its coordinates, whitened by the draws.
        generator: source of randomness.
        chains: those of the last transition; None before the first.
    """

    form: NonCentred
    target: Target
    generator: torch.Generator
    chains: Chains | None = None

    @classmethod
    def of(cls, target: Target, draws: Tensor, generator: torch.Generator) -> Detour | None:
        """That of a result; None where no effect has a latent scale, or its coordinates are no numbers.

        Args:
            target: in the model's own coordinates.
            draws: (S, D), the model's own.
            generator: source of randomness.
        """
        problem = target.problem
        form = None if problem.looped or isinstance(problem, NonCentred) else noncentred(problem)
        if form is None:
            return None
        apart = form.apart(draws[evenly(len(draws), WHITENED)].to(form.dtype)).double()
        if not bool(apart.var(0).isfinite().all()):
            return None
        there = Target.of(form, apart, target.temperature)
        if target.few is None:
            return cls(form, there, generator)

        def seen_as(white: Tensor) -> Tensor:
            return target.white(form.centred(there.model(white).to(form.dtype)))

        return cls(form, replace(there, few=replace(target.few, seen_as=seen_as)), generator)

    def there(self, z: Tensor) -> Tensor:
        """The other coordinates, whitened (S, D), of points (S, D) in the model's own."""
        return self.target.white(self.form.apart(z.to(self.form.dtype)))

    def back(self, white: Tensor) -> Tensor:
        """The other way round."""
        return self.form.centred(self.target.model(white).to(self.form.dtype))

    def move(self, chains: Chains) -> None:
        """One trajectory of every chain in the other coordinates.

        Args:
            chains: in the model's own; they are put where it ends.
        """
        there = self.there(chains.target.model(chains.place))
        if self.chains is None:
            self.chains = Chains.begin(self.target, there, self.generator)
            self.chains.settle()
        else:
            self.chains.put(there)
            self.chains.move()
        chains.put(chains.target.white(self.back(self.chains.place)))
