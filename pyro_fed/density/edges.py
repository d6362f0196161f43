"""Edges of a likelihood: supports that depend on latents, and parameters beyond their constraints.

The support of Uniform(0, θ) depends on a latent: the density of a row y is zero for θ < y. The gradient for θ > y does
not show this edge, so that algorithms that follow gradients do not find it, and no Gaussian ends there. Torch does not
return a zero if a transformed distribution passes its base a value outside of the support, such as a shifted
Exponential below its threshold, or for a Pareto: it evaluates the formula. The same holds for a value that a latent
moves over a fixed edge, as in obs=y - m.

A value at the end of a closed support, such as one under a Beta or zero under a Gamma, has a density of zero or
infinity for all values of the latents. One such row dominates the result.

Beyond a parameter's constraint, such as for a negative rate b x of a Poisson, there is no density, though torch may
compute a number. `find_walls` looks for such points, called walls, among draws of the prior.
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
from pyro_fed.density.running.site_values import constrained_parameters, mask_of, or_masked, within_constraints
from pyro_fed.density.running.trace_sites import Message, innermost, is_deterministic
from pyro_fed.density.starts import drawn_at_once
from pyro_fed.errors import ModelError, listed, warn_user

#: Shifts of the unconstrained latents that test whether rows leave the support.
MOVES = (1.0, -1.0, 4.0, -4.0)
#: Attributes of a support that are its bounds; and the key of the observed value beside them.
BOUNDS, VALUE = ("lower_bound", "upper_bound"), "value"
#: Absolute and relative tolerance for a parameter beyond a bound, half of the digits of float32; less is rounding.
BOUND_TOLERANCE = torch.finfo(torch.float32).eps ** 0.5


def moving_support(bound: BoundModel, initial_run: FirstRun, name: str) -> str:
    """A sentence on an observed site whose support depends on latents; "" if it does not."""
    msg = initial_run.execution.trace.nodes[name]
    if not _edges(msg):
        return ""
    latents = [latent for latent in initial_run.point if _changes(bound, initial_run, msg, (latent,))]
    return _edge_sentence(msg, latents) if latents else ""


def check_moving_supports(bound: BoundModel, initial_run: FirstRun) -> None:
    """Warn of supports that lose rows for other latents, or refuse them if the density beyond is not zero."""
    for name, msg in initial_run.execution.trace.nodes.items():
        if msg["type"] != "sample" or not msg["is_observed"] or is_deterministic(msg) or not _edges(msg):
            continue
        if not _changes(bound, initial_run, msg, tuple(initial_run.point)):
            continue
        shifted_sites = [_shifted_site(bound, initial_run, name, tuple(initial_run.point), move) for move in MOVES]
        loses_rows = any(other is not None and not _holds_all(other) for other in shifted_sites)
        if not loses_rows or not (sentence := moving_support(bound, initial_run, name)):
            continue
        if _has_density_beyond(bound, name):
            raise ModelError(sentence)
        warn_user(sentence)


def latents_of_moving_support(bound: BoundModel) -> dict[str, list[str]]:
    """Latent sites whose support depends on other latents, with these; from derivatives at a random point."""
    execution, places = run_at_random(bound, torch.Generator().manual_seed(0))
    dependences = {}
    for name in places:
        edges = _bounds(getattr(execution.trace.nodes[name]["fn"], "support", None)).values()
        slopes = [derivatives(edge, places) for edge in edges if isinstance(edge, Tensor)]
        if others := [other for other in places if any(other in each and bool(each[other].any()) for each in slopes)]:
            dependences[name] = others
    return dependences


def values_at_an_end(bound: BoundModel, initial_run: FirstRun, name: str) -> tuple[Tensor, str]:
    """Entries at the end of a site's support whose density is zero or infinite for all latents; and a sentence."""
    msg = initial_run.execution.trace.nodes[name]
    at_end = _at_end(msg)
    at_degenerate_end = torch.zeros(msg["fn"].batch_shape, dtype=torch.bool)
    if at_end is None or not bool(at_end.any()):
        return at_degenerate_end, ""
    shifted_sites = [_shifted_site(bound, initial_run, name, tuple(initial_run.point), move) for move in MOVES]
    densities = [other["fn"].log_prob(other["value"]) for other in shifted_sites if other is not None]
    if not densities:
        return at_degenerate_end, ""
    at_degenerate_end = torch.stack([density.isinf() for density in densities]).all(0)
    mask = mask_of(msg)
    if mask is not None:
        at_degenerate_end = at_degenerate_end & mask.bool()
    if not bool(at_degenerate_end.any()):
        return at_degenerate_end, ""
    ends = " and ".join(f"{end:g}" for end in sorted(set(msg["value"][at_end].tolist())))
    return at_degenerate_end, (
        f"{int(at_degenerate_end.sum())} of {at_degenerate_end.numel()} values lie at the end of the support of "
        f"{type(innermost(msg['fn'])).__name__}, {ends}, where the density is zero or infinite for all latents: "
        "one such row determines the posterior. Model them separately (a zero-inflated or hurdle likelihood), move "
        "them inside by their rounding, such as (y (n - 1) + 0.5) / n for proportions, or leave them out"
    )


