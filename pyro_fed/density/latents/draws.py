"""Draws of the rows' latents given draws of θ: each from its conditional distribution, balanced over the draws.

    x_i ~ p(x_i | θ_s, y_i)      for every draw s and row i

A draw is the end of a short Markov chain in the units of `quadrature`, x = m + C⁻ᵀ u around the mode m:

1. T steps of independence Metropolis-Hastings with Student t proposals u. The weights p / t are bounded if the
   posterior's tails are not heavier, so that a few steps forget the start.
2. One such step with a normal proposal. It is always accepted if x | θ_s, y_i is Gaussian, so that x is a function of
   this proposal alone. Otherwise the acceptance rate increases as x | θ_s, y_i becomes Gaussian.

T follows from the weights of proposals at a few draws: if no weight exceeds M times their mean, the share of the start
after T steps is (1 - 1/M)^T (Mengersen & Tweedie 1996). T is zero if the last step alone makes this share small enough,
such as for a Gaussian x | θ_s, y_i. If `tails` places the nodes, proposals come from the piecewise linear density
between these, by uniform numbers in step 1 and Φ of the normal numbers in step 2, unless the tails do not matter at
these draws of θ. For rows with several modes a proposal is a mode, chosen by its mass, and a place around it, accepted
by the mode's part of the density.

The normal proposals of the S draws are `balanced_normal`: each has its exact distribution, and proposals of different
rows are independent, but their sum over the draws hardly varies. The errors of the moments of x are then hardly larger
than those of θ, even for a hundred particles. (With independent draws the error of a mean is a tenth of an SD.)

Discrete latents are drawn site by site, k_1 ~ p(k_1 | y, z), k_2 ~ p(k_2 | k_1, y, z), ..., each with the later sites
summed out. These draws are exact, and a pure function that `vmap` supports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.density.latents.ascent_starts import ascent_starts, first_client, one_client
from pyro_fed.density.latents.discrete import log_weights
from pyro_fed.density.latents.modes import Centre, log_shares, one_mode_each
from pyro_fed.density.latents.quadrature import FINER_RULE_FACTOR
from pyro_fed.ops.entries import evenly, farthest
from pyro_fed.ops.matrices import log_det_lower
from pyro_fed.ops.memory import count_in_memory, count_of_densities
from pyro_fed.ops.points import balanced_normal

if TYPE_CHECKING:
    from pyro_fed.density.latents.quadrature import NearbyModes, Quadrature
    from pyro_fed.density.problem import Problem

#: Number of draws of θ by which proposals and T are chosen, and largest share of the start after T steps: one draw in
#: a thousand.
PILOT_DRAWS, START_SHARE_LEFT = 8, 1e-3


class Proposals(NamedTuple):
    """The randomness of a draw of m rows, float64."""

    student: Tensor  # (T + 1, m, d); uniform numbers if `tails` places the proposals
    normal: Tensor  # (m, d)
    uniform: Tensor  # (T + 1, m)
    mode: tuple[Tensor, ...] = ()  # uniform numbers (T + 2, m) that select among several modes


def draw_locals(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], generator: torch.Generator) -> Tensor:
    """Draws of the rows' latents at θ (S, D), unconstrained: (S, m, local_dim)."""
    starts = ascent_starts(problem, theta.unsqueeze(0), one_client(rows, theta))
    near = None if starts is None else first_client(starts.batch.near[0])
    centre, rule = _centres(problem, theta, rows, near), problem.quadrature
    several, steps = bool(rule.starts), rule.draw_steps
    if rule.by_tails(problem.local_dim) and not several:
        rule = replace(rule, tails=_needs_tails(problem, theta, rows, centre))
        problem = replace(problem, quadrature=rule)
    if not several:
        steps = _steps(problem, theta, rows, centre, generator)
    chunks = _chunks(problem, len(theta), steps)
    first = centre.mode[:, 0] if several else centre.mode
    normal = _normal_proposals(first, generator)
    draw = problem.mapped(draw_among if several else draw_given, (0, 0, 0, None), calls=0)
    last = evenly_mixed(first, generator) if several else None
    out = []
    for chunk in chunks:
        here = Centre(*(part[chunk] for part in centre))
        noise = _proposals(rule, first[chunk], normal[chunk], steps, generator)
        if last is not None:
            mode = torch.rand(noise.uniform.shape, generator=generator, dtype=torch.float64)
            noise = noise._replace(mode=(torch.cat([mode, last[chunk].unsqueeze(1)], 1),))
        out.append(draw(theta[chunk], here, noise, rows))
    return torch.cat(out)[: len(theta)]


