"""What federated Newton's method knows at a point: the step from there, how its curvature falls, and its verdict.

See `fedlaplace` for the letters and the source.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import absolute, as_state, gaussian
from pyro_fed.ops.cholesky import equilibrated_cholesky
from pyro_fed.ops.entries import choose
from pyro_fed.ops.gaussian import Gaussian

#: A curvature that falls by this log factor a posterior SD is that of a mode at infinity: there a Newton step keeps
#: its length in the parameters' units while the posterior SDs grow. A Gamma density with shape a has a^(-1/2) on the
#: log scale.
ESCAPING = 100.0
#: Where the curvature is not positive definite a shorter Newton step than this, in SDs of |H|, is at a saddle.
SADDLE = 1.0
#: A climb whose Laplace evidence f - log |H| / 2 has fallen so many nats below its best, and found none better for so
#: many rounds, goes into the neck of a funnel: the density rises there without end, in less and less room, so that the
#: place where it has come to holds none of the posterior's mass.
NARROWED, ROUNDS = 20.0, 5
#: What is said of a density with such a neck.
NECK = (
    "the density has no maximum: it rises without end into the neck of a funnel, which holds none of the mass, as that "
    "of effects with a latent scale does where the scale goes to zero. This is Laplace's approximation at the place of "
    "largest evidence on the way. Take the non-centred form of the model (fed.noncentred), or sample, by FSGLD or DSVGD"
)
#: What is said of such a mode.
IMPROPER = (
    "the posterior is improper, or nearly so: its mode is at infinity. The density goes on rising while its curvature "
    "vanishes, as with separable classes under a flat prior. Draws mean nothing: give the model a proper prior"
)


def aimed(state: State) -> Tensor:
    """The point aimed at, (D,), or of several states (C, D)."""
    return state["point"] + state["aim"].unsqueeze(-1) * state["direction"]


def arrived(shared: State, messages: State, value: Tensor, min_curvature: float) -> State:
    """The state at the point aimed at, whose curvature is known.

    Args:
        shared: the state before the step.
        messages: the clients' sites there, (K, ...).
        value: the log posterior there.
        min_curvature: smallest eigenvalue of the scaled `|H|` where H is not positive definite.
    """
    q = gaussian(messages).product_over(0).product(gaussian(shared, "prior_"))
    point = aimed(shared)
    metric, indefinite = absolute(q, min_curvature)
    direction = type(q)(metric.precision, q.score(point)).mean()
    decrement = (direction * q.score(point)).sum().clamp_min(0).sqrt()
    if bool(indefinite & (decrement < SADDLE)):
        down = _outward(q, q.score(point), min_curvature)
        direction, decrement = direction + down, torch.where(down.any(), SADDLE, decrement)
    return {
        **shared,
        "point": point,
        "direction": direction,
        "value": value,
        "decrement": decrement,
        "length": decrement,
        "fall": _fall(shared, q),
        "indefinite": indefinite.double(),
        **as_state(q),
    }


def no_evidence(point: Tensor) -> State:
    """What is known of the evidence on a climb before its first round.

    Args:
        point: where it begins, (D,).
    """
    none = torch.full_like(point[0], -torch.inf)
    zero = torch.zeros_like(none)
    return {"best_point": point, "best_evidence": none, "evidence": none, "fruitless": zero, "turned": zero}


def weighed(state: State, new: bool, min_curvature: float) -> State:
    """The state with its Laplace evidence, back at the place of the largest where the climb goes into a neck.

    It turns back once: `turned` is 1 on the way back, and 2 from the arrival there on, where no step follows.

    Args:
        state: after a round.
        new: whether the curvature at its point is known, since this round.
        min_curvature: smallest eigenvalue of the scaled `|H|` where H is not positive definite.
    """
    if bool(state["turned"] > 0):
        if not new:
            return state
        rest = {name: torch.zeros_like(state[name]) for name in ("direction", "decrement", "length")}
        return {**state, **rest, "turned": torch.full_like(state["turned"], 2.0)}
    evidence = state["evidence"]
    if new:
        evidence = state["value"] - absolute(gaussian(state), min_curvature)[0].log_det() / 2
    better = bool(new and evidence > state["best_evidence"])
    fruitless = torch.zeros_like(evidence) if better else state["fruitless"] + 1
    known = {"evidence": evidence, "fruitless": fruitless}
    if better:
        return {**state, **known, "best_point": state["point"], "best_evidence": evidence}
    if not bool((fruitless >= ROUNDS) & (evidence < state["best_evidence"] - NARROWED)):
        return {**state, **known}
    back = {"point": state["best_point"], "direction": torch.zeros_like(state["point"])}
    return {
        **state,
        **known,
        **back,
        "value": torch.full_like(evidence, -torch.inf),
        "turned": torch.ones_like(evidence),
    }


def where_left(state: State, min_curvature: float) -> Gaussian:
    """The Gaussians of climbs that ended, or of |H| around the points of those that were left: (...).

    Args:
        state: of one climb, or of several.
        min_curvature: smallest eigenvalue of the scaled `|H|`.
    """
    q = gaussian(state)
    metric = absolute(q, min_curvature)[0]
    eta = -type(q)(metric.precision, torch.zeros_like(q.eta)).score(state["point"])
    left = state["turned"] > 0
    return type(q)(choose(left, metric.precision, q.precision), choose(left, eta, q.eta))


def _outward(q: Gaussian, score: Tensor, floor: float) -> Tensor:
    """The way off a saddle: along the most negative curvature, one SD of |H| long, uphill where there is a slope.

    Zero where no scaled curvature is below -`floor`: a flat direction is no way off.
    """
    matrix = q.precision if q.dense else q.precision.diag_embed()
    scale = matrix.diagonal().abs().sqrt()
    scale = torch.where(scale > 0, scale, scale.amax().clamp_min(floor))
    if q.dense:
        values, vectors = torch.linalg.eigh((matrix / scale.unsqueeze(-1) / scale).nan_to_num())
        value, vector = values[0], vectors[:, 0]
    else:
        vector = (q.precision < 0).to(scale)
        value, vector = -vector.amax(), vector / vector.sum().clamp_min(1).sqrt()
    if not bool(value < -floor):
        return torch.zeros_like(score)
    away: Tensor = vector / scale / value.abs().sqrt()
    signs = torch.where(score == 0, 1.0, score.sign()) if not q.dense else torch.where(away @ score < 0, -1.0, 1.0)
    return signs * away


def _fall(shared: State, q: Gaussian) -> Tensor:
    """How fast the curvature along the step fell: minus its log ratio, a posterior SD of the step."""
    step, centred = shared["direction"], type(q)(q.precision, torch.zeros_like(q.eta))
    # Of a Gaussian around zero: far from there two scores' difference would be rounding.
    before, after = shared["length"].square(), -(step * centred.score(step)).sum()
    length = shared["aim"] * shared["length"]
    known = before.isfinite() & (before > 0) & (after > 0) & step.any()
    return torch.where(known, (before / after).log() / length, shared["fall"])


def semidefinite(site: Gaussian) -> Tensor:
    """Whether each client's curvature is not negative in any direction, up to rounding: (C,)."""
    if not site.dense:
        return (site.precision >= 0).all(-1)
    size = site.precision.diagonal(dim1=-2, dim2=-1).abs()
    jitter = torch.diag_embed(size * torch.finfo(torch.float32).eps + torch.finfo(torch.float64).tiny)
    return equilibrated_cholesky(site.precision + jitter).proper
