"""A client's rows in a simulation: its part of the model's own training data."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pyro_fed.errors import ModelError, SettingError
from pyro_fed.recipes.experiment import build_federation


def simulated_rows(model: ModuleType, node_config: Mapping[str, Any], partition: str = "iid", seed: int = 0) -> Any:
    """The rows of client `partition-id` of `num-partitions`, as `pyro-fed run --clients` deals them.

    Args:
        model: a model's module, with `load_data`.
        node_config: the node's configuration in Flower, with `partition-id` and `num-partitions`.
        partition: how the rows are dealt to clients, such as "dirichlet:0.3".
        seed: seed of the partition.

    Returns:
        The model's positional arguments, with these rows only.

    Raises:
        SettingError: the node's configuration does not say which part is its own.
        ModelError: the model has no data to deal out.

    Example:
        >>> from pyro_fed.recipes.library import load_model
        >>> node_config = {"partition-id": 0, "num-partitions": 10}  # of Flower's context
        >>> x, y = simulated_rows(load_model("logistic_regression"), node_config, partition="dirichlet:0.3")
    """
    if not hasattr(model, "load_data"):
        raise ModelError(
            "the model's file has no load_data() whose rows could be dealt out: read this client's own in load_rows, "
            "in client_app.py"
        )
    missing = [name for name in ("partition-id", "num-partitions") if name not in node_config]
    if missing:
        raise SettingError(
            f"this node's configuration lacks {missing}: start it with --node-config 'partition-id=0 "
            "num-partitions=2', or load the client's own data in client_app.py"
        )
    federation, _ = build_federation(model, int(node_config["num-partitions"]), partition, seed)
    return federation.client_args(int(node_config["partition-id"]))[0]
