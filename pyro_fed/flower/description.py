"""What the server learns of a client's data: how many rows, of which shapes and dtypes; never a value."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from flwr.app import ConfigRecord

from pyro_fed.conventions.client_names import check_client_id
from pyro_fed.conventions.version import VERSION
from pyro_fed.errors import ProtocolError
from pyro_fed.federation.federation import Federation

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
        only_rows: whether these are all of the model's arguments.
        sites: latent sites: name → shape.
        version: of pyro_fed.
    """

    name: str
    num_rows: int
    rows: dict[str, tuple[list[int], str]]
    only_rows: bool
    sites: dict[str, list[int]]
    version: str

    @classmethod
    def of(cls, name: str, federation: Federation) -> Description:
        """That of a federation's only client."""
        problem = federation.problem
        arguments = problem.arguments
        rows = {
            label: (list(leaf.shape[1:]), str(leaf.dtype).removeprefix("torch."))
            for label, leaf in zip(arguments.row_names, arguments.rows, strict=True)
        }
        only = len(arguments.sharded) == len(arguments.leaves) and all(label.isidentifier() for label in rows)
        sites = {label: list(site.shape) for label, site in problem.sites.items()}
        return cls(name, federation.num_rows, rows, only, sites, VERSION)

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
        for shape, dtype in self.rows.values():
            if not all(type(size) is int and 0 <= size < MAX_TEXT for size in shape) or len(shape) > 8:
                raise ProtocolError(f"client {self.name}: not the shape of a row: {shape!r:.80}")
            if not isinstance(getattr(torch, dtype, None), torch.dtype):
                raise ProtocolError(f"client {self.name}: unknown dtype {dtype!r:.80}")
            numbers += math.prod(shape)
        if numbers > MAX_ROW_NUMBERS:
            raise ProtocolError(
                f"client {self.name}: a row of {numbers:.3g} numbers, expected at most {MAX_ROW_NUMBERS:.0e}"
            )
