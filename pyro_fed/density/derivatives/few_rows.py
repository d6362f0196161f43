"""Log-likelihoods at many draws by a few rows of each client, with a quadratic correction (control variate).

    log p_k(z) = n_k/b_k Σ_{i ∈ B_k} log p_i(z) + c_k(z),     c_k(z) ≈ level + a'w - w'E w / 2,     w = z - m

c_k is the difference between all n_k rows and b_k rows, a random one from each of equal slices. For many rows it is
nearly a parabola around the draws' mean m, given by value, score and curvature of all rows and of the few rows at m.
The remainder is of third order, and is compared with all rows at some of the draws. If it exceeds `SAME_NATS` (beyond
the median distance of the draws, with the growth of third-order terms), four times as many rows are used, and all rows
if a quarter does not suffice.

Source: control variates of Taylor's form, Bardenet, Doucet & Holmes (2017), *On Markov chain Monte Carlo methods for
tall data*, Section 6. `audit.target` uses the same method for the rows of all clients together.
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
    """The difference between all rows and a few rows: level (...), slope a (..., D), curvature E (..., D, D)."""

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
    """Numbers of rows to try instead of all rows, up to a quarter; `divisor` as for `first_row_count`."""
    count = first_row_count(dim, divisor)
    while count * MORE_ROWS <= num_rows:
        yield count
        count *= MORE_ROWS


def log_likelihoods_at(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """Log-likelihoods (C, S) of C clients at their own draws (C, S, D), by a few rows if these are accurate."""
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
    """The first number of rows to try; `divisor` reduces the minimum for all models."""
    return max(TRIED_ROWS // divisor, ROWS_A_PARAMETER * dim)


def fewer_rows(num_rows: int) -> int:
    """The largest number of rows that replaces all rows: a quarter."""
    return num_rows // MORE_ROWS


def has_many_rows(traits: Traits) -> bool:
    """Whether there are enough rows, in tensors, that a few may replace all."""
    many = traits.num_rows >= max(MANY_ROWS_A_PARAMETER * traits.dim, MORE_ROWS * first_row_count(traits.dim))
    return many and traits.rows_in_tensors


def few_rows_findings(problem: Problem, count: int | None) -> list[Finding]:
    """A finding on a result whose rounds used `count` rows of all clients; none if these are all rows."""
    if count is None or count >= problem.num_rows:
        return []
    return [sentences.some_rows_alone(few_rows=count, rows=problem.num_rows)]


def _worth_a_try(problem: Problem, draws: Tensor) -> bool:
    """Whether there are many rows, in tensors, of a model that can be mapped."""
    # For more parameters second derivatives cost more than they save.
    many = has_many_rows(problem.traits) and problem.dim <= FULL_DIM
    return many and not problem.looped and draws.shape[1] > NUM_DRAWS + 2 * problem.dim


def _likelihoods_by_few(problem: Problem, draws: Tensor, few: ClientData, times: Tensor, at_mean: Moments) -> Tensor:
    """Log-likelihoods by a few rows of each client, with the correction to second order."""
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
    """Ratios (C, probes) of third-order terms at some draws to those at the median draw, at least one."""
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
