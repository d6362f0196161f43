"""Pyro guides that FedEP can federate in natural parameters: automatic Gaussian guides, by the family that they span.

`AutoDiagonalNormal` and `AutoNormal` are diagonal Gaussians on the unconstrained scale, `AutoMultivariateNormal` is a
full one. No other automatic guide is an exponential family with sites to multiply and divide, not even
`AutoLowRankMultivariateNormal`: a product of low-rank factors has full rank. `SFVI` fits these directly.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

from pyro.infer import autoguide

from pyro_fed.errors import SettingError

#: The structure of an automatic guide, by the name of its class.
FAMILIES: dict[str, Literal["diag", "full"]] = {
    "AutoDiagonalNormal": "diag",
    "AutoNormal": "diag",
    "AutoMultivariateNormal": "full",
}
#: The algorithm that fits another automatic guide, by the guide's name; by default `SFVI(guide=...)`.
FITTED_BY = {
    "AutoLaplaceApproximation": "FedLaplace(), which finds the mode and its Hessian",
    "AutoDelta": "SFVI(guide=AutoDelta), whose answer is a point, the MAP estimate; FedLaplace() has its SDs as well",
}


def is_hand_written(guide: Any) -> bool:
    """Whether a guide is a function of the model's arguments, or a `PyroModule`, and not an automatic one."""
    kind = guide if inspect.isclass(guide) else type(guide)
    return callable(guide) and not issubclass(kind, autoguide.AutoGuide)


def guided_covariance(owner: Any, guide: Any, covariance: str) -> Literal["diag", "full"]:
    """The covariance of an automatic guide, in place of the setting if that is "auto"; `owner` is for messages.

    Raises:
        SettingError: the guide is hand-written, has no Gaussian family, or not that of the setting.
    """
    name = type(owner).__name__
    if is_hand_written(guide):
        raise SettingError(
            f"{name}: a hand-written guide is federated by FedEP and PVI alone; use FedEP(guide=...), or an automatic "
            "guide such as AutoMultivariateNormal"
        )
    family = covariance_of(owner, guide)
    if covariance not in ("auto", family):
        raise SettingError(
            f"{name}: covariance={covariance!r} is not that of the guide, {family!r}: give one of the two"
        )
    return family


def covariance_of(owner: Any, guide: Any) -> Literal["diag", "full"]:
    """The Gaussian family of an automatic guide, given as class or instance.

    Raises:
        SettingError: a guide whose factors cannot be multiplied and divided.
    """
    kind = guide if inspect.isclass(guide) else type(guide)
    for base in kind.__mro__:
        if base.__module__ == autoguide.guides.__name__ and base.__name__ in FAMILIES:
            return FAMILIES[base.__name__]
    name = getattr(guide, "__name__", kind.__name__)
    raise SettingError(
        f"{type(owner).__name__}: guide {name} has no natural parameters that can be multiplied and divided, as "
        f"{sorted(FAMILIES)} have: use {FITTED_BY.get(name, f'SFVI(guide={name})')}"
    )
