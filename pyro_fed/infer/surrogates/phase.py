"""The phases that leave Gaussian sites at the clients, by the names that settings use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.infer.surrogates.surrogates import Given

Name = Literal["auto", "laplace", "fedep", "local_sgld"]

BY_NAME: dict[str, Algorithm] = {"laplace": FedLaplace(), "fedep": FedEP(), "local_sgld": LocalSGLD()}
NAMES = ("auto", *BY_NAME)


#: Allowed values of a setting `surrogates`.
Surrogates = Algorithm | Given | Name | None


def check_surrogates(owner: Any, *, allow_none: bool = False) -> None:
    """Refuse a setting `surrogates` of `owner` other than an algorithm, `Given`, a name, or None if that is allowed.

    Raises:
        SettingError: it is none of these.
    """
    value = owner.surrogates
    if isinstance(value, str):
        check_choice(owner, "surrogates", NAMES)
    elif not isinstance(value, Algorithm | Given) and not (allow_none and value is None):
        raise SettingError(
            f"{type(owner).__name__}: surrogates must be an algorithm that leaves Gaussian sites, such as "
            f"FedLaplace(), Given(precision, eta), or one of {list(NAMES)}, received {value!r}"
        )


def surrogate_phase(surrogates: Surrogates, temperature: float = 1.0) -> Algorithm | None:
    """The algorithm that fits the surrogates, if they have to be fitted.

    In `surrogates` "auto" has been resolved for the model; the algorithm of a name takes the likelihood's temperature
    if it can.
    """
    if isinstance(surrogates, str):
        named: Any = BY_NAME[surrogates]
        chosen: Algorithm = replace(named, temperature=temperature) if temperature != 1 else named
        return chosen
    return surrogates if isinstance(surrogates, Algorithm) else None