def _at_end(msg: Message) -> Tensor | None:
    """Whether each value is at an end of a continuous support; None if the support has no ends."""
    value, support = msg["value"], getattr(innermost(msg["fn"]), "support", None)
    if not isinstance(value, Tensor) or not value.is_floating_point() or support is None or support.is_discrete:
        return None
    if support is constraints.simplex:
        return value == 0
    ends = [edge for edge in (_bounds(support).get(name) for name in BOUNDS) if isinstance(edge, int | float)]
    return torch.stack([value == end for end in ends]).any(0) if ends else None


def _edge_sentence(msg: Message, latents: Collection[str]) -> str:
    density = _site_density(msg)
    kind = type(density.fn).__name__
    kind += "" if density.fn is innermost(msg["fn"]) else f" in its {type(innermost(msg['fn'])).__name__}"
    first = next(iter(latents))
    return (
        f"observed site '{msg['name']}': the support of {kind} depends on {listed(map(repr, latents))}, and some "
        f"values under the prior of {first!r} exclude rows. The density is zero beyond this edge, and the "
        "gradient, which all algorithms here follow, does not show it. Restrict the prior to values under which all "
        f"rows are possible, which gives the same posterior: for Uniform(0, theta) use `top = "
        "pf.shared('top', lambda: y.max())` and a prior of theta on (top, ∞), such as dist.Pareto(top, a); for a "
        "threshold below all rows, `low = pf.shared('low', lambda: y.min())` and `low - gap` with a positive gap; or "
        "use a likelihood whose support is fixed"
    )


class _SiteDensity(NamedTuple):
    """The distribution that computes a site's density, its value, the transforms between, and whether it is mixed."""

    fn: Any
    value: Tensor
    between: tuple[Any, ...]
    mixed: bool


def _site_density(msg: Message) -> _SiteDensity:
    """The distribution inside transforms and mixtures; transforms do not check the support of their base."""
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
    """The bounds of a support, by name: its tensors, and numbers at its ends."""
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    attributes = {} if support is None else vars(support)
    ends = () if support is None or support.is_discrete else BOUNDS
    return {name: edge for name, edge in attributes.items() if isinstance(edge, Tensor) or name in ends}


def _edges(msg: Message) -> dict[str, Tensor]:
    """The quantities that determine whether a row is in the support, by name: tensor bounds, and a bounded value."""
    if not isinstance(msg["value"], Tensor):
        return {}
    fn, value, between, _ = _site_density(msg)
    supports = [getattr(fn, "support", None), *(getattr(transform, "codomain", None) for transform in between)]
    steps = [_bounds(support) for support in supports]
    edges = {name: edge for name, edge in steps[-1].items() if isinstance(edge, Tensor)}
    for number, bounds in enumerate(steps[:-1]):
        for name, edge in bounds.items():
            start = torch.as_tensor(edge, dtype=value.dtype, device=value.device).expand_as(value)
            try:
                for transform in between[number:]:
                    start = transform(start)
            except (RuntimeError, ValueError):  # for vectors of another length
                start = value
            edges[f"{name} {number}"] = start.detach()
    has_bounds = any(name in BOUNDS for bounds in steps for name in bounds) and msg["value"].is_floating_point()
    return edges | ({VALUE: msg["value"].detach()} if has_bounds else {})


def _changes(bound: BoundModel, initial_run: FirstRun, msg: Message, latents: Collection[str]) -> bool:
    """Whether other values of these latents move a bound, or move a value over a bound."""
    other = _shifted_site(bound, initial_run, msg["name"], latents, MOVES[0])
    if other is None:
        return False
    before, after = _edges(msg), _edges(other)
    shared = before.keys() & after.keys()
    changed_edges = {name for name in shared if not torch.equal(before[name].nan_to_num(), after[name].nan_to_num())}
    if changed_edges != {VALUE}:
        return bool(changed_edges)
    inside = _inside_support(msg)
    shifted_sites = (_shifted_site(bound, initial_run, msg["name"], latents, move) for move in MOVES)
    return any(site is not None and not torch.equal(_inside_support(site), inside) for site in shifted_sites)


def _shifted_site(
    bound: BoundModel, initial_run: FirstRun, name: str, latents: Collection[str], move: float
) -> Message | None:
    """The site with these latents shifted; None if the model cannot be run there."""

    def source(msg: Message, _transform: Any) -> Tensor:
        return initial_run.point[msg["name"]] + move * float(msg["name"] in latents)

    return _run(bound, name, source)


def _run(bound: BoundModel, name: str, source: Source) -> Message | None:
    """The site with latents from the source; None if the model cannot be run there."""
    try:
        site: Message | None = bound.execute(source, bound.all_rows).trace.nodes.get(name)
    except (RuntimeError, ValueError, KeyError):  # failures at distant points do not concern supports
        return None
    return site


def _inside_support(msg: Message) -> Tensor:
    """Whether each value is masked, or in the support of the distribution that computes the density."""
    inside, beyond_support = _inside_and_beyond(msg)
    if _site_density(msg).mixed:  # one component suffices
        inside, beyond_support = inside.any(-1), beyond_support.any(-1)
    return or_masked(inside & ~beyond_support, msg)


