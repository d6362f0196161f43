"""Secure aggregation over Flower: the server learns the sum of a round's messages, and none of them.

**The protocol** is Flower's own SecAgg+ (Bell et al. 2020). Every client adds masks to its numbers, which are whole
ones modulo 2³²: one mask of its own, and one with each other client. The masks between clients cancel in the sum. The
clients' own masks are reconstructed from shares, once it is known who has sent. Clients that leave before they have
sent are left out of the sum; their masks with the others are reconstructed in the same way. Masks are a ChaCha20 stream
keyed by 256 bits, in place of Flower's generator with a seed of 32 (`masks`).

**Stand-ins.** The round loop's `combine` takes C messages, and there is only their sum. So each client's message m_k is
replaced by

    m'_k = a + b (w_k - w̄),    Σ_k m'_k = Σ_k m_k,    Σ_k w_k m'_k = Σ_k w_k m_k

with w_k the client's share of the rows. Both sums that an additive algorithm may use are then right. For these, clients
send m_k and (n_k / n_max) m_k. A flag is set if all clients have set it. What clients keep of their messages (sites of
FedLaplace, whether a client of FedAIS has answered) is replaced by stand-ins too, for a later phase and for a
checkpoint: the product of all sites is right, and no single one is. Nothing in a result about single clients is
computed from them.

**Rounding.** Numbers are rounded to a grid of 2 `largest` / 2³⁰, or coarser with more clients. Both are powers of two,
so that Flower's random rounding, which would not follow from the seed, changes nothing. A number beyond `largest` fails
the client.

**Limits.** The server forwards the clients' keys; a server that forges them can read everything. It is trusted to
follow the protocol, but may be curious. Sums of the same clients in many rounds, or with and without one of them,
reveal something about single clients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from pyro_fed.algorithm.capabilities import SiteKeeping
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.setting_checks import check_between, check_positive
from pyro_fed.deployment.flower.joining import Post
from pyro_fed.deployment.flower.masks import PROTOCOL, server_workflow
from pyro_fed.deployment.flower.wire import failure_clause
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.runtime.messages import Spec

#: Name of Flower's record of the protocol in a client's context.
PROTOCOL_STATE = "secaggplus_state"
#: Sums are modulo 2 to the power of the first. A number has at most as many bits as the second, since Flower holds it
#: in so many bits with a sign.
MODULUS_BITS = 32
MAX_NUMBER_BITS = MODULUS_BITS - 2
#: The fewest clients whose sum hides each of them.
MIN_SUMMED_CLIENTS = 3
#: Shares of the rows count as equal if they differ by less than this, times the number of clients.
MAX_SHARE_DIFFERENCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class SecAgg(metaclass=Checked):
    """Secure aggregation: sums by Flower's SecAgg+ in place of messages, for algorithms that only need sums.

    Args:
        largest: the largest number that a client may send; it is rounded up to a power of two. Numbers are rounded to
            `largest` / 2²⁹ or coarser, see `resolution`.
        threshold: the share of a round's clients that must stay to its end, and in any case more than half. So many
            clients together, with the server's help, could read another client's message.

    Raises:
        SettingError: a setting out of its range.

    References:
        Bell, Bonawitz, Gascón, Lepoint & Raykova (2020), Secure single-server aggregation with (poly)logarithmic
        overhead. Bonawitz et al. (2017), Practical secure aggregation.

    Example:
        >>> app = server_app("model.py", "recipe.toml", secure_aggregation=SecAgg(largest=1e5))
    """

    largest: float = 2.0**20
    threshold: float = 0.6

    def __post_init__(self) -> None:
        check_positive(self, "largest")
        check_between(self, "threshold", 0.0, 1.0, "(]")

    @property
    def limit(self) -> float:
        """The power of two beyond which a number fails the client."""
        return float(2.0 ** math.ceil(math.log2(self.largest)))

    def levels(self, clients: int) -> int:
        """The number of steps into which the numbers' range is divided, so that the clients' sum stays below 2³²."""
        return int(2 ** min(MAX_NUMBER_BITS, MODULUS_BITS - math.ceil(math.log2(clients + 1))))

    def stay(self, clients: int) -> int:
        """The number of clients that must stay to the round's end, more than half of `clients`."""
        return max(math.ceil(self.threshold * clients), clients // 2 + 1)

    def resolution(self, clients: int) -> float:
        """The step to which a client's numbers are rounded; the error is at most half of it."""
        return 2 * self.limit / self.levels(clients)


class Summed(NamedTuple):
    """The sum of some clients' numbers, these clients, and why each other client is not in it."""

    total: Tensor
    clients: list[int]
    failures: dict[int, str]


@dataclass
class SecureRound:
    """One sum, by Flower's workflow of four exchanges, for which this is the grid, the strategy and the client manager.

    `contents` are the clients' orders, which are sent with the request for masked numbers. `down` and `up` are the
    bytes that each client has received and sent, `failures` says why clients have dropped out.
    """

    settings: SecAgg
    post: Post
    nodes: Mapping[int, int]
    contents: Mapping[int, RecordDict]
    number: int
    timeout: float
    failures: dict[int, str] = field(default_factory=dict)
    down: Counter[int] = field(default_factory=Counter)
    up: Counter[int] = field(default_factory=Counter)
    _mean: Tensor | None = None
    _nodes_in_sum: set[int] = field(default_factory=set)

    def __call__(self) -> Summed:
        """The sum of the clients' numbers."""
        from flwr.server.compat.legacy_context import LegacyContext
        from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
        from flwr.server.workflow.constant import Key as WorkflowKey

        clients = len(self.nodes)
        workflow = server_workflow()(
            1.0,
            self.settings.stay(clients),
            max_weight=1.0,
            clipping_range=self.settings.limit,
            quantization_range=self.settings.levels(clients),
            modulus_range=2**MODULUS_BITS,
            timeout=self.timeout,
        )
        state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: self.number})})
        state[MAIN_PARAMS_RECORD] = ArrayRecord()
        stand_in: Any = self
        workflow(stand_in, LegacyContext(Context(0, 0, {}, state, {}), strategy=stand_in, client_manager=stand_in))
        if self._mean is None:
            short = "secure aggregation ended without a sum: too few clients stayed to its end"
            return Summed(torch.zeros(0), [], dict.fromkeys(self.nodes, short) | self.failures)
        there = [client for client, node in self.nodes.items() if node in self._nodes_in_sum]
        gone = {client: "is not in the sum" for client in self.nodes if client not in there}
        return Summed(self._mean * len(there), there, gone | {k: self.failures[k] for k in gone if k in self.failures})

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        """The clients' replies to messages of the workflow; those that have not answered are noted."""
        from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage

        client_of = {node: client for client, node in self.nodes.items()}
        letters = {client_of[message.metadata.dst_node_id]: message for message in messages}
        for client, message in letters.items():
            if message.content[PROTOCOL][Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
                for name, record in self.contents[client].items():
                    message.content[name] = record
            self.down[client] += size_of(message)
        found = []
        for client, answer in self.post.exchange(letters, self.timeout).items():
            if isinstance(answer, str):
                self.failures[client] = answer
                continue
            self.up[client] += size_of(answer)
            if answer.has_error():
                self.failures[client] = failure_clause(answer)
            else:
                found.append(answer)
        return found

    def num_available(self) -> int:
        """The number of clients."""
        return len(self.nodes)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[Any, Any]]:
        """The round's clients, and what they are asked."""
        from flwr.common import FitIns, Parameters

        ask = FitIns(Parameters([], "numpy.ndarray"), {})
        return [(SimpleNamespace(node_id=node), ask) for node in self.nodes.values()]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        """Note the mean of the clients' numbers."""
        from flwr.common import parameters_to_ndarrays

        self._nodes_in_sum = {proxy.node_id for proxy, _ in results}
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        self._mean = torch.from_numpy(np.array(mean, dtype=np.float64))
        return None, {}


