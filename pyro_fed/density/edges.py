"""Edges of a likelihood: rows that a latent makes impossible, and parameters beyond their constraints.

A support that depends on a latent, such as that of Uniform(0, θ), ends where θ makes a row impossible. The density is
zero beyond such an edge, and its gradient on this side does not show it, so that no algorithm that follows gradients
finds the edge, and no Gaussian ends at one. Torch does not compute a zero if a transformed distribution gives its base
a value outside of its support, as a shifted Exponential does below its threshold: it goes on with the formula, and so
does a Pareto. The same holds if the value moves over an edge that does not move, as in obs=y - m.

A value at the end of a closed support, an exact one under a Beta or a zero under a Gamma, has a density of zero or
infinity wherever the latents are: one such row dominates the result, and is not a measurement.

Beyond a parameter's constraint, such as where the rate b x of a Poisson is negative, there is no density, though torch
may compute a number. Draws of the prior are searched for such a wall.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from pyro.distributions import Unit
from torch import Tensor
from torch.distributions import MixtureSameFamily, TransformedDistribution, constraints

from pyro_fed.density.bound import BoundModel, RowDensities, derivatives, run_at_random
from pyro_fed.density.checks.first_run import FirstRun, prior_draw
from pyro_fed.density.checks.points import FEW_DRAWS, MAX_TRIES, NUM_DRAWS, ROWS_TOGETHER
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.site_values import constrained_parameters, mask_of, within_constraints
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic
from pyro_fed.density.starts import drawn_at_once
from pyro_fed.errors import ModelError, listed, warn_user

#: Distance by which latents are moved, unconstrained, to test whether rows leave the support.
MOVES = (1.0, -1.0, 4.0, -4.0)
#: Bounds of a support that are numbers, by name; and the name of the value beside them.
BOUNDS, VALUE = ("lower_bound", "upper_bound"), "value"
#: A parameter is beyond a bound by more than this, or by this part of it: less is rounding.
BOUND_TOLERANCE = 1e-3


def moving_support(bound: BoundModel, seen: FirstRun, name: str) -> str:
    """A sentence on an observed site whose support depends on latents; "" if it does not."""
    msg = seen.execution.trace.nodes[name]
    if not _edges(msg):
        return ""
    latents = [latent for latent in seen.point if _changes(bound, seen, msg, (latent,))]
    return _edge_sentence(msg, latents) if latents else ""


def check_moving_supports(bound: BoundModel, seen: FirstRun) -> None:
    """Warn of supports that lose rows at other latents, or refuse them if the density beyond is not zero."""
    for name, msg in seen.execution.trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg) or not _edges(msg):
            continue
        if not _changes(bound, seen, msg, tuple(seen.point)):
            continue
        moved = [_shifted_site(bound, seen, name, tuple(seen.point), move) for move in MOVES]
        lost = any(other is not None and not _holds_all(other) for other in moved)
        if not lost or not (said := moving_support(bound, seen, name)):
            continue
        if _has_density_beyond(bound, name):
            raise ModelError(said)
        warn_user(said)


def latents_of_moving_support(bound: BoundModel) -> dict[str, list[str]]:
    """Latent sites whose support depends on other latents, with these: found by derivatives at a random point."""
    execution, places = run_at_random(bound, torch.Generator().manual_seed(0))
    found = {}
    for name in places:
        edges = _bounds(getattr(execution.trace.nodes[name]["fn"], "support", None)).values()
        slopes = [derivatives(edge, places) for edge in edges if isinstance(edge, Tensor)]
        if on := [other for other in places if any(other in each and bool(each[other].any()) for each in slopes)]:
            found[name] = on
    return found


def values_at_an_end(bound: BoundModel, seen: FirstRun, name: str) -> tuple[Tensor, str]:
    """Which entries of a site's density are at its support's end, zero or infinite for any latents; a sentence."""
    msg = seen.execution.trace.nodes[name]
    at_end = _at_end(msg)
    found = torch.zeros(msg["fn"].batch_shape, dtype=torch.bool)
    if at_end is None or not bool(at_end.any()):
        return found, ""
    others = [_shifted_site(bound, seen, name, tuple(seen.point), move) for move in MOVES]
    densities = [other["fn"].log_prob(other["value"]) for other in others if other is not None]
    if not densities:
        return found, ""
    found = torch.stack([one.isinf() for one in densities]).all(0)
    mask = mask_of(msg)
    if mask is not None:
        found = found & mask.bool()
    if not bool(found.any()):
        return found, ""
    ends = " and ".join(f"{end:g}" for end in sorted(set(msg["value"][at_end].tolist())))
    return found, (
        f"{int(found.sum())} of {found.numel()} values lie at the end of the support of "
        f"{type(innermost(msg['fn'])).__name__}, {ends}, where the density is zero or infinite wherever latents are: "
        "one such row decides on the posterior. Model them apart (a zero-inflated or hurdle likelihood), move them "
        "inside as far as they are rounded, such as (y (n - 1) + 0.5) / n for proportions, or leave them out"
    )


def _at_end(msg: Message) -> Tensor | None:
    """Which values are at an end of a continuous support; None if it has no ends."""
    value, support = msg["value"], getattr(innermost(msg["fn"]), "support", None)
    if not isinstance(value, Tensor) or not value.is_floating_point() or support is None or support.is_discrete:
        return None
    if support is constraints.simplex:
        return value == 0
    ends = [edge for edge in (_bounds(support).get(name) for name in BOUNDS) if isinstance(edge, int | float)]
    return torch.stack([value == end for end in ends]).any(0) if ends else None


def _edge_sentence(msg: Message, latents: Collection[str]) -> str:
    given = _site_density(msg)
    kind = type(given.fn).__name__
    kind += "" if given.fn is innermost(msg["fn"]) else f" in its {type(innermost(msg['fn'])).__name__}"
    first = next(iter(latents))
    return (
        f"observed site '{msg['name']}': the support of {kind} depends on {listed(map(repr, latents))}, and not all "
        f"rows are in it wherever the prior of {first!r} reaches. Beyond such an edge the density is zero, and the "
        "gradient does not tell where it is, which all algorithms here follow. Let the prior reach only where all rows "
        f"are possible, which is the same posterior: for Uniform(0, theta) that is theta above the largest row, `top = "
        "pf.shared('top', lambda: y.max())` and a prior of theta on (top, ∞), such as dist.Pareto(top, a); for a "
        "threshold below all rows, `low = pf.shared('low', lambda: y.min())` and `low - gap` with a positive gap; or "
        "take a likelihood whose support is fixed"
    )


class _SiteDensity(NamedTuple):
    """The distribution that computes a site's density, its input, the transforms between; whether it is mixed."""

    fn: Any
    value: Tensor
    between: tuple[Any, ...]
    mixed: bool


