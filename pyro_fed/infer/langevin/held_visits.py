"""Limits on a client's effect on the chains that visit it, from the surrogates and the cohort's departures from them.

A visit's randomness follows from the run's seed, the round and the client, so that the server can make the same visit
to the Gaussian q = p Π_s q_s that it knows: p_t are that chain's positions. At a client whose score differs from q's by
e, in SDs of a parameter, the true positions z_t are

    z_t = p_t + O(t h / 2) e        h the step, in preconditioned time

and the positions sent are cut back to |z_t - p_t|_i ≤ R_i t h / 2 in SDs of θ_i. A chain spends 1/K of its time at each
of K clients, so that a malicious client moves the mean by at most R_i / K SDs in the long run. R_i is

    max(b m_i, `ACCEPTED_SHIFT_SDS` K)   m_i the cohort's own departures, root mean square (`surrogates.mismatch`)

Honest visits within R_i are unchanged, to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import ACCEPTED_SHIFT_SDS
from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding


def reference(mean: Tensor, root: Tensor, mismatch: Tensor | None) -> State:
    """The entries about q in the server's state: its mean (D,), a root of its covariance, and the cohort's departures.

    `root` is A of the covariance A A', (D, D) or (D,); `mismatch` are mean square departures in SDs, (D,), None if they
    are not measured.
    """
    known = torch.zeros_like(mean) if mismatch is None else mismatch.clamp_min(0).sqrt().to(mean.dtype)
    return {"held_mean": mean, "held_root": root, "held_departure": known}


def held_visits(
    shared: State, messages: State, steps: Tensor, noise: Tensor, stride: int, midpoint: bool, pull: float
) -> tuple[State, Tensor]:
    """Visits cut back to the reach, and by how many SDs each was beyond it, (C,).

    Args:
        shared: the server's state, with `reference`.
        messages: the visits, of C chains.
        steps: h of each step, (T,), in preconditioned coordinates.
        noise: of each chain's steps, (C, T, D).
        stride: steps between positions that were sent.
        midpoint: whether a step's score and its draw are taken half of the noise further on.
        pull: b.
    """
    mean, root = shared["held_mean"], shared["held_root"]
    dense = root.dim() == 2
    spread = root.square().sum(-1).sqrt() if dense else root
    start = shared["position"].repeat_interleave(len(noise) // len(shared["position"]), 0)  # several clients a chain
    away = start - mean
    white = torch.linalg.solve_triangular(root, away.T, upper=True).T if dense else away / root
    kept = []
    for h, normal in zip(steps, noise.unbind(1), strict=True):
        where = white + 0.5 * h.sqrt() * normal if midpoint else white
        white = white - 0.5 * h * where + h.sqrt() * normal
        kept.append(where if midpoint else white)
    path = torch.stack([*kept[stride - 1 :: stride], white], 1)
    expected = mean + (path @ root.T if dense else root * path)
    sent = torch.cat([messages["draws"], messages["position"].unsqueeze(1)], 1)
    clients = len(shared["share"])
    rate = torch.maximum(pull * shared["held_departure"], torch.full_like(spread, ACCEPTED_SHIFT_SDS * clients))
    time = 0.5 * steps.cumsum(0)
    reach = torch.cat([time[stride - 1 :: stride], time[-1:]]).unsqueeze(-1) * rate * spread
    departure = sent - expected
    over = (departure.abs() - reach).clamp_min(0) / spread
    still = (messages["position"] == start).all(-1)  # a visit that failed, or might as well have
    beyond = torch.where(still, 0.0, over.flatten(1).amax(1))
    held = expected + torch.minimum(torch.maximum(departure, -reach), reach)
    found = torch.where((beyond > 0).reshape(-1, 1, 1), held, sent)
    return {**messages, "draws": found[:, :-1], "position": found[:, -1]}, beyond.double()


def departures(shared: State, start: Tensor, ends: Tensor, steps: Tensor, noise: Tensor, midpoint: bool) -> Tensor:
    """Distances (R, C) in SDs of visits' ends from those of the same visits to the surrogates; zero if one failed.

    A visit to a Gaussian is linear in its noise, z_T = Π_t (1 - h_t / 2) z_0 + Σ_t c_t ξ_t, so that its end has a
    closed form.

    Args:
        shared: the server's state, with `reference`.
        start: where the C visits of R rounds began, (R, C, D).
        ends: where they ended, (R, C, D).
        steps: h of each step, (R, T).
        noise: of each visit's steps, (R, C, T, D).
        midpoint: whether a step's score is taken half of the noise further on.
    """
    mean, root = shared["held_mean"], shared["held_root"]
    dense = root.dim() == 2
    away = start - mean
    shrunk = 1 - 0.5 * steps
    left = torch.cat([shrunk.flip(1).cumprod(1).flip(1)[:, 1:], shrunk.new_ones(len(steps), 1)], 1)
    each = left * steps.sqrt() * (1 - 0.25 * steps if midpoint else torch.ones_like(steps))
    moved = (each.to(noise)[:, None, :, None] * noise).sum(2)
    kept = shrunk.prod(1)
    white = kept[:, None, None] * (_each(away, _inverse(root)) if dense else away) + moved
    away = _each(white, root) if dense else root * white
    spread = root.square().sum(-1).sqrt() if dense else root
    expected = mean + away
    distance = ((ends - expected).abs() / spread).amax(-1)
    return torch.where((ends == start).all(-1), 0.0, distance).double()


def _each(values: Tensor, matrix: Tensor) -> Tensor:
    """A x of (R, C, D), as one product for each round: a product of another shape may differ in its last bits."""
    return torch.bmm(values, matrix.T.expand(len(values), *matrix.shape))


def _inverse(root: Tensor) -> Tensor:
    """The inverse of an upper triangular matrix."""
    unit = torch.eye(len(root), dtype=root.dtype, device=root.device)
    found: Tensor = torch.linalg.solve_triangular(root, unit, upper=True)
    return found


def visit_noise(seed: int, round: int, clients: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The normal numbers of visits, as the clients draw them first, (C, T, D); `shape` is (T, D)."""
    generators = seeding.torch_generators(seed, seeding.client_keys(round, clients.tolist()))
    return torch.stack([torch.randn(shape, generator=generator, dtype=dtype) for generator in generators])
