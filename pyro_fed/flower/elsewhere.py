"""The server's side of clients that keep their rows: their descriptions, and one made-up row to run the prior with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import DataError, ModelError
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.partition import Explicit
from pyro_fed.federation.split_arguments import choose_shards
from pyro_fed.flower.description import Description


class Elsewhere(Federation):
    """A federation whose rows are at the clients: the server has one made-up row, to run the model's prior.

    Args:
        model: the Pyro model.
        plate: its partitioned plate.
        clients: descriptions, which must agree.
        template: the model's positional arguments with one made-up row; by default that row is all ones, which is in
            the support of nearly every likelihood, and a number of a group or category where there are two or more.

    Raises:
        DataError: descriptions that differ, or the same name twice.
        ModelError: arguments that are not split by rows and no template; a server's model with other sites.
    """

    holds_data = False

    def __init__(
        self, model: Callable[..., Any], plate: str, clients: Sequence[Description], template: Any = None
    ) -> None:
        first = clients[0]
        for other in clients[1:]:
            _check_like(first, other)
        names = [client.name for client in clients]
        if len(set(names)) < len(names):
            raise DataError(f"client names must differ, received {sorted(names)}: two nodes have one partition-id")
        arguments = flatten(model, self._template(first, template), None)
        arguments = choose_shards(arguments, 1, list(first.rows))
        rows = [torch.zeros(1, dtype=torch.int64) for _ in clients]
        self._claimed = torch.tensor([client.num_rows for client in clients])
        self.partition = Explicit([])
        self._bind(model, arguments, plate, 1, rows, arguments.floating_dtype(), names=names)
        self.problem = replace(self.problem, num_rows=sum(client.num_rows for client in clients))
        sites = {name: list(site.shape) for name, site in self.problem.sites.items()}
        if sites != first.sites:
            raise ModelError(f"client {first.name} has a model with sites {first.sites}, the server's has {sites}")

    @property
    def row_counts(self) -> Tensor:
        """(K,) rows that each client says it has; nothing here is as long as that."""
        return self._claimed

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """The made-up row in the place of each client's rows: index (C, 1), with the numbers that they say, (C,).

        Args:
            clients: their numbers; all by default.
        """
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        device = self.problem.rows[0].device
        index = torch.zeros(len(chosen), 1, dtype=torch.int64, device=device)
        return ClientData(self.problem.rows, index, self._claimed[chosen].to(device))

    def pooled_data(self) -> ClientData:
        """The made-up row in the place of all; the executor refuses algorithms that ask for it."""
        index = torch.zeros(1, 1, dtype=torch.int64, device=self.problem.rows[0].device)
        return ClientData(self.problem.rows, index, self._claimed.sum()[None].to(index.device))

    def summary(self) -> pd.DataFrame:
        """A table of the clients: the rows that each says it has, and their share of all."""
        counts = self._claimed.numpy()
        index = pd.Index(self.client_names, name="client")
        return pd.DataFrame({"rows": counts, "share": counts / counts.sum()}, index=index)

    def _template(self, first: Description, template: Any) -> Any:
        if template is not None:
            return template
        if not first.only_rows:
            raise ModelError("the model has arguments that are not split by rows: pass template= to server_app")
        return tuple(torch.ones((1, *shape), dtype=getattr(torch, dtype)) for shape, dtype in first.rows.values())


def _check_like(first: Description, other: Description) -> None:
    for what in ("version", "rows", "sites"):
        mine, theirs = getattr(first, what), getattr(other, what)
        if mine != theirs:
            raise DataError(f"clients {first.name} and {other.name} differ in {what}: {mine} and {theirs}")
