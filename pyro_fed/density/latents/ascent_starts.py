"""What is known of the integrals over rows' latents where the points of one posterior are, found at a few of them.

Newton's method takes up to twelve steps from zero to the modes at every θ, and integrals as many nodes as rows need at
θ from anywhere. Where points θ are those of one posterior with the mean c, ascents begin near their ends, along the
slope of the modes at c (the theorem of implicit functions, H the curvature of f in x),

    x(θ) ≈ x(c) + H⁻¹ ∂²f/∂x∂θ (θ - c)

so that one step or two arrive, and fewer nodes may do. Both are looked at where they are least likely to, at the points
that are farthest from the mean: fewer nodes are taken where they move the log-likelihood of all rows by no more than
`NEGLIGIBLE` nats, and by no more than `NEGLIGIBLE` of that at one of these points more than at the others. A client
whose rows are not integrated well there begins at zero, with all nodes; its own rows decide. At a few points the modes
are found at each of them. All ascents are one compiled step, taken as often as needed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.func import grad, vjp
from torch.utils import _pytree as pytree

from pyro_fed.conventions.limits import NEGLIGIBLE, SUM_ROUNDING_UNITS
from pyro_fed.density.latents.modes import Ascent, Centre
from pyro_fed.density.latents.quadrature import (
    GAUSSIAN_ORDER,
    NEAR_STEPS,
    ORDERS,
    NearbyModes,
    Quadrature,
    by_curvature,
    gauss_hermite,
)
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.ops.entries import choose as chosen
from pyro_fed.ops.matrices import solve_lower, solve_lower_transposed

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

T = TypeVar("T")

#: Points that are looked at beside the mean, the farthest.
NUM_OUTERMOST_POINTS = 4


class AscentStarts(NamedTuple):
    """Rows with what is known of them, and the clients for whose rows it is enough, (C,)."""

    batch: Batch
    arrive: Tensor


def from_modes(
    problem: Problem,
    points: Tensor,
    batch: Batch,
    compute: Callable[[Batch], T],
    choose: Callable[[Tensor, T, T], T],
) -> T:
    """What `compute` makes of C clients' rows at points (C, S, D), by ascents that begin where they best do."""
    near = ascent_starts(problem, points, batch)
    if near is None:
        return compute(batch)
    found = compute(near.batch)
    return found if bool(near.arrive.all()) else choose(near.arrive, found, compute(batch))


