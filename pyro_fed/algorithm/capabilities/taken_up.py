"""Refuse an algorithm that has a capability's methods without the capability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_fed.algorithm.capabilities.graphs import OnGraph
from pyro_fed.algorithm.capabilities.messages import Bounding, Moving
from pyro_fed.algorithm.capabilities.noise import NoiseTracking, NoiseWithin
from pyro_fed.algorithm.capabilities.rounds import Chains, Indicators
from pyro_fed.algorithm.capabilities.site_keeping import SiteKeeping, Sites
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.algorithm.contract import Algorithm


#: All capabilities.
CAPABILITIES = (OnGraph, Indicators, Chains, SiteKeeping, Sites, Bounding, Moving, NoiseTracking, NoiseWithin)


def check_taken_up(algorithm: Algorithm) -> None:
    """Refuse an algorithm that has a capability's methods without having taken it up: nobody would call them.

    Args:
        algorithm: what is to be run.

    Raises:
        SettingError: names the methods and the capability.
    """
    kind = type(algorithm)
    for capability in CAPABILITIES:
        required: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        methods = {name for name, value in vars(capability).items() if callable(value) and not name.startswith("_")}
        found = sorted(name for name in methods | required if hasattr(kind, name))
        if isinstance(algorithm, capability) or not found or not required <= set(found):
            continue
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the capability {capability.__name__} and is not "
            f"called without it: write `class {kind.__name__}(Algorithm, {capability.__name__})`, with "
            f"`from pyro_fed.algorithm.capabilities import {capability.__name__}`"
        )
