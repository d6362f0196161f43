"""Starts of mode searches, and coarser quadrature rules, for rows' latents at the points of one posterior.

Newton's method takes up to twelve steps from zero to the modes at every θ, and the default rule has enough nodes for
any θ. For points θ of one posterior with the mean c, searches start near the modes, by the derivative of the modes at c
(the implicit function theorem, H the curvature of f in x),

    x(θ) ≈ x(c) + H⁻¹ ∂²f/∂x∂θ (θ - c)

so that few steps, and fewer nodes, may suffice: nodes by the curvature also in place of nodes by the tails, which cost
ten times as much, if the tails matter only at other θ. Both are tried at the points farthest from the mean: fewer nodes
are used if they change the log-likelihood of all rows by at most `NEGLIGIBLE` nats, and if this change differs between
the points by at most the share `NEGLIGIBLE` of that. A client whose rows are not integrated accurately starts at zero,
with all nodes. For a few points the modes are computed at each point. All searches repeat one compiled step.
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
from pyro_fed.density.checks.points import FEW_DRAWS
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
from pyro_fed.ops.entries import farthest
from pyro_fed.ops.matrices import solve_lower, solve_lower_transposed

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

T = TypeVar("T")


class AscentStarts(NamedTuple):
    """Rows with starts of their searches, and for which clients (C,) these suffice."""

    batch: Batch
    arrive: Tensor


def from_modes(
    problem: Problem,
    points: Tensor,
    batch: Batch,
    compute: Callable[[Batch], T],
    choose: Callable[[Tensor, T, T], T],
) -> T:
    """The result of `compute` for C clients' rows at points (C, S, D), with the best starts of the mode searches."""
    near = ascent_starts(problem, points, batch)
    if near is None:
        return compute(batch)
    results = compute(near.batch)
    return results if bool(near.arrive.all()) else choose(near.arrive, results, compute(batch))


def ascent_starts(problem: Problem, points: Tensor, batch: Batch) -> AscentStarts | None:
    """The rows of C clients with starts near points (C, S, D); None if these save nothing."""
    rule, dim = problem.quadrature, problem.local_dim
    most = rule.mode_steps or rule.max_mode_steps
    if not dim or rule.starts or (most <= NEAR_STEPS and not rule.by_tails(dim)):
        return None
    if points.shape[1] <= NEAR_STEPS * (1 + FEW_DRAWS):  # a trial would cost more steps than it saves
        return _at_few_points(problem, points.to(problem.dtype).contiguous(), batch)
    mean = points.double().mean(1, keepdim=True)
    outermost = points.gather(1, farthest(points, FEW_DRAWS).unsqueeze(-1).expand(-1, -1, points.shape[2]))
    probes = torch.cat([mean, outermost.double()], 1).to(problem.dtype)
    mean_point = probes[:, :1].contiguous()
    modes = _modes(problem, mean_point, batch)
    slope = problem.mapped(_slope, (0, BATCHES, 0), calls=0)(mean_point, batch, modes)
    steps = torch.ones(len(points), most, dtype=problem.dtype, device=points.device)
    near = NearbyModes(mean_point, modes.mode, slope, steps)
    remaining, differences, size = _trial(problem, probes, batch._replace(near=(near,)))
    converged = (remaining <= NEGLIGIBLE).transpose(1, 2).flatten(2).all(2)  # (C, steps); False for NaN
    number = (~converged).long().cumprod(1).sum(1) + 1
    share = (batch.weight > 0).sum(1).double() / problem.num_rows
    rounding = SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * size.double().amax(1)
    level = differences.double().mean(1, keepdim=True)
    spread_of_differences = (differences - level).abs().amax(1)  # (C, rules)
    accurate = spread_of_differences <= (NEGLIGIBLE**2 * share + rounding).unsqueeze(1)
    accurate &= level[:, 0].abs() <= (NEGLIGIBLE * share + rounding).unsqueeze(1)
    arrive = converged.any(1) & accurate.any(1)
    if not bool(arrive.any()):
        return None
    max_steps = int(number[arrive].max())
    wanted = torch.arange(max_steps, device=points.device) < number.unsqueeze(1)
    nodes = _padded_rules(_rules(rule, dim), accurate.long().argmax(1), arrive, steps)
    return AscentStarts(batch._replace(near=(near._replace(steps=wanted.to(steps), nodes=nodes),)), arrive)


def one_client(rows: tuple[Tensor, ...], like: Tensor) -> Batch:
    """Rows (m, ...) as the batch of a single client, (1, m, ...), with weights of the dtype of `like`."""
    return Batch(pytree.tree_map(lambda leaf: leaf.unsqueeze(0), rows), like.new_ones(1, len(rows[0])))


def first_client(near: NearbyModes) -> NearbyModes:
    """The starts of the first of several clients."""
    first: NearbyModes = pytree.tree_map(lambda leaf: leaf[0], near)
    return first


def _rules(rule: Quadrature, dim: int) -> list[tuple[Tensor, Tensor]]:
    """Candidate rules for N(0, I), the coarsest first, and last the default rule if it is of this kind."""
    default_count = rule.num_nodes(dim)
    orders = [order for order in (GAUSSIAN_ORDER, *ORDERS) if order**dim < default_count]
    return [gauss_hermite(order, dim) for order in orders] + ([] if rule.by_tails(dim) else [rule.nodes(dim)])


