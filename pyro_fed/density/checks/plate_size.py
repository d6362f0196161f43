"""Whether the model has the partitioned plate, and with as many elements as the data have rows."""

from __future__ import annotations

from collections.abc import Mapping

from pyro_fed.errors import DataError, ModelError


def size_of_plate(plate: str, declared: Mapping[str, int]) -> int:
    """The partitioned plate's size, among the sizes that the model declared for its plates.

    Raises:
        ModelError: the model has no such plate; names those that it has.
    """
    if plate not in declared:
        raise ModelError(f"the model has no plate '{plate}'; its plates are {sorted(declared)}. Pass plate=...")
    return declared[plate]


def check_plate_size(plate: str, size: int, num_rows: int) -> None:
    """Refuse row-sharded data with another number of rows than the plate has; the DataError names both numbers."""
    if size != num_rows:
        raise DataError(
            f"plate '{plate}' has size {size}, but the data split by rows have {num_rows} rows. Where the rows are on "
            "another dimension than the first, name it, shard={'counts': 1}, or transpose the argument"
        )
