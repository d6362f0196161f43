"""The numbers whose means and SDs are judged: every latent, on the unconstrained scale and on its site's own scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import COMPARED_DRAWS

#: Added to the name of a number on the unconstrained scale, if the site's own scale is another one.
UNCONSTRAINED = " (unconstrained)"


@dataclass(frozen=True)
class Quantities:
    """F numbers of a draw: the D of the flat vector, then the values of the sites whose own scale is another one.

    Args:
        problem: the model.
        own: names of the sites whose own scale is another one, in the model's order.
        varying: a mask over these sites' entries, one after the other, of those that vary. Constants, such as the zeros
            of a Cholesky factor of correlations, are left out: their SD is rounding.
        labels: names of the numbers (F,).
        along: the entry of the flat vector that moves each number (F,): for a site with as many entries there, the
            number's own entry; else the site's first.
    """

    problem: Problem
    own: tuple[str, ...]
    varying: Tensor
    labels: tuple[str, ...]
    along: Tensor

    @classmethod
    def of(cls, problem: Problem, z: Tensor) -> Quantities:
        """The numbers of a model, whose scales are compared at unconstrained draws z (S, D)."""
        some = z[evenly(len(z), COMPARED_DRAWS)].to(problem.dtype)
        values = problem.constrain(some, problem.fewest_rows)
        own: list[str] = []
        varying: list[Tensor] = []
        labels = [problem.name_of(number) for number in range(problem.dim)]
        along = list(range(problem.dim))
        for name, site in problem.sites.items():
            value, part = values[name].reshape(len(some), -1), slice(site.start, site.start + site.size)
            if value.shape[1] == site.size and torch.equal(value.to(some), some[:, part]):
                continue
            own.append(name)
            rounding = torch.finfo(value.dtype).eps ** 0.5 * value.abs().amax(0)
            varies = value.amax(0) - value.amin(0) > rounding
            varying.append(varies)
            size = value.shape[1]
            named = [problem.entry_of(site, i) for i in range(size)]
            labels[part] = [f"{label}{UNCONSTRAINED}" for label in labels[part]]
            moving = list(range(problem.dim)[part]) if size == site.size else [site.start] * size
            labels += [label for label, kept in zip(named, varies, strict=True) if kept]
            along += [entry for entry, kept in zip(moving, varies, strict=True) if kept]
        kept = torch.cat(varying) if varying else torch.empty(0, dtype=torch.bool)
        return cls(problem, tuple(own), kept, tuple(labels), torch.tensor(along))

    def __call__(self, z: Tensor) -> Tensor:
        """The numbers (S, F) of draws z (S, D), float64."""
        if not self.own:
            return z.double()
        rows = self.problem.fewest_rows
        pieces = in_chunks(z.to(self.problem.dtype), len(rows[0]) * self.problem.num_nodes)
        found = [self.problem.constrain(piece, rows) for piece in pieces]
        own = torch.cat([torch.cat([part[name] for part in found]).reshape(len(z), -1) for name in self.own], 1)
        return torch.cat([z.double(), own[:, self.varying].double()], 1)
