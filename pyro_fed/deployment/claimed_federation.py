"""What a process knows of a federation whose other rows are elsewhere, and which models can run so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.running.model_calls import SHARED_PREFIX, is_shared
from pyro_fed.errors import ModelError
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.group_names import groups_alone

#: Rows that a client's own are padded to, at most: what others claim to have makes no work here.
MAX_PADDED_INDEX = 10_000


class ClaimedFederation(Federation):
    """A federation that has some rows, or none, and the numbers of rows (K,) that clients claim to have."""

    holds_data = False

    claimed: Tensor

    @property
    def row_counts(self) -> Tensor:
        """Number of rows (K,) that each client claims to have."""
        return self.claimed

    def summary(self) -> pd.DataFrame:
        """A table of the clients: the number of rows that each claims, and its share of all."""
        counts = self.claimed.numpy()
        index = pd.Index(self.client_names, name="client")
        return pd.DataFrame({"rows": counts, "share": counts / counts.sum()}, index=index)


def padded_index(rows: Tensor, longest: int) -> Tensor:
    """Rows (n,) as the index (1, w) of one client, w as many as the longest client has, as a simulation pads them.

    Sums are then taken in its order. Beyond `MAX_PADDED_INDEX` they are not padded, and the last bits may differ.
    """
    width = longest if len(rows) <= longest <= MAX_PADDED_INDEX else len(rows)
    index = torch.zeros(1, width, dtype=torch.int64)
    index[0, : len(rows)] = rows
    return index


def check_runs_at_clients(problem: Problem, how: str) -> None:
    """Refuse models that need more than rows at a client and a prior that all know; `how` they work, for errors."""
    constants = problem.bound.constants
    pooled = sorted(name.removeprefix(SHARED_PREFIX) for name in constants if is_shared(name))
    if pooled:
        raise ModelError(
            f"the values {pooled} of pf.shared(...) are computed from all rows, and a client {how} has only its own: "
            "agree on the values beforehand, and write them into the model"
        )
    if constants:
        raise ModelError(
            f"pyro.param statements {sorted(constants)} may differ between clients' processes: write "
            "their values into the model"
        )


def own_federation(
    model: Callable[..., Any], name: str, rows: tuple[Any, ...], plate: str, nested: Any, how: str, **labels: Any
) -> Federation:
    """The rows of a client that works by itself, in a dtype that does not depend on their values; `how` as above.

    `labels` are `dims` and `coords`.
    """
    dtype = flatten(model, rows, None).floating_dtype()
    own = Federation.from_clients(model, {name: rows}, plate=plate, rows=nested, dtype=dtype, **labels)
    check_runs_at_clients(own.problem, how)
    return own


def one_group_numbers(problem: Problem) -> dict[str, int]:
    """The whole numbers among the arguments of one group alone, by name: the number of groups is 1 there."""
    arguments, group = problem.arguments, torch.zeros(1, dtype=torch.int64)
    if not arguments.nested_plates:
        return {}
    alone = pytree.tree_leaves(groups_alone(problem.model, problem.plate, arguments, group))
    return {name: leaf for name, leaf in zip(arguments.names, alone, strict=True) if type(leaf) is int}
