"""The paths of a round's messages: to a server and back, or between the agents of a graph.

With a graph there is no server: `shared` has an entry for each agent, each agent downloads its own, and `combine`
receives the rows of W in place of the clients' shares. Agents that are asleep neither work nor communicate; their links
fail in both directions for that round, so that a reversible W keeps its centrality.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.schedule import All, Schedule
from pyro_fed.algorithm.states import State, packed, unpacked
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.errors import SettingError
from pyro_fed.graph import Consensus, Graph
from pyro_fed.graph.base import require_agents
from pyro_fed.graph.consensus import shifted_weights
from pyro_fed.graph.mixing import components, list_components
from pyro_fed.graph.varying import without_links
from pyro_fed.runtime.messages import encoded_size, spec_of_one

#: The largest number in single precision; a larger difference is sent in several messages.
MAX_FLOAT32 = torch.finfo(torch.float32).max

#: A graph counts as disconnected if its links do not connect it in the number of rounds that should reduce the agents'
#: disagreement to this fraction.
SPLIT_DISAGREEMENT = 0.1


#   m_i = float32(x_i - x̂_i),    x̂_i ← x̂_i + m_i,    x_i ← x_i + Σ_j W_ij (x̂_j - x̂_i)
#
# A round's first message is an agent's public belief b_i in double precision. Later messages are differences, in single
# precision for entries for which it suffices (`OnGraph.coarse`). Agents mix the values x̂ that were sent: agent i then
# receives exactly what j gives away (v_i W_ij = v_j W_ji), Σ_i v_i x_i is preserved, and rounding errors are part of
# the next message. A precision matrix that is narrow in one direction and wide in another would lose the wide
# direction in single precision.
class NeighbourValues:
    """The values x̂ of agents that their neighbours have; changes of `coarse` entries are in single precision."""

    def __init__(self, coarse: frozenset[str]) -> None:
        self.coarse = coarse
        self.known: State = {}

    @classmethod
    def of(cls, coarse: frozenset[str], consensus: Consensus) -> NeighbourValues:
        """The values for a round; `consensus` determines whether differences to earlier values can be sent."""
        return cls(coarse if consensus.tells_all else frozenset())

    def message(self, step: int, mine: State) -> State:
        """The messages (C, ...) of a step of agents with values x (C, ...), after which their values x̂ are updated."""
        if step == 0:
            self.known = mine
            return mine
        sent = {
            name: (value - self.known[name]).clamp(-MAX_FLOAT32, MAX_FLOAT32).float() if name in self.coarse else value
            for name, value in mine.items()
        }
        self.known = self.after(self.known, sent)
        return sent

    def after(self, known: State, message: State) -> State:
        """The values x̂ (C, ...) of agents after a message that is not the round's first."""
        return {name: known[name] + value if name in self.coarse else value for name, value in message.items()}

    def mixed(self, algorithm: Any, own_values: State, weights: Any, sent_values: State | None = None) -> State:
        """The values x (R, ...) after a step with weights (R, C) of the values x̂, `sent_values` or these agents'."""
        mixed: State = algorithm.combine(own_values, self.known if sent_values is None else sent_values, weights)
        return {
            name: value + (own_values[name] - self.known[name]) if name in self.coarse else value
            for name, value in mixed.items()
        }


@dataclass(frozen=True)
class Traffic:
    """Bytes that each of a round's clients received (`down`) and sent (`up`): one number for all, or (C,)."""

    down: int | np.ndarray
    up: int | np.ndarray

    def of(self, chosen: np.ndarray) -> Traffic:
        """The traffic of the clients in a mask (C,)."""
        down, up = (
            part[chosen] if isinstance(part, np.ndarray) and part.ndim else part for part in (self.down, self.up)
        )
        return Traffic(down, up)


class PhaseEnded(Exception):
    """The other agents, which have all converged, have ended this process's phase at round `round`."""

    def __init__(self, round: int) -> None:
        super().__init__(f"the phase ended with round {round}")
        self.round = round


