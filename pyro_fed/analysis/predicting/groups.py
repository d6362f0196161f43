"""Which of the groups that a model was fitted on are those of new data.

Latents inside the partitioned plate belong to its elements, the groups: a hospital's own level. New patients of a
hospital that was fitted have its level; those of another hospital have one that the population says, p(a | θ). Labels
tell which is which. What counts as a label where none is given:

- rows in a plate of their own, which look their group up by its number (`a[hospital_idx]`): the number, if there are as
  many groups as were fitted;
- groups that have names (`Federation(..., coords={"hospital": names})`), if there are as many: taken for these, with a
  warning, since it is a guess;
- anything else has none: the groups are new, with a warning where they could be known ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.conventions.spelling import closest
from pyro_fed.errors import DataError, SettingError, listed, warn_user

#: What may be said of the groups of new data, besides their labels.
KNOWN, NEW = "known", "new"


@dataclass(frozen=True)
class Plate:
    """The partitioned plate as new data show it.

    Attributes:
        name: of the plate.
        size: elements that the new data have.
        looked_up: whether observations are in another plate and look their group up by its number.
    """

    name: str
    size: int
    looked_up: bool


@dataclass(frozen=True)
class Groups:
    """Which fitted group each element of the plate is.

    Attributes:
        plate: of the new data.
        place: (size,) numbers of the fitted groups, -1 for a new one.
        labels: what the elements are called, (size,); None where they are merely numbered.
    """

    plate: Plate
    place: np.ndarray
    labels: list[Any] | None = None

    @property
    def known(self) -> np.ndarray:
        """Which of them were fitted, (size,)."""
        return np.asarray(self.place >= 0)

    def of(self, values: xr.DataArray, axis: int) -> tuple[Tensor, Tensor]:
        """The known groups' values of a latent, and where they stand.

        Args:
            values: of the posterior, with the plate among its dimensions.
            axis: of one draw's value that runs over the plate, counted from the end.

        Returns:
            (chain, draw, ...) with anything in the places of new groups; and a mask (size, 1, ...) that broadcasts.
        """
        rest = [dim for dim in values.dims if dim not in ("chain", "draw")]
        ordered = values.transpose("chain", "draw", *rest).isel({self.plate.name: np.maximum(self.place, 0)})
        mask = torch.from_numpy(self.known).reshape(-1, *(1,) * (-1 - axis))
        return torch.as_tensor(np.asarray(ordered.values)), mask


def match(given: str | Sequence[Any] | None, plate: Plate, fitted: xr.Dataset) -> Groups:
    """The groups of new data among the fitted ones.

    Args:
        given: "known", "new", a label for each element (None for a new group), or None: what the module's header says.
        plate: of the new data.
        fitted: the posterior, in which the groups' latents have the plate as a dimension.

    Raises:
        DataError: another number of groups than labels, or than fitted ones; a label that was not fitted.
        SettingError: neither of the two words nor labels.
    """
    labels = fitted.coords[plate.name].values.tolist()
    if given is None:
        return _guessed(plate, labels)
    if isinstance(given, str):
        if given not in (KNOWN, NEW):
            raise SettingError(
                f"groups must be {KNOWN!r}, {NEW!r}, or a label for each of the {plate.size} elements of plate "
                f"'{plate.name}', such as groups=[{labels[0]!r}], received {given!r}"
            )
        if given == NEW:
            return _new(plate)
        if plate.size != len(labels):
            raise DataError(
                f"groups={KNOWN!r} takes the elements of plate '{plate.name}' for the fitted ones, in their order: "
                f"expected {len(labels)}, received {plate.size}. Say which they are by their labels, such as "
                f"groups=[{labels[0]!r}, ...]; the fitted ones are {listed(labels)}"
            )
        return _all(plate, labels)
    return _named(list(given), plate, labels)


def _named(given: list[Any], plate: Plate, labels: list[Any]) -> Groups:
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


def _guessed(plate: Plate, labels: list[Any]) -> Groups:
    named = labels != list(range(len(labels)))
    same = plate.size == len(labels)
    if not plate.looked_up and not (named and same):
        return _new(plate)
    if plate.looked_up and same:
        return _all(plate, labels)
    if same:
        warn_user(
            f"the {plate.size} elements of plate '{plate.name}' in the new data are taken for the fitted ones, "
            f"{listed(labels)}, in this order, and predicted with their own effects: say groups={KNOWN!r} if that is "
            f"right, groups={NEW!r} if they are others"
        )
        return _all(plate, labels)
    warn_user(
        f"plate '{plate.name}' has {plate.size} elements in the new data and had {len(labels)} when the model was "
        f"fitted: they are taken for new ones, whose effects are drawn from the population. Name those that were "
        f"fitted, groups=[{labels[0]!r}, None, ...] (None: a new one), or say groups={NEW!r}"
    )
    return _new(plate)


def _new(plate: Plate) -> Groups:
    return Groups(plate, np.full(plate.size, -1))


def _all(plate: Plate, labels: list[Any]) -> Groups:
    return Groups(plate, np.arange(plate.size), labels)
