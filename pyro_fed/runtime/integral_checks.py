"""Checks of the integrals over rows' own latents: against a finer rule, for modes that it misses, and for rounding."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE, NEGLIGIBLE_MASS
from pyro_fed.density.checks.points import FEW_DRAWS
from pyro_fed.density.latents.ascent_starts import ascent_starts, first_client, one_client
from pyro_fed.density.latents.modes import missed_mode_log_mass, needed_starts
from pyro_fed.density.latents.quadrature import NEAR_STEPS, NearbyModes, Nodes, Quadrature
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.matrices import log_det_lower
from pyro_fed.policy.audit import may_round
from pyro_fed.policy.results import finer_rule, has_single_latents, integrates_latents, rule_arguments

#: Number of draws of θ at which the integrals are checked; an error that is equal at all draws has no effect.
CHECK_DRAWS = 16
#: Number of rows whose latents are searched for further modes.
MODES_ROWS = 128
#: Places beside the end of a type's numbers: two before it, where what is left is known to e^-4, 2 %; and two beyond.
BESIDE_END = -8.0, -4.0, 1.0, 2.0
#: Largest number of finer rules that are tried to find one to recommend.
MAX_FINER_RULES = 2


def integration_error(problem: Problem, theta: Tensor) -> float:
    """SD over draws θ (S, D) of the error in the pooled log-likelihood, in nats, estimated by a finer rule."""
    rule = problem.quadrature
    mode_steps = min((rule.mode_steps or rule.max_mode_steps) + NEAR_STEPS, rule.max_mode_steps)
    finer = replace(finer_rule(problem.traits, rule), mode_steps=mode_steps)
    return _log_lik_difference_sd(problem, theta, rule, finer)


def integral_findings(problem: Problem, theta: Tensor) -> list[Finding]:
    """Doubts about the integrals over the rows' latents, at draws of θ (S, D)."""
    if not integrates_latents(problem.traits):
        return []
    if missed := _missed_modes(problem, theta) or _rounded_mass(problem, theta):
        return missed
    error = integration_error(problem, theta)
    if error <= NEGLIGIBLE:
        return []
    rule = replace(problem.quadrature, mode_steps=problem.quadrature.max_mode_steps)
    for _ in range(MAX_FINER_RULES):
        rule = finer_rule(problem.traits, rule)
        left = _log_lik_difference_sd(problem, theta, rule, finer_rule(problem.traits, rule))
        if left <= NEGLIGIBLE:
            break
    return [
        sentences.integrals_are_inaccurate(
            sites=sorted(problem.layout.local),
            plate=problem.plate,
            error=error,
            finer=f"pf.Quadrature({rule_arguments(problem.traits, rule)})",
            left=left if left > NEGLIGIBLE else None,
        )
    ]


def _missed_modes(problem: Problem, theta: Tensor) -> list[Finding]:
    """Rows whose latents have modes that the rule does not find, at draws of θ (S, D)."""
    rule, draws = problem.quadrature, theta[evenly(len(theta), FEW_DRAWS)]
    at = evenly(len(problem.all_rows[0]), MODES_ROWS).unique()  # not `num_rows`: an agent has only its own rows
    rows = tuple(leaf[at] for leaf in problem.all_rows)

    def lacking(rule: Quadrature) -> Tensor:
        return -torch.expm1(-missed_mode_log_mass(problem, rule, draws, rows)).mean(0)

    share = lacking(rule)
    if not bool((share > NEGLIGIBLE_MASS).any()):
        return []
    starts = needed_starts(problem, rule, draws, rows)
    finer = replace(rule, starts=starts, order=max(rule.order or 0, rule.max_order))
    lost = bool((lacking(finer) > NEGLIGIBLE_MASS).any())
    rounded = tuple(tuple(float(f"{x:.4g}") for x in place) for place in starts)
    return [
        sentences.integrals_miss_modes(
            sites=sorted(problem.layout.local),
            plate=problem.plate,
            rows=int((share > NEGLIGIBLE_MASS).sum()),
            looked_at=len(at),
            share=NEGLIGIBLE_MASS,
            worst_row=int(at[share.argmax()]),
            largest=float(share.max()),
            starts="" if lost else str(rounded),
        )
    ]


def _rounded_mass(problem: Problem, theta: Tensor) -> list[Finding]:
    """Single latents of rows with mass where their values round to a bound, such as 1 - 1e-17, at draws θ (S, D)."""
    if not has_single_latents(problem.traits):
        return []
    rows, some = problem.all_rows, theta[evenly(len(theta), CHECK_DRAWS)]
    ends = [end for end in _ends_of_numbers(problem.dtype) if _is_rounded(problem, some[0], rows, end)]
    if not ends:
        return []
    lost = partial(_log_lik_lost_beyond, problem, rows, ends)
    pieces = in_chunks(some, (problem.num_nodes + len(BESIDE_END) * len(ends)) * problem.widest)
    error = float(torch.cat([problem.vmap(lost)(piece) for piece in pieces]).std(correction=0).nan_to_num(nan=math.inf))
    if error <= NEGLIGIBLE:
        return []
    sites, single = sorted(problem.layout.local), may_round(problem.traits)
    return [sentences.integrals_lose_rounded_mass(sites=sites, plate=problem.plate, error=error, single=single)]


