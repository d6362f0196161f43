"""What the commands share: a federation from a model's file and the command line's options."""

from __future__ import annotations

from typing import Any

from pyro_fed.federation import partition
from pyro_fed.federation.federation import Federation


def build_federation(module: Any, clients: int, partition_text: str, seed: int) -> tuple[Federation, Any]:
    """The model's training data over clients, and its test data.

    Args:
        module: of `library.load_model`.
        clients: how many.
        partition_text: such as "dirichlet:0.3".
        seed: of the partition.

    Raises:
        SettingError: the partition cannot be read.
    """
    train, test = module.load_data()
    how = partition.parse(partition_text, columns=train[0])
    rows = getattr(module, "ROWS", None)
    fed = Federation(module.model, train, plate=module.PLATE, rows=rows, num_clients=clients, partition=how, seed=seed)
    return fed, test
