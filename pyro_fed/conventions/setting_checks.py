"""Checks of settings, with one form of message."""

from __future__ import annotations

from typing import Any

from pyro_fed.errors import SettingError


def check_positive(owner: Any, *names: str, allow_none: bool = False) -> None:
    """Settings that must be greater than zero.

    Raises:
        SettingError: names the setting and its value.
    """
    for name in names:
        value = getattr(owner, name)
        if value is None and allow_none:
            continue
        if not value > 0:
            raise SettingError(f"{type(owner).__name__}: {name} must be positive, received {value}")


def check_at_least(owner: Any, least: int, *names: str, allow_none: bool = False) -> None:
    """Settings that must be whole numbers of at least `least`.

    Raises:
        SettingError: names the setting and its value.
    """
    for name in names:
        value = getattr(owner, name)
        if value is None and allow_none:
            continue
        if not isinstance(value, int) or value < least:
            raise SettingError(
                f"{type(owner).__name__}: {name} must be a whole number of at least {least}, received {value}"
            )


def check_between(owner: Any, name: str, low: float, high: float, ends: str = "(]") -> None:
    """A setting that must lie in an interval.

    Args:
        owner: whose setting it is.
        name: the setting.
        low: lower end.
        high: upper end.
        ends: "(]", "[)" or "[]": which ends belong to the interval.

    Raises:
        SettingError: names the setting and its value.
    """
    value = getattr(owner, name)
    inside = low < value < high or (value == low and ends[0] == "[") or (value == high and ends[1] == "]")
    if not inside:
        interval = f"{ends[0]}{low}, {high}{ends[1]}"
        raise SettingError(f"{type(owner).__name__}: {name} must lie in {interval}, received {value}")


def check_choice(owner: Any, name: str, choices: tuple[str, ...]) -> None:
    """A setting that must be one of some words.

    Raises:
        SettingError: names the setting, its value and the choices.
    """
    value = getattr(owner, name)
    if value not in choices:
        raise SettingError(f"{type(owner).__name__}: {name} must be one of {list(choices)}, received {value!r}")


def check_betas(owner: Any) -> None:
    """Adam's `betas`: two numbers in [0, 1).

    Raises:
        SettingError: names the setting and its value.
    """
    if len(owner.betas) != 2 or not all(0 <= beta < 1 for beta in owner.betas):
        raise SettingError(f"{type(owner).__name__}: betas must be two numbers in [0, 1), received {owner.betas}")
