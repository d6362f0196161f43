"""Convergence of the rounds of expectation propagation, and warnings about the result."""

from __future__ import annotations

import math

import numpy as np

from pyro_fed.algorithm.record import RECENT_ROUNDS, Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.infer.ep import ascent

#: Largest move of a converged q in the last round, or in the last step of a client's turn, in SDs.
UNSETTLED_SDS = 1.0
#: Steps were rejected repeatedly if the last `MAX_RETURNS` rounds took less than this share of them.
STALLED_FRACTION = 1e-3


def at_rest(figures: list[dict[str, float]], tolerance: float) -> bool:
    """Whether changes in a full pass over the clients, and all later changes together, are below the tolerance.

    Passes converge linearly: if each moves q by a share ρ of the previous one, all later passes together move it by
    ρ / (1 - ρ) times the last.
    """
    window = math.ceil(1 / figures[-1]["share"])
    last, before = figures[-window:], figures[-2 * window : -window]
    if not unrestricted_pass(last, window):
        return False
    largest = max(f["change"] for f in last)
    if largest < tolerance or window == 1 or not unrestricted_pass(before, window):
        return largest < tolerance
    rate = sum(f["change"] for f in last) / sum(f["change"] for f in before)
    return rate < 1 and rate / (1 - rate) * largest < tolerance


def unrestricted_pass(figures: list[dict[str, float]], window: int) -> bool:
    """Whether these are all rounds of a pass, with whole steps of all clients' changes."""
    return len(figures) == window and all(f["fraction"] > 0 and not f.get("cut") for f in figures)


def ended_early(record: Record) -> list[Finding]:
    """Warnings about rounds that ended before convergence: gains are too small, or steps were rejected repeatedly."""
    samplers = record.untried("FSGLD", "DSVGD", "NUTS")
    if record.latest.get("slow"):
        return [sentences.weights_still_move(rounds=RECENT_ROUNDS, nats=ascent.MIN_RISE_PER_ROW, samplers=samplers)]
    if record.latest.get("in_vain"):
        return [sentences.rounds_in_vain(returns=ascent.MAX_RETURNS, samplers=samplers)]
    return []


def unused_sites(record: Record, newton: bool) -> list[Finding]:
    """Warnings that name the clients whose last message could not be used; `newton`: of expected Newton steps."""
    usable, fraction = record.last("usable"), record.last("fraction")
    clients = next((r.clients for r in reversed(record.rounds) if "fraction" in r.info), [])
    if not len(usable):  # with secure aggregation, figures of single clients are unknown
        usable = np.ones(len(clients), bool)
    unused = [
        record.client_names[k]
        for k, is_usable, share in zip(clients, usable, fraction, strict=True)
        if not is_usable or not share
    ]
    if not unused:
        return []
    if newton and usable.all() and len(unused) == len(clients):
        return [sentences.last_step_taken_back()]
    cures = [
        "Give the model a proper prior, or pool small clients" + ("" if newton else ", or use client='newton'"),
        "The density may also lack a finite second derivative at some row, as 0 ** k, sqrt(0) and the "
        "logarithm of a difference that rounds to 0 do: rewrite these terms",
    ]
    return [sentences.sites_not_used(clients=unused, of_clients=len(clients), cures=cures)]


def still_moving(record: Record, newton: bool, diagonal: bool) -> list[Finding]:
    """A warning with its cure if q moved by more than `UNSETTLED_SDS` in the last round."""
    latest, last = record.latest, record.figures[-ascent.MAX_RETURNS :]
    if newton and record.converged is False and all(f.get("cut") and f["fraction"] < STALLED_FRACTION for f in last):
        fraction = max(f["fraction"] for f in last)
        return [sentences.steps_shortened(rounds=len(record.figures), fraction=fraction)]
    change = latest.get("change", 0.0)
    if change <= UNSETTLED_SDS or len(record.figures) <= 1:
        return []
    if record.has_private_noise:
        cure = (
            "the noise of differential privacy moves it: use lower damping, a smaller noise_multiplier, or more "
            "clients per round"
        )
    elif newton and diagonal:
        cure = (
            "expected Newton steps with a diagonal covariance are too long if parameters are correlated: use lower "
            "damping, covariance='full', or client='ngvi'"
        )
    elif newton:
        cure = (
            "raise num_rounds; if it keeps moving, no Gaussian is close to this posterior: sample it, with "
            + record.untried("FSGLD", "DSVGD", "NUTS")
        )
    else:
        cure = "use lower damping, or more steps or samples per round"
    return [sentences.gaussian_still_moves(sds=change, cures=[cure])]
