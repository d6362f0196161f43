"""Log-likelihoods at many draws by few rows of each client, where what these miss is known.

    log p_k(z) = n_k/b_k Σ_{i ∈ B_k} log p_i(z) + c_k(z),     c_k(z) ≈ level + a'w - w'E w / 2,     w = z - m

c_k is what b_k rows, picked at random from slices of the client's rows, miss of all n_k. Around the draws' mean m it is
nearly a parabola where rows are many: value, score and curvature there, of all rows and of the few, give it. The rest
is of third order, and is compared with all rows at some of the draws. Where it differs by more than `SAME_NATS` (and,
farther out than half of the draws, by more than that grown as terms of third order grow), four times as many rows are
taken, and all of them where a quarter does not agree.

Source: control variates of Taylor's form, Bardenet, Doucet & Holmes (2017), *On Markov chain Monte Carlo methods for
tall data*, Section 6. The audit uses the same in `audit.target`, of all clients' rows together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SAME_NATS, SUM_ROUNDING_UNITS
from pyro_fed.density.checks.points import NUM_DRAWS
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.nodes import MANY_ROWS_A_PARAMETER
from pyro_fed.density.derivatives.rowwise import TRIED_ROWS
from pyro_fed.density.derivatives.scores import clients_log_likelihoods
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.traits import FULL_DIM, Traits
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.entries import evenly, with_trailing_axes
from pyro_fed.ops.matrices import equilibrated_cholesky
from pyro_fed.ops.memory import count_in_memory

#: Rows that stand for all at first are `TRIED_ROWS`, of all clients, and at least so many a parameter; `MORE_ROWS`
#: times as many where they do not.
ROWS_A_PARAMETER, MORE_ROWS = 50, 4


class Quadratic(NamedTuple):
    """What few rows miss of all rows' log density: level (...), slope a (..., D), curvature E (..., D, D)."""

    level: Tensor
    slope: Tensor
    curvature: Tensor

    def value(self, away: Tensor) -> Tensor:
        """At points w (..., S, D): (..., S)."""
        return self.level.unsqueeze(-1) + ((self.slope.unsqueeze(-2) - away @ self.curvature / 2) * away).sum(-1)

    def gradient(self, away: Tensor) -> Tensor:
        """At points w (..., S, D), of their shape."""
        return self.slope.unsqueeze(-2) - away @ self.curvature


def row_numbers(dim: int, num_rows: int, divisor: int = 1) -> Iterator[int]:
    """Numbers of rows that are tried in the place of all, up to a quarter; `divisor` as for `first_row_count`."""
    count = first_row_count(dim, divisor)
    while count * MORE_ROWS <= num_rows:
        yield count
        count *= MORE_ROWS


