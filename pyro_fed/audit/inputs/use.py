"""Inputs that are of no use to an answer, which predicts a row by its own inputs no better than by other rows' inputs.

    Δ_i = log 1/S Σ_s p(y_i | x_i, z_s) - mean over j of log 1/S Σ_s p(y_j | x_i, z_s),      j other rows

The mean of Δ_i over the fitted rows is positive if the answer has learned anything about y from x. It is zero for a
network whose weights stay at the prior, as those of a mean-field Gaussian of many layers do. The density of the rows
alone would not show that, since x may be uninformative. The user has to decide between the two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import frame_of, sum_to_rows
from pyro_fed.ops.entries import evenly

#: The most rows and draws that are used; how many other rows each row is compared with; and the fewest rows.
ROWS, DRAWS, OTHER_ROWS, FEWEST_ROWS = 500, 20, 4, 20
#: Inputs are of use if the mean of Δ is more than this many standard errors above zero.
PLAIN = 2.0


def of_no_use(problem: Problem, draws: Tensor) -> list[Finding]:
    """One finding on a network that predicts rows, by draws (S, D), no better by their own than by others' inputs."""
    if not problem.traits.layers or problem.layout.local or len(problem.layout.observed) != 1 or problem.layout.factors:
        return []
    rows = tuple(leaf[evenly(len(leaf), ROWS)] for leaf in problem.rows)
    if len(rows[0]) < FEWEST_ROWS:
        return []
    found = [_log_densities(problem, z, rows) for z in draws[evenly(len(draws), DRAWS)].to(problem.dtype)]
    own, *others = (torch.stack(parts).logsumexp(0) for parts in zip(*found, strict=True))
    gain = own - torch.stack(others).mean(0)
    mean, error = float(gain.mean()), float(gain.std()) / math.sqrt(len(gain))
    if not mean <= PLAIN * error:
        return []
    name = problem.layout.single_observed()
    return [sentences.inputs_tell_nothing(site=name, rows=len(gain), gain=mean, error=error)]


def _log_densities(problem: Problem, z: Tensor, rows: tuple[Tensor, ...]) -> list[Tensor]:
    """Log densities of observations, given inputs: of the m rows' own ones (m,), then of `OTHER_ROWS` rows'."""
    site = problem.execute_at(z, rows).trace.nodes[problem.layout.single_observed()]
    dim = frame_of(site, problem.plate).dim
    along = dim - len(site["fn"].event_shape)
    found = []
    for shift in (0, *(1 + len(rows[0]) * part // (OTHER_ROWS + 1) for part in range(1, OTHER_ROWS + 1))):
        log_prob = site["fn"].log_prob(site["value"].roll(shift, along))
        found.append(sum_to_rows({**site, "log_prob": log_prob}, dim).double())
    return found