def _site_density(msg: Message) -> _SiteDensity:
    """A transformed distribution without a support of its own has that of its base, which it does not check."""
    fn, value, between, mixed = innermost(msg["fn"]), msg["value"], list[Any](), False
    while True:
        if isinstance(fn, TransformedDistribution) and type(fn).support is TransformedDistribution.support:
            for transform in reversed(fn.transforms):
                value = transform.inv(value)
                between.insert(0, transform)
            fn = innermost(fn.base_dist)
        elif isinstance(fn, MixtureSameFamily) and not fn.event_shape and not mixed:
            fn, value, mixed = innermost(fn.component_distribution), value.unsqueeze(-1), True
        else:
            return _SiteDensity(fn, value, tuple(between), mixed)


def _bounds(support: Any) -> dict[str, Tensor | float]:
    """The bounds of a support, by name: all of its tensors, and numbers that it ends at."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    found = {} if support is None else vars(support)
    ends = () if support is None or support.is_discrete else BOUNDS
    return {name: edge for name, edge in found.items() if isinstance(edge, Tensor) or name in ends}


def _edges(msg: Message) -> dict[str, Tensor]:
    """The values that may move a site's support, by name: bounds that are tensors, and a value with bounds."""
    if not isinstance(msg["value"], Tensor):
        return {}
    fn, value, between, _ = _site_density(msg)
    supports = [getattr(fn, "support", None), *(getattr(transform, "codomain", None) for transform in between)]
    steps = [_bounds(support) for support in supports]
    found = {name: edge for name, edge in steps[-1].items() if isinstance(edge, Tensor)}
    for number, bounds in enumerate(steps[:-1]):
        for name, edge in bounds.items():
            start = torch.as_tensor(edge, dtype=value.dtype, device=value.device).expand_as(value)
            try:
                for transform in between[number:]:
                    start = transform(start)
            except (RuntimeError, ValueError):  # for vectors of another length
                start = value
            found[f"{name} {number}"] = start.detach()
    held = any(name in BOUNDS for bounds in steps for name in bounds) and msg["value"].is_floating_point()
    return found | ({VALUE: msg["value"].detach()} if held else {})


