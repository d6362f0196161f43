"""Deterministic sites and rows: which of them say nothing of the data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.density.problem import Problem

#: Draws at which values on rows and on made-up ones are compared.
NUM_COMPARED_DRAWS = 8


class Public(NamedTuple):
    """What can be said of draws without the data.

    Args:
        rows: on which the sites' values are computed.
        reported: names of the deterministic sites whose values these rows do not matter to.
    """

    rows: tuple[Tensor, ...]
    reported: list[str]


def without_data(problem: Problem, z: Tensor) -> Public:
    """Deterministic sites outside the plate that have the same values on all rows as on a made-up one of zeros.

    None of a model that indexes its own data, or that cannot be run on made-up rows: what it computes from rows cannot
    be told from what it does not.

    Args:
        problem: the model's densities.
        z: (S, D) draws, of which some are compared.
    """
    names = [name for name, site in problem.reported.items() if problem.plate not in site.dims]
    rows: tuple[Tensor, ...] = pytree.tree_map(torch.zeros_like, problem.fewest_rows)
    some = z[:NUM_COMPARED_DRAWS]
    try:
        real, made_up = problem.constrain(some), problem.constrain(some, rows)
    except (*FAILURES, IndexError):
        return Public(problem.fewest_rows, [])  # the latents' values are the same on any rows
    if not problem.arguments.split:
        return Public(rows, [])
    alike = [name for name in names if real[name].shape == made_up[name].shape and real[name].equal(made_up[name])]
    return Public(rows, alike)
