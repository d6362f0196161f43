"""What a client tells the server about its data: the number of rows, their shapes and dtypes, and no values."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pyro_fed.conventions.names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.fingerprint import label_digests
from pyro_fed.density.rows.containers import Table
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.group_names import groups_alone

#: Longest description that is read, in characters; and the most rows that a client may claim to have.
MAX_TEXT, MAX_ROWS = 100_000, 10**12
#: The most numbers in one row, over all arguments: the server makes up such a row.
MAX_ROW_NUMBERS = 10**7


@dataclass(frozen=True)
class Description:
    """A client's description of itself.

    Attributes:
        name: the client's name.
        num_rows: its number of rows; for a plate over groups, of groups.
        rows: the arguments that are split by rows: name → (shape of a row, dtype).
        nested: for a plate over groups, the arguments of each nested plate: plate → name → (shape of a row, dtype). The
            first one says to which group a row belongs.
        order: names of all of the model's arguments, if they are those in `rows` and `nested` and the number of groups;
            else empty.
        sites: the model's latent sites: name → shape.
        columns: data frames: name → its columns, in their order.
        labels: arguments of text or categories: name → hash of the labels for which their codes stand.
        version: version of pyro_fed.
    """

    name: str
    num_rows: int
    rows: dict[str, tuple[list[int], str]]
    nested: dict[str, dict[str, tuple[list[int], str]]]
    order: list[str]
    sites: dict[str, list[int]]
    columns: dict[str, list[str]]
    labels: dict[str, str]
    version: str

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
        known = {*rows, *(label for labels in parts.values() for label in labels), *_numbers(federation)}
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
        if type(self.num_rows) is not int or not 0 < self.num_rows <= MAX_ROWS:
            raise ProtocolError(
                f"client {self.name}: num_rows must be a whole number from 1 to {MAX_ROWS}, received "
                f"{self.num_rows!r:.80}"
            )
        numbers = 0
        for shape, dtype in [each for part in (self.rows, *self.nested.values()) for each in part.values()]:
            if not all(type(size) is int and 0 <= size < MAX_TEXT for size in shape) or len(shape) > 8:
                raise ProtocolError(
                    f"client {self.name}: the shape of a row must be at most 8 whole numbers below {MAX_TEXT}, "
                    f"received {shape!r:.80}"
                )
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ProtocolError(
                    f"client {self.name}: a dtype must be one of torch's, such as 'float64', received {dtype!r:.80}"
                )
            numbers += math.prod(shape)
        if not all(isinstance(label, str) for label in self.order):
            raise ProtocolError(f"client {self.name}: order must be names of arguments, received {self.order!r:.80}")
        if not all(isinstance(name, str) for each in self.columns.values() for name in each):
            raise ProtocolError(f"client {self.name}: columns must be names by name, received {self.columns!r:.80}")
        if not all(isinstance(part, str) for each in self.labels.items() for part in each):
            raise ProtocolError(f"client {self.name}: labels must be hashes by name, received {self.labels!r:.80}")
        if numbers > MAX_ROW_NUMBERS:
            raise ProtocolError(
                f"client {self.name}: a row has {numbers:.3g} numbers, expected at most {MAX_ROW_NUMBERS:.0e}"
            )


def _numbers(federation: Federation) -> list[str]:
    """Names of the arguments that are the number of groups: they are 1 for one group alone."""
    problem = federation.problem
    arguments = problem.arguments
    if not arguments.nested_plates or not federation.num_rows:
        return []
    alone = pytree.tree_leaves(groups_alone(problem.model, problem.plate, arguments, torch.zeros(1, dtype=torch.int64)))
    return [name for name, leaf in zip(arguments.names, alone, strict=True) if type(leaf) is int and leaf == 1]
