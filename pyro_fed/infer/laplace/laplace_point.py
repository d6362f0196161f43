"""The state of federated Newton's method at a point, the next step, and the return from a spike of the density.

`fedlaplace` has the letters and the source.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import absolute
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import MIN_EIGENVALUE, equilibrated_cholesky

#: A fall of the log curvature by this much per posterior SD indicates a mode at infinity, where Newton steps keep their
#: length in the parameters' units while the posterior SDs grow. For a Gamma density with shape a, on the log scale, the
#: fall is a^(-1/2). Shorter steps are not conclusive: at a kink, as of ReLU units, the curvature falls abruptly.
MAX_CURVATURE_FALL = 100.0
#: Longest Newton step at a saddle, where the curvature is not positive definite, in SDs of |H|.
MAX_SADDLE_STEP = 1.0
#: Loss of log mass, f - log|H|^(1/2), since a point where H was positive definite, in nats, after which a search that
#: has not converged has left the posterior for a spike, as where a hierarchy's scale goes to zero. The spike contains
#: less than a thousandth of the mass.
MAX_LOST_MASS = 7.0
#: The same for points where H was not positive definite, whose masses by |H| may be wrong by a few nats, with the
#: required number of points since the largest mass.
MAX_ROUGHLY_LOST_MASS, MAX_FRUITLESS_POINTS = 20.0, 5


class Line(NamedTuple):
    """The server's message: a point θ and the Newton direction d, both (D,) or (C, D), and the aim s, () or (C,)."""

    point: Tensor
    direction: Tensor
    aim: Tensor

    @property
    def end(self) -> Tensor:
        """The point aimed at, (D,) or (C, D)."""
        return self.point + self.aim.unsqueeze(-1) * self.direction

    def trials(self, fractions: tuple[float, ...]) -> Tensor:
        """The points at all fractions of the direction, (C, L, D)."""
        shares = self.point.new_tensor(fractions).unsqueeze(-1)
        return self.point.unsqueeze(1) + shares * self.direction.unsqueeze(1)


@dataclass(frozen=True)
class Server:
    """The server's state."""

    point: Tensor  # θ
    direction: Tensor  # d; zero if curvature and score at θ are not known yet
    value: Tensor  # f(θ)
    decrement: Tensor  # length of the next Newton step in SDs
    length: Tensor  # length of the part of it that is tried
    fall: Tensor  # minus the log ratio of the curvatures along the last step, per posterior SD
    indefinite: Tensor  # 1 if H was not positive definite
    most_mass: Tensor  # log of the largest mass |H|^(-1/2) exp f of a point where H was positive definite
    best_point: Tensor  # the point of `most_mass`
    rough_mass: Tensor  # log of the largest mass of all points, by |H|
    rough_point: Tensor  # the point of `rough_mass`
    fruitless: Tensor  # number of points since `rough_point`
    back: Tensor  # 1 if the search has left the mass and returned
    aim: Tensor  # the fraction that is aimed at
    transformed: Tensor  # 1 for entries that are logarithms or logits, (D,)
    num_clients: Tensor  # K, an integer
    prior_value: Tensor  # log p_0 at the line's points, (L,)
    q: Annotated[Gaussian, ""]  # H and its η, at the last point whose curvature is known
    prior: Gaussian  # the prior's site at the point aimed at
    rounding: Tensor  # relative rounding error of f

    @property
    def line(self) -> Line:
        """The line that is sent."""
        return Line(self.point, self.direction, self.aim)


def first_server(
    point: Tensor, site: Gaussian, transformed: Tensor, num_clients: int, trials: int, rounding: float
) -> Server:
    """The server before the first round, with only the point known; `site` is flat, `trials` is L."""
    zero, unknown = point.new_zeros(()), point.new_tensor(-torch.inf)
    return Server(
        point=point,
        direction=torch.zeros_like(point),
        value=unknown,
        decrement=-unknown,
        length=-unknown,
        fall=zero,
        indefinite=zero,
        most_mass=unknown,
        best_point=point,
        rough_mass=unknown,
        rough_point=point,
        fruitless=zero,
        back=zero,
        aim=torch.ones_like(point[0]),
        transformed=transformed.to(point),
        num_clients=torch.tensor(num_clients),
        prior_value=point.new_zeros(trials),
        q=site,
        prior=site,
        rounding=point.new_tensor(rounding),
    )


def mode_level(state: State) -> float:
    """The log density at the point of a federated Laplace approximation; -inf if unknown, as during a return."""
    is_returning = bool(state.get("back", False)) and bool(state["decrement"] > 0)
    return float(state["value"]) if "value" in state and not is_returning else -math.inf


