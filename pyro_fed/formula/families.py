"""Response distributions of regressions, as text of a Pyro model.

Each has its canonical or usual link. Priors of further parameters are weakly informative, on the response's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Family:
    """A response distribution.

    Attributes:
        likelihood: the distribution, of `eta` (n,), further parameters, and `trials` (n,) for proportions.
        parameters: further parameters and their priors; `{sd}` stands for the response's SD.
        allowed: whether responses are in its support.
        support: the same in words.
        scaled: whether the linear predictor has the response's unit.
        link: the linear predictor at the mean of the responses.
        trials: whether the response is a number of successes among `trials`.
    """

    likelihood: str
    allowed: Callable[[np.ndarray], np.ndarray]
    support: str
    parameters: Mapping[str, str]
    scaled: bool = False
    link: Callable[[float], float] = lambda mean: 0.0
    trials: bool = False


def _identity(mean: float) -> float:
    return mean


def _log(mean: float) -> float:
    return float(np.log(max(mean, np.finfo(float).tiny)))


def _counts(y: np.ndarray) -> np.ndarray:
    found: np.ndarray = (y >= 0) & (y == np.round(y))
    return found


NOISE = "dist.HalfNormal({sd})"

FAMILIES: Mapping[str, Family] = {
    "gaussian": Family(
        "dist.Normal(eta, sigma)", np.isfinite, "real numbers", {"sigma": NOISE}, scaled=True, link=_identity
    ),
    "t": Family(
        "dist.StudentT(nu, eta, sigma)",
        np.isfinite,
        "real numbers",
        {"sigma": NOISE, "nu": "dist.Gamma(2.0, 0.1)"},
        scaled=True,
        link=_identity,
    ),
    "bernoulli": Family("dist.Bernoulli(logits=eta)", lambda y: (y == 0) | (y == 1), "0 or 1", {}),
    "binomial": Family(
        "dist.Binomial(total_count=trials, logits=eta)", _counts, "whole numbers from 0 to the trials", {}, trials=True
    ),
    "poisson": Family("dist.Poisson(eta.exp())", _counts, "counts", {}, link=_log),
    "negativebinomial": Family(
        "dist.GammaPoisson(alpha, alpha / eta.exp())", _counts, "counts", {"alpha": "dist.Gamma(2.0, 0.1)"}, link=_log
    ),
    "gamma": Family(
        "dist.Gamma(alpha, alpha / eta.exp())",
        lambda y: y > 0,
        "positive numbers",
        {"alpha": "dist.Gamma(2.0, 0.1)"},
        link=_log,
    ),
    "beta": Family(
        "dist.Beta(eta.sigmoid() * kappa, eta.neg().sigmoid() * kappa)",
        lambda y: (y > 0) & (y < 1),
        "numbers between 0 and 1, without both",
        {"kappa": "dist.Gamma(2.0, 0.1)"},
    ),
}
