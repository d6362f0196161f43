"""How a model's densities are mapped over particles and clients outside of a run, whose steps are compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import Compiler, failure

if TYPE_CHECKING:
    from pyro_fed.density.problem import Problem

#: Spread of the vectors that mapping and compiling are tried on.
TRIAL_SCALE = 0.1


def trial(problem: Problem) -> tuple[Tensor, tuple[Any, ...]]:
    """What mapping and compiling are tried on.

    Returns:
        two vectors (2, D), and two clients of two rows, each (2, 2, ...).
    """
    generator = torch.Generator().manual_seed(0)
    vectors = TRIAL_SCALE * torch.randn(2, problem.dim, generator=generator, dtype=problem.dtype)
    clients = pytree.tree_map(lambda leaf: leaf[:2].expand(2, *leaf[:2].shape), problem.rows)
    return vectors.to(problem.rows[0].device), clients


def choose_mapping(problem: Problem) -> None:
    """Map by `vmap` where that works, if need be as a model that `writes`; else by a loop."""
    vectors, clients = trial(problem)

    def attempt() -> Any:
        over_vectors = torch.vmap(problem.log_parts, (0, None))
        return torch.vmap(lambda rows: over_vectors(vectors, rows))(clients)

    for problem.writes in (False, True):
        if not failure(attempt):
            problem.compiler = Compiler("off")
            return
    problem.writes, problem.compiler = False, Compiler("loop")
