"""The device that a federation's clients compute on: the one that the user names, or the one of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.errors import DataError, SettingError


def device_of(named: torch.device | str | None, given: Any) -> torch.device:
    """The device of clients' steps: the user's, or that of the tensors among the model's arguments.

    Raises:
        SettingError: torch does not know the device, or has none here.
        DataError: no device is named, and the data lie on several.
    """
    if named is not None:
        return _usable_device(named)
    found = {leaf.device for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor)}
    away = sorted((device for device in found if device.type != "cpu"), key=str)
    if len(away) > 1:
        raise DataError(f"the data lie on several devices, {[str(one) for one in away]}: say device=")
    return away[0] if away else torch.device("cpu")


def _usable_device(named: torch.device | str) -> torch.device:
    try:
        one = torch.zeros(1, device=named)
        read_back(one)
        return one.device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise SettingError(
            f"device={named!r}: torch has no such device here ({str(error).splitlines()[0]}); "
            "leave it out, or take 'cpu'"
        ) from error


def read_back(value: Tensor) -> Tensor:
    """A tensor's numbers on the CPU; NotImplementedError if the device, as torch's "meta", has shapes only."""
    return value.cpu()