def _ends_of_numbers(dtype: torch.dtype) -> list[float]:
    """Where the logit of a probability, or the logarithm of a positive number, may leave a type's numbers."""
    ends = [math.log(size) for size in (torch.finfo(dtype).eps, torch.finfo(dtype).tiny)]
    return [*ends, *(-end for end in ends)]


def _local_values(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], at: float) -> Tensor:
    """The values of the rows' single latents where these are `at`, unconstrained, at θ (D,)."""
    trace = problem.execute_at(theta, rows, theta.new_full((len(rows[0]), 1), at)).trace
    value: Tensor = trace.nodes[next(iter(problem.layout.local))]["value"]
    return value


def _is_rounded(problem: Problem, theta: Tensor, rows: tuple[Tensor, ...], end: float) -> bool:
    """Whether all values one and two units beyond an end are the same finite numbers."""
    outward = math.copysign(1.0, end)
    near, far = (_local_values(problem, theta, rows, end + units * outward) for units in (1, 2))
    return bool(near.isfinite().all()) and torch.equal(near, far)


def _log_lik_lost_beyond(problem: Problem, rows: tuple[Tensor, ...], ends: list[float], theta: Tensor) -> Tensor:
    """The pooled log-likelihood that is lost beyond some ends at θ (D,).

    Some way before an end e, where rounding does not matter yet, the log density falls by s a unit, and beyond the end
    by t, so that the mass exp(f(e)) (1 / s - 1 / t) is lost. It is infinite where the density does not fall, unless
    that is negligible.
    """
    log_marginal = problem.log_parts(theta, rows)[1]
    lost = torch.zeros_like(log_marginal)
    for end in ends:
        places = (theta.new_full((len(log_marginal), 1), end + math.copysign(1.0, end) * units) for units in BESIDE_END)
        far, near, beyond, farther = (problem.conditional_parts(theta, rows, place)[1] for place in places)
        slope, slope_beyond = (far - near) / (BESIDE_END[1] - BESIDE_END[0]), beyond - farther
        share = (near + BESIDE_END[1] * slope - log_marginal).exp() * (1 / slope - 1 / slope_beyond)
        negligible = near - log_marginal < math.log(torch.finfo(theta.dtype).eps)
        lost = lost + torch.where(negligible, 0.0, torch.where(slope > 0, share, math.inf).clamp_min(0.0))
    return lost.log1p().sum()


def _log_lik_difference_sd(problem: Problem, theta: Tensor, rule: Quadrature, exact: Quadrature) -> float:
    """SD over draws (S, D) of the difference between two rules' pooled log-likelihoods; infinite where one is NaN."""
    some = theta[evenly(len(theta), CHECK_DRAWS)]
    rows = problem.all_rows
    known = ascent_starts(problem, some.unsqueeze(0), one_client(rows, theta))
    if known is None:
        error, nodes = partial(_difference, problem, rows, rule, exact), exact.num_nodes(problem.local_dim)
    else:
        near = first_client(known.batch.near[0])
        own = near if rule == problem.quadrature else near._replace(nodes=())
        finer = exact.nodes_in_curvature_units(problem, some.mean(0), rows, near._replace(nodes=()))
        error, nodes = partial(_difference_near, problem, rows, rule, own, finer), len(finer.log_weight)
    pieces = in_chunks(some, nodes * problem.widest)
    apart = float(torch.cat([problem.vmap(error)(piece) for piece in pieces]).std(correction=0))
    return math.inf if math.isnan(apart) else apart


def _difference(
    problem: Problem, rows: tuple[Tensor, ...], rule: Quadrature, exact: Quadrature, theta: Tensor
) -> Tensor:
    """Difference between two rules' pooled log-likelihoods at θ (D,)."""
    return (exact.log_parts(problem, theta, rows)[1] - rule.log_parts(problem, theta, rows)[1]).sum()


def _difference_near(
    problem: Problem, rows: tuple[Tensor, ...], rule: Quadrature, near: NearbyModes, exact: Nodes, theta: Tensor
) -> Tensor:
    """The difference at θ (D,) if modes are known; the exact nodes (Q, m) are placed there by the curvatures."""
    centre = rule.centre_near(problem, theta, rows, near)
    found = rule.nodes_at_modes(problem, theta, rows, centre, near)
    precise = Nodes(centre.places_at(exact.place), exact.log_weight - log_det_lower(centre.factor))
    place = torch.cat([precise.place, found.place])
    values = problem.vmap(lambda x: problem.conditional_parts(theta, rows, x)[1])(place)
    values = values + torch.cat([precise.log_weight, found.log_weight])
    exactly, ours = values.split([len(precise.place), len(found.place)])
    return (torch.logsumexp(exactly, 0) - torch.logsumexp(ours, 0)).sum()
