"""Whether a result is good enough to be the reference that all other results are compared with."""

from __future__ import annotations

import numpy as np
from scipy import special

from pyro_fed.analysis.judging.draws import FEWEST_OF_A_CHAIN, Draws, effective_draws
from pyro_fed.analysis.judging.moments import FALSE_ALARMS, LARGEST_MEAN_ERROR
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.ops.arviz_versions import rhat
from pyro_fed.results.inference_data import InferenceData

#: R-hat of chains whose means scatter with an SD of `LARGEST_MEAN_ERROR` times the SD within chains.
LARGEST_RHAT = (1 + LARGEST_MEAN_ERROR**2) ** 0.5


def reference_doubts(idata: InferenceData, draws: Draws) -> list[Finding]:
    """One finding against a result as the reference, or none.

    The draws cannot be used, the chains disagree, the Monte Carlo errors of the means are too large to distinguish a
    wrong mean from a right one, or trajectories diverged.
    """
    if draws.fault or draws.spreadless:
        return [sentences.no_reference()]
    found = list[str]()
    chains, each, dim = draws.values.shape
    markov = draws.kind in ("chains", "")
    if markov and chains > 1 and each >= FEWEST_OF_A_CHAIN:
        varies = np.ptp(draws.flat, axis=0) > 0
        worst = np.nan_to_num(rhat(draws.values[:, :, varies]), nan=np.inf)  # NaN: constant chains at different points
        if worst.max() > LARGEST_RHAT:
            where = np.array(draws.labels)[varies][int(worst.argmax())]
            found.append(f"its {chains} chains disagree: R-hat is {worst.max():.3g} in '{where}'")
    effective = effective_draws(draws.values, draws.kind)
    least = int(effective.argmin())
    needed = (special.ndtri(FALSE_ALARMS / (4 * dim)) / LARGEST_MEAN_ERROR) ** 2
    if effective[least] < needed:
        found.append(
            f"its draws are worth only {effective[least]:.0f} independent ones in '{draws.labels[least]}', so that "
            f"its own mean is known to {effective[least] ** -0.5:.2g} SDs (at least {needed:.0f} tell a mean that is "
            f"{LARGEST_MEAN_ERROR} SDs off)"
        )
    diverged = int(idata["sample_stats"]["diverging"].sum()) if _has(idata, "sample_stats", "diverging") else 0
    if diverged:
        found.append(f"{diverged} of its {chains * each} trajectories diverged")
    return [sentences.reference_doubtful(reasons=found)] if found else []


def _has(idata: InferenceData, group: str, name: str) -> bool:
    return group in idata and name in idata[group]
