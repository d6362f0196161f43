"""How a model's densities are mapped over particles and clients: found by trial, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import SPREAD
from pyro_fed.density.compiling.compiler import FAILURES
from pyro_fed.errors import PyroFedError

T = TypeVar("T")


class Mapping(NamedTuple):
    """A way to map a model: the compiler's level, and whether the model writes into tensors that it has made.

    See `compiler` and `torch_modes.Writable`.
    """

    level: str
    writes: bool


#: Ways to map a model, the fastest first; the last one works wherever the model does.
MAPPINGS = (Mapping("off", False), Mapping("off", True), Mapping("loop", False))


def choose_mapping(attempt: Callable[[Mapping], T]) -> T:
    """The result of an attempt with the first of `MAPPINGS` with which it works.

    Raises:
        Exception: the attempt's error with the last of them.
    """
    *faster, last = MAPPINGS
    for mapping in faster:
        try:
            return attempt(mapping)
        except PyroFedError:  # a verdict, and not that of the mapping
            raise
        except (*FAILURES, IndexError):
            continue
    return attempt(last)


def trial(problem: RowDensities) -> tuple[Tensor, tuple[Any, ...]]:
    """The trial arguments of mapping and compiling: vectors (2, D), and two clients of two rows, each (2, 2, ...)."""
    generator = torch.Generator().manual_seed(0)
    vectors = SPREAD * torch.randn(2, problem.dim, generator=generator, dtype=problem.bound.dtype)
    clients = pytree.tree_map(lambda leaf: leaf[:2].expand(2, *leaf[:2].shape), problem.rows)
    return vectors.to(problem.rows[0].device), clients


def run_trial(problem: RowDensities) -> None:
    """Compute the densities of two clients at two vectors at once.

    Raises:
        Exception: the model cannot be mapped as the problem does it.
    """
    vectors, clients = trial(problem)
    over_vectors = problem.vmap(problem.log_parts, (0, None))
    problem.vmap(lambda rows: over_vectors(vectors, rows))(clients)
