"""The phases that leave Gaussian sites at the clients, by the names that settings know them under."""

from __future__ import annotations

from typing import Literal

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.density.problem import Problem
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.infer.surrogates.surrogates import Given

Name = Literal["auto", "laplace", "fedep", "local_sgld"]

BY_NAME: dict[str, Algorithm] = {"laplace": FedLaplace(), "fedep": FedEP(), "local_sgld": LocalSGLD()}
NAMES = ("auto", *BY_NAME)


def surrogate_phase(surrogates: Algorithm | Given | Name | None, problem: Problem) -> Algorithm | None:
    """The algorithm that fits the surrogates, if one has to.

    Args:
        surrogates: as the setting has it; "auto" is FedEP up to its `full_dim` parameters, and Laplace beyond.
        problem: the model's densities.
    """
    if surrogates == "auto":
        return BY_NAME["fedep" if problem.dim <= FedEP.full_dim else "laplace"]
    if isinstance(surrogates, str):
        return BY_NAME[surrogates]
    return surrogates if isinstance(surrogates, Algorithm) else None