def ascent_starts(problem: Problem, points: Tensor, batch: Batch) -> AscentStarts | None:
    """The rows of C clients with what is known of them near points (C, S, D); None where that saves nothing."""
    rule, dim = problem.quadrature, problem.local_dim
    if not dim or rule.starts or ((rule.mode_steps or 0) <= NEAR_STEPS and not rule.by_tails(dim)):
        return None
    if points.shape[1] <= NEAR_STEPS * (1 + NUM_OUTERMOST_POINTS):  # the trial would take more steps than it saves
        return _at_few_points(problem, points.to(problem.dtype).contiguous(), batch)
    mean = points.double().mean(1, keepdim=True)
    sd = points.double().std(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    farthest = ((points - mean) / sd).square().sum(-1).topk(NUM_OUTERMOST_POINTS).indices
    outermost = points.gather(1, farthest.unsqueeze(-1).expand(-1, -1, points.shape[2]))
    probes = torch.cat([mean, outermost.double()], 1).to(problem.dtype)
    middle = probes[:, :1].contiguous()
    modes = _modes(problem, middle, batch)
    slope = problem.mapped(_slope, (0, BATCHES, 0), calls=0)(middle, batch, modes)
    steps = torch.ones(len(points), NEAR_STEPS, dtype=problem.dtype, device=points.device)
    near = NearbyModes(middle, modes.mode, slope, steps)
    left, differences, size = _trial(problem, probes, batch._replace(near=(near,)))
    there = (left <= NEGLIGIBLE).transpose(1, 2).flatten(2).all(2)  # (C, steps); not a number is not
    number = (~there).long().cumprod(1).sum(1) + 1
    share = (batch.weight > 0).sum(1).double() / problem.num_rows
    rounding = SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * size.double().amax(1)
    level = differences.double().mean(1, keepdim=True)
    apart = (differences - level).abs().amax(1)  # (C, rules)
    enough = apart <= (NEGLIGIBLE**2 * share + rounding).unsqueeze(1)
    enough &= level[:, 0].abs() <= (NEGLIGIBLE * share + rounding).unsqueeze(1)
    arrive = there.any(1) & enough.any(1)
    if not bool(arrive.any()):
        return None
    most = int(number[arrive].max())
    wanted = torch.arange(most, device=points.device) < number.unsqueeze(1)
    nodes = _padded_rules(_rules(rule, dim), enough.long().argmax(1), arrive, steps)
    return AscentStarts(batch._replace(near=(near._replace(steps=wanted.to(steps), nodes=nodes),)), arrive)


def one_client(rows: tuple[Tensor, ...], like: Tensor) -> Batch:
    """Rows (m, ...) as the batch of a single client, (1, m, ...), with weights of the dtype of `like`."""
    return Batch(pytree.tree_map(lambda leaf: leaf.unsqueeze(0), rows), like.new_ones(1, len(rows[0])))


def first_client(near: NearbyModes) -> NearbyModes:
    """What is known of the first of several clients."""
    found: NearbyModes = pytree.tree_map(lambda leaf: leaf[0], near)
    return found


def _rules(rule: Quadrature, dim: int) -> list[tuple[Tensor, Tensor]]:
    """Rules for N(0, I) that are tried, the coarsest first, at last the usual one where it is of that kind."""
    usual = rule.num_nodes(dim)
    orders = [order for order in (GAUSSIAN_ORDER, *ORDERS) if order**dim < usual]
    return [gauss_hermite(order, dim) for order in orders] + ([] if rule.by_tails(dim) else [rule.nodes(dim)])


def _padded_rules(
    rules: list[tuple[Tensor, Tensor]], chosen: Tensor, arrive: Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Each client's rule, (C, Q, d) and (C, Q), with nodes without weight where others have more."""
    most = max(len(rules[int(one)][1]) for one in chosen[arrive])
    units, log_weights = [], []
    for client, one in enumerate(chosen):
        nodes, log_weight = rules[int(one)] if bool(arrive[client]) else rules[int(chosen[arrive][0])]
        lacking = most - len(log_weight)
        units.append(torch.nn.functional.pad(nodes, (0, 0, 0, lacking)))
        log_weights.append(torch.nn.functional.pad(log_weight, (0, lacking), value=-torch.inf))
    return torch.stack(units).to(like), torch.stack(log_weights).to(like)


def _at_few_points(problem: Problem, points: Tensor, batch: Batch) -> AscentStarts:
    """`ascent_starts` at few points (C, S, D): the modes at each of them, and the usual nodes."""
    place = _modes(problem, points, batch).mode
    near = NearbyModes(points, place, place.unsqueeze(-1)[..., :0], place.new_ones(len(points), 1))
    return AscentStarts(batch._replace(near=(near,)), torch.ones(len(points), dtype=torch.bool, device=points.device))


def _modes(problem: Problem, points: Tensor, batch: Batch) -> Centre:
    """The modes of C clients' rows at points (C, P, D): one step is compiled, and taken as often as a client needs."""
    rule, bare = problem.quadrature, batch.weight == 0
    state = problem.mapped(_start_ascents, (0, BATCHES), calls=0)(points, batch)
    left, there = rule.mode_steps or rule.max_mode_steps, bare.all(1)
    while left and not bool(there.all()):
        taken = min(left, NEAR_STEPS)
        later, after = problem.scan(_newton_step, state, (points, batch), (), taken, (0, BATCHES))
        state = pytree.tree_map(partial(chosen, there), state, later)
        there = there | ((after[-1] <= rule.mode_tolerance) | bare.unsqueeze(1)).flatten(1).all(1)
        left -= taken
    return rule.newton_ascent.centre_of(state)


def _start_ascents(problem: Problem, points: Tensor, batch: Batch) -> Ascent:
    """Where ascents begin at points (P, D): near what is known, or where ascents to unknown modes do."""
    rule = problem.quadrature

    def at(theta: Tensor) -> Ascent:
        start = batch.near[0].modes(theta) if batch.near else rule.start(problem, theta, batch.rows)
        return rule.newton_ascent.start_at(problem, theta, batch.rows, start)

    found: Ascent = problem.vmap(at)(points)
    return found


def _newton_step(problem: Problem, state: Ascent, const: tuple[Tensor, Batch], _: tuple[()]) -> tuple[Ascent, Tensor]:
    """A Newton step at each point (P, D), and what it leaves, in SDs of a row's latents, (P, m)."""
    (points, batch), newton = const, problem.quadrature.newton_ascent

    def at(theta: Tensor, state: Ascent) -> tuple[Ascent, Tensor]:
        state = newton.step(problem, theta, batch.rows, state)
        return state, newton.centre_of(state).decrement

    found: tuple[Ascent, Tensor] = problem.vmap(at)(points, state)
    return found


def _slope(problem: Problem, points: Tensor, batch: Batch, centre: Centre) -> Tensor:
    """How the modes at points (P, D) move with these, (P, m, d, D)."""

    def at(theta: Tensor, centre: Centre) -> Tensor:
        def score(z: Tensor) -> Tensor:
            found: Tensor = grad(lambda x: problem.conditional_parts(z, batch.rows, x)[1].sum())(centre.mode)
            return found

        pull = vjp(lambda cotangent: vjp(score, theta)[1](cotangent)[0], torch.zeros_like(centre.mode))[1]
        eye = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        mixed = problem.vmap(lambda one: pull(one)[0])(eye)  # ∂²f/∂x∂θ, (D, m, d)
        slope = solve_lower_transposed(centre.factor, solve_lower(centre.factor, mixed)).detach()
        return torch.where(slope.isfinite(), slope, 0.0).movedim(0, -1)

    found: Tensor = problem.vmap(at)(points, centre)
    return found


def _trial(problem: Problem, probes: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What steps from near leave at points (C, P, D), in SDs (C, P, steps, m), and `_by_rules` there."""
    bare = batch._replace(near=())
    start = problem.mapped(_start_ascents, (0, BATCHES), calls=0)(probes, batch)
    state, left = problem.scan(_newton_step, start, (probes, bare), (), batch.near[0].steps.shape[1], (0, BATCHES))
    differences, size = problem.mapped(_by_rules, (0, BATCHES, 0), calls=0)(probes, bare, state)
    return torch.where(batch.weight.unsqueeze(1) > 0, left, 0.0).movedim(0, 2), differences, size


def _by_rules(problem: Problem, probes: Tensor, batch: Batch, state: Ascent) -> tuple[Tensor, Tensor]:
    """What rules with fewer nodes add to the log-likelihood at points (P, D), (P, rules), and its size, (P,)."""
    rule, newton = problem.quadrature, problem.quadrature.newton_ascent

    def at(theta: Tensor, state: Ascent) -> tuple[Tensor, Tensor]:
        centre = newton.centre_of(state)
        tried = [by_curvature(centre, *one) for one in _rules(rule, problem.local_dim)]
        every = [*tried, rule.nodes_around(problem, theta, batch.rows, centre)]
        place = torch.cat([nodes.place for nodes in every])
        values = problem.vmap(lambda x: problem.conditional_parts(theta, batch.rows, x)[1])(place)
        parts = values.split([len(nodes.place) for nodes in every])
        log_marginal = [torch.logsumexp(v + nodes.log_weight, 0) for v, nodes in zip(parts, every, strict=True)]
        sums = torch.stack([(one * batch.weight).sum() for one in log_marginal])
        return sums[:-1] - sums[-1], (log_marginal[-1].abs() * batch.weight).sum()

    found: tuple[Tensor, Tensor] = problem.vmap(at)(probes, state)
    return found