def size_of(message: Message) -> int:
    """The bytes of a message's content, without Flower's own envelope."""
    if not message.has_content():
        return 0
    return sum(
        sum(len(key) + _bytes(value) for key, value in record.items())  # Flower's own count refuses empty texts
        if isinstance(record, ConfigRecord)
        else record.count_bytes()
        for record in message.content.values()
    )


def _bytes(value: Any) -> int:
    """The bytes of a value in a ConfigRecord: the length of texts and bytes, the sum over lists, and 8 for a number."""
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_bytes, value)) if isinstance(value, list) else 8


def flat(messages: State, share: float | None = None) -> Tensor:
    """A visit's numbers (P,) in float64 from messages (1, ...); (2 P,) with their multiples by a share n_k / n_max."""
    own = torch.cat([messages[name].double().reshape(-1) for name in sorted(messages)])
    return own if share is None else torch.cat([own, share * own])


def stand_ins(total: Tensor, spec: Spec, rows: Tensor, widest: int) -> list[State]:
    """A stand-in m'_k (1, ...) for each client's message from the sum (2 P,) of `flat`; rows n_k (C,), widest n_max."""
    plain, weighted = total.chunk(2)
    mean, shares = plain / len(rows), rows.double() / rows.sum()
    apart = shares - shares.mean()
    slope = torch.zeros_like(mean)
    if float(apart.abs().max()) * len(rows) > MAX_SHARE_DIFFERENCE:
        slope = (weighted * widest / rows.sum() - mean) / apart.square().sum()
    return [_unflat(mean + slope * float(one), mean, spec, len(rows)) for one in apart]


