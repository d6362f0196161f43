"""Checks of settings, with one form of message."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.errors import SettingError, shown


def is_number(value: Any) -> bool:
    """Whether a value is a finite real number: not a flag, text, array or tensor."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number: not a flag, and not a float that happens to be whole."""
    return isinstance(value, Integral) and not isinstance(value, bool | np.bool_)


def check_positive(owner: Any, *names: str, allow_none: bool = False) -> None:
    """Check settings that must be finite numbers greater than zero; SettingError names the setting and its value."""
    for name in names:
        value = getattr(owner, name)
        if value is None and allow_none:
            continue
        if not is_number(value):
            raise SettingError(f"{type(owner).__name__}: {name} must be a finite number, received {shown(value)}")
        if not value > 0:
            raise SettingError(f"{type(owner).__name__}: {name} must be positive, received {value}")


def check_at_least(owner: Any, least: int, *names: str, allow_none: bool = False) -> None:
    """Check settings that must be whole numbers of at least `least`; SettingError names the setting and its value."""
    for name in names:
        value = getattr(owner, name)
        if value is None and allow_none:
            continue
        if not is_whole(value) or value < least:
            raise SettingError(
                f"{type(owner).__name__}: {name} must be a whole number of at least {least}, received {shown(value)}"
            )


def check_between(owner: Any, name: str, low: float, high: float, ends: str = "(]") -> None:
    """Check a setting that must be a number in an interval; `ends` "(]", "[)" or "[]" belong to it."""
    value = getattr(owner, name)
    inside = is_number(value) and (
        low < value < high or (value == low and ends[0] == "[") or (value == high and ends[1] == "]")
    )
    if not inside:
        interval = f"{ends[0]}{low}, {high}{ends[1]}"
        raise SettingError(f"{type(owner).__name__}: {name} must lie in {interval}, received {shown(value)}")


def check_probabilities(owner: Any, name: str, zeros: bool = False) -> None:
    """Check a setting that must be probabilities that sum to one, some of which may be zero if `zeros`."""
    values = getattr(owner, name)
    numbers = len(values) > 0 and all(is_number(one) and (one > 0 or (zeros and one == 0)) for one in values)
    if not numbers or abs(math.fsum(values) - 1) > SAME_SHARE:  # NumPy draws by these
        total = f", whose sum is {math.fsum(values):g}" if numbers else ""
        sign = "at least 0" if zeros else "positive"
        raise SettingError(
            f"{type(owner).__name__}: {name} must be {sign} and sum to one, received {shown(values)}{total}"
        )


def check_choice(owner: Any, name: str, choices: tuple[str, ...]) -> None:
    """Check a setting that must be one of some words; SettingError names the setting, its value and the choices."""
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"{type(owner).__name__}: {name} must be one of {list(choices)}, received {shown(value)}")


def check_betas(owner: Any) -> None:
    """Check Adam's `betas`, two numbers in [0, 1); SettingError names the setting and its value."""
    betas = owner.betas
    two = isinstance(betas, tuple | list) and len(betas) == 2 and all(is_number(beta) for beta in betas)
    if not two or not all(0 <= beta < 1 for beta in betas):
        raise SettingError(f"{type(owner).__name__}: betas must be two numbers in [0, 1), received {shown(betas)}")
