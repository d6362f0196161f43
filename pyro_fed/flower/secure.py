"""Secure aggregation over Flower: the server learns the sum of a round's messages, and none of them.

Flower's own SecAgg+ (Bell et al. 2020): every client adds a mask of its own and one with each other client to its
numbers, whole ones modulo 2³²; the masks between clients cancel in the sum, and the clients' own are put together from
shares once it is known who has sent. Clients that go before they have sent are left out of the sum; their masks with
the others are put together likewise.

A round's sum is C numbers short of what `combine` is given, so that each client's place is taken by

    m'_k = a + b (w_k - w̄),    Σ_k m'_k = Σ_k m_k,    Σ_k w_k m'_k = Σ_k w_k m_k

with w_k its share of the rows: both sums that an additive algorithm may ask for are those of the messages. Clients
therefore send m_k and (n_k / n_max) m_k. A flag is set where all clients have set it.

What clients keep under the name of what they send (FedLaplace's sites, whether FedAIS's client has answered), a phase
that follows, and a checkpoint, have as the stand-in's: sites whose product is that of the clients' own, and no single
one. Nothing that a result says of single clients is computed from them.

Numbers are rounded to a grid, twice `largest` over 2³⁰ or less wide; both are powers of two, so that Flower's rounding
at random, which would not follow from the seed, has nothing to round. A number beyond `largest` fails the client.

What it does not do. The server forwards the clients' keys, and one that forges them reads everything: it is trusted to
follow the protocol, and may be curious. Flower 1.41 draws masks from a generator with a seed of 32 bits: who has one
client's masked message, and no limits of work, can search for it; with C clients there are C - 1 such seeds in it.
Sums of the same clients in many rounds, or with and without one of them, tell of single clients what they tell;
`Private` bounds that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from pyro_fed.errors import ProtocolError, SettingError
from pyro_fed.flower.mod import PROTOCOL
from pyro_fed.flower.post import Post
from pyro_fed.runtime.messages import Spec

#: Flower's record of the protocol in a client's context.
PROTOCOL_STATE = "secaggplus_state"
#: Sums are modulo 2 to this, and a number has at most so many bits, which Flower holds in 32 with a sign.
MODULUS_BITS, MOST_BITS = 32, 30
#: Fewer clients than this make no sum that hides them.
FEWEST = 3
#: Shares of the rows that differ by less, times the clients, are the same.
SAME_SHARES = 1e-6


@dataclass(frozen=True, kw_only=True)
class SecAgg(metaclass=Checked):
    """Sums by Flower's SecAgg+ in place of messages, for algorithms that ask for no more.

    Args:
        largest: the largest number that a client may send; it is made a power of two, and numbers are rounded to
            `largest` / 2²⁹ or coarser: `resolution` says to what.
        threshold: the share of a round's clients that must stay to its end; so many together could also read another's
            message with the server's help. More than half in any case.

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
        """The power of two that numbers are held to."""
        return float(2.0 ** math.ceil(math.log2(self.largest)))

    def levels(self, clients: int) -> int:
        """Into how many steps the numbers' range is divided, so that as many clients' sum stays below 2³²."""
        return int(2 ** min(MOST_BITS, MODULUS_BITS - math.ceil(math.log2(clients + 1))))

    def stay(self, clients: int) -> int:
        """How many of so many must stay to the round's end: more than half."""
        return max(math.ceil(self.threshold * clients), clients // 2 + 1)

    def resolution(self, clients: int) -> float:
        """The step to which a client's numbers are rounded, by half of it at most."""
        return 2 * self.limit / self.levels(clients)


class Summed(NamedTuple):
    """A sum, whose it is, and in a clause why others are not in it."""

    total: Tensor
    clients: list[int]
    failures: dict[int, str]


@dataclass
class SecureRound:
    """One sum, by Flower's workflow.

    Args:
        settings: of the protocol.
        post: the Grid.
        nodes: of the clients that are asked.
        contents: what each is asked, which is sent along when the masked numbers are.
        number: the round's.
        timeout: seconds that a client has for each of the four exchanges.
        failures: why clients have dropped out.
        down: bytes that each client has been sent, in all four.
        up: bytes that each has sent.
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

    def __call__(self, say: Callable[[Message], str]) -> Summed:
        """The sum of what the clients send.

        Args:
            say: why a message with an error is none, in a clause.
        """
        from flwr.server.compat.legacy_context import LegacyContext
        from flwr.server.workflow import SecAggPlusWorkflow
        from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
        from flwr.server.workflow.constant import Key as WorkflowKey

        clients = len(self.nodes)
        workflow = SecAggPlusWorkflow(
            1.0,
            self.settings.stay(clients),
            max_weight=1.0,
            clipping_range=self.settings.limit,
            quantization_range=self.settings.levels(clients),
            modulus_range=2**MODULUS_BITS,
            timeout=self.timeout,
        )
        taken = _Taken([_Proxy(node) for node in self.nodes.values()])
        state = RecordDict({MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: self.number})})
        state[MAIN_PARAMS_RECORD] = ArrayRecord()
        counted, letters = _Counted(clients), _Letters(self, say)
        # What stands for Flower's strategy, clients and grid has those of their methods that the workflow calls.
        context = LegacyContext(Context(0, 0, {}, state, {}), strategy=taken, client_manager=counted)  # type: ignore[arg-type]
        workflow(letters, context)  # type: ignore[arg-type]
        if taken.total is None:
            short = "secure aggregation ended without a sum: too few clients stayed to its end"
            return Summed(torch.zeros(0), [], dict.fromkeys(self.nodes, short) | self.failures)
        there = [client for client, node in self.nodes.items() if node in taken.nodes]
        gone = {client: "is not in the sum" for client in self.nodes if client not in there}
        return Summed(taken.total * len(there), there, gone | {k: self.failures[k] for k in gone if k in self.failures})


@dataclass
class _Letters:
    """As much of a Grid as the workflow needs: it sends, and remembers who has not answered."""

    round: SecureRound
    say: Callable[[Message], str]

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        from flwr.common.secure_aggregation.secaggplus_constants import Key, Stage

        client_of = {node: client for client, node in self.round.nodes.items()}
        letters = {client_of[message.metadata.dst_node_id]: message for message in messages}
        for client, message in letters.items():
            if message.content[PROTOCOL][Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
                for name, record in self.round.contents[client].items():
                    message.content[name] = record
        for client, message in letters.items():
            self.round.down[client] += size_of(message)
        answers = self.round.post.exchange(letters, self.round.timeout)
        found = []
        for client, answer in answers.items():
            if not isinstance(answer, str):
                self.round.up[client] += size_of(answer)
            if isinstance(answer, str):
                self.round.failures[client] = answer
            elif answer.has_error():
                self.round.failures[client] = self.say(answer)
            else:
                found.append(answer)
        return found


@dataclass
class _Proxy:
    """What the workflow asks of a client: its node."""

    node_id: int


@dataclass
class _Counted:
    """What the workflow asks of a client manager: how many there are."""

    clients: int

    def num_available(self) -> int:
        return self.clients


@dataclass
class _Taken:
    """The workflow's strategy: it chooses the round's clients, and keeps the mean."""

    proxies: list[_Proxy]
    total: Tensor | None = None
    nodes: set[int] = field(default_factory=set)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> list[tuple[_Proxy, Any]]:
        from flwr.common import FitIns, Parameters

        return [(proxy, FitIns(Parameters([], "numpy.ndarray"), {})) for proxy in self.proxies]

    def aggregate_fit(self, server_round: int, results: list[Any], failures: list[Any]) -> tuple[None, dict[str, Any]]:
        from flwr.common import parameters_to_ndarrays

        self.nodes = {proxy.node_id for proxy, _ in results}
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        self.total = torch.from_numpy(np.array(mean, dtype=np.float64))
        return None, {}


def size_of(message: Message) -> int:
    """Bytes of what a message holds, without Flower's own envelope."""
    if not message.has_content():
        return 0
    return sum(
        sum(len(key) + _bytes(value) for key, value in record.items())  # Flower's own count refuses empty texts
        if isinstance(record, ConfigRecord)
        else record.count_bytes()
        for record in message.content.values()
    )


def _bytes(value: Any) -> int:
    """Of a value of a ConfigRecord: texts and bytes by their length, lists by what is in them, numbers 8."""
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(_bytes, value)) if isinstance(value, list) else 8