def _unflat(numbers: Tensor, mean: Tensor, spec: Spec, clients: int) -> State:
    """Numbers as tensors with a message's shapes and dtypes; whole numbers are from the mean, flags set if all are."""
    found: State = {}
    at = 0
    for name in sorted(spec):
        shape, dtype = spec[name].shape, spec[name].dtype
        end = at + math.prod(shape)
        part = numbers[at:end] if dtype.is_floating_point else mean[at:end].round()
        part = mean[at:end] > 1 - 0.5 / clients if dtype is torch.bool else part
        found[name] = part.reshape(1, *shape).to(dtype)
        at = end
    return found


def maskable_numbers(numbers: Tensor, context: Context) -> RecordDict:
    """A client's numbers (P,) as Flower's mod masks them; ProtocolError if one is too large or too little is hidden."""
    import flwr.compat.common.recorddict_compat as compat
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

    state: Any = context.state[PROTOCOL_STATE]
    limit, levels = float(state["clipping_range"]), int(state["target_range"])
    asked, threshold = int(state["sample_num"]), int(state["threshold"])
    if asked < MIN_SUMMED_CLIENTS or 2 * threshold <= asked:
        raise ProtocolError(
            f"the server asks for a sum of {asked} clients of whom {threshold} must stay: the sum would hide too "
            f"little; expected at least {MIN_SUMMED_CLIENTS}, of whom more than half must stay"
        )
    largest = float(numbers.abs().max()) if len(numbers) else 0.0
    if not largest < limit:
        raise ProtocolError(
            "a number of this client's message is beyond what secure aggregation was set up for, "
            f"{limit:.3g}: raise `largest` at the server"
        )
    step = 2 * limit / levels
    found = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([((numbers / step).round() * step).numpy()]), 1, {})
    return compat.fitres_to_recorddict(found, keep_input=False)


def check_secure(chain: Sequence[Algorithm]) -> None:
    """Refuse algorithms that need more than sums of the clients' messages, or the clients' states for a later phase."""
    for part in chain:
        if not part.additive:
            raise SettingError(
                f"{type(part).__name__}: its server needs single messages, and secure aggregation gives it only "
                "sums: use FedSEP, FedLaplace, FedAIS(surrogates='laplace'), FedHMC(surrogates='laplace'), "
                "SFVI(surrogates='laplace'), SummedLangevin or FedAvg"
            )
    for part in chain[:-1]:
        if isinstance(part, SiteKeeping):
            raise SettingError(
                f"{type(chain[-1]).__name__} starts from what {type(part).__name__}'s clients keep, and secure "
                "aggregation gives only sums: start from FedLaplace or the prior"
            )
