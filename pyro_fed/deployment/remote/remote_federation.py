"""A client's description of its data, without values; and the server's federation, made from these with one row."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from pyro_fed.conventions.names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.fingerprint import COLUMNS_CURE, LABELS_CURE, label_digests
from pyro_fed.density.rows.arguments import flatten
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.density.rows.containers import Table
from pyro_fed.deployment.claimed_federation import ClaimedFederation, one_group_numbers
from pyro_fed.deployment.limits import MAX_ROW_NUMBERS, MAX_ROWS, MAX_TEXT
from pyro_fed.errors import DataError, ModelError, ProtocolError, listed
from pyro_fed.federation.arguments import choose_shards
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.groups import group_arguments
from pyro_fed.federation.partition import Explicit


@dataclass(frozen=True)
class Description:
    """A client's description of itself."""

    name: str
    num_rows: int  # for a plate over groups, of groups
    rows: dict[str, tuple[list[int], str]]  # arguments that are split by rows: name → (shape of a row, dtype)
    nested: dict[str, dict[str, tuple[list[int], str]]]  # the same of each nested plate; the first says a row's group
    order: list[str]  # names of all arguments, if they are in `rows`, in `nested` and the number of groups; else empty
    sites: dict[str, list[int]]  # latent sites: name → shape
    columns: dict[str, list[str]]  # data frames: name → columns in their order
    labels: dict[str, str]  # arguments of text or categories: name → hash of the labels
    version: str  # of pyro_fed

    @classmethod
    def of(cls, name: str, federation: Federation) -> Description:
        """The description of a federation's only client."""
        problem = federation.problem
        arguments = problem.arguments
        shapes = {
            label: (list(leaf.shape[1:]), str(leaf.dtype).removeprefix("torch."))
            for label, leaf in zip(arguments.names, arguments.leaves, strict=True)
            if isinstance(leaf, torch.Tensor) and leaf.dim()
        }
        rows = {label: shapes[label] for label in arguments.row_names}
        parts = arguments.nested_by_name
        nested = {part: {label: shapes[label] for label in labels} for part, labels in parts.items()}
        counts = one_group_numbers(problem) if federation.num_rows else {}
        known = {*rows, *(label for labels in parts.values() for label in labels)}
        known |= {label for label, number in counts.items() if number == 1}  # the number of groups
        told = known == set(arguments.names) and all(label.isidentifier() for label in known)
        order = list(arguments.names) if told else []
        sites = {label: list(site.shape) for label, site in problem.sites.items()}
        tables = arguments.orders(problem.model, (Table,))
        columns = {label: [str(column) for column in names] for label, names in tables.items()}
        return cls(name, federation.num_rows, rows, nested, order, sites, columns, label_digests(problem), VERSION)

    def to_record(self) -> dict[str, Any]:
        """The description as text."""
        return {"description": json.dumps(asdict(self))}

    @classmethod
    def from_record(cls, record: Any) -> Description:
        """The description in a record made by `to_record`; ProtocolError for any other."""
        text = record.get("description")
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            found = f"{len(text):,} characters" if isinstance(text, str) else type(text).__name__
            raise ProtocolError(f"a description is text of at most {MAX_TEXT:,} characters, received {found}")
        try:
            self = cls(**json.loads(text))
            self._check()
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"not the description of a client: {error}") from error
        return self

    def _check(self) -> None:
        check_client_id(self.name)
        good = type(self.num_rows) is int and 0 < self.num_rows <= MAX_ROWS
        self._require(good, f"num_rows must be a whole number from 1 to {MAX_ROWS}", self.num_rows)
        numbers = 0
        for shape, dtype in [each for part in (self.rows, *self.nested.values()) for each in part.values()]:
            good = all(type(size) is int and 0 <= size < MAX_TEXT for size in shape) and len(shape) <= 8
            self._require(good, f"the shape of a row must be at most 8 whole numbers below {MAX_TEXT}", shape)
            good = isinstance(getattr(torch, dtype, None), torch.dtype)
            self._require(good, "a dtype must be one of torch's, such as 'float64'", dtype)
            numbers += math.prod(shape)
        good = all(isinstance(label, str) for label in self.order)
        self._require(good, "order must be names of arguments", self.order)
        good = all(isinstance(name, str) for each in self.columns.values() for name in each)
        self._require(good, "columns must be names by name", self.columns)
        good = all(isinstance(part, str) for each in self.labels.items() for part in each)
        self._require(good, "labels must be hashes by name", self.labels)
        if numbers > MAX_ROW_NUMBERS:
            raise ProtocolError(
                f"client {self.name}: a row has {numbers:.3g} numbers, expected at most {MAX_ROW_NUMBERS:.0e}"
            )

    def _require(self, holds: bool, expected: str, received: object) -> None:
        if not holds:
            raise ProtocolError(f"client {self.name}: {expected}, received {received!r:.80}")


class RemoteFederation(ClaimedFederation):
    """A federation whose rows are at the clients. The server runs the model's prior with one made-up row.

    By default the row consists of ones, which are in the support of nearly every likelihood. A `template` has the
    model's positional arguments with another one; for groups, one group with one row in each nested plate.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        plate: str,
        clients: Sequence[Description],
        template: Any = None,
        *,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
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
        self._bind(model, arguments.copy_as(dtype), plate, 1, rows, dtype, names=names, dims=dims, coords=coords)
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
                f"clients {first.name} and {other.name} have data frames '{name}' with different columns, or in "
                f"another order: [{listed(mine)}] and [{listed(theirs)}]. {COLUMNS_CURE}"
            )
    if first.labels != other.labels:
        odd = [name for name in {**first.labels, **other.labels} if first.labels.get(name) != other.labels.get(name)]
        raise DataError(f"clients {first.name} and {other.name} have different labels of {listed(odd)}: {LABELS_CURE}")
