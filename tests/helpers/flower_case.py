"""A Flower app over three unequal clients, and a Grid in this process that can lose, spoil and repeat messages.

To import this is to import Flower: tests do so when they run, and find here all else of Flower that they need.
"""

import copy
import uuid
from types import SimpleNamespace

import torch
from algorithms import unequal_lines
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.task_identity import TaskIdentity

import pyro_fed as pf
from pyro_fed.deployment.flower.configuration import read_configuration
from pyro_fed.deployment.flower.server import serve
from pyro_fed.deployment.remote.order import Order
from pyro_fed.deployment.remote.remote_federation import Description, RemoteFederation
from pyro_fed.flower import client_app

__all__ = [
    "GOOD",
    "RECIPES",
    "ConfigRecord",
    "Description",
    "LocalGrid",
    "Message",
    "Order",
    "RecordDict",
    "RemoteFederation",
    "ServerApp",
    "Watching",
    "client_app",
    "grid",
    "make_client",
    "read_configuration",
    "run_simulation",
    "serve",
    "write_case",
]

#: What a node says of its data.
GOOD = Description(
    "0", 3, {"x": ([2], "float64"), "y": ([], "float64")}, {}, ["x", "y"], {"w": [2]}, {}, {}, pf.__version__
)

MODEL = '''
"""Linear regression with known noise."""
import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def load_data():
    raise NotImplementedError("the rows are at the clients")
'''
#: The algorithms of `families` as recipes.
RECIPES = {
    "DSVGD": "[settings]\nnum_particles = 6\nlocal_steps = 3\n[run]\nnum_rounds = 4",
    "FedEP": "[run]\nnum_rounds = 4",
    "FSGLD": "[settings]\nnum_chains = 2\nlocal_steps = 5\nburn_in = 0\nbatch_size = 2\n[run]\nnum_rounds = 4",
    "P2PVI": '[run]\nnum_rounds = 4\ngraph = "ring"',
}


def write_case(folder, recipes=RECIPES):
    """The model's file, and a recipe's for each algorithm."""
    (folder / "line.py").write_text(MODEL)
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(f'algorithm = "pyro_fed.infer:{name.split("-")[0]}"\n{text}\n')
    return folder / "line.py", {name: folder / f"{name}.toml" for name in recipes}


def _copied(leaf, dtype):
    return torch.tensor(leaf.tolist(), dtype=dtype if leaf.is_floating_point() else leaf.dtype)


def make_client(model, recipes, secure=False, dtype=torch.float64, fed=None, questions=True):
    """A ClientApp with the rows of a federation's three clients, else `unequal_lines`; these travel by value."""
    fed = fed or unequal_lines()
    rows = [tuple(_copied(leaf, dtype) for leaf in fed.client_args(k)[0]) for k in range(3)]

    def load_rows(module, node_config):
        return rows[node_config["partition-id"]]

    return client_app(model, list(recipes), load_rows, secure, questions)


@Grid.register
class LocalGrid:
    """Messages handed to the ClientApp at once.

    Args:
        client: the ClientApp.
        faults: (round, client) → "request" or "reply" that is lost, "error", "garbage", or "replay" of its last reply;
            "restart" or "renumber": its node is started anew before it answers, under the same number or another;
            "down": it goes down, and stays so.
    """

    def __init__(self, client, faults=None):
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower's own runner does
        self.client, self.faults = client, faults or {}
        self.contexts, self.started = {}, {}
        self.last, self.replies, self.sent = {}, {}, 0
        for part in (2, 0, 1):
            self.start(100 + part, part)

    def start(self, node, part):
        """A node, with nothing in its memory."""
        self.sent += 1
        self.contexts[node] = Context(1, node, {"partition-id": part, "num-partitions": 3}, RecordDict(), {})
        self.started[node] = str(self.sent)

    def part(self, node):
        return self.contexts[node].node_config["partition-id"]

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, last_activated_at=self.started[node]) for node in self.contexts]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        for message in messages:
            reply = self._handle(message)
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        return [self.replies.pop(one) for one in list(message_ids) if one in self.replies]

    def _handle(self, message):
        node = message.metadata.dst_node_id
        group = message.metadata.group_id
        fault = self.faults.pop((int(group), self.part(node)), None) if group and node in self.contexts else None
        if fault in ("request", "down") or node not in self.contexts:
            if fault == "down":
                del self.contexts[node]
            return None
        if fault == "restart":
            self.start(node, self.part(node))
        if fault == "renumber":
            part = self.part(node)
            del self.contexts[node]
            self.start(node + 100, part)
            return None
        if fault == "error":
            return Message(Error(2, "the client raised"), reply_to=message)
        reply = self.client(copy.deepcopy(message), self.contexts[node])  # what a client changes is its own
        if reply.has_error():
            return reply
        if fault == "reply":
            return None
        if fault == "garbage":
            reply.content["message"] = ConfigRecord({"data": b"\x80\x04no reply"})
        if fault == "replay":
            reply.content["message"] = self.last[node]
        self.last[node] = reply.content.get("message", None)
        return reply


class Watching(LocalGrid):
    """It keeps the replies to the stage of secure aggregation that brings masked numbers, and loses some of them.

    Args:
        client: the ClientApp.
        lost: (round, client) whose masked numbers are lost.
    """

    def __init__(self, client, lost=()):
        super().__init__(client)
        self.lost, self.seen = set(lost), []

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for identity, message in zip(ids, messages, strict=True):
            if message.content.get("secaggplus_configs", {}).get("stage") != "collect_masked_vectors":
                continue
            at = (int(message.metadata.group_id), self.part(message.metadata.dst_node_id))
            if at in self.lost:
                del self.replies[identity]
            else:
                self.seen.append((at, self.replies[identity]))
        return ids


def grid(model, recipes, faults=None, fed=None):
    """A grid of clients that know the recipes {name: file}, with the rows of `make_client`."""
    return LocalGrid(make_client(model, recipes.values(), fed=fed), faults)
