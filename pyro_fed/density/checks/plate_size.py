"""Whether the plate has as many elements as the data have rows."""

from __future__ import annotations

from pyro_fed.errors import DataError


def check_plate_size(plate: str, size: int, num_rows: int | None) -> None:
    """Refuse row-sharded data whose rows are not the plate's; None where the plate alone counts them.

    Raises:
        DataError: names both numbers.
    """
    if num_rows is not None and size != num_rows:
        raise DataError(f"plate '{plate}' has size {size}, but the data split by rows have {num_rows} rows")