class Network(ABC):
    """The paths of messages: between a server and its clients, or between the agents of a graph."""

    def begin(self, phase: int, round: int, algorithm: Algorithm, shared: State, local: State, kept: State) -> None:
        """Begin a phase, or resume it with the `saved_state` in `kept`; `round` counts over all phases."""
        return

    def saved_state(self) -> State:
        """The network's own state, which has to be saved with the algorithm's."""
        return {}

    def between(self, round: int, shared: State) -> State:
        """The state before a round, with corrections for earlier exchanges that were interrupted."""
        return shared

    def awake(self, round: int, clients: list[int]) -> list[int]:
        """The scheduled clients that work in this round."""
        return clients

    @abstractmethod
    def download(self, algorithm: Algorithm, shared: State, clients: Tensor, round: int) -> State:
        """The clients' downloads before they work, (C, ...)."""

    @abstractmethod
    def combine(
        self, algorithm: Algorithm, shared: State, messages: State, clients: Tensor, shares: Tensor, round: int
    ) -> tuple[State, Traffic]:
        """The new state from the messages (C, ...) of clients (C,) with shares (C,) of the rows, and the traffic."""

    def announced(self, clients: int) -> int:
        """Bytes that the next round's clients will receive; 0 if unknown before the round."""
        return 0

    def monitor(self, algorithm: Algorithm, before: State, after: State) -> dict[str, float]:
        """The algorithm's figures of the round."""
        return algorithm.monitor(before, after)

    def complete(self) -> bool:
        """Whether the last figures are those of all clients; only then may they end the phase."""
        return True

    def figures(self) -> dict[str, float]:
        """The network's own figures of the round."""
        return {}

    def findings(self) -> list[Finding]:
        """Notes for the user, about the whole run."""
        return []


class Server(Network):
    """Every client communicates only with the server."""

    def download(self, algorithm: Algorithm, shared: State, clients: Tensor, round: int) -> State:
        received = algorithm.download(shared, clients)
        self._bytes_down = encoded_size(spec_of_one(received))
        return received

    def announced(self, clients: int) -> int:
        return clients * self._bytes_down

    def combine(
        self, algorithm: Algorithm, shared: State, messages: State, clients: Tensor, shares: Tensor, round: int
    ) -> tuple[State, Traffic]:
        """One call of the algorithm's `combine`, with the clients' shares of the rows as weights."""
        traffic = Traffic(self._bytes_down, encoded_size(spec_of_one(messages)))
        return algorithm.combine(shared, messages, shares), traffic


class _Mixing(NamedTuple):
    """The weights of a consensus step of C agents; each receives over `heard` (C,) links and sends over `sent` (C,)."""

    weights: sparse.csr_array
    heard: np.ndarray
    sent: np.ndarray

    @classmethod
    def of(cls, weights: sparse.csr_array) -> _Mixing:
        """The entry of a step's matrix."""
        off = weights - sparse.diags_array(weights.diagonal())
        off.eliminate_zeros()
        return cls(weights, np.diff(off.indptr), np.bincount(off.indices, minlength=weights.shape[0]))


