"""The pooled model as Pyro's own algorithms run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import RowsCount, for_pyro, run_by_pyro
from pyro_fed.guides.param_store import own_params


@contextmanager
def pooled_model(problem: Problem, seed: int, temperature: float) -> Iterator[Callable[..., Any]]:
    """The model on all rows, to be run within the context, where Pyro has a param store and random numbers of its own.

    The rows' likelihood is raised to 1 / `temperature`, as in the densities.
    """
    constants = problem.bound.constants
    with torch.enable_grad(), own_params(seed), run_by_pyro(problem.dtype, constants):
        model = for_pyro(problem.model, constants, problem.arguments.incomplete)
        if temperature != 1:
            model = RowsCount(1 / temperature, (problem.plate, *problem.arguments.nested_plates))(model)
        yield model
