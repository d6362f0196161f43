"""A Pyro model bound to its arguments and its partitioned plate: its sites, and runs of it with latents filled in.

The latents outside the plate are one flat, unconstrained vector z (D,). Latent sites inside it ("local") have a vector
for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.layout import Layout, Site
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.handlers import Execution, FillLatents, Source, run_model
from pyro_fed.density.running.torch_modes import Writable
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.errors import DataError


@dataclass(eq=False)
class BoundModel:
    """A model bound to its arguments; `Problem` adds its densities.

    Attributes:
        model: the ordinary Pyro model.
        arguments: its arguments, pooled, with the row-sharded leaves marked.
        plate: name of the partitioned plate.
        num_rows: rows in the pooled data.
        dtype: floating dtype of the unconstrained vector.
        quadrature: how latent sites inside the plate are integrated out.
        constants: values of `pyro.param` statements.
        layout: the model's sites.
        writes: whether the model writes into tensors that it has made, see `torch_modes.Writable`.
    """

    model: Callable[..., Any]
    arguments: Arguments
    plate: str
    num_rows: int
    dtype: torch.dtype
    quadrature: Quadrature = field(default_factory=Quadrature)
    constants: dict[str, Tensor] = field(default_factory=dict)
    layout: Layout = field(init=False)
    writes: bool = field(init=False, default=False)

    # -- shape of the vector ---------------------------------------------------------------------------
    @property
    def sites(self) -> dict[str, Site]:
        """Latent sites of the flat vector, by name, in its order."""
        return self.layout.latents

    @property
    def dim(self) -> int:
        """D, the length of the flat unconstrained vector."""
        return sum(site.size for site in self.sites.values())

    @property
    def local_dim(self) -> int:
        """Latents of one row that are integrated out of its likelihood."""
        return sum(site.row_size for site in self.layout.local.values())

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Row tensors: the sharded arguments, or the row numbers where the model indexes its own data."""
        return self.arguments.rows or (torch.arange(self.num_rows),)

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows, as the model takes them at once: those of nested plates in their original order."""
        return self.arguments.all_rows or self.rows

    @property
    def widest(self) -> int:
        """Rows of the partitioned plate, or of the largest plate nested in it."""
        return max(self.num_rows, *(len(part) for part in self.arguments.members(self.arguments.all_rows).values()), 0)

    @property
    def num_nodes(self) -> int:
        """Nodes of the quadrature: how often a row's density is computed in one log-likelihood."""
        return self.quadrature.num_nodes(self.local_dim) if self.local_dim else 1

    @property
    def evaluations(self) -> int:
        """Densities of rows computed in one log-likelihood of all data."""
        return self.widest * self.num_nodes

    @property
    def fewest_rows(self) -> tuple[Tensor, ...]:
        """Rows on which a run of the model meets every site of the flat vector."""
        return tuple(leaf[:1] for leaf in self.rows)

    @property
    def reported(self) -> dict[str, Site]:
        """Deterministic sites whose values the flat vector determines."""
        hidden = self.layout.depends_on_local | self.layout.depends_on_discrete
        return {name: site for name, site in self.layout.reported.items() if name not in hidden}

    # -- running the model -------------------------------------------------------------------------------
    def execute(
        self,
        source: Source,
        rows: tuple[Tensor, ...],
        *,
        densities: bool = False,
        validate: bool = False,
        placeholder: float = 0.0,
        discrete: Mapping[str, Tensor] | None = None,
    ) -> Execution:
        """Run the model on some rows, with latents from `source`; compute the sites' `densities` if asked.

        With densities, discrete latents take all of their values at once, but for those that `discrete` gives.
        """
        enumerate_at = self.layout.first_enum_dim if densities else None
        sharded = bool(self.arguments.rows)
        rows = rows[: len(self.arguments.rows) or 1]  # what comes after belongs to `JointProblem`
        args, kwargs = self.arguments.rebuild(rows if sharded else ())
        indices = torch.arange(len(rows[0]), device=rows[0].device) if sharded else rows[0]
        nested = self.arguments.nested_plates
        filler = FillLatents(
            source, self.plate, self.constants, placeholder, discrete, enumerate_at is not None, nested
        )
        return run_model(
            self.model,
            args,
            kwargs,
            filler,
            indices=indices,
            dtype=self.dtype,
            densities=densities,
            validate=validate,
            first_enum_dim=enumerate_at,
            members=self.arguments.members(rows),
        )

    def execute_at(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any) -> Execution:
        """The same with latents from the flat vector z (D,) and, of these rows, `local` (m, local_dim)."""
        with self._written((z, *rows)):
            return self.execute(self.from_vector(z, rows, local), rows, **options)

    def _written(self, mapped: Iterable[Any]) -> AbstractContextManager[Any]:
        """What the model needs to be run under `vmap` on tensors that are mapped."""
        return Writable(mapped) if self.writes else nullcontext()

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...] | None = None, local: Tensor | None = None) -> Source:
        """The latents' values: z (D,), and of these rows (all by default) `local` (m, local_dim), zero by default."""
        count = self.num_rows if rows is None else len(rows[0])
        block = z.new_zeros(count, self.local_dim) if local is None else local

        def source(msg: Message, _transform: Any) -> Tensor:
            if msg["name"] in self.layout.local:
                return self.layout.local[msg["name"]].of_rows(block)
            site = self.sites[msg["name"]]
            return z[site.start : site.start + site.size].reshape(site.unconstrained_shape)

        return source

    def unconstrain(self, values: Mapping[str, Tensor]) -> Tensor:
        """The flat vector (D,) of constrained values, one a latent site.

        Raises:
            DataError: a site that is missing.
        """
        missing = [name for name in self.sites if name not in values]
        if missing:
            raise DataError(f"no value for latent sites {missing}; the model has {list(self.sites)}")

        def source(msg: Message, transform: Any) -> Tensor:
            value = torch.as_tensor(values[msg["name"]], dtype=self.dtype)
            return transform.inv(value.reshape(msg["fn"].shape()))

        with self._written(values.values()):
            return self.collect(source)

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,) of what `source` says of each latent site."""
        parts: dict[str, Tensor] = {}

        def recording(msg: Message, transform: Any) -> Tensor:
            if msg["name"] not in self.sites:
                return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=self.dtype)
            z = source(msg, transform).detach()
            parts[msg["name"]] = z.reshape(-1)
            return z

        self.execute(recording, self.fewest_rows)
        return torch.cat([parts[name] for name in self.sites])
