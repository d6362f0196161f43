"""FedEP's steps by what they gain: expected Newton steps that climb the evidence's lower bound, or are taken back.

    L(q) = Σ_k E_q[log p_k] + E_q[log p_0] + H(q)          at the same points as the scores and Hessians of the round

Newton's step for the Gaussian is the natural gradient of L. Its length is right near the optimum; far from it an
expected Hessian that is indefinite, or nearly so, makes the next mean some thousand SDs away, where likelihoods
overflow. So where all clients are at work, and L is therefore known, the server goes back to the best q that it had

    where L or a derivative is not finite at the new one, or L has fallen by more than `fall`,

and takes the same change of natural parameters to a smaller fraction, one that moves no mean and no log SD by more
than a radius: a quarter of what was tried, and twice as much again with every step that is kept. A small enough
fraction of a natural gradient gains. Before there is any best q (a start at which likelihoods overflow) its SDs are
halved instead; and those of the best one where no fraction of its change leaves a Gaussian within the radius: there L
is finite, but of the size of 1e40, as where a half-Cauchy scale is looked at 30 SDs out.

A network's mode has directions along which the likelihood bends nowhere at the point and falls steeply a little
further, so that Laplace's approximation is far wider than the mass there: at its points the log density is 50 to 10⁷
nats a parameter below the mode's, where that of a Gaussian is half a nat, and Newton's steps from there lead anywhere.
Its SDs are halved too, until no more than `WIDE` nats a parameter are lost.

Where a small fraction gains nothing either, L at the round's points has its maximum elsewhere than where the clients'
expected Hessians put it, as of a network: from the best q the same steps then lead to the same fall, round and round. A
run that has come back to one best q so often (`RETURNS`), with no shorter radius, ends there, and has not converged.

A network may climb for ever: its weights have ridges along which the bound rises by a nat in five rounds, of 56,000 for
100,000 rows, and nobody reads off a weight. What it predicts is told by the bound a row. Where that has risen by less
than `SLOW` in `RECENT` rounds, the run ends at the best q, too: the more rows, the sooner.

Sites that belong to a q that is given up are forgotten: all clients get an equal share of the new one, as at a start
from the prior. No easy run takes a step back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, at_mean, gaussian, largest_move, moments_of
from pyro_fed.ops.gaussian import Gaussian

#: Entries of the server's state that are infinite where nothing is known, or have no bound.
UNKNOWN = frozenset({"best_value", "radius", "prior_value", "level", "returned_to", "return_radius", "climb"})
#: The radius after a step that was taken back, in lengths of that step, and after one that was kept.
SHRINK, GROW = 0.25, 2.0
#: The longest first radius, in SDs: steps of thousands of SDs say nothing about their own length.
FIRST_RADIUS = 2.0
#: Returns to a best q that no step from it has bettered by so many nats, before the end; but none is counted that has
#: less than half the radius of those before it, which tries what has not been tried.
RETURNS, GAIN, LESS = 3, 0.01, 0.5
#: Rounds in which a network's bound has to rise by so many nats a row, which changes what it predicts of a row by a
#: hundredth of a percent.
RECENT, SLOW = 10, 1e-4
#: The same in nats a parameter of rounds by a part of the rows: the posterior of four times as many is 1.7 SDs away in
#: each direction, or 1.5 nats a parameter, whatever else they win.
START = 0.25
#: A q that is this near to the best has its L, or what the clients said there was not so: it is kept.
CLOSE = 0.02
#: Nats a parameter that the log density may lose from a start's mode to its Gaussian: six times a Gaussian's own.
WIDE = 3.0
#: So often the SDs of a start are halved at which likelihoods overflow, and a fraction in search of the radius.
NARROWINGS, HALVINGS = 20, 100


def nothing_best(q: Gaussian) -> State:
    """What is known before the first round: no best q, and no `level`, the log density at the mode that q is about.

    Nor does the bound have to rise: `enough` is what a network's has to, in nats, and `climb` its best values of late.
    """
    zero = type(q).zeros((), q.dim, device=q.eta.device)
    return {
        **as_state(zero, "best_"),
        **as_state(zero, "onward_"),
        "best_value": q.eta.new_full((), -torch.inf),
        "radius": q.eta.new_full((), torch.inf),
        "narrowed": q.eta.new_zeros(()),
        "level": q.eta.new_full((), -torch.inf),
        "returns": q.eta.new_zeros(()),
        "returned_to": q.eta.new_full((), -torch.inf),
        "return_radius": q.eta.new_full((), torch.inf),
        "climb": q.eta.new_full((RECENT,), -torch.inf),
        "enough": q.eta.new_zeros(()),
        "slow": q.eta.new_zeros(()),
    }


def of_network(level: float, rows: int, dim: int = 0) -> dict[str, float]:
    """What is known of a network besides.

    Args:
        level: log density at the mode that it starts at.
        rows: by which the bound is computed, of all clients.
        dim: D where these are a part of the rows, and the rounds a start for those by more of them.
    """
    return {"level": level, "enough": max(SLOW * rows, START * dim)}


def bound(q: Gaussian, expected: Tensor) -> Tensor:
    """L(q) from Σ_k E_q[log p_k] + E_q[log p_0]: (); NaN or infinite where that is."""
    entropy = 0.5 * (q.dim * (1 + math.log(2 * math.pi)) - q.log_det())
    return expected + entropy


def climbed(shared: State, value: Tensor) -> State:
    """The best values of the last rounds, this one's among them, and whether they have risen too little to go on."""
    best = torch.where(value > shared["best_value"], value, shared["best_value"])  # not a number is not more
    slow = best - shared["climb"][0] < shared["enough"]  # infinite before there are as many
    return {"climb": torch.cat([shared["climb"][1:], best[None]]), "slow": slow.to(best)}