def _padded_rules(
    rules: list[tuple[Tensor, Tensor]], chosen: Tensor, arrive: Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Each client's rule, (C, Q, d) and (C, Q), padded with nodes of weight zero."""
    largest_count = max(len(rules[int(one)][1]) for one in chosen[arrive])
    units, log_weights = [], []
    for client, one in enumerate(chosen):
        nodes, log_weight = rules[int(one)] if bool(arrive[client]) else rules[int(chosen[arrive][0])]
        num_missing = largest_count - len(log_weight)
        units.append(torch.nn.functional.pad(nodes, (0, 0, 0, num_missing)))
        log_weights.append(torch.nn.functional.pad(log_weight, (0, num_missing), value=-torch.inf))
    return torch.stack(units).to(like), torch.stack(log_weights).to(like)


def _at_few_points(problem: Problem, points: Tensor, batch: Batch) -> AscentStarts:
    """`ascent_starts` at few points (C, S, D): the modes at each point, and the default nodes."""
    place = _modes(problem, points, batch).mode
    near = NearbyModes(points, place, place.unsqueeze(-1)[..., :0], place.new_ones(len(points), 1))
    return AscentStarts(batch._replace(near=(near,)), torch.ones(len(points), dtype=torch.bool, device=points.device))


def _modes(problem: Problem, points: Tensor, batch: Batch) -> Centre:
    """The modes of C clients' rows at points (C, P, D), by repetitions of one compiled step."""
    rule, is_padding = problem.quadrature, batch.weight == 0
    state = problem.mapped(_start_ascents, (0, BATCHES), calls=0)(points, batch)
    steps_left, converged = rule.mode_steps or rule.max_mode_steps, is_padding.all(1)
    while steps_left and not bool(converged.all()):
        num_steps = min(steps_left, NEAR_STEPS)
        next_state, remaining = problem.scan(_newton_step, state, (points, batch), (), num_steps, (0, BATCHES))
        state = pytree.tree_map(partial(chosen, converged), state, next_state)
        converged = converged | ((remaining[-1] <= rule.mode_tolerance) | is_padding.unsqueeze(1)).flatten(1).all(1)
        steps_left -= num_steps
    return rule.newton_ascent.centre_of(state)


def _start_ascents(problem: Problem, points: Tensor, batch: Batch) -> Ascent:
    """Starts of searches at points (P, D): near known modes, or the default start."""
    rule = problem.quadrature

    def at(theta: Tensor) -> Ascent:
        start = batch.near[0].modes(theta) if batch.near else rule.start(problem, theta, batch.rows)
        return rule.newton_ascent.start_at(problem, theta, batch.rows, start)

    starts: Ascent = problem.vmap(at)(points)
    return starts


def _newton_step(problem: Problem, state: Ascent, const: tuple[Tensor, Batch], _: tuple[()]) -> tuple[Ascent, Tensor]:
    """A Newton step at each point (P, D), and the remaining distance to the mode in SDs of a row's latents, (P, m)."""
    (points, batch), newton = const, problem.quadrature.newton_ascent

    def at(theta: Tensor, state: Ascent) -> tuple[Ascent, Tensor]:
        state = newton.step(problem, theta, batch.rows, state)
        return state, newton.centre_of(state).decrement

    results: tuple[Ascent, Tensor] = problem.vmap(at)(points, state)
    return results


def _slope(problem: Problem, points: Tensor, batch: Batch, centre: Centre) -> Tensor:
    """Derivatives (P, m, d, D) of the modes with respect to the points (P, D)."""

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
    """Remaining distances in SDs (C, P, steps, m) after steps from near starts at points (C, P, D), and `_by_rules`."""
    without_starts = batch._replace(near=())
    start = problem.mapped(_start_ascents, (0, BATCHES), calls=0)(probes, batch)
    state, remaining = problem.scan(
        _newton_step, start, (probes, without_starts), (), batch.near[0].steps.shape[1], (0, BATCHES)
    )
    differences, size = problem.mapped(_by_rules, (0, BATCHES, 0), calls=0)(probes, without_starts, state)
    return torch.where(batch.weight.unsqueeze(1) > 0, remaining, 0.0).movedim(0, 2), differences, size


def _by_rules(problem: Problem, probes: Tensor, batch: Batch, state: Ascent) -> tuple[Tensor, Tensor]:
    """Errors (P, rules) of rules with fewer nodes in the log-likelihood at points (P, D), and its size (P,)."""
    rule, newton = problem.quadrature, problem.quadrature.newton_ascent

    def at(theta: Tensor, state: Ascent) -> tuple[Tensor, Tensor]:
        centre = newton.centre_of(state)
        rule_nodes = [by_curvature(centre, *one) for one in _rules(rule, problem.local_dim)]
        all_nodes = [*rule_nodes, rule.nodes_around(problem, theta, batch.rows, centre)]
        place = torch.cat([nodes.place for nodes in all_nodes])
        values = problem.vmap(lambda x: problem.conditional_parts(theta, batch.rows, x)[1])(place)
        parts = values.split([len(nodes.place) for nodes in all_nodes])
        log_marginal = [torch.logsumexp(v + nodes.log_weight, 0) for v, nodes in zip(parts, all_nodes, strict=True)]
        sums = torch.stack([(one * batch.weight).sum() for one in log_marginal])
        return sums[:-1] - sums[-1], (log_marginal[-1].abs() * batch.weight).sum()

    results: tuple[Tensor, Tensor] = problem.vmap(at)(probes, state)
    return results