def evenly_mixed(like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers (S, m), stratified over the S draws of each row, for modes in proportion to their mass."""
    count, rows = like.shape[:2]
    order = torch.rand(count, rows, generator=generator, dtype=torch.float64).argsort(0)
    return (order + torch.rand(count, rows, generator=generator, dtype=torch.float64)) / count


def _normal_proposals(modes: Tensor, generator: torch.Generator) -> Tensor:
    """Normal proposals (S, m, d), a few rows at a time."""
    width = count_in_memory(len(modes) * modes.shape[-1])
    return torch.cat([balanced_normal(part, generator) for part in modes.split(width, 1)], 1)


def _chunks(problem: Problem, count: int, steps: int) -> list[Tensor]:
    """Indices of draws in chunks of equal size for one compilation; the last draw fills the last chunk."""
    size = min(count, count_of_densities(problem.widest * (steps + 2)))
    return [torch.arange(first, first + size).clamp_max(count - 1) for first in range(0, count, size)]


def _centres(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], near: NearbyModes | None) -> Centre:
    """Modes and curvatures of the rows at every θ (S, D), from known modes near them if there are any."""
    rule, chunks = problem.quadrature, _chunks(problem, len(theta), 1)
    if near is None:
        find = problem.mapped(rule.centres if rule.starts else rule.centre, (0, None), calls=0)
        centre_parts = [find(theta[chunk], rows) for chunk in chunks]
    else:
        find_near = problem.mapped(rule.centre_near, (0, None, None), calls=0)
        centre_parts = [find_near(theta[chunk], rows, near) for chunk in chunks]
    return Centre(*(torch.cat(parts)[: len(theta)] for parts in zip(*centre_parts, strict=True)))


def _pilots(theta: Tensor) -> Tensor:
    """The numbers of a few draws (S, D): evenly spaced, and farthest from the mean, where tails may be longest."""
    half = min(PILOT_DRAWS, len(theta)) // 2
    return torch.cat([evenly(len(theta), min(PILOT_DRAWS, len(theta)) - half), farthest(theta, half)])


def _needs_tails(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], centre: Centre) -> bool:
    """Whether integrals at a few draws need nodes by tails, a few of these draws at a time."""
    rule, pilots = problem.quadrature, _pilots(theta)
    chunks = [pilots[chunk] for chunk in _chunks(problem, len(pilots), FINER_RULE_FACTOR * rule.places(1))]
    centres = [one_mode_each(Centre(*(part[chunk] for part in centre))) for chunk in chunks]
    return any(rule.needs_tails(problem, theta[chunk], rows, here) for chunk, here in zip(chunks, centres, strict=True))


def _steps(
    problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], centre: Centre, generator: torch.Generator
) -> int:
    """T for the row that needs the most steps, from the weights of proposals at a few draws."""
    rule = problem.quadrature
    pilots = _pilots(theta)
    weigh = problem.mapped(weighted_proposals, (0, 0, 0, None), calls=0)
    weight_pairs = []
    for pilot in pilots.split(len(_chunks(problem, len(theta), rule.draw_steps)[0])):
        here = Centre(*(part[pilot] for part in centre))
        noise = _proposals(rule, here.mode, torch.zeros_like(here.mode).double(), rule.draw_steps, generator)
        weight_pairs.append(
            torch.stack(weigh(theta[pilot], here, noise, rows)[1:])[:, :, :-1]
        )  # of the student proposals
    weights, over_normal = torch.cat(weight_pairs, 1).double()
    if bool((over_normal.amax(1) - over_normal.amin(1) <= START_SHARE_LEFT).all()):
        return 0
    mean = torch.logsumexp(weights, 1) - math.log(weights.shape[1])
    largest = float((weights.amax(1) - mean).amax(0).nan_to_num(nan=math.inf).max())
    share_per_step = -math.expm1(-largest)  # 1 - 1/M
    if not 0 < share_per_step < 1:
        return rule.draw_steps
    return min(rule.draw_steps, max(1, math.ceil(math.log(START_SHARE_LEFT) / math.log(share_per_step))))


def _proposals(rule: Quadrature, modes: Tensor, last: Tensor, steps: int, generator: torch.Generator) -> Proposals:
    """Proposals of S draws: student (S, T + 1, m, d), normal `last` (S, m, d) and uniform (S, T + 1, m)."""
    count, rows, dim = modes.shape
    normal = torch.randn(count, steps + 1, rows, dim + rule.degrees, generator=generator, dtype=torch.float64)
    chi_square = normal[..., dim:].square().sum(-1, keepdim=True)
    uniform = torch.rand(count, steps + 1, rows, generator=generator, dtype=torch.float64)
    student = normal[..., :dim] * (rule.degrees / chi_square).sqrt()
    if rule.by_tails(dim):
        student = torch.rand(student.shape, generator=generator, dtype=torch.float64)
    return Proposals(student, last, uniform)


def draw_given(problem: Problem, theta: Tensor, centre: Centre, noise: Proposals, rows: tuple[Tensor, ...]) -> Tensor:
    """One draw of the latents of m rows, (m, d), given θ (D,)."""
    places, over_student, over_normal = weighted_proposals(problem, theta, centre, noise, rows)
    at = _chain_ends([over_student] * (len(places) - 2) + [over_normal], noise.uniform)
    return places.gather(0, at[None, :, None].expand(1, *places.shape[1:])).squeeze(0)


def weighted_proposals(
    problem: Problem, theta: Tensor, centre: Centre, noise: Proposals, rows: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposals (T + 2, m, d) and their log weights (T + 2, m) in Student and in normal steps."""
    rule = problem.quadrature
    if rule.by_tails(problem.local_dim):
        uniform = torch.cat([noise.student, torch.special.ndtr(noise.normal).unsqueeze(0)]).squeeze(-1)
        profile = rule.profile(problem, theta, rows, centre)
        places, log_slope, log_proposed = profile.inverse(uniform.to(centre.mode))
        values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place.unsqueeze(-1))[1])(places)
        weights = values + log_slope - log_proposed
        return places.unsqueeze(-1), weights, weights
    nodes = torch.cat([noise.student, noise.normal.unsqueeze(0)]).to(centre.mode)
    places = centre.places_at(nodes)
    values = problem.vmap(lambda place: problem.conditional_parts(theta, rows, place)[1])(places)
    squares = nodes.square().sum(-1)
    over_student = values + 0.5 * (rule.degrees + nodes.shape[-1]) * torch.log1p(squares / rule.degrees)
    return places, over_student, values + 0.5 * squares


