"""The sites of a model: their names, the shapes of their values, and their places in the flat vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pyro_fed.errors import ModelError


@dataclass(frozen=True)
class Site:
    """A site of the model.

    Attributes:
        name: the site's name.
        shape: shape of its value.
        dims: a name for each dimension of the value: the plate's name or `NAME_dim_i`.
        unconstrained_shape: shape of its unconstrained value (latent sites).
        start: first position in the flat vector (latent sites), or in the flat vector of one row (local sites).
        axis: the axis of its unconstrained value that runs over the partitioned plate (local sites).
        event_dim: number of last dimensions that belong to one value.
    """

    name: str
    shape: tuple[int, ...]
    dims: tuple[str, ...]
    unconstrained_shape: tuple[int, ...] = ()
    start: int = 0
    axis: int | None = None
    event_dim: int = 0

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the site's plates."""
        return self.shape[: len(self.shape) - self.event_dim]

    @property
    def size(self) -> int:
        """Length in the flat vector."""
        return int(torch.Size(self.unconstrained_shape).numel())

    @property
    def row_size(self) -> int:
        """Length in the flat vector of one row (local sites)."""
        return self.size // self.unconstrained_shape[self.axis or 0]

    def over(self, num_rows: int) -> Site:
        """This site over another number of rows (local sites)."""
        axis = self.axis or 0

        def resized(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (*shape[:axis], num_rows, *shape[axis + 1 :])

        return replace(self, shape=resized(self.shape), unconstrained_shape=resized(self.unconstrained_shape))

    def along(self, plate: str, size: int) -> Site:
        """This site with another size of a plate (sites without an unconstrained value)."""
        sizes = zip(self.dims, self.shape, strict=True)
        return replace(self, shape=tuple(size if dim == plate else length for dim, length in sizes))

    def of_rows(self, block: Tensor) -> Tensor:
        """Unconstrained values (..., m, ...) of m rows, on `axis`, from all local sites' values (m, d)."""
        axis = self.axis or 0
        rest = self.unconstrained_shape[:axis] + self.unconstrained_shape[axis + 1 :]
        part = block[:, self.start : self.start + self.row_size]
        return part.reshape(len(block), *rest).movedim(0, axis)

    def by_rows(self, value: Tensor) -> Tensor:
        """An unconstrained value (..., m, ...), rows on `axis`, as one vector for each row, (m, row_size)."""
        return value.movedim(self.axis or 0, 0).reshape(-1, self.row_size)


@dataclass(frozen=True)
class Layout:
    """The sites of a model."""

    latents: dict[str, Site]  # latent sites outside the partitioned plate, in the order of the flat vector
    local: dict[str, Site]  # latent sites inside it, in the order of a row's own flat vector
    reported: dict[str, Site]  # deterministic sites
    observed: dict[str, Site]  # observed sites inside the partitioned plate (`pyro.factor` included)
    factors: frozenset[str]  # names of the `observed` sites that are `pyro.factor` statements
    improper: frozenset[str]  # latent sites with an improper prior
    plate: str  # name of the partitioned plate
    # names of the `reported` sites whose values depend on latents inside the plate
    depends_on_local: frozenset[str] = frozenset()
    # names of the `reported` sites whose values depend on discrete latents
    depends_on_discrete: frozenset[str] = frozenset()
    discrete: dict[str, Site] = field(default_factory=dict)  # discrete latents inside it, which are summed out
    nesting: int = 1  # number of dimensions of the model's plates

    def has_length(self, num_rows: int) -> bool:
        """Whether a site outside the partitioned plate has an axis as long as the number of its rows."""
        sites = (*self.reported.values(), *self.observed.values())
        return any(num_rows in site.shape for site in sites if self.plate not in site.dims)

    def over(self, num_rows: int) -> Layout:
        """These sites with another number of rows of the partitioned plate."""

        def resized(sites: dict[str, Site]) -> dict[str, Site]:
            return {name: site.along(self.plate, num_rows) for name, site in sites.items()}

        return replace(self, reported=resized(self.reported), observed=resized(self.observed))

    @property
    def first_enum_dim(self) -> int | None:
        """First dimension left of all plates, for the values of discrete latents; None if there are none."""
        return -1 - self.nesting if self.discrete else None

    def single_observed(self) -> str:
        """The only observed site, which is predicted; ModelError if there is none or more than one."""
        if self.local:
            raise ModelError(
                f"rows have latents of their own, sites {sorted(self.local)} inside plate '{self.plate}', so that the "
                "flat vector alone does not determine the distribution of an observation: use `pyro_fed.predict`, "
                "which draws them"
            )
        names = [name for name in self.observed if name not in self.factors]
        if len(names) != 1:
            raise ModelError(f"predictions need one observed site inside plate '{self.plate}', found {names}")
        return names[0]


def name_dims(dims: Sequence[str], user_names: Sequence[str]) -> list[str]:
    """The default dims of a site with the user's names in place of the unnamed ones, from the left."""
    names = iter(user_names)
    return [next(names, dim) if "_dim_" in dim else dim for dim in dims]