def top(shared: State, value: Tensor) -> Gaussian:
    """The best q, of those before and the one that has this value."""
    return gaussian(shared) if bool(value > shared["best_value"]) else gaussian(shared, "best_")


def way_back(shared: State, value: Tensor, fall: float) -> tuple[Gaussian, State] | None:
    """The q to try in place of one that is no good, and what is remembered; None where q is good, or nothing helps.

    Args:
        shared: the server's state: q, and `nothing_best` or what became of it.
        value: L(q), not finite where a derivative is not.
        fall: how much of L a step may lose.
    """
    q, best = gaussian(shared), shared["best_value"]
    if not bool(best.isfinite()):
        return None if bool(value.isfinite()) and not _too_wide(shared, q, value) else _narrowed(shared, q)
    if bool(value.isfinite() & (value >= best - fall)):
        return None
    start, onward = gaussian(shared, "best_"), gaussian(shared, "onward_")
    tried = largest_move(moments_of(start), moments_of(q))
    length = float(tried) if bool(tried.isfinite()) else math.inf
    if length < CLOSE and bool(value.isfinite()):
        return None
    radius = min(SHRINK * length, FIRST_RADIUS)
    known = _returned(shared, q.eta.new_tensor(radius))
    if bool(known["returns"] >= RETURNS):
        return start, known
    fraction = within(start, onward, 1.0, radius)
    if not fraction:
        return _narrowed(shared, start)
    return start.product(onward.power(fraction)), {"radius": q.eta.new_tensor(radius), **known}


def _returned(shared: State, radius: Tensor) -> State:
    """How often the best q has been returned to with this radius, and what that is measured by."""
    best, shortest = shared["best_value"], shared["return_radius"]
    again = best <= shared["returned_to"] + GAIN
    count = torch.where(again & (radius >= LESS * shortest), shared["returns"] + 1, 1.0)
    return {
        "returns": count,
        "returned_to": torch.where(again, shared["returned_to"], best),
        "return_radius": torch.where(again, torch.minimum(shortest, radius), radius),
    }


def is_in_vain(state: State) -> bool:
    """Whether the round that led to a state has come back to the best q for the last time."""
    return "returns" in state and bool(state["reset"]) and bool(state["returns"] >= RETURNS)


def is_slow(state: State) -> bool:
    """Whether it has come back to it for the last time as the bound hardly rises any more."""
    return "slow" in state and bool(state["slow"])


def _too_wide(shared: State, q: Gaussian, value: Tensor) -> bool:
    """Whether the log density falls off further under a start than under any Gaussian near a mode of a network."""
    expected = value - bound(q, torch.zeros_like(value))
    return bool(expected < shared["level"] - WIDE * q.dim)


def _narrowed(shared: State, q: Gaussian) -> tuple[Gaussian, State] | None:
    """A Gaussian with half its SDs, which is to be judged by itself; None where that has been tried often enough."""
    if int(shared["narrowed"]) >= NARROWINGS:
        return None
    forgotten = {name: torch.full_like(shared[name], -torch.inf) for name in ("best_value", "climb")}
    anew = {"narrowed": shared["narrowed"] + 1, **forgotten}
    return at_mean(type(q)(q.precision * 4, q.eta), q.mean()), anew


def kept(shared: State, value: Tensor, move: Gaussian, fall: float) -> State:
    """What is remembered of a q that is good: it is the best, if it is, and the radius grows.

    So it is too where it was kept although L had fallen: the best value was not to be believed.
    """
    known: State = {"radius": shared["radius"] * GROW}
    unbelieved = bool(value < shared["best_value"] - fall)
    if unbelieved or bool(value >= shared["best_value"]):
        known |= {**as_state(gaussian(shared), "best_"), **as_state(move, "onward_"), "best_value": value}
    if unbelieved:
        known["climb"] = torch.full_like(shared["climb"], -torch.inf)
    return known


def within(q: Gaussian, move: Gaussian, fraction: float, radius: float) -> float:
    """A fraction of a change by halves until it leaves a Gaussian that is no further away than a radius; 0: none."""
    if math.isinf(radius):
        return fraction
    before = moments_of(q)
    for _ in range(HALVINGS):
        new = q.product(move.power(fraction))
        if bool(new.is_proper()) and float(largest_move(before, moments_of(new))) <= radius:
            return fraction
        fraction /= 2
    return 0.0