def log_likelihoods_at(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """Log-likelihoods (C, S) of C clients at draws of their own (C, S, D), by few rows where these are found to do."""
    probes = evenly(draws.shape[1], NUM_DRAWS)
    if not _worth_a_try(problem, draws):
        return clients_log_likelihoods(problem, draws, data)
    exact = clients_log_likelihoods(problem, draws[:, probes], data)
    share = data.num_rows / problem.num_rows
    rounding = SUM_ROUNDING_UNITS * torch.finfo(problem.dtype).eps * exact.abs().amax(1)
    allowed = (SAME_NATS * share.sqrt()).unsqueeze(1) * _third_order_growth(draws, probes) + rounding.unsqueeze(1)
    at_mean = likelihoods_at(problem, _mean(draws), data)
    for count in row_numbers(problem.dim, problem.num_rows):
        few, times = pick_rows(problem, data, count)
        found = _likelihoods_by_few(problem, draws, few, times, at_mean)
        agree = ((found[:, probes] - exact).abs() <= allowed).all(1)
        if bool(agree.all()):
            return found
    others = (~agree).nonzero()[:, 0]
    return found.index_copy(0, others, clients_log_likelihoods(problem, draws[others], data.of(others)))


def first_row_count(dim: int, divisor: int = 1) -> int:
    """How many rows stand for all at first; `divisor` is of the number that any model takes at least."""
    return max(TRIED_ROWS // divisor, ROWS_A_PARAMETER * dim)


def fewer_rows(num_rows: int) -> int:
    """How many rows stand for so many: a quarter."""
    return num_rows // MORE_ROWS


def has_many_rows(traits: Traits) -> bool:
    """Whether rows are so many that some may stand for all, and rows in tensors, of which some can be taken."""
    many = traits.num_rows >= max(MANY_ROWS_A_PARAMETER * traits.dim, MORE_ROWS * first_row_count(traits.dim))
    return many and traits.rows_in_tensors


def few_rows_findings(problem: Problem, count: int | None) -> list[Finding]:
    """What to say of an answer whose rounds took `count` rows of all clients; nothing where it is all of them."""
    if count is None or count >= problem.num_rows:
        return []
    return [sentences.some_rows_alone(few_rows=count, rows=problem.num_rows)]


def _worth_a_try(problem: Problem, draws: Tensor) -> bool:
    """Whether rows are many, have a shape of their own and are not looped over."""
    # Of more parameters second derivatives cost more than they save.
    many = has_many_rows(problem.traits) and problem.dim <= FULL_DIM
    return many and not problem.looped and draws.shape[1] > NUM_DRAWS + 2 * problem.dim


def _likelihoods_by_few(problem: Problem, draws: Tensor, few: ClientData, times: Tensor, at_mean: Moments) -> Tensor:
    """By some rows of each client, and what these miss to second order."""
    mean = _mean(draws)
    some = (with_trailing_axes(times, part) * part for part in likelihoods_at(problem, mean, few))
    missed = Quadratic(*(whole - part for whole, part in zip(at_mean, some, strict=True)))
    found = times.unsqueeze(1) * clients_log_likelihoods(problem, draws, few)
    pieces = draws.split(count_in_memory(draws[:, 0].numel()), 1)
    return found + torch.cat([missed.value(part.double() - mean.unsqueeze(1)) for part in pieces], 1)


def pick_rows(problem: Problem, data: ClientData, count: int) -> tuple[ClientData, Tensor]:
    """Some rows of each client, its share of `count`, one from each of equal slices; and n_k / b_k, (C,)."""
    rows = data.num_rows
    wanted = torch.minimum((rows * count / problem.num_rows).ceil().long(), rows)
    place = torch.arange(max(1, int(wanted.max())), device=rows.device)
    within = torch.rand(len(place), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    position = (place + within.to(rows.device)) / wanted.clamp_min(1).unsqueeze(1) * rows.unsqueeze(1)
    position = torch.minimum(position.long(), (rows - 1).clamp_min(0).unsqueeze(1))
    few = ClientData(data.rows, data.row_index.gather(1, position), wanted, data.power)
    return few, rows.double() / wanted.clamp_min(1)


def _third_order_growth(draws: Tensor, probes: Tensor) -> Tensor:
    """How much larger a term of third order is at some draws than at the median one, at least one: (C, probes)."""
    mean = _mean(draws).unsqueeze(1)
    away = draws.double() - mean
    factor = equilibrated_cholesky(away.mT @ away / away.shape[1])
    usual, at = (factor.half_solve(w.mT).square().sum(1) for w in (away, draws[:, probes].double() - mean))
    return (at / usual.median(1, keepdim=True).values).clamp_min(1.0).pow(1.5)


def _mean(draws: Tensor) -> Tensor:
    return draws.mean(1, dtype=torch.float64)


def likelihoods_at(problem: Problem, mean: Tensor, data: ClientData) -> Moments:
    """Value, score and curvature of C clients' log-likelihoods at a point of each (C, D), float64."""
    derivatives = Derivatives("full", "hessian")
    found = derivatives.under(problem, mean, None, data)
    return found or derivatives.of_likelihood(problem, mean.unsqueeze(0), data.full_batch())
