"""How far the changes of sites may go, so that q stays a distribution: the server's side of FedEP.

    q ← q Π_k (Δ_k)^s_k,    t_k ← t_k (Δ_k)^s_k                            Guo et al., Algorithms 3 and 4

All sites take the same fraction s, the largest up to the damping δ that leaves q positive definite with a margin
(`ops.backtrack`). Where no fraction of the joint change is left, the sites are taken one after the other, each with
its own largest fraction, and one that has none is skipped and reported. Prior and sites move by the same rule, so

    q = t_0 Π_k t_k    holds in every round, whatever the fractions.

Where all clients are at work the server adds Anderson acceleration (`ops.anderson`) to expected Newton steps; what it
adds is shared equally among the sites, and vanishes with the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.infer.ep.tilted.base import Tilted
from pyro_fed.infer.sites.gaussian_sites import absolute, at_mean, gaussian, kept_where, where
from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.gaussian import Gaussian

#: A q that still moves by more SDs than this in its last round has not settled.
UNSETTLED = 1.0
#: Steps of which less than this share could be taken, in so many of the last rounds, have come to an end of some kind.
SHORTENED, STOPPED = 1e-3, 3

#: What a pass over the clients may move q by, of what the one before it did, for the next to be foreseen: slower ones
#: are many together. And the share of the tolerance that it is foreseen to take, for rates grow towards the end.
FAST, GROWING = 0.1, 0.5


class Limits(NamedTuple):
    """Damping δ, the smallest fraction worth taking, and the margin of `ops.backtrack`."""

    damping: float
    min_fraction: float
    margin: float


def fractions_of(q: Gaussian, deltas: Gaussian, limits: Limits) -> Tensor:
    """The fraction s_k of each change (C,) that is applied; 0 is skipped.

    Args:
        q: the server's Gaussian.
        deltas: changes of sites, batch (C,), the prior's among them.
        limits: damping and settings of the backtracking.
    """
    joint = _fraction(q, deltas.product_over(0), limits)
    count = len(deltas.eta)
    if joint > 0:
        return torch.full((count,), joint, dtype=torch.float64, device=q.eta.device)
    taken = []
    for k in range(count):
        delta = type(q)(deltas.precision[k], deltas.eta[k])
        taken.append(_fraction(q, delta, limits))
        q = q.product(delta.power(taken[-1]))
    return torch.tensor(taken, dtype=torch.float64, device=q.eta.device)


def _fraction(q: Gaussian, delta: Gaussian, limits: Limits) -> float:
    return float(
        backtrack(
            q,
            delta,
            max_fraction=limits.damping,
            min_fraction=min(limits.min_fraction, limits.damping),
            margin=limits.margin,
        )
    )


def at_rest(figures: list[dict[str, float]], tolerance: float) -> bool:
    """Whether q did not move in as many rounds as let every client work once, and nothing was held back.

    Where clients work in turn, that pass over them need not be made where the two before it tell what it would be: of
    passes that fall off as fast as `FAST` the next is taken to move q by as much less again than the last.

    Args:
        figures: of all rounds: `change`, `fraction`, `share`, that of the clients at work, and where the algorithm
            shortens its steps `cut`, whether it did.
        tolerance: largest change of a q that rests.
    """
    window = math.ceil(1 / figures[-1]["share"])
    last, before = figures[-window:], figures[-2 * window : -window]
    if not _free(last, window):
        return False
    largest = max(f["change"] for f in last)
    if largest < tolerance or window == 1 or not _free(before, window):
        return largest < tolerance
    rate = sum(f["change"] for f in last) / sum(f["change"] for f in before)
    return rate <= FAST and rate * largest < GROWING * tolerance


def _free(figures: list[dict[str, float]], window: int) -> bool:
    """Whether these are all rounds of a pass, and nothing was held back in them."""
    return len(figures) == window and all(f["fraction"] > 0 and not f.get("cut") for f in figures)


def site_warnings(record: Record, newton: bool) -> list[Finding]:
    """Clients whose last message could not be used, by name.

    Args:
        record: of the run.
        newton: whether the clients took expected Newton steps.
    """
    usable, fraction = record.last("usable"), record.last("fraction")
    clients = next((r.clients for r in reversed(record.rounds) if "fraction" in r.info), [])
    if not len(usable):  # where sums alone are known, a client's own word is in none of the figures
        usable = np.ones(len(clients), bool)
    skipped = [
        record.client_names[k]
        for k, good, taken in zip(clients, usable, fraction, strict=True)
        if not good or not taken
    ]
    if not skipped:
        return []
    if newton and usable.all() and len(skipped) == len(clients):
        return [sentences.last_step_taken_back()]
    cures = ["Give the model a proper prior, or pool small clients" + ("" if newton else ", or use client='newton'")]
    if len(skipped) == len(clients):
        cures.append(
            "It may also be that the density has no finite second derivative at some row, as 0 ** k, sqrt(0) and "
            "the logarithm of a difference that is rounded to 0 have none: write these rows in another form"
        )
    return [sentences.sites_not_used(clients=skipped, of_clients=len(clients), cures=cures)]


def unsettled_warnings(record: Record, newton: bool, diagonal: bool) -> list[Finding]:
    """Whether q still moved by more than `UNSETTLED` in its last round, with the cure.

    Args:
        record: of the run.
        newton: whether its steps were expected Newton steps.
        diagonal: whether the precision of q was.
    """
    latest, last = record.latest, record.figures[-STOPPED:]
    if newton and record.converged is False and all(f.get("cut") and f["fraction"] < SHORTENED for f in last):
        fraction = max(f["fraction"] for f in last)
        return [sentences.steps_shortened(rounds=len(record.figures), fraction=fraction)]
    change = latest.get("change", 0.0)
    if change <= UNSETTLED or len(record.figures) <= 1:
        return []
    if record.has_private_noise:
        cure = (
            "the noise of differential privacy moves it: use lower damping, a smaller noise_multiplier, or more "
            "clients a round"
        )
    elif newton and diagonal:
        cure = (
            "expected Newton steps with a diagonal covariance are too long if parameters are correlated: use lower "
            "damping, covariance='full', or client='ngvi'"
        )
    elif newton:
        cure = (
            "raise num_rounds; if it goes on moving, no Gaussian is near this posterior: sample it, with "
            + record.untried("FSGLD", "DSVGD", "NUTS")
        )
    else:
        cure = "use lower damping, or more steps or samples a round"
    return [sentences.gaussian_still_moves(sds=change, cures=[cure])]


def warm_sites(
    start: Start, min_curvature: float, narrowed: Callable[[Gaussian], Gaussian] = lambda q: q
) -> tuple[Gaussian, Gaussian, Gaussian]:
    """q, sites (K,) and the prior's site from a federated Laplace approximation.

    Where its curvature is not positive definite, or its point is no mode, q takes |H| (see `fedlaplace`) around the
    point, and the sites share the difference equally, so that q = t_0 Π t_k holds; their first step replaces them.

    Args:
        start: the approximation's last state.
        min_curvature: smallest eigenvalue of the scaled |H|.
        narrowed: what becomes of q where the point is no mode.
    """
    found, sites, prior = gaussian(start.shared), gaussian(start.local), gaussian(start.shared, "prior_")
    q, indefinite = absolute(found, min_curvature)
    if not bool(indefinite) and not bool(start.shared.get("back", False)):
        return found, sites, prior
    q = narrowed(at_mean(q, start.shared["point"]))
    share = q.quotient(found).power(1.0 / len(sites.eta))
    return q, sites.product(share), prior


def changes(found: Tilted, site: Gaussian, num_rows: Tensor) -> tuple[Gaussian, Tensor]:
    """Δ_k, zero where a client's result cannot be used; a client without rows has the site one."""
    empty = num_rows == 0
    finite = found.site.precision.flatten(1).isfinite().all(1) & found.site.eta.isfinite().all(1)
    usable = (found.usable & finite) | empty
    new = kept_where(usable & ~empty, found.site)
    delta = new.quotient(site)
    return kept_where(usable, delta), usable


