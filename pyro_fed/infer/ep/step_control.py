"""How far FedEP's server goes with the sum of its clients' expected Newton steps: held back, or accelerated.

A diagonal precision P has not the posterior's curvature H. Where parameters are correlated (650 weights of positive
pixels) the mean step P⁻¹r, with r the score of q's mean, is too long by up to the largest eigenvalue of P⁻¹H, which
may be as large as D, and damping by a constant that nobody knows would be needed. Worse, beyond q's spread the
classes saturate, the curvature there vanishes, P falls, and the next step is longer still: q never comes back,
however many points its expectations have. So the diagonal steps of a part of the clients are held back in two ways:

    δ ≤ `reach` √D / ‖P'⁻¹r‖_P           no further than q itself reaches, where its expectations were taken;
    δ is halved for good where ‖r‖_{P'⁻¹} > `growth` times the shortest so far, and beyond `reach` √D

with P the precision before and P' after the step. Near the solution neither is felt. A full precision is Newton's and
needs neither.

With all clients at work Anderson acceleration (`ops.anderson`) is added instead: it removes the long steps' modes in
fewer rounds than holding back takes, up to a few hundred parameters; where it does not, a run says so when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import State
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian

if TYPE_CHECKING:
    from pyro_fed.infer.ep.settings import EPSettings


def nothing_known(settings: EPSettings, q: Gaussian) -> State:
    """An empty history of the acceleration."""
    rounds = settings.accelerated(q)[0]
    past = type(q)(*(part.new_full((rounds, *part.shape), torch.nan) for part in (q.precision, q.eta)))
    return {**as_state(past, "points_"), **as_state(past, "moves_")}


def never_held(q: Gaussian) -> State:
    """What `held_back` remembers before the first round."""
    return {"caution": q.eta.new_ones(()), "shortest": q.eta.new_full((), torch.inf)}


def held_back(settings: EPSettings, shared: State, move: Gaussian, clients: int) -> tuple[float, State]:
    """The share of the damping that a step may take, and what is remembered of it.

    Args:
        settings: of the algorithm.
        shared: the server's state.
        move: the undamped change of q.
        clients: how many are at work.
    """
    q = gaussian(shared)
    known = {name: shared[name] for name in ("caution", "shortest")}
    after = q.precision + move.precision
    diagonal = not q.dense and bool((after > 0).all())
    if settings.client != "newton" or not diagonal or clients == int(shared["num_clients"]):
        return 1.0, known
    score = move.score(q.mean())
    length, reach = (score.square() / after).sum().sqrt(), settings.reach * q.dim**0.5
    far = (length > settings.growth * shared["shortest"]) & (length > reach)
    known["caution"] = torch.where(far, shared["caution"] / 2, shared["caution"])
    known["shortest"] = torch.where(far, length, torch.minimum(length, shared["shortest"]))
    step = ((score / after).square() * q.precision).sum().sqrt()
    return float(known["caution"] * (reach / step).clamp_max(1.0)), known


def added(settings: EPSettings, shared: State, move: Gaussian, fractions: Tensor, damping: float) -> State:
    """What acceleration adds to q, and its history: empty after a step of fewer clients, or one held back."""
    q = gaussian(shared)
    everyone = len(fractions) == int(shared["num_clients"]) + 1
    whole = settings.client == "newton" and settings.local_steps == 1 and everyone
    if not (whole and bool((fractions == damping).all())):
        return {**as_state(type(q).zeros((), q.dim, device=q.eta.device), "added_"), **nothing_known(settings, q)}
    points, moves = remember(gaussian(shared, "points_"), q), remember(gaussian(shared, "moves_"), move)
    further = acceleration(points, moves, damping, settings.growth, settings.accelerated(q)[1])
    return {**as_state(further, "added_"), **as_state(points, "points_"), **as_state(moves, "moves_")}