@dataclass
class Peers(Network):
    """The agents of a graph; `consensus` are the consensus steps of a round, each with the graph's next W."""

    graph: Graph
    seed: int
    consensus: Consensus
    _bytes_per_edge: float = 0.0
    _links: sparse.csr_array | None = field(default=None, repr=False)
    _rounds: int = 0
    _connected: sparse.csr_array | None = field(default=None, repr=False)
    _last: sparse.csr_array | None = field(default=None, repr=False)
    _mixings: dict[int, _Mixing] = field(default_factory=dict, repr=False)

    def awake(self, round: int, clients: list[int]) -> list[int]:
        """The agents that are active in the graph and that the schedule chooses."""
        active = self.graph.active(round)
        return clients if active is None else sorted(set(active) & set(clients))

    def download(self, algorithm: Algorithm, shared: State, clients: Tensor, round: int) -> State:
        """Each agent's own state, and its centrality v_i(t)."""
        v = torch.from_numpy(self.graph.centrality(round * self.consensus.steps))[clients]
        return {**{name: value[clients] for name, value in shared.items()}, "centrality": v}

    def combine(
        self, algorithm: Algorithm, shared: State, messages: State, clients: Tensor, shares: Tensor, round: int
    ) -> tuple[State, Traffic]:
        """Mix by W, or by a polynomial of W, in each consensus step; agents that are asleep keep their states."""
        missing = len(clients) < len(self.awake(round, list(range(self.graph.num_agents))))
        on_graph = cast_checked(algorithm, OnGraph)
        if missing:
            on_graph.consensus_steps(self.graph, sleepers=True)  # refuses a graph on which all agents must be awake
        mine, told = packed(messages, on_graph.symmetric), NeighbourValues.of(on_graph.coarse, self.consensus)
        heard, sent, sizes = np.zeros(len(clients)), np.zeros(len(clients)), []
        steps = self.consensus.steps
        for step in range(steps):
            size = encoded_size(spec_of_one(told.message(step, mine)))
            time = round * steps + step
            weights = self.graph.weights(time, seeding.numpy_generator(self.seed, seeding.GRAPH, time))
            mixing = self._mixing(step, weights, clients.numpy())
            mine = told.mixed(algorithm, mine, mixing.weights)
            heard += size * mixing.heard
            sent += size * mixing.sent
            sizes.append(size)
        self._bytes_per_edge = sum(sizes) / steps
        after = {name: value.clone() for name, value in shared.items()}
        for name, value in unpacked(mine, shared).items():
            after[name][clients] = value
        return after, Traffic(heard, sent)

    def _mixing(self, step: int, weights: sparse.csr_array, clients: np.ndarray) -> _Mixing:
        """The weights of the awake agents in a step; computed once if the graph is fixed and all of them are awake."""
        if len(clients) < self.graph.num_agents:
            matrix, shift = self.consensus.mixing(step, weights)
            self._watch(self._without_sleepers(weights, clients))
            awake = self._without_sleepers(matrix, clients)[clients][:, clients]
            return _Mixing.of(shifted_weights(awake, shift))
        self._watch(weights)
        if self._last is not weights:
            self._last, self._mixings = weights, {}
        if step not in self._mixings:
            self._mixings[step] = _Mixing.of(self.consensus.of_step(step, weights))
        return self._mixings[step]

    def _without_sleepers(self, weights: sparse.csr_array, clients: np.ndarray) -> sparse.csr_array:
        """A step's matrix (A, A) without the links of agents that are asleep."""
        asleep = np.ones(self.graph.num_agents, dtype=bool)
        asleep[clients] = False
        links = weights.tocoo()
        return without_links(weights, asleep[links.row] | asleep[links.col])

    def _watch(self, weights: sparse.csr_array) -> None:
        """Collect links over the rounds until they connect all agents, and then start again."""
        if self._links is None and self._connected is weights:
            return
        links = weights if self._links is None else self._links + weights
        self._rounds += 1
        if components(links).max() == 0:
            if self._links is None:
                self._connected = weights
            self._links, self._rounds = None, 0
        else:
            self._links = links

    def figures(self) -> dict[str, float]:
        """The spectral gap, and the bytes on a link in a consensus step, averaged over the steps of a round."""
        return {"spectral_gap": self.graph.gap, "bytes_per_edge": float(self._bytes_per_edge)}

    def findings(self) -> list[Finding]:
        """A note if the graph is disconnected, with its parts."""
        patience = max(self.graph.window, self.graph.consensus_rounds(SPLIT_DISAGREEMENT))
        if self._links is None or self._rounds < patience:
            return []
        return [sentences.graph_fell_apart(steps=self._rounds, parts=list_components(components(self._links)))]


#: A function that returns the network from the algorithm, graph, schedule, number of clients and seed.
Connect = Callable[[Algorithm, Any, Schedule | None, int, int], Network]


def connect(algorithm: Algorithm, graph: Any, schedule: Schedule | None, num_clients: int, seed: int) -> Network:
    """The network of a run, checked before anything runs."""
    name = type(algorithm).__name__
    if not isinstance(algorithm, OnGraph):
        if graph is not None:
            raise SettingError(f"{name} works with a server and takes no graph; remove graph=, or use P2PVI")
        return Server()
    if not isinstance(graph, Graph):
        raise SettingError(
            f"{name} has no server: pass graph=, such as graph=pf.graph.ring({num_clients}); received {graph!r}"
        )
    require_agents(graph, num_clients)
    graph.check()
    sleepers = schedule is not None and not isinstance(schedule, All)
    consensus = algorithm.consensus(graph, sleepers)
    return Peers(graph, seed, consensus.among_some if sleepers else consensus)
