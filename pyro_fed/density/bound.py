"""A Pyro model bound to its arguments and its partitioned plate, and runs of it with values for the latents.

This is all that is available before a model's sites are known. `build` runs it, finds its sites (`Layout`) and makes
the `Problem`, which has a bound model. A run at a point also shows, by derivatives there, the latents that a quantity
of the model depends on.
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
    # values of `pyro.param` statements and of `pf.shared`, each as the first run finds it
    constants: dict[str, Any] = field(default_factory=dict, repr=False)
    in_double: bool = False  # whether the model's computations in float32 are made in float64
    device: torch.device | None = None  # where its arguments have been moved to; None stands for the CPU
    # facts on the functions of torch that it calls, recorded by its runs
    noticed: Noticed = field(default_factory=Noticed, repr=False)
    # names of sites whose density is zero beyond the constraints of their parameters, see `running.site_values`
    walls: set[str] = field(default_factory=set)
    # what is known of rows whose second derivatives are finite at no point
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
        """Run the model on some rows; surplus row tensors are ignored.

        `densities` computes the sites' log densities, `validate` has Pyro's validation on, `placeholder` is the value
        of imputed entries (`obs_mask`). Discrete latents have the values in `discrete`; the others take their first
        one, or all at once in dimensions from `enumerate_at` on.
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
    """The part of a `Problem` that checks, starts and quadrature need, by which it is made; see there for each."""

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
    """Derivatives of a value's sum in its run's latents, by name; zero ones are included, unused latents are not."""
    if not value.requires_grad:
        return {}
    with torch.enable_grad():
        found = torch.autograd.grad(value.sum(), list(places.values()), allow_unused=True, retain_graph=True)
    return {name: part for name, part in zip(places, found, strict=True) if part is not None}
