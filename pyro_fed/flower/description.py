"""What the server learns of a client's data: how many rows, of which shapes and dtypes; never a value."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord
from torch.utils import _pytree as pytree

from pyro_fed.conventions.client_names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.fingerprint import label_digests
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.groups.naming import groups_alone

#: Longest description that is read, in characters, and the most rows that a client may say it has.
MAX_TEXT, MAX_ROWS = 100_000, 10**12
#: Numbers that one row may have, over all arguments: the server makes one up.
MAX_ROW_NUMBERS = 10**7


@dataclass(frozen=True)
class Description:
    """A client, in its own words.

    Attributes:
        name: the client's.
        num_rows: its rows.
        rows: the arguments split by rows: name → (shape of a row, dtype).
        nested: of a plate of groups, whose `rows` are these: nested plate → the same of its arguments, the one that
            says to which group a row belongs first.
        order: all of the model's arguments, where those above and the number of groups are all; else empty.
        sites: latent sites: name → shape.
        labels: arguments of text or categories: name → hash of what its codes stand for.
        version: of pyro_fed.
    """

    name: str
    num_rows: int
    rows: dict[str, tuple[list[int], str]]
    nested: dict[str, dict[str, tuple[list[int], str]]]
    order: list[str]
    sites: dict[str, list[int]]
    labels: dict[str, str]
    version: str

    @classmethod
    def of(cls, name: str, federation: Federation) -> Description:
        """That of a federation's only client."""
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
        return cls(name, federation.num_rows, rows, nested, order, sites, label_digests(problem), VERSION)

    def to_record(self) -> ConfigRecord:
        """As Flower sends it."""
        return ConfigRecord({"description": json.dumps(asdict(self))})

    @classmethod
    def from_record(cls, record: Any) -> Description:
        """What `to_record` wrote.

        Raises:
            ProtocolError: anything else.
        """
        text = record.get("description")
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise ProtocolError(f"a description is text of at most {MAX_TEXT} characters")
        try:
            self = cls(**json.loads(text))
            self._check()
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"not the description of a client: {error}") from error
        return self

    def _check(self) -> None:
        check_client_id(self.name)
        if type(self.num_rows) is not int or not 0 < self.num_rows <= MAX_ROWS:
            raise ProtocolError(f"client {self.name}: num_rows must be a whole number, received {self.num_rows!r:.80}")
        numbers = 0
        for shape, dtype in [each for part in (self.rows, *self.nested.values()) for each in part.values()]:
            if not all(type(size) is int and 0 <= size < MAX_TEXT for size in shape) or len(shape) > 8:
                raise ProtocolError(f"client {self.name}: not the shape of a row: {shape!r:.80}")
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ProtocolError(f"client {self.name}: unknown dtype {dtype!r:.80}")
            numbers += math.prod(shape)
        if not all(isinstance(label, str) for label in self.order):
            raise ProtocolError(f"client {self.name}: not the names of arguments: {self.order!r:.80}")
        if not all(isinstance(part, str) for each in self.labels.items() for part in each):
            raise ProtocolError(f"client {self.name}: not hashes of labels: {self.labels!r:.80}")
        if numbers > MAX_ROW_NUMBERS:
            raise ProtocolError(
                f"client {self.name}: a row of {numbers:.3g} numbers, expected at most {MAX_ROW_NUMBERS:.0e}"
            )


def _numbers(federation: Federation) -> list[str]:
    """Whole numbers among the arguments of a model of groups that are the number of groups, so that one alone has 1."""
    problem = federation.problem
    arguments = problem.arguments
    if not arguments.nested_plates or not federation.num_rows:
        return []
    alone = pytree.tree_leaves(groups_alone(problem.model, problem.plate, arguments, torch.zeros(1, dtype=torch.int64)))
    return [name for name, leaf in zip(arguments.names, alone, strict=True) if type(leaf) is int and leaf == 1]
