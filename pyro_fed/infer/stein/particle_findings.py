"""Warnings about particles: collapse, too few of them, and moments that contradict the scores."""

from __future__ import annotations

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.infer.stein.at_rest import moments_at_rest
from pyro_fed.ops.stein import PARTICLES_PER_COORDINATE

#: Spread of the particles, in SDs of the Gaussian of `survey`, below which they have collapsed.
COLLAPSED_SPREAD = 0.5
#: Fewer particles than this have tails too short for a marginal that is not Gaussian: points at a Gaussian's quantiles
#: have a kurtosis of 1.5 if there are three and of 2.1 if there are eight, in place of 3.
FEWEST_PARTICLES = 8


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
        # Few particles satisfy the identities that judge them, whatever the posterior.
        enough = num_particles >= min(FEWEST_PARTICLES, PARTICLES_PER_COORDINATE * dim)
        return [] if enough else [sentences.too_few_particles(particles=num_particles, needed=FEWEST_PARTICLES)]
    off = {name: latest[name] for name in ("mean_off", "sd_off")}
    return [sentences.particles_are_off(rounds=rounds, **off, cures=[_cure(record, rounds < usual_rounds)])]


def _cure(record: Record, had_few_rounds: bool) -> str:
    """The cure of particles that have not converged."""
    if had_few_rounds:
        return "Give them more rounds (num_rounds)"
    return (
        "Take the default step_size, kernel and start where they were changed; else more passes (end.max_passes), more "
        f"particles, or an algorithm that samples: {record.untried('FSGLD', 'NUTS')}"
    )
