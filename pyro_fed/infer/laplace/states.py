"""The states of federated Newton's method with names and types; see `fedlaplace` for the letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.gaussian import Gaussian


class Line(NamedTuple):
    """What the server sends: a point θ and Newton's direction d, both (D,) or (C, D), and the aim s, () or (C,)."""

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
    """The server's state.

    Args:
        point: θ.
        direction: d; zero where curvature and score at θ are not known yet.
        value: f(θ).
        decrement: length of the next Newton step in SDs.
        length: the same, of the part of it that is tried.
        fall: minus the log ratio of the curvatures along the last step, a posterior SD.
        indefinite: 1 if H was not positive definite.
        most_mass: largest mass f |H|^(-1/2) of a point where H was positive definite, as a logarithm.
        best_point: the point of `most_mass`.
        rough_mass: the same of all points, by |H|.
        rough_point: the point of `rough_mass`.
        fruitless: points since `rough_point`.
        back: 1 if the search has left the mass and turned back.
        aim: the fraction that is aimed at.
        transformed: 1 for entries that are logarithms or logits, (D,).
        num_clients: K, an integer.
        prior_value: log p_0 at the line's points, (L,).
        q: H and its η, at the last point whose curvature is known.
        prior: the prior's site at the point aimed at.
        rounding: share of f that is rounding.
    """

    point: Tensor
    direction: Tensor
    value: Tensor
    decrement: Tensor
    length: Tensor
    fall: Tensor
    indefinite: Tensor
    most_mass: Tensor
    best_point: Tensor
    rough_mass: Tensor
    rough_point: Tensor
    fruitless: Tensor
    back: Tensor
    aim: Tensor
    transformed: Tensor
    num_clients: Tensor
    prior_value: Tensor
    q: Annotated[Gaussian, ""]
    prior: Gaussian
    rounding: Tensor

    @property
    def line(self) -> Line:
        """The line that is sent."""
        return Line(self.point, self.direction, self.aim)


def first_server(
    point: Tensor, site: Gaussian, transformed: Tensor, num_clients: int, trials: int, rounding: float
) -> Server:
    """The server before the first round, which knows only the point.

    `site` is a flat site in the structure of q, `transformed` (D,) says which entries are logarithms or logits,
    `trials` is the number of fractions that the line search tries, and `rounding` the share of f that is rounding.
    """
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
