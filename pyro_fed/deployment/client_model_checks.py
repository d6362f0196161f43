"""What clients in processes of their own cannot run: models that need more than a client's rows and the prior."""

from __future__ import annotations

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.model_calls import SHARED_PREFIX, is_shared
from pyro_fed.errors import ModelError


def check_runs_at_clients(problem: Problem, how: str) -> None:
    """Refuse models that need more than rows at a client and a prior that all know.

    `how` says in errors how the clients work, such as "over Flower".
    """
    constants = problem.bound.constants
    pooled = sorted(name.removeprefix(SHARED_PREFIX) for name in constants if is_shared(name))
    if pooled:
        raise ModelError(
            f"the values {pooled} of pf.shared(...) are computed from all rows, and a client {how} has its own "
            "alone: agree on them beforehand, and write them into the model"
        )
    if constants:
        raise ModelError(
            f"pyro.param statements {sorted(constants)} may differ between clients' processes: write "
            "their values into the model"
        )