def _inside_and_beyond(msg: Message) -> tuple[Tensor, Tensor]:
    """Whether each value is in that support, and whether it is outside with a density other than zero."""
    density = _site_density(msg)
    inside: Tensor = density.fn.support.check(density.value)
    try:
        positive: Tensor = density.fn.log_prob(density.value) != -torch.inf
    except ValueError:  # a distribution made before the run checks its values
        positive = torch.ones_like(inside)
    return inside, ~inside & positive


def _holds_all(msg: Message) -> bool:
    try:
        return bool(_inside_support(msg).all())
    except (RuntimeError, ValueError):
        return True


def _has_density_beyond(bound: BoundModel, name: str) -> bool:
    """Whether, at draws of the prior, rows are beyond an edge and their density is not zero."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(NUM_DRAWS):
            msg = _run(bound, name, prior_draw)
            if msg is not None and not _holds_all(msg) and bool(_inside_and_beyond(msg)[1].any()):
                return True
    return False


def find_walls(problem: RowDensities, initial_run: FirstRun, computed: Collection[str]) -> list[str]:
    """Add walls for the sites whose parameters leave their constraints at prior draws; returns sentences on these."""
    bound, nodes = problem.bound, initial_run.execution.trace.nodes
    latents = {value.untyped_storage().data_ptr() for value in initial_run.execution.filler.values.values()}

    def is_own(name: str) -> bool:
        """Whether the parameters are latents themselves, possibly broadcast."""
        parameters = constrained_parameters(nodes[name]["fn"])
        return all(value.untyped_storage().data_ptr() in latents for *_, value in parameters)

    suspects = [name for name in nodes if name in computed and not is_own(name)]
    if not suspects or bound.walls:
        return []
    sentences: dict[str, str] = {}
    for first in range(0, bound.num_rows, ROWS_TOGETHER):
        takes_all = bound.num_rows <= ROWS_TOGETHER
        rows = bound.all_rows if takes_all else tuple(leaf[first : first + ROWS_TOGETHER] for leaf in bound.rows)
        sentences |= _beyond_in(problem, rows, [name for name in suspects if name not in sentences])
    bound.walls.update(sentences)
    return list(sentences.values())


def _beyond_in(problem: RowDensities, rows: tuple[Any, ...], suspects: list[str]) -> dict[str, str]:
    """A sentence on each site whose parameters leave their constraints in some rows, at draws of the priors."""
    bound, sentences = problem.bound, dict[str, str]()

    def within(_: Tensor) -> Tensor:
        nodes = bound.execute(prior_draw, rows).trace.nodes
        return torch.stack([within_constraints(nodes[name]).all() for name in suspects])

    if not suspects:
        return sentences
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        flags = drawn_at_once(problem, within, NUM_DRAWS)
        if flags is not None and bool(flags.all()):
            return sentences
        for _ in range(FEW_DRAWS if flags is None else MAX_TRIES):
            try:
                execution = bound.execute(prior_draw, rows)
            except (RuntimeError, ValueError, IndexError, KeyError):  # later checks refuse the model
                break
            for name in suspects:
                if name not in sentences and (sentence := _beyond_constraint(execution, name)):
                    sentences[name] = sentence
            if flags is not None and len(sentences) >= int((~flags.all(0)).sum()):
                break
    return sentences


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
            f"site '{name}': the log density of pyro.factor is NaN {at_draw}, such as by the logarithm of a negative "
            "number: the density is taken for zero there. Give the latents a support on which it is not NaN, such as "
            "HalfNormal's in place of Normal's or one that begins at another latent, or return -inf by torch.where "
            "if a density of zero is intended"
        )
    for parameter, constraint, value in constrained_parameters(msg["fn"]):
        while hasattr(constraint, "base_constraint"):
            constraint = constraint.base_constraint
        low, high = (getattr(constraint, edge, None) for edge in BOUNDS)
        beyond = value < low - BOUND_TOLERANCE * (1 + abs(low)) if low is not None else torch.zeros_like(value).bool()
        beyond = beyond | (value > high + BOUND_TOLERANCE * (1 + abs(high))) if high is not None else beyond
        if not bool(beyond.any()) and (low is not None or high is not None or bool(constraint.check(value).all())):
            continue
        edges = (("at least", low), ("at most", high))
        wanted = " and ".join(f"{side} {float(edge):g}" for side, edge in edges if edge is not None)
        of = f"is {float(value[beyond][0]):.3g}" if bool(beyond.any()) else "is beyond its constraint"
        return (
            f"{'observed' if msg['is_observed'] else 'latent'} site '{name}': {parameter} of "
            f"{type(innermost(msg['fn'])).__name__} {of} {at_draw}, but "
            f"it must be {wanted or constraint}: the density is taken for zero there. Use a link function, "
            "such as torch.exp(...) for a rate or a scale and logits=... or torch.sigmoid(...) for a probability, or "
            "priors that keep it within the constraint, such as a bound for one latent that depends on the others"
        )
    return ""