def flat(messages: State, share: float | None = None) -> Tensor:
    """A client's numbers, (P,) or with the share of them (2 P,), float64.

    Args:
        messages: of one visit, (1, ...).
        share: by which the numbers are multiplied that come after them.
    """
    own = torch.cat([messages[name].double().reshape(-1) for name in sorted(messages)])
    return own if share is None else torch.cat([own, share * own])


def stand_ins(total: Tensor, spec: Spec, rows: Tensor, widest: int) -> list[State]:
    """Messages with the sums of those that were sent, one a client, (1, ...) each.

    Args:
        total: the sum of what `flat` gave with n_k / `widest` as the share, (2 P,).
        spec: shapes and dtypes of one message.
        rows: n_k of the clients in the sum, (C,).
        widest: n_max.
    """
    plain, weighted = total.chunk(2)
    mean, shares = plain / len(rows), rows.double() / rows.sum()
    apart = shares - shares.mean()
    slope = torch.zeros_like(mean)
    if float(apart.abs().max()) * len(rows) > SAME_SHARES:
        slope = (weighted * widest / rows.sum() - mean) / apart.square().sum()
    return [_unflat(mean + slope * float(one), mean, spec, len(rows)) for one in apart]


def _unflat(numbers: Tensor, mean: Tensor, spec: Spec, clients: int) -> State:
    """Tensors of the shapes and dtypes of a message; whole numbers are those of the mean, flags those of all."""
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