def _changes(bound: BoundModel, seen: FirstRun, msg: Message, latents: Collection[str]) -> bool:
    """Whether other values of these latents move a bound, or a value over one."""
    other = _shifted_site(bound, seen, msg["name"], latents, MOVES[0])
    if other is None:
        return False
    before, after = _edges(msg), _edges(other)
    shared = before.keys() & after.keys()
    moved = {name for name in shared if not torch.equal(before[name].nan_to_num(), after[name].nan_to_num())}
    if moved != {VALUE}:
        return bool(moved)
    held = _inside_support(msg)
    others = (_shifted_site(bound, seen, msg["name"], latents, move) for move in MOVES)
    return any(found is not None and not torch.equal(_inside_support(found), held) for found in others)


def _shifted_site(
    bound: BoundModel, seen: FirstRun, name: str, latents: Collection[str], move: float
) -> Message | None:
    """The site with these latents moved; None if the model cannot be run there."""

    def source(msg: Message, _transform: Any) -> Tensor:
        return seen.point[msg["name"]] + move * float(msg["name"] in latents)

    return _run(bound, name, source)


def _run(bound: BoundModel, name: str, source: Source) -> Message | None:
    """The site with latents from the source; None if the model cannot be run there."""
    try:
        found: Message | None = bound.execute(source, bound.all_rows).trace.nodes.get(name)
    except (RuntimeError, ValueError, KeyError):  # a model's failures far away do not concern supports
        return None
    return found


def _inside_support(msg: Message) -> Tensor:
    """Which values are masked, or in the support of the distribution that computes the density."""
    inside, beyond_support = _inside_and_beyond(msg)
    if _site_density(msg).mixed:  # a component may have no part in a row
        inside, beyond_support = inside.any(-1), beyond_support.any(-1)
    inside = inside & ~beyond_support
    mask = mask_of(msg)
    if mask is not None:
        left_out = ~mask.bool()
        left_out = left_out.flatten(inside.dim()).any(-1) if left_out.dim() > inside.dim() else left_out
        inside = inside | left_out
    return inside


def _inside_and_beyond(msg: Message) -> tuple[Tensor, Tensor]:
    """Which values are in that support, and which are outside although their density is not zero."""
    given = _site_density(msg)
    inside: Tensor = given.fn.support.check(given.value)
    try:
        beyond: Tensor = given.fn.log_prob(given.value) != -torch.inf
    except ValueError:  # a distribution that was made before, and checks its values
        beyond = torch.ones_like(inside)
    return inside, ~inside & beyond


def _holds_all(msg: Message) -> bool:
    try:
        return bool(_inside_support(msg).all())
    except (RuntimeError, ValueError):
        return True


