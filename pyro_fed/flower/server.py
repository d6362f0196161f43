"""Flower's ServerApp: the round loop of `pyro_fed.run`, with the clients that have joined."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from pyro_fed.algorithm.plan import Plan
from pyro_fed.errors import ProtocolError, QuorumError
from pyro_fed.flower.description import Description, Elsewhere
from pyro_fed.flower.executor import Flower
from pyro_fed.flower.wire import SETTINGS, record_of
from pyro_fed.recipes import recipe as recipes
from pyro_fed.recipes.library import load_model
from pyro_fed.runtime.run import run

#: Seconds between two looks for clients.
LOOK_EVERY = 0.5


def server_app(model: str | Path, recipe: str | Path, template: Any = None) -> ServerApp:
    """A ServerApp that runs a recipe and writes its result.

    The run's configuration: `num-clients` to wait for, `rounds` (0: the recipe's), `seed`, `timeout` in seconds,
    `compile` and `out`, the file for the result.

    Args:
        model: the model's file, or its name in the library.
        recipe: the recipe's, likewise.
        template: the model's positional arguments with one made-up row, where a row of ones will not do.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
        result = serve(
            grid,
            model,
            recipe,
            num_clients=int(settings["num-clients"]),
            num_rounds=int(settings["rounds"]) or None,
            seed=int(settings["seed"]),
            timeout=float(settings["timeout"]),
            compile=str(settings["compile"]),
            template=template,
        )
        result.to_netcdf(str(settings["out"]))

    return app


def serve(
    grid: Grid,
    model: str | Path,
    recipe: str | Path,
    *,
    num_clients: int,
    num_rounds: int | None = None,
    seed: int = 0,
    timeout: float = 600.0,
    compile: str = "trace",
    template: Any = None,
) -> Any:
    """Wait for clients, then run a recipe with them.

    Args:
        grid: Flower's.
        model: the model's file, or its name in the library.
        recipe: the recipe's file, or its name in the library.
        num_clients: how many to wait for.
        num_rounds: rounds, those of all its stages where it is a plan; None takes the recipe's.
        seed: of the run.
        timeout: seconds to wait for clients, and then for each round.
        compile: "auto", "off", "trace" or "inductor", as `run` takes it; a client's process may live for one message
            only, so that Inductor seldom pays.
        template: the model's positional arguments with one made-up row, where a row of ones will not do.

    Returns:
        InferenceData without what needs rows: log-likelihoods, `lp`, and the data.

    Raises:
        QuorumError: too few clients have joined in time.
    """
    module, chosen = load_model(model), recipes.load(recipe)
    clients = _descriptions(grid, num_clients, timeout)
    federation = Elsewhere(module.model, module.PLATE, [client for _, client in clients], template)
    options = chosen.run_options(len(clients))
    limit = {}
    if num_rounds is not None and issubclass(chosen.algorithm, Plan):
        limit["max_rounds"] = num_rounds
    elif num_rounds is not None:
        options["num_rounds"] = num_rounds
    executor = Flower(grid, [node for node, _ in clients], federation.client_names, timeout)
    return run(
        chosen.build(limit),
        federation,
        executor=executor,
        seed=seed,
        compile=compile,
        progress=False,
        log_likelihood=False,
        **options,
    )


def _descriptions(grid: Grid, num_clients: int, timeout: float) -> list[tuple[int, Description]]:
    """Nodes and what they say of themselves, in the order of their names."""
    nodes = _nodes(grid, num_clients, timeout)
    empty = RecordDict({SETTINGS: ConfigRecord({})})
    asked = {node: Message(empty, node, MessageType.QUERY, ttl=timeout) for node in nodes}
    replies = grid.send_and_receive(list(asked.values()), timeout=timeout)
    by_request = {reply.metadata.reply_to_message_id: reply for reply in replies}
    found = [(node, _description(node, by_request.get(ask.metadata.message_id))) for node, ask in asked.items()]
    return sorted(found, key=lambda pair: (len(pair[1].name), pair[1].name))


def _description(node: int, reply: Message | None) -> Description:
    if reply is None:
        raise QuorumError(f"node {node} did not describe itself in time; stop it, or give it more time (timeout)")
    if reply.has_error():
        raise QuorumError(f"node {node} could not describe itself: {reply.error.reason}")
    try:
        return Description.from_record(record_of(reply.content, SETTINGS))
    except ProtocolError as error:
        raise ProtocolError(f"node {node}: {error}") from error


def _nodes(grid: Grid, num_clients: int, timeout: float) -> list[int]:
    end = time.monotonic() + timeout
    while len(nodes := list(grid.get_node_ids())) < num_clients:
        if time.monotonic() > end:
            raise QuorumError(f"{len(nodes)} of {num_clients} clients have joined within {timeout} s: start the others")
        time.sleep(LOOK_EVERY)
    return nodes