def masked(numbers: Tensor, context: Context) -> RecordDict:
    """A client's numbers for Flower's mod, which masks them.

    Args:
        numbers: (P,), float64.
        context: the client's, with the protocol's state.

    Raises:
        ProtocolError: a number is too large, or the server's protocol hides too little.
    """
    import flwr.compat.common.recorddict_compat as compat
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

    state: Any = context.state[PROTOCOL_STATE]
    limit, levels = float(state["clipping_range"]), int(state["target_range"])
    asked, threshold = int(state["sample_num"]), int(state["threshold"])
    if asked < FEWEST or 2 * threshold <= asked:
        raise ProtocolError(
            f"the server asks for a sum of {asked} clients of whom {threshold} must stay: it would hide too little; "
            f"expected at least {FEWEST}, of whom more than half must stay"
        )
    largest = float(numbers.abs().max()) if len(numbers) else 0.0
    if not largest < limit:
        raise ProtocolError(
            f"a number of this client's message is {largest:.3g}, beyond what secure aggregation was set up for, "
            f"{limit:.3g}: raise `largest` at the server"
        )
    step = 2 * limit / levels
    found = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([((numbers / step).round() * step).numpy()]), 1, {})
    return compat.fitres_to_recorddict(found, keep_input=False)


def check_secure(chain: Sequence[Algorithm]) -> None:
    """Refuse what needs more than sums: of the clients' messages, or their states for the phase that follows.

    Args:
        chain: the phases of a run.

    Raises:
        SettingError: names the algorithm, and those that can.
    """
    for part in chain:
        if not part.additive:
            raise SettingError(
                f"{type(part).__name__}: its server looks at messages one by one, and secure aggregation brings sums "
                "alone: use FedSEP, FedLaplace, FedAIS(surrogates='laplace'), SummedLangevin or FedAvg"
            )
    for part in chain[:-1]:
        if isinstance(part, SiteKeeping):
            raise SettingError(
                f"{type(chain[-1]).__name__} starts from what {type(part).__name__}'s clients keep, and secure "
                "aggregation brings sums alone: start from FedLaplace or the prior"
            )
