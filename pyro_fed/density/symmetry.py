"""Symmetries of a posterior: maps of the parameters that do not change its density.

Components of a mixture can be relabelled, and a factor and its loadings can change their sign. On the values x (n,) of
all latent sites, such a map permutes entries and may reflect them about the middle of their support, which is a change
of sign on the real line:

    x'_i = s_i x_{p(i)} + c_i,    s_i = ±1,  c_i = 0, or lower + upper if s_i = -1

Two modes x and y of equal height suggest a map T, where y_i is x_{p(i)} or its reflection. T is a symmetry if the log
density f of unconstrained vectors z, at points independent of the modes, satisfies

    f(T z) + log |det ∂T/∂z| = f(z)

Then T z has the same distribution as z if z is a draw of the posterior, and may replace it. Random elements of the
group that the maps generate turn draws of one mode into draws of all its images (a group move; Liu & Sabatti 2000,
*Generalised Gibbs sampler and multigrid Monte Carlo for Bayesian computation*; for labels of a mixture
Frühwirth-Schnatter 2001, *Markov chain Monte Carlo estimation of classical and dynamic switching and mixture models*).
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

#: Tolerance for equal values at two modes, relative to their size or to one.
SAME_VALUE_SHARE = 1e-4
#: Largest size of a group whose elements are listed: the number of orders of six components.
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
        """Key that is equal for equal maps of a model."""
        return tuple(self.source.tolist()), tuple(self.sign.int().tolist())


def between(problem: Problem, one: Tensor, other: Tensor) -> Symmetry | None:
    """The map with the fewest moves from the values at a mode (D,) to those at another (D,).

    None if there is none, or if the values are the same.
    """
    x, y = entries(problem, torch.stack([one, other]))
    far_logits = torch.tensor([[-20.0], [20.0]], dtype=one.dtype)
    ends = entries(problem, far_logits.expand(-1, len(one)))
    places = _entry_places(problem)
    site = places[:, 0]
    lower, upper = (
        torch.stack([reduce(ends[:, site == number]) for number in site.unique()])[site]
        for reduce in (torch.min, torch.max)
    )
    same_support = (lower[:, None] == lower) & (upper[:, None] == upper)
    tolerance = SAME_VALUE_SHARE * y.abs().clamp_min(1.0)[:, None]
    is_equal = same_support & ((y[:, None] - x).abs() < tolerance)
    is_reflected = same_support & ((y[:, None] - (lower + upper - x)).abs() < tolerance)
    moves = 2.0 * (places[:, None] != places).sum(-1)
    cost = torch.where(is_equal, moves, torch.where(is_reflected, moves + 1.0, torch.inf))
    try:
        _, source = linear_sum_assignment(cost.numpy())
    except ValueError:  # an entry has no counterpart
        return None
    source_numbers = torch.from_numpy(source)
    keeps_sign = is_equal[torch.arange(len(source_numbers)), source_numbers]
    sign = torch.where(keeps_sign, 1.0, -1.0).double()
    if bool(keeps_sign.all()) and torch.equal(source_numbers, torch.arange(len(source_numbers))):
        return None
    return Symmetry(source_numbers, sign, torch.where(keeps_sign, 0.0, lower + upper))


def holds(problem: Problem, symmetry: Symmetry, points: Tensor, density: Callable[[Tensor], Tensor]) -> bool:
    """Whether a map is a symmetry of a log density (M,), from its values at points (M, D) and their images."""

    def image(z: Tensor) -> Tensor:
        return _image(problem, symmetry, z)

    images = torch.stack([image(z) for z in points])
    scale = torch.stack([torch.linalg.slogdet(jacobian(image, z))[1] for z in points])
    densities, image_densities = density(points), density(images) + scale
    finite = densities.isfinite() & image_densities.isfinite()
    is_equal = (densities - image_densities).abs() <= SAME_SHARE * densities.abs().clamp_min(1.0)
    return 2 * int(finite.sum()) >= len(points) and bool(is_equal[finite].all())


def group_of(generators: Sequence[Symmetry]) -> list[Symmetry] | None:
    """All products of the generators, the identity first; None if there are more than `MAX_GROUP_SIZE`."""
    count = len(generators[0].source)
    identity = Symmetry(torch.arange(count), torch.ones(count).double(), torch.zeros(count).double())
    elements = {identity.key: identity}
    new_elements = [identity]
    while new_elements:
        products = [generator.after(element) for element in new_elements for generator in generators]
        new_elements = list({element.key: element for element in products if element.key not in elements}.values())
        elements |= {element.key: element for element in new_elements}
        if len(elements) > MAX_GROUP_SIZE:
            return None
    return list(elements.values())


def spread(problem: Problem, symmetries: Sequence[Symmetry], draws: Tensor, seed: int) -> Tensor:
    """Draws (chain, draw, D) mapped by random elements of the group of symmetries; unchanged if the group is large."""
    group = group_of(symmetries) if symmetries else None
    if group is None:
        return draws
    flat, generator = draws.flatten(0, 1), seeding.torch_generator(seed, seeding.DRAWS, 1)
    order = torch.randperm(len(flat), generator=generator) % len(group)
    values = entries(problem, flat)
    source, sign, shift = (torch.stack([getattr(one, part) for one in group]) for part in ("source", "sign", "shift"))
    mapped_values = (sign[order] * values.gather(1, source[order]) + shift[order]).to(problem.dtype)
    mapped_draws = problem.vmap(lambda one: problem.unconstrain(_values_by_site(problem, one)))(mapped_values)
    return torch.where((order == 0)[:, None], flat, mapped_draws.to(flat)).view_as(draws)


def entries(problem: Problem, z: Tensor) -> Tensor:
    """The values (M, n) of all entries of all sites at unconstrained points (M, D), float64."""
    values = problem.constrain(z, problem.fewest_rows)
    return torch.cat([values[name].reshape(len(z), -1).double() for name in problem.sites], 1)


def _image(problem: Problem, symmetry: Symmetry, z: Tensor) -> Tensor:
    """T z (D,) of an unconstrained point (D,)."""
    values = problem.constrain(z, problem.fewest_rows)
    flat = torch.cat([values[name].reshape(-1) for name in problem.sites])
    return problem.unconstrain(_values_by_site(problem, symmetry(flat)))


def _values_by_site(problem: Problem, flat: Tensor) -> dict[str, Tensor]:
    """The sites' values, from all their entries (n,)."""
    sizes = [torch.Size(site.shape).numel() for site in problem.sites.values()]
    parts = flat.split(sizes)
    return {site.name: part.reshape(site.shape) for site, part in zip(problem.sites.values(), parts, strict=True)}


def _entry_places(problem: Problem) -> Tensor:
    """The number of each entry's site, and its index along each of the site's axes, (n, 1 + axes)."""
    axes = max(len(site.shape) for site in problem.sites.values())
    site_places = []
    for number, site in enumerate(problem.sites.values()):
        index = torch.ones(site.shape).nonzero()
        pad = torch.zeros(len(index), axes - len(site.shape), dtype=torch.long)
        site_places.append(torch.cat([torch.full((len(index), 1), number), index, pad], 1))
    return torch.cat(site_places)
