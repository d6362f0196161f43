"""The same model with the latents inside the plate as part of the flat vector, one value a row of the pooled data.

    z = (θ, x_1 ... x_N),    log_prior(z) = log p(θ),    log_lik(z, row i) = log p(x_i | θ) + log p(y_i | θ, x_i)

This is the density that algorithms on pooled data may work on, and the form in which results hold local latents.
Rows carry their number, so that any of them, in any order, find their own latents.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.layout import Site
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import Source
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.ops.batched import vmap


@dataclass(frozen=True, eq=False)
class JointProblem(Problem):
    """A problem whose flat vector is (θ, all rows' latents); made by `JointProblem.of`.

    Attributes:
        numbers: (m,) its rows' numbers among all `num_rows` of the flat vector; None: they are all of them.
    """

    numbers: Tensor | None = None

    @classmethod
    def of(cls, problem: Problem, numbers: Tensor | None = None) -> JointProblem:
        """The joint form, with a compiler of its own, of a problem whose rows' own latents are integrated out.

        `numbers` (m,) are as in the attribute, for a problem that has some of the rows alone.
        """
        parts = {part.name: getattr(problem, part.name) for part in fields(Problem)}
        return cls(**parts | {"compiler": problem.compiler.of_form("joint"), "numbers": numbers})

    @property
    def sites(self) -> dict[str, Site]:
        """Latent sites outside the plate, then those inside it, each in its own shape over all rows."""
        sites = dict(self.layout.latents)
        start = sum(site.size for site in sites.values())
        for name, site in self.layout.local.items():
            site = site if self.numbers is None else site.over(self.num_rows)
            sites[name] = replace(site, start=start)
            start += site.size
        return sites

    @property
    def reported(self) -> dict[str, Site]:
        """All deterministic sites whose values the flat vector determines."""
        hidden = self.layout.depends_on_discrete
        return {name: site for name, site in self.layout.reported.items() if name not in hidden}

    @property
    def local_dim(self) -> int:
        """Zero, since no latents are integrated out."""
        return 0

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The row tensors, and last the rows' numbers."""
        rows = super().rows
        numbers = torch.arange(len(rows[0])) if self.numbers is None else self.numbers
        return (*rows, numbers.to(rows[0].device))

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows as the model takes them at once, and last their numbers."""
        return (*super().all_rows[: len(self.rows) - 1], self.rows[-1])

    @property
    def fewest_rows(self) -> tuple[Tensor, ...]:
        """All rows: each carries latents of the flat vector."""
        return self.rows

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,), for those inside the plate the values of these rows; `local` is not used."""
        sites, numbers = self.sites, rows[-1]

        def source(msg: Message, _transform: Any) -> Tensor:
            site = sites[msg["name"]]
            whole = z[site.start : site.start + site.size].reshape(site.unconstrained_shape)
            return whole if site.axis is None else whole.index_select(site.axis, numbers)

        return source

    def join(self, theta: Tensor, local: Tensor) -> Tensor:
        """Flat vectors (S, D + N d) from θ (S, D) and all rows' unconstrained latents (S, N, d)."""
        sites = self.layout.local.values()
        flat = vmap(lambda block: torch.cat([site.of_rows(block).flatten() for site in sites]))
        return torch.cat([theta, flat(local)], -1)