def state_after_arrival(server: Server, sites: Gaussian, value: Tensor) -> Server:
    """The state at the point aimed at, from the clients' sites and f there; or at the point of largest mass."""
    q = sites.product_over(0).product(server.prior)
    point = server.line.end
    metric, indefinite = absolute(q)
    direction = type(q)(metric.precision, q.score(point)).mean()
    decrement = (direction * q.score(point)).sum().clamp_min(0).sqrt()
    if bool(indefinite & (decrement < MAX_SADDLE_STEP)):
        saddle_step = _saddle_step(q, q.score(point))
        direction, decrement = direction + saddle_step, torch.where(saddle_step.any(), MAX_SADDLE_STEP, decrement)
    mass = value - metric.log_det() / 2
    if bool(server.back):  # the search has returned, and stays
        direction, decrement = torch.zeros_like(direction), torch.zeros_like(decrement)
    elif bool(decrement > MAX_SADDLE_STEP) and (return_point := _return_point(server, mass)) is not None:
        one = torch.ones_like(server.back)
        return replace(server, point=return_point, direction=torch.zeros_like(point), back=one)
    is_best, is_best_rough = ~indefinite & (mass > server.most_mass), mass > server.rough_mass
    return replace(
        server,
        most_mass=torch.where(is_best, mass, server.most_mass),
        best_point=torch.where(is_best, point, server.best_point),
        rough_mass=torch.where(is_best_rough, mass, server.rough_mass),
        rough_point=torch.where(is_best_rough, point, server.rough_point),
        fruitless=torch.where(is_best_rough, 0.0, server.fruitless + 1),
        point=point,
        direction=direction,
        value=value,
        decrement=decrement,
        length=decrement,
        fall=_curvature_fall(server, q),
        indefinite=indefinite.double(),
        q=q,
    )


def _return_point(server: Server, mass: Tensor) -> Tensor | None:
    """The point (D,) to which a search returns that has left the mass; None if it continues."""
    if bool((server.fruitless >= MAX_FRUITLESS_POINTS) & (mass < server.rough_mass - MAX_ROUGHLY_LOST_MASS)):
        return server.rough_point
    return server.best_point if bool(mass < server.most_mass - MAX_LOST_MASS) else None


def _saddle_step(q: Gaussian, score: Tensor) -> Tensor:
    """A step off a saddle, uphill along the most negative curvature, of one SD of |H|; zero if none is negative."""
    matrix = q.precision if q.dense else q.precision.diag_embed()
    scale = matrix.diagonal().abs().sqrt()
    scale = torch.where(scale > 0, scale, scale.amax().clamp_min(MIN_EIGENVALUE))
    if q.dense:
        values, vectors = torch.linalg.eigh((matrix / scale.unsqueeze(-1) / scale).nan_to_num())
        value, vector = values[0], vectors[:, 0]
    else:
        vector = (q.precision < 0).to(scale)
        value, vector = -vector.amax(), vector / vector.sum().clamp_min(1).sqrt()
    if not bool(value < -MIN_EIGENVALUE):
        return torch.zeros_like(score)
    away: Tensor = vector / scale / value.abs().sqrt()
    signs = torch.where(score == 0, 1.0, score.sign()) if not q.dense else torch.where(away @ score < 0, -1.0, 1.0)
    return signs * away


def _curvature_fall(server: Server, q: Gaussian) -> Tensor:
    """Minus the log ratio of the curvatures along a full Newton step per SD; 0 for a shortened step."""
    step, centred = server.direction, type(q)(q.precision, torch.zeros_like(q.eta))
    # Of a Gaussian around zero: far from there two scores' difference would be rounding.
    old_curvature, new_curvature = server.length.square(), -(step * centred.score(step)).sum()
    length = server.aim * server.length
    is_known = old_curvature.isfinite() & (old_curvature > 0) & (new_curvature > 0) & step.any()
    is_shortened = step.any() & ((server.aim < 1) | (server.length < server.decrement))
    return torch.where(
        is_shortened, 0.0, torch.where(is_known, (old_curvature / new_curvature).log() / length, server.fall)
    )


def semidefinite(site: Gaussian) -> Tensor:
    """Whether each client's curvature is positive semidefinite up to rounding, (C,)."""
    if not site.dense:
        return (site.precision >= 0).all(-1)
    size = site.precision.diagonal(dim1=-2, dim2=-1).abs()
    jitter = torch.diag_embed(size * torch.finfo(torch.float32).eps + torch.finfo(torch.float64).tiny)
    return equilibrated_cholesky(site.precision + jitter).proper
