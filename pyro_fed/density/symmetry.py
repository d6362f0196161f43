"""Symmetries of a posterior: maps of the parameters that leave its density as it is.

Components of a mixture can be relabelled, and a factor with its loadings can change its sign. In the values x (n,) of
all latent sites, such a map moves entries and may reflect them in the middle of their support, which on the real line
is a change of sign:

    x'_i = s_i x_{p(i)} + c_i,    s_i = ±1,  c_i = 0, or lower + upper if s_i = -1

Two modes x and y of equal height suggest a map: y_i is x_{p(i)} or its reflection. Whether the map T is a symmetry is
then decided by the log density f of unconstrained vectors z, at points that have nothing to do with the modes:

    f(T z) + log |det ∂T/∂z| = f(z)

If it holds, f is the same function at both, and draws z may be replaced by T z: z and T z have the same distribution if
that of z is the posterior. With a random element of the group that the maps generate, draws of one mode become draws of
all its images (a group move; Liu & Sabatti 2000, *Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian
computation*; for labels of a mixture Frühwirth-Schnatter 2001, *Markov chain Monte Carlo estimation of classical and
dynamic switching and mixture models*).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd.functional import jacobian

from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.problem import Problem

#: Values at two modes are the same up to this share of their size, or of one.
SAME_VALUE_SHARE = 1e-4
#: The largest group whose elements are listed: the orders of six components.
MAX_GROUP_SIZE = 720


@dataclass(frozen=True)
class Symmetry:
    """The map x'_i = s_i x_{p(i)} + c_i of all entries of all sites."""

    source: Tensor  # p (n,), numbers of entries
    sign: Tensor  # s (n,), 1 or -1
    shift: Tensor  # c (n,), float64

    def __call__(self, values: Tensor) -> Tensor:
        """x' (..., n) of x (..., n)."""
        return self.sign * values[..., self.source] + self.shift

    def after(self, first: Symmetry) -> Symmetry:
        """The map that applies `first` and then this one."""
        source, sign = first.source[self.source], self.sign * first.sign[self.source]
        return Symmetry(source, sign, self.sign * first.shift[self.source] + self.shift)

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What two equal maps of one model have in common."""
        return tuple(self.source.tolist()), tuple(self.sign.int().tolist())


def between(problem: Problem, one: Tensor, other: Tensor) -> Symmetry | None:
    """The map of the values at a mode (D,) to those at another (D,), with the fewest moves; None if there is none."""
    x, y = entries(problem, torch.stack([one, other]))
    far_logits = torch.tensor([[-20.0], [20.0]], dtype=one.dtype)
    ends = entries(problem, far_logits.expand(-1, len(one)))
    places = _places(problem)
    site = places[:, 0]
    lower, upper = (
        torch.stack([reduce(ends[:, site == number]) for number in site.unique()])[site]
        for reduce in (torch.min, torch.max)
    )
    alike = (lower[:, None] == lower) & (upper[:, None] == upper)
    near = SAME_VALUE_SHARE * y.abs().clamp_min(1.0)[:, None]
    kept = alike & ((y[:, None] - x).abs() < near)
    reflected = alike & ((y[:, None] - (lower + upper - x)).abs() < near)
    moves = 2.0 * (places[:, None] != places).sum(-1)
    cost = torch.where(kept, moves, torch.where(reflected, moves + 1.0, torch.inf))
    try:
        _, source = linear_sum_assignment(cost.numpy())
    except ValueError:  # an entry has no counterpart
        return None
    found = torch.from_numpy(source)
    straight = kept[torch.arange(len(found)), found]
    sign = torch.where(straight, 1.0, -1.0).double()
    return Symmetry(found, sign, torch.where(straight, 0.0, lower + upper))


def holds(problem: Problem, symmetry: Symmetry, points: Tensor, density: Callable[[Tensor], Tensor]) -> bool:
    """Whether a map is a symmetry of a log density (M,), by its values at points (M, D) and their images."""

    def image(z: Tensor) -> Tensor:
        return _image(problem, symmetry, z)

    moved = torch.stack([image(z) for z in points])
    scale = torch.stack([torch.linalg.slogdet(jacobian(image, z))[1] for z in points])
    here, there = density(points), density(moved) + scale
    finite = here.isfinite() & there.isfinite()
    same = (here - there).abs() <= SAME_SHARE * here.abs().clamp_min(1.0)
    return 2 * int(finite.sum()) >= len(points) and bool(same[finite].all())


def group_of(generators: Sequence[Symmetry]) -> list[Symmetry] | None:
    """All products of some maps, the identity first; None if there are more than `MAX_GROUP_SIZE`."""
    count = len(generators[0].source)
    none = Symmetry(torch.arange(count), torch.ones(count).double(), torch.zeros(count).double())
    found = {none.key: none}
    latest = [none]
    while latest:
        products = [each.after(one) for one in latest for each in generators]
        latest = list({one.key: one for one in products if one.key not in found}.values())
        found |= {one.key: one for one in latest}
        if len(found) > MAX_GROUP_SIZE:
            return None
    return list(found.values())


def spread(problem: Problem, symmetries: Sequence[Symmetry], draws: Tensor, seed: int) -> Tensor:
    """Draws (chain, draw, D), moved by random elements of the group of some maps; unchanged if that has too many."""
    group = group_of(symmetries) if symmetries else None
    if group is None:
        return draws
    flat, generator = draws.flatten(0, 1), seeding.torch_generator(seed, seeding.DRAWS, 1)
    order = torch.randperm(len(flat), generator=generator) % len(group)
    values = entries(problem, flat)
    source, sign, shift = (torch.stack([getattr(one, part) for one in group]) for part in ("source", "sign", "shift"))
    moved = (sign[order] * values.gather(1, source[order]) + shift[order]).to(problem.dtype)
    found = problem.vmap(lambda one: problem.unconstrain(_as_values(problem, one)))(moved)
    return torch.where((order == 0)[:, None], flat, found.to(flat)).view_as(draws)


def entries(problem: Problem, z: Tensor) -> Tensor:
    """The values (M, n) of all entries of all sites at unconstrained points (M, D), float64."""
    values = problem.constrain(z, problem.fewest_rows)
    return torch.cat([values[name].reshape(len(z), -1).double() for name in problem.sites], 1)


def _image(problem: Problem, symmetry: Symmetry, z: Tensor) -> Tensor:
    """T z (D,) of an unconstrained point (D,)."""
    values = problem.constrain(z, problem.fewest_rows)
    flat = torch.cat([values[name].reshape(-1) for name in problem.sites])
    return problem.unconstrain(_as_values(problem, symmetry(flat)))


def _as_values(problem: Problem, flat: Tensor) -> dict[str, Tensor]:
    """The sites' values, from all their entries (n,)."""
    sizes = [torch.Size(site.shape).numel() for site in problem.sites.values()]
    parts = flat.split(sizes)
    return {site.name: part.reshape(site.shape) for site, part in zip(problem.sites.values(), parts, strict=True)}


def _places(problem: Problem) -> Tensor:
    """Each entry's site, by its number, and its index along each of the site's axes (n, 1 + axes)."""
    axes = max(len(site.shape) for site in problem.sites.values())
    found = []
    for number, site in enumerate(problem.sites.values()):
        index = torch.ones(site.shape).nonzero()
        pad = torch.zeros(len(index), axes - len(site.shape), dtype=torch.long)
        found.append(torch.cat([torch.full((len(index), 1), number), index, pad], 1))
    return torch.cat(found)