def draw_among(problem: Problem, theta: Tensor, centre: Centre, noise: Proposals, rows: tuple[Tensor, ...]) -> Tensor:
    """A draw (m, d) of the latents of rows with J modes, the first axis of `centre`."""
    rule, student, normal, mode = problem.quadrature, noise.student, noise.normal.unsqueeze(0), noise.mode[0]
    log_mass = rule.log_masses(problem, theta, rows, centre)[1].nan_to_num(nan=-torch.inf)
    log_mass = log_mass - torch.logsumexp(log_mass, 0)
    below = log_mass.exp().cumsum(0)[:-1]
    chosen_mode = (mode.unsqueeze(1) > below.to(mode)).sum(1)  # (T + 2, m)
    if rule.by_tails(problem.local_dim):
        uniform = torch.cat([student, torch.special.ndtr(normal)]).squeeze(-1).to(centre.mode)
        each = (_by_tails(problem, theta, rows, centre, j, uniform) for j in range(len(centre.mode)))
        places, log_densities = (torch.stack(parts) for parts in zip(*each, strict=True))
        over_student = over_normal = -_of_chosen(log_densities, chosen_mode)
        place = _of_chosen(places, chosen_mode).unsqueeze(-1)
    else:
        units = torch.cat([student, normal]).to(centre.mode)
        squares, degrees = units.square().sum(-1), rule.degrees
        place = _of_chosen(centre.places_at(units.unsqueeze(1)).movedim(1, 0), chosen_mode)
        log_scale = -_of_chosen(log_det_lower(centre.factor).unsqueeze(1).expand(-1, len(units), -1), chosen_mode)
        over_student = log_scale + 0.5 * (degrees + units.shape[-1]) * torch.log1p(squares / degrees)
        over_normal = log_scale + 0.5 * squares

    def part(place: Tensor, mode: Tensor) -> Tensor:
        value = problem.conditional_parts(theta, rows, place)[1]
        share_of_value: Tensor = value + log_shares(centre, place).gather(0, mode.unsqueeze(0)).squeeze(0)
        return share_of_value

    values = problem.vmap(part)(place, chosen_mode) - _of_chosen(
        log_mass.unsqueeze(1).expand(-1, len(place), -1), chosen_mode
    )
    last = len(place) - 1
    at = _chain_ends([values + over_student] * (last - 1) + [values + over_normal], noise.uniform)
    return place.gather(0, at[None, :, None].expand(1, *place.shape[1:])).squeeze(0)


