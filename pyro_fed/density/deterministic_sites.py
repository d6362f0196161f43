"""Deterministic sites and rows that reveal nothing of the data."""

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
    """The part of draws that does not depend on the data.

    Args:
        rows: rows on which the sites' values are computed.
        reported: names of the deterministic sites whose values do not depend on these rows.
    """

    rows: tuple[Tensor, ...]
    reported: list[str]


def without_data(problem: Problem, z: Tensor) -> Public:
    """Deterministic sites outside the plate that have the same values on all rows as on a made-up one of zeros.

    Values are compared at some of the draws z (S, D). There are none for a model that indexes its own data, or that
    cannot be run on made-up rows: values computed from rows cannot be distinguished there.
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
