"""The check of the answer: mean and SD of a posterior in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyro_fed.algorithm import Algorithm
from pyro_fed.testing import problems
from pyro_fed.testing.case import Case, require

#: Largest error of a mean, in posterior SDs, and of an SD, as a share of it, in addition to chance.
MEAN_ERROR = SD_ERROR = 0.05
#: Standard errors allowed for chance: four figures of independent draws exceed it once in 4,000 correct runs.
CHANCE = 4.0
NUM_DRAWS, FEWEST_DRAWS = 4000, 400


def check_conjugate_posterior(algorithm: Algorithm, case: Case) -> None:
    """After its default number of rounds mean and SDs are those of a conjugate posterior.

    Linear regression with known noise, in which a mean field is exact. The error of a mean is at most 0.05 SDs, that of
    an SD at most 5 %, besides four standard errors: with 4,000 independent draws 11 % and 10 %, so that an SD that is
    13 % too small is found.
    """
    federation, mean, sd = problems.conjugate()
    idata = case.run(federation, num_rounds=None, num_draws=NUM_DRAWS, compile="trace")
    draws = np.asarray(idata["posterior"]["w"].values)
    size = effective_size(draws) if algorithm.draws_are == "chains" else np.full(2, draws[..., 0].size)
    require(
        bool((size >= FEWEST_DRAWS).all()),
        f"chains of at least {FEWEST_DRAWS} effective draws, by which mean and SD can be judged",
        f"{size.min():.0f}",
        "Give the algorithm under test longer chains",
    )
    flat = draws.reshape(-1, 2)
    off = np.abs(flat.mean(0) - mean.numpy()) / sd.numpy()
    ratio = flat.std(0) / sd.numpy()
    scales = ", ".join(f"{100 * (one - 1):+.0f} %" for one in ratio)
    require(
        bool((off <= MEAN_ERROR + CHANCE / np.sqrt(size)).all()),
        f"means {np.round(mean.numpy(), 3)}, to {MEAN_ERROR} SDs and chance",
        f"{np.round(flat.mean(0), 3)}, which is {off.max():.2f} SDs off, with SDs that are {scales} off",
        "More rounds, smaller steps, a prior that counts twice or not at all, or an error in the equations",
    )
    require(
        bool((np.abs(ratio - 1) <= SD_ERROR + CHANCE / np.sqrt(2 * size)).all()),
        f"SDs {np.round(sd.numpy(), 3)}, to {SD_ERROR:.0%} and chance",
        f"{np.round(flat.std(0), 3)}, {scales}",
        "Steps are not at rest, a scale that the noise of the steps has moved, a prior that counts twice, or a wrong "
        "factor, as of the entropy or in `sample`",
    )


def effective_size(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Effective number of draws of each parameter, at least one, of chains (chain, draw, D)."""
    import arviz as az

    return np.array([max(1.0, float(az.ess(np.ascontiguousarray(draws[..., i])))) for i in range(draws.shape[-1])])