def held_changes(
    limits: Bounded,
    base: Gaussian,
    sites: Gaussian,
    clients: Tensor,
    deltas: Gaussian,
    centre: Tensor,
    rows: Tensor | None = None,
) -> tuple[Gaussian, Tensor, Tensor]:
    """Changes of sites after which no client's site is beyond the cohort's, (C,), by how much each was, and `widened`.

    Args:
        limits: the combination.
        base: all of q that is no client's.
        sites: of all clients before the round, (K,); those of clients that have not sent anything yet are one.
        clients: (C,) whose changes these are.
        deltas: as sent, (C,).
        centre: a point near q's mean, (D,).
        rows: of all clients, (K,); None: as many each.
    """
    precision, eta = sites.precision.clone(), sites.eta.clone()
    precision[clients] += deltas.precision
    eta[clients] += deltas.eta
    spoken = (eta != 0).any(-1) | (precision.flatten(1) != 0).any(-1)
    found = limits.sites(
        base, type(sites)(precision[spoken], eta[spoken]), centre, None if rows is None else rows[spoken]
    )
    precision[spoken], eta[spoken] = found.sites.precision, found.sites.eta
    beyond = torch.zeros(len(eta), dtype=torch.float64, device=eta.device)
    beyond[spoken] = found.beyond
    widened = torch.ones_like(beyond)
    widened[spoken] = found.widened
    cut = beyond[clients]
    held = type(sites)(precision[clients] - sites.precision[clients], eta[clients] - sites.eta[clients])
    return where(cut > 0, held, deltas), cut, widened[clients]


def without_value(messages: State) -> State:
    """Messages without what would let one client have a step taken back: its log-likelihood."""
    return {name: value for name, value in messages.items() if name != "value"}
