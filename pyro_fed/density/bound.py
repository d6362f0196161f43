"""A Pyro model bound to its arguments and its partitioned plate, and runs of it with values for the latents.

A bound model exists before its sites are known. `build` runs it, lists its sites (`Layout`) and makes the `Problem`,
which contains the bound model. Derivatives at the point of a run show which latents a quantity of the model depends on.
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
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.errors import ModelError


@dataclass(frozen=True, eq=False)
class BoundModel:
    """A model with its arguments."""

    # the ordinary Pyro model; not shown, since a `PyroModule` would draw, and arguments would show rows
    model: Callable[..., Any] = field(repr=False)
    arguments: Arguments = field(repr=False)  # its arguments, pooled, with the row-sharded leaves marked
    plate: str  # name of the partitioned plate
    num_rows: int  # rows of the arguments, or of the model's own data
    dtype: torch.dtype  # floating dtype of the unconstrained vector
    # values of `pyro.param` statements and of `pf.shared`, read in the first run
    constants: dict[str, Any] = field(default_factory=dict, repr=False)
    in_double: bool = False  # whether float64 replaces float32 in the model's computations
    device: torch.device | None = None  # device of the arguments; None stands for the CPU
    # the torch functions that its runs have called
    noticed: Noticed = field(default_factory=Noticed, repr=False)
    # names of sites whose density is zero beyond the constraints of their parameters, see `running.site_values`
    walls: set[str] = field(default_factory=set)
    # errors on rows whose second derivatives are finite by forward over reverse mode alone, see `ops.batched`
    forward_mode: list[ModelError] = field(default_factory=list, repr=False)
    # errors on rows whose second derivatives are finite at no point
    without_curvature: list[ModelError] = field(default_factory=list, repr=False)
    # errors on rows with a density but without derivatives on a part of the space
    partly_undefined: list[ModelError] = field(default_factory=list, repr=False)

    def on(self, device: torch.device) -> BoundModel:
        """This model with its arguments on a device."""
        constants = pytree.tree_map_only(Tensor, lambda value: value.to(device), self.constants)
        return replace(self, arguments=self.arguments.on(device), constants=constants, device=device)

    def doubled(self) -> BoundModel:
        """This model computed in float64; each run converts the rows that it receives."""
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
        """All rows in one call of the model: those of nested plates in their original order."""
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
        """Run the model on some rows; surplus row tensors are ignored.

        `densities` computes the sites' log densities, `validate` enables Pyro's validation, `placeholder` is the value
        of imputed entries (`obs_mask`). Discrete latents take the values in `discrete`. Other discrete latents take
        their first value, or all values in the dimensions from `enumerate_at` to the left.
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
    """The part of a `Problem` that checks, starts and quadrature use; `Problem` documents its members."""

    @property
    def bound(self) -> BoundModel: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def sites(self) -> dict[str, Site]: ...

    @property
    def dim(self) -> int: ...

    @property
    def local_dim(self) -> int: ...

    @property
    def rows(self) -> tuple[Tensor, ...]: ...

    @property
    def looped(self) -> bool: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def widest(self) -> int: ...

    @property
    def forward_mode(self) -> bool: ...

    def doubled(self) -> RowDensities: ...

    def vmap(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]: ...

    def terms_of(
        self, execution: Execution, rows: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]: ...

    def log_terms(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None, **options: Any
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]: ...

    def log_parts(self, z: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]: ...

    def conditional_parts(
        self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None
    ) -> tuple[Tensor, Tensor]: ...

    def collect(self, source: Source) -> Tensor: ...


def run_at_zero(bound: BoundModel) -> tuple[Execution, dict[str, Tensor]]:
    """A differentiable run on all rows at zero, and the latents' unconstrained values, in the graph, by name."""
    return _run(bound, lambda shape: torch.zeros(shape, dtype=bound.dtype))


def run_at_random(bound: BoundModel, generator: torch.Generator) -> tuple[Execution, dict[str, Tensor]]:
    """A differentiable run at a standard normal point, where no derivative is zero by chance, with log densities."""
    return _run(bound, lambda shape: torch.randn(shape, dtype=bound.dtype, generator=generator), densities=True)


def _run(
    bound: BoundModel, point: Callable[[Any], Tensor], densities: bool = False
) -> tuple[Execution, dict[str, Tensor]]:
    places: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        places[msg["name"]] = point(shape).requires_grad_()
        return places[msg["name"]]

    with torch.enable_grad():
        return bound.execute(source, bound.all_rows, densities=densities), places


def derivatives(value: Tensor, places: dict[str, Tensor]) -> dict[str, Tensor]:
    """Derivatives of a value's sum with respect to the latents of its run, by name; without latents that it ignores."""
    if not value.requires_grad:
        return {}
    with torch.enable_grad():
        gradients = torch.autograd.grad(value.sum(), list(places.values()), allow_unused=True, retain_graph=True)
    return {name: gradient for name, gradient in zip(places, gradients, strict=True) if gradient is not None}