def _by_tails(
    problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], centre: Centre, mode: int, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Proposals around one mode by uniform numbers (K, m), and their log densities: (K, m) each."""
    profile = problem.quadrature.profile(problem, theta, rows, centre.at(mode), (centre, mode))
    place, log_slope, log_density = profile.inverse(uniform)
    log_weight = profile.log_weight
    total = torch.logsumexp(log_weight, 0) - log_weight.amax(0) + profile.line.log_step(len(log_weight))
    return place, log_density - log_slope - total


def _of_chosen(values: Tensor, chosen: Tensor) -> Tensor:
    """The values (K, m, ...) for the chosen mode (K, m) of each proposal, from values (J, K, m, ...) of all modes."""
    index = chosen.reshape(1, *chosen.shape, *[1] * (values.dim() - 3)).expand(1, *values.shape[1:])
    return values.gather(0, index).squeeze(0)


def _chain_ends(weights: list[Tensor], uniform: Tensor) -> Tensor:
    """The index (m,) of the proposal at the end of a chain of T steps, from log weights (T + 1, m) of each step."""
    at = torch.zeros_like(weights[0][0], dtype=torch.int64)
    for step, log_weight in enumerate(weights, 1):
        rise = log_weight[step] - log_weight.gather(0, at.unsqueeze(0)).squeeze(0)
        at = torch.where(uniform[step - 1].log() < rise, step, at)
    return at


def draw_assignments(problem: Problem, z: Tensor, uniforms: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A draw at z (D,) of the discrete sites of all rows, and of the deterministic sites that depend on them."""
    assignments: dict[str, Tensor] = {}
    for name in problem.layout.discrete:
        trace = problem.execute_at(z, problem.all_rows, densities=True, discrete=assignments).trace
        assignments[name] = _pick(trace, name, uniforms[name])
    trace = problem.execute_at(z, problem.all_rows, discrete=assignments).trace
    return assignments | {name: trace.nodes[name]["value"] for name in problem.layout.depends_on_discrete}


def _pick(trace: Any, name: str, uniform: Tensor) -> Tensor:
    fn = trace.nodes[name]["fn"]
    cdf = log_weights(trace, name).softmax(-1).cumsum(-1)
    number = (uniform.unsqueeze(-1) >= cdf[..., :-1]).sum(-1)
    support = fn.enumerate_support(expand=False).reshape(-1, *fn.event_shape)
    value: Tensor = support[number]
    return value


def assign(problem: Problem, z: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Draws (S, *site shape) of the discrete latents given z (S, D), and of the sites that depend on them."""
    uniforms = {
        name: torch.rand(len(z), *site.batch_shape, generator=generator, dtype=problem.dtype)
        for name, site in problem.layout.discrete.items()
    }
    draws: dict[str, Tensor] = problem.vmap(lambda one, u: draw_assignments(problem, one, u))(z, uniforms)
    return draws
