"""The server's federation in a deployment: the clients' descriptions, and one made-up row to run the model with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pyro_fed.density.fingerprint import COLUMNS_CURE, LABELS_CURE
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.claimed_federation import ClaimedFederation
from pyro_fed.deployment.remote.description import Description
from pyro_fed.errors import DataError, ModelError, listed
from pyro_fed.federation.arguments import choose_shards
from pyro_fed.federation.groups import group_arguments
from pyro_fed.federation.partition import Explicit


class RemoteFederation(ClaimedFederation):
    """A federation whose rows are at the clients. The server has one made-up row, with which it runs the model's prior.

    Args:
        model: the Pyro model.
        plate: name of the partitioned plate.
        clients: the clients' descriptions, which must agree.
        template: the model's positional arguments with one made-up row; for groups with rows of their own, one group
            with one row in each nested plate. By default the row consists of ones, which are in the support of nearly
            every likelihood.

    Raises:
        DataError: descriptions that differ, or the same name twice.
        ModelError: arguments that are not split by rows and no template; a server's model with other sites.
    """

    def __init__(
        self, model: Callable[..., Any], plate: str, clients: Sequence[Description], template: Any = None
    ) -> None:
        first = clients[0]
        for other in clients[1:]:
            _check_like(first, other)
        names = [client.name for client in clients]
        if len(set(names)) < len(names):
            raise DataError(
                f"client names must differ, received {sorted(names)}: two nodes have the same name or partition-id. "
                "Give each node its own by --node-config"
            )
        arguments = flatten(model, self._template(first, template), None)
        if first.nested:
            rows_of = {part: tuple(columns) for part, columns in first.nested.items()}
            sizes = {plate: 1, **dict.fromkeys(rows_of, 1)}
            arguments = group_arguments(arguments, plate, sizes, rows_of, list(first.rows))
        else:
            arguments = choose_shards(arguments, 1, list(first.rows))
        rows = [torch.zeros(1, dtype=torch.int64) for _ in clients]
        self.claimed = torch.tensor([client.num_rows for client in clients])
        self.partition = Explicit([])
        dtype = arguments.floating_dtype()
        self._bind(model, arguments.copy_as(dtype), plate, 1, rows, dtype, names=names)
        self.problem = replace(self.problem, num_rows=sum(client.num_rows for client in clients))
        sites = {name: list(site.shape) for name, site in self.problem.sites.items()}
        if sites != first.sites:
            raise ModelError(
                f"client {first.name} has a model with sites {first.sites}, the server's has {sites}: give both the "
                "same model file"
            )

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """The made-up row in place of each client's rows: index (C, 1), num_rows (C,) as the clients claim."""
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        device = self.problem.rows[0].device
        index = torch.zeros(len(chosen), 1, dtype=torch.int64, device=device)
        return ClientData(self.problem.rows, index, self.claimed[chosen].to(device))

    def pooled_data(self) -> ClientData:
        """The made-up row in place of all rows; the executor refuses algorithms that use pooled data."""
        index = torch.zeros(1, 1, dtype=torch.int64, device=self.problem.rows[0].device)
        return ClientData(self.problem.rows, index, self.claimed.sum()[None].to(index.device))

    def _template(self, first: Description, template: Any) -> Any:
        if template is not None:
            return template
        if not first.order:
            raise ModelError(
                "the model has arguments that are not split by rows, which the server cannot make up: pass template= "
                "to server_app, the model's arguments with one made-up row"
            )
        owners = {next(iter(columns)) for columns in first.nested.values()}
        shapes = {name: each for part in (first.rows, *first.nested.values()) for name, each in part.items()}
        made = {
            name: torch.full((1, *shape), 0 if name in owners else 1, dtype=getattr(torch, dtype))
            for name, (shape, dtype) in shapes.items()
        }
        return tuple(made.get(name, 1) for name in first.order)  # the rest is the number of groups


def _check_like(first: Description, other: Description) -> None:
    for what in ("version", "rows", "nested", "sites"):
        mine, theirs = getattr(first, what), getattr(other, what)
        if mine != theirs:
            raise DataError(
                f"clients {first.name} and {other.name} differ in {what}: {mine} and {theirs}. All clients need the "
                "same version, model, and columns of the same dtypes"
            )
    for name in {**first.columns, **other.columns}:
        mine, theirs = first.columns.get(name, []), other.columns.get(name, [])
        if mine != theirs:
            raise DataError(
                f"clients {first.name} and {other.name} have data frames '{name}' of other columns, or of the same in "
                f"another order: [{listed(mine)}] and [{listed(theirs)}]. {COLUMNS_CURE}"
            )
    if first.labels != other.labels:
        odd = [name for name in {**first.labels, **other.labels} if first.labels.get(name) != other.labels.get(name)]
        raise DataError(f"clients {first.name} and {other.name} have other labels of {listed(odd)}: {LABELS_CURE}")
