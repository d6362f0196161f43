"""Refuse an algorithm that has methods which nobody would call: of a capability, or of contributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyro_fed.algorithm.capabilities.graphs import OnGraph
from pyro_fed.algorithm.capabilities.rounds import Chains, Indicators
from pyro_fed.algorithm.capabilities.site_keeping import SiteKeeping
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.algorithm.contract import Algorithm

#: All capabilities.
CAPABILITIES = (OnGraph, Indicators, Chains, SiteKeeping)


def check_taken_up(algorithm: Algorithm) -> None:
    """Refuse an algorithm with methods of a capability that it does not have, or of its contributions.

    Raises:
        SettingError: names the methods, and where they belong.
    """
    kind = type(algorithm)
    for capability in CAPABILITIES:
        required: frozenset[str] = getattr(capability, "__abstractmethods__", frozenset())
        found = sorted(name for name in _methods(capability) | required if hasattr(kind, name))
        if isinstance(algorithm, capability) or not found or not required <= set(found):
            continue
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the capability {capability.__name__} and is not "
            f"called without it: write `class {kind.__name__}(Algorithm, {capability.__name__})`, with "
            f"`from pyro_fed.algorithm.capabilities import {capability.__name__}`"
        )
    if found := sorted(name for name in _methods(Contributions) if callable(getattr(kind, name, None))):
        raise SettingError(
            f"{kind.__name__} has {', '.join(found)}, which belongs to the clients' contributions and is not called on "
            f"the algorithm: write `class {kind.__name__}Contributions(Contributions)` with it, with `from "
            "pyro_fed.algorithm.contributions import Contributions`, and have the algorithm's method `contributions` "
            f"return `{kind.__name__}Contributions(self)`"
        )


def _methods(kind: type) -> set[str]:
    return {name for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
