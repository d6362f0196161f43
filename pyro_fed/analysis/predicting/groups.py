"""Which of the fitted groups the new data belong to.

Latents inside the partitioned plate belong to its elements, the groups. An example is a hospital's own level a. New
patients of a fitted hospital have its level. Patients of a new hospital have a level drawn from the population
p(a | θ). The labels of the new rows say which is which, or the user does, by labels of the groups. Without labels:

- If the rows are in a plate of their own and look up their group by its number (`a[hospital_idx]`), and if there are
  as many groups as were fitted, they are the fitted groups in their order.
- If the groups have names (`Federation(..., coords={"hospital": names})`), and if there are as many as were fitted,
  they are taken for the fitted groups. This is a guess, and gives a warning.
- Otherwise all groups are new. This gives a warning if the rows look up their group by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.conventions.names import closest
from pyro_fed.errors import DataError, SettingError, listed, warn_user

#: Words that the user may pass as `groups`, in place of labels.
KNOWN, NEW = "known", "new"


@dataclass(frozen=True)
class Plate:
    """The partitioned plate in the new data.

    `looked_up` says whether the observations are in another plate, and look up their group by its number.
    """

    name: str
    size: int
    looked_up: bool


@dataclass(frozen=True)
class Groups:
    """The fitted group of each element of the plate.

    Attributes:
        plate: the plate in the new data.
        place: (size,), for each element the number of the fitted group, -1 for a new group.
        labels: (size,), labels of the elements; None if they are numbered only.
    """

    plate: Plate
    place: np.ndarray
    labels: list[Any] | None = None

    @property
    def is_fitted(self) -> np.ndarray:
        """Whether each element is a fitted group, (size,)."""
        return np.asarray(self.place >= 0)

    def of(self, values: xr.DataArray, axis: int) -> tuple[Tensor, Tensor]:
        """A latent's values (chain, draw, ...) with the plate at `axis` < 0, and the mask of fitted groups."""
        rest = [dim for dim in values.dims if dim not in ("chain", "draw")]
        ordered = values.transpose("chain", "draw", *rest).isel({self.plate.name: np.maximum(self.place, 0)})
        mask = torch.from_numpy(self.is_fitted).reshape(-1, *(1,) * (-1 - axis))
        return torch.as_tensor(np.asarray(ordered.values)), mask


def match(given: str | Sequence[Any] | None, plate: Plate, fitted: xr.Dataset) -> Groups:
    """The fitted groups of new data: "known", "new", labels (None: a new group), or None for the header's rules."""
    labels = fitted.coords[plate.name].values.tolist()
    if given is None:
        return _groups_by_size(plate, labels)
    if isinstance(given, str):
        if given not in (KNOWN, NEW):
            raise SettingError(
                f"groups must be {KNOWN!r}, {NEW!r}, or a label for each of the {plate.size} elements of plate "
                f"'{plate.name}', such as groups=[{labels[0]!r}], received {given!r}"
            )
        if given == NEW:
            return _new_groups(plate)
        if plate.size != len(labels):
            raise DataError(
                f"groups={KNOWN!r} takes the elements of plate '{plate.name}' for the fitted groups, in their order: "
                f"expected {len(labels)}, received {plate.size}. Pass a label for each element instead, such as "
                f"groups=[{labels[0]!r}, ...]; the fitted groups are {listed(labels)}"
            )
        return _all_fitted_groups(plate, labels)
    return _groups_by_label(list(given), plate, labels)


def _groups_by_label(given: list[Any], plate: Plate, labels: list[Any]) -> Groups:
    if len(given) != plate.size:
        raise DataError(
            f"groups has {len(given)} labels, but plate '{plate.name}' has {plate.size} elements in the new data: give "
            "one for each, None for a new group"
        )
    at = {label: i for i, label in enumerate(labels)}
    plain = [one.item() if isinstance(one, np.generic) else one for one in given]
    unknown = [one for one in plain if one is not None and one not in at]
    if unknown:
        raise DataError(
            f"groups names {listed(unknown)}, which plate '{plate.name}' did not have when the model was fitted: "
            f"{closest(str(unknown[0]), map(str, labels))} A new group is None"
        )
    place = np.array([-1 if one is None else at[one] for one in plain], dtype=np.int64)
    return Groups(plate, place, ["new" if one is None else one for one in plain])


def _groups_by_size(plate: Plate, labels: list[Any]) -> Groups:
    named = labels != list(range(len(labels)))
    same = plate.size == len(labels)
    if not plate.looked_up and not (named and same):
        return _new_groups(plate)
    if plate.looked_up and same:
        return _all_fitted_groups(plate, labels)
    if same:
        warn_user(
            f"the {plate.size} elements of plate '{plate.name}' in the new data are taken for the fitted ones, "
            f"{listed(labels)}, in this order, and predicted with their own effects: say groups={KNOWN!r} if that is "
            f"right, groups={NEW!r} if they are new groups"
        )
        return _all_fitted_groups(plate, labels)
    warn_user(
        f"plate '{plate.name}' has {plate.size} elements in the new data and had {len(labels)} when the model was "
        "fitted: they are taken for new elements, whose effects are drawn from the population. If some were fitted, "
        "pass "
        f"a label for each, groups=[{labels[0]!r}, None, ...] (None: a new one); otherwise say groups={NEW!r}"
    )
    return _new_groups(plate)


def _new_groups(plate: Plate) -> Groups:
    return Groups(plate, np.full(plate.size, -1))


def _all_fitted_groups(plate: Plate, labels: list[Any]) -> Groups:
    return Groups(plate, np.arange(plate.size), labels)
