"""Convergence of particles, and the end of a run.

**End of a run.** A run ends after a pass over the clients in which the kernelised Stein discrepancy is a twentieth of
that of N exact draws of the posterior (`ksd_and_noise`), or has stopped falling. Further steps would fit the particles
to the discrepancy of N points instead of the posterior: along a skewed parameter, such as the precision of a
hierarchical prior, particles would drift outwards while the discrepancy falls.

**Convergence.** A small discrepancy does not show that the particles are right. Its reference, the discrepancy of exact
draws, is computed at the particles, so that bad particles raise it. With too small a step, the discrepancy stops
falling at once. A run therefore continues unless two further conditions hold: the scores at the particles show that no
mean is wrong by `MATTERS` SDs and no SD by the factor `SD_MATTERS` (`ops.stein.moments_off`, in units that single
particles cannot distort), and the discrepancy is not larger than that of exact draws by chance. A run that meets these
two conditions after its last pass has also converged, even if its discrepancy is still falling.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, MIN_DRAWS, SD_MATTERS
from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.ops.kernel_base import Kernel
from pyro_fed.ops.stein import PARTICLES_PER_COORDINATE, ksd_and_noise, moments_off

#: Factor on its mean that the squared discrepancy of exact draws exceeds in at most 5 % of cases. It is a weighted sum
#: of squared normal numbers, whose tail is longest if it is a single one (Székely & Bakirov 2003), χ² with one degree.
KSD_BY_CHANCE = NormalDist().inv_cdf(0.975) ** 2
#: Smallest total number of steps of particles that start under the nearest Gaussian: the discrepancy hardly shows the
#: remaining error of a skewed parameter.
MIN_STEPS = 100

#: The figures of a round, by name.
Figures = dict[str, float]


def stein_figures(white: Tensor, scores: Tensor, kernel: Kernel) -> State:
    """Discrepancy of whitened particles (N, D) with scores (N, D), that of exact draws, and errors of moments."""
    found, noise = ksd_and_noise(white, scores, kernel)
    mean_off, sd_off = moments_off(white, scores)
    return {"ksd": found, "noise": noise, "mean_off": mean_off, "sd_off": sd_off}


def moments_at_rest(figures: Figures) -> bool:
    """Whether the scores at the particles are consistent with their means and standard deviations."""
    return figures["mean_off"] <= MATTERS and figures["sd_off"] <= SD_MATTERS


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class EndOfRun(Settings):
    """End of a run of particles: after a pass over the clients whose scores are consistent with the moments.

    Args:
        noise: the run ends at this share of the kernelised Stein discrepancy of N exact draws.
        min_fall: the run also ends if the discrepancy has not fallen by this share in `patience` passes.
        patience: number of passes for `min_fall`.
        max_passes: largest number of passes over the clients.

    References:
        Liu, Lee & Jordan (2016), A kernelized Stein discrepancy for goodness-of-fit tests.

    Example:
        >>> idata = pf.run(pf.DSVGD(end=pf.infer.EndOfRun(patience=5)), fed)
    """

    noise: float = 0.05
    min_fall: float = 0.05
    patience: int = 3
    max_passes: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "noise")
        check_between(self, "min_fall", 0, 1)
        check_at_least(self, 1, "patience", "max_passes")

    def reached(self, figures: list[Figures]) -> bool | None:
        """Whether the run may end; None for particles that started apart, which have no criterion."""
        if figures[-1]["apart"]:
            return None
        if len(figures) < 2:
            return False
        width = round(1.0 / (figures[1]["pass"] - figures[0]["pass"]))
        last = figures[-width:]
        if len(figures) % width or not all(moments_at_rest(each) for each in last):
            return False
        if figures[-1].get("near") and figures[-1]["steps"] < MIN_STEPS:
            return False
        if figures[-1]["ksd"] <= self.noise * figures[-1]["ksd_of_draws"]:
            return True
        like_draws = all(each["ksd"] <= KSD_BY_CHANCE * each["ksd_of_draws"] for each in last)
        if len(figures) <= self.patience * width or not like_draws:
            return False
        if len(figures) >= self.max_passes * width:
            return True
        passes = [sum(f["ksd"] for f in figures[i : i + width]) for i in range(0, len(figures), width)]
        return min(passes[-self.patience :]) > (1.0 - self.min_fall) * min(passes[: -self.patience])


#: Spread of the particles, in SDs of the Gaussian of `survey`, below which they have collapsed.
COLLAPSED_SPREAD = 0.5


def particle_findings(record: Record, num_particles: int, dim: int, usual_rounds: int) -> list[Finding]:
    """A warning about a run's particles from its last figures, or none; `usual_rounds` is the default of rounds."""
    latest, rounds = record.latest, len(record.figures)
    if not latest or latest["apart"]:
        return []
    if latest["spread"] < COLLAPSED_SPREAD:
        spread = latest["spread"]
        if record.converged:
            return [sentences.particles_collapsed(spread=spread)]
        return [sentences.particles_collapsed_on_their_way(rounds=rounds, spread=spread)]
    span = ((num_particles - 1) / dim) ** 0.5
    if span * SD_MATTERS < 1.0:
        return [sentences.particles_span_too_little(particles=num_particles, dim=dim, factor=span)]
    if moments_at_rest(latest):
        # Few particles satisfy the identities that judge them, whatever the posterior, and have tails too short for a
        # marginal that is not Gaussian: points at a Gaussian's quantiles have a kurtosis of 2.1 if there are eight.
        enough = num_particles >= min(MIN_DRAWS, PARTICLES_PER_COORDINATE * dim)
        return [] if enough else [sentences.too_few_particles(particles=num_particles, needed=MIN_DRAWS)]
    cure = "Give them more rounds (num_rounds)"
    if rounds >= usual_rounds:
        cure = (
            "Take the default step_size, kernel and start where they were changed; else more passes (end.max_passes), "
            f"more particles, or an algorithm that samples: {record.untried('FSGLD', 'NUTS')}"
        )
    off = {name: latest[name] for name in ("mean_off", "sd_off")}
    return [sentences.particles_are_off(rounds=rounds, **off, cures=[cure])]