def _has_density_beyond(bound: BoundModel, name: str) -> bool:
    """Whether draws of the prior put rows beyond an edge where the density is not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(NUM_DRAWS):
            msg = _run(bound, name, prior_draw)
            if msg is not None and not _holds_all(msg) and bool(_inside_and_beyond(msg)[1].any()):
                return True
    return False


def find_walls(problem: RowDensities, seen: FirstRun, computed: Collection[str]) -> list[str]:
    """Sentences on the sites whose parameters leave their constraints at prior draws, which become walls."""
    bound, nodes = problem.bound, seen.execution.trace.nodes
    latents = {value.untyped_storage().data_ptr() for value in seen.execution.filler.values.values()}

    def is_own(name: str) -> bool:
        """Whether the parameters are latents themselves, maybe broadcast."""
        given = constrained_parameters(nodes[name]["fn"])
        return all(value.untyped_storage().data_ptr() in latents for *_, value in given)

    suspects = [name for name in nodes if name in computed and not is_own(name)]
    if not suspects or bound.walls:
        return []
    found: dict[str, str] = {}
    for first in range(0, bound.num_rows, ROWS_TOGETHER):
        few = bound.num_rows <= ROWS_TOGETHER
        rows = bound.all_rows if few else tuple(leaf[first : first + ROWS_TOGETHER] for leaf in bound.rows)
        found |= _beyond_in(problem, rows, [name for name in suspects if name not in found])
    bound.walls.update(found)
    return list(found.values())


def _beyond_in(problem: RowDensities, rows: tuple[Any, ...], suspects: list[str]) -> dict[str, str]:
    """A sentence on each site whose parameters leave their constraints in some rows, at draws of the priors."""
    bound, found = problem.bound, dict[str, str]()

    def within(_: Tensor) -> Tensor:
        nodes = bound.execute(prior_draw, rows).trace.nodes
        return torch.stack([within_constraints(nodes[name]).all() for name in suspects])

    if not suspects:
        return found
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        flags = drawn_at_once(problem, within, NUM_DRAWS)
        if flags is not None and bool(flags.all()):
            return found
        for _ in range(FEW_DRAWS if flags is None else MAX_TRIES):
            try:
                execution = bound.execute(prior_draw, rows)
            except (RuntimeError, ValueError, IndexError, KeyError):  # a model that cannot be run so is refused later
                break
            for name in suspects:
                if name not in found and (said := _beyond_constraint(execution, name)):
                    found[name] = said
            if flags is not None and len(found) >= int((~flags.all(0)).sum()):
                break
    return found


def _beyond_constraint(execution: Execution, name: str) -> str:
    """A sentence on a site with a parameter beyond its constraint; "" if all are within theirs."""
    msg = execution.trace.nodes[name]
    if bool(within_constraints(msg).all()):
        return ""
    latents = {key: value for key, value in execution.filler.values.items() if value.numel() == 1 and key != name}
    where = ", ".join(f"{key} = {float(value):.3g}" for key, value in latents.items())
    at_draw = f"at a draw of the prior{f' ({where})' if where else ''}"
    if isinstance(innermost(msg["fn"]), Unit):
        return (
            f"site '{name}': the log density of pyro.factor is NaN {at_draw}, as the logarithm of a negative number "
            "is: the density is taken for zero there. Give the latents a support on which it is a number, such as "
            "HalfNormal's in place of Normal's or one that begins at another latent, or write -inf by torch.where "
            "where it is meant"
        )
    for parameter, constraint, value in constrained_parameters(msg["fn"]):
        while hasattr(constraint, "base_constraint"):
            constraint = constraint.base_constraint
        low, high = (getattr(constraint, edge, None) for edge in BOUNDS)
        out = value < low - BOUND_TOLERANCE * (1 + abs(low)) if low is not None else torch.zeros_like(value).bool()
        out = out | (value > high + BOUND_TOLERANCE * (1 + abs(high))) if high is not None else out
        if not bool(out.any()) and (low is not None or high is not None or bool(constraint.check(value).all())):
            continue
        edges = (("at least", low), ("at most", high))
        wanted = " and ".join(f"{side} {float(edge):g}" for side, edge in edges if edge is not None)
        of = f"is {float(value[out][0]):.3g}" if bool(out.any()) else "is beyond its constraint"
        return (
            f"{'observed' if msg['is_observed'] else 'latent'} site '{name}': {parameter} of "
            f"{type(innermost(msg['fn'])).__name__} {of} {at_draw}, where "
            f"it has to be {wanted or constraint}: the density is taken for zero there. Write it by a link function, "
            "such as torch.exp(...) for a rate or a scale and logits=... or torch.sigmoid(...) for a probability, or "
            "give latents priors that keep it within, such as a bound of one that depends on the others"
        )
    return ""
