"""A Pyro model bound to its arguments and its partitioned plate, and runs of it with values for the latents.

This is all that is available before a model's sites are known. `build` runs it, finds its sites (`Layout`) and makes
the `Problem`, which has a bound model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.conventions.resources import tick
from pyro_fed.density.layout import Layout, Site
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.handlers import Execution, FillLatents, Source, run_model
from pyro_fed.density.running.torch_modes import InDouble, Noticed
from pyro_fed.errors import ModelError


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A model with its arguments.

    Attributes:
        model: the ordinary Pyro model.
        arguments: its arguments, pooled, with the row-sharded leaves marked.
        plate: name of the partitioned plate.
        num_rows: rows of the arguments, or of the model's own data.
        dtype: floating dtype of the unconstrained vector.
        constants: values of `pyro.param` statements and of `pf.shared`, each as the first run finds it.
        in_double: whether the model's computations in float32 are made in float64.
        device: where its arguments have been moved to; None stands for the CPU.
        noticed: facts on the functions of torch that it calls, recorded by its runs.
        walls: names of sites whose density is zero beyond the constraints of their parameters, see `running.walls`.
        without_curvature: what is known of rows whose second derivatives are finite at no point.
    """

    model: Callable[..., Any] = field(repr=False)  # of a `PyroModule` it would draw, and of the arguments show rows
    arguments: Arguments = field(repr=False)
    plate: str
    num_rows: int
    dtype: torch.dtype
    constants: dict[str, Any] = field(default_factory=dict, repr=False)
    in_double: bool = False
    device: torch.device | None = None
    noticed: Noticed = field(default_factory=Noticed, repr=False)
    walls: set[str] = field(default_factory=set)
    without_curvature: list[ModelError] = field(default_factory=list, repr=False)

    def on(self, device: torch.device) -> BoundModel:
        """This model with its arguments on a device, where it is run."""
        constants = pytree.tree_map_only(Tensor, lambda value: value.to(device), self.constants)
        return replace(self, arguments=self.arguments.on(device), constants=constants, device=device)

    def doubled(self) -> BoundModel:
        """This model with these data, computed in float64; rows are converted where they are run on, few or all."""
        constants = {name: pytree.tree_map(_in_double, value) for name, value in self.constants.items()}
        return replace(
            self,
            arguments=self.arguments.to(torch.float64, rows=False),
            dtype=torch.float64,
            constants=constants,
            in_double=True,
        )

    @property
    def split_plates(self) -> dict[str, int]:
        """Sizes of the plates that are split: the partitioned one, or several that are split together."""
        return self.arguments.declared or {self.plate: self.num_rows}

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Row tensors: the sharded arguments, or the row numbers if the model indexes its own data."""
        return self.arguments.rows or (torch.arange(self.num_rows, device=self.device),)

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows, as the model takes them at once: those of nested plates in their original order."""
        return self.arguments.all_rows or self.rows

    def execute(
        self,
        source: Source,
        rows: tuple[Tensor, ...],
        *,
        densities: bool = False,
        validate: bool = False,
        placeholder: float = 0.0,
        discrete: Mapping[str, Tensor] | None = None,
        enumerate_at: int | None = None,
    ) -> Execution:
        """Run the model on some rows.

        Args:
            source: gives the latents their unconstrained values.
            rows: row tensors, each (m, ...), m >= 1; surplus ones are ignored.
            densities: compute the sites' log densities.
            validate: run with Pyro's validation on.
            placeholder: value of imputed entries (`obs_mask`).
            discrete: values of discrete latents; the others take their first one.
            enumerate_at: the dimension from which on the others take all of their values at once instead.
        """
        tick()
        sharded = bool(self.arguments.rows)
        rows = rows[: len(self.arguments.rows) or 1]
        if self.in_double:
            rows = pytree.tree_map(_in_double, rows)
        args, kwargs = self.arguments.rebuild(rows if sharded else ())
        indices = torch.arange(len(rows[0]), device=rows[0].device) if sharded else rows[0]
        nested = self.arguments.nested_plates
        filler = FillLatents(
            source, self.plate, self.constants, placeholder, discrete, enumerate_at is not None, nested
        )
        with InDouble() if self.in_double else nullcontext():
            execution = run_model(
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
                incomplete=self.arguments.incomplete,
                noticed=self.noticed,
                walls=self.walls,
                device=self.device,
            )
        self.noticed.looked |= densities and not validate
        return execution


def _in_double(leaf: Any) -> Any:
    return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


class RowDensities(Protocol):
    """The part of a `Problem` that checks, starts and quadrature need, by which it is made."""

    @property
    def bound(self) -> BoundModel:
        """The model and its arguments."""

    @property
    def layout(self) -> Layout:
        """The model's sites, latent and observed."""

    @property
    def sites(self) -> dict[str, Site]:
        """Latent sites of the flat vector, by name, in its order."""

    @property
    def dim(self) -> int:
        """D, the length of the flat vector."""

    @property
    def local_dim(self) -> int:
        """Latents of one row that are not in the flat vector."""

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Row tensors, each (N, ...)."""

    @property
    def looped(self) -> bool:
        """Whether `vmap` is a loop over ordinary runs of the model."""

    @property
    def num_rows(self) -> int:
        """Rows over all clients."""

    @property
    def widest(self) -> int:
        """Rows of the partitioned plate, or of the largest plate nested in it."""

    def doubled(self) -> RowDensities:
        """These densities, computed in float64."""

    def vmap(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`torch.func.vmap`, or its replacement for this model."""

    def terms_of(self, execution: Execution, rows: tuple[Tensor, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Log density of a run site by site: outside the plate (), inside it each row's, (m,)."""

    def log_terms(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """`terms_of` a run at z (D,) with the rows' latents `local` (m, local_dim)."""

    def log_parts(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Log prior () and each row's log-likelihood (m,)."""

    def conditional_parts(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`log_parts` with values of the rows' own latents, which are then not integrated out."""

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,) of the values that `source` gives to each latent site."""
