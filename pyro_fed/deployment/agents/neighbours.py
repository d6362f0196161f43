"""The round loop's network at one agent: consensus with the neighbours that answer.

In a step an agent puts its message into its outbox, fetches its neighbours' messages, and mixes them by its row of W,

    q_i ← Σ_j W_ij b_j          (or by the row of a polynomial's step, see `graph.consensus`).

The weight of a neighbour whose message is missing goes to the agent's own belief, as `graph.LinkFailures` has it. What
a simulation knows of all agents comes from these sources:

    W, consensus steps, centralities    the graph of the peers file
    first beliefs                       every agent draws them from the seed; digests are compared before the first
                                        round
    number of rows of all agents        spread over the graph before the first round
    figures, and whether to stop        every agent's `witness`, spread over the graph after each round, in as many
                                        steps as its diameter, so that all judge the same numbers. An agent that misses
                                        one of them does not stop by itself, but with the others, once it finds that
                                        they have

A link fails if a neighbour's message does not come within `patience`, or if the neighbour says that it leaves. It stays
down until both ends have agreed on a round, and on what has passed over it (see `flows`). An agent that no neighbour
answers does not go on alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from safetensors.torch import save
from scipy import sparse
from torch import Tensor

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, concatenate, packed, prefixed, select, unpacked, within
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.agents.farewell import DifferError
from pyro_fed.deployment.agents.flows import Flows
from pyro_fed.deployment.agents.outbox import NEVER, At, NoMessage, Outbox, Why, at_of
from pyro_fed.deployment.agents.peers import Peers
from pyro_fed.deployment.agents.settings import LinkSettings
from pyro_fed.deployment.agents.statements import PROOFS
from pyro_fed.deployment.agents.wire import Answers, Ask, Wire, with_step
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.errors import ProtocolError, PyroFedError, QuorumError, listed
from pyro_fed.graph import Consensus
from pyro_fed.runtime.messages import Spec, encoded_size, spec_of, spec_of_one
from pyro_fed.runtime.network import NeighbourValues, Network, PhaseEnded, Traffic
from pyro_fed.runtime.safetensors_header import Entry

#: Number of the first step that spreads figures; consensus steps have far smaller numbers.
SPREAD = 10**6
#: Number of the phase after the last, and that of the audit before it.
END = 10**6
AUDIT = END - 1
#: The step of an agent before the first phase.
BEFORE = At(-1, -1, 0)


@dataclass
class Links(Answers):
    """An agent's side of its links, shared by its own thread and the gRPC server's threads.

    Args:
        me: the agent's number.
        peers: all agents.
        settings: waiting times and sizes.
        said: what all agents must have in common, name → text.
        gate: the agent's gate, which every message passes; None for an agent without a policy.
        share: computes the largest share of one of the agent's rows in its messages.

    Attributes:
        wire: the gRPC server and channels; set after construction.
        outbox: the agent's messages, and which links are down.
        flows: the sums of what has passed over the links.
        at: the step in which the agent is.
        joining: neighbours that have asked to use a link again, with the last step in their sums.
    """

    me: int
    peers: Peers
    settings: LinkSettings
    said: dict[str, str]
    gate: Gate | None = None
    share: Callable[[], float | None] | None = None
    wire: Wire = field(init=False)
    outbox: Outbox = field(default_factory=Outbox)
    flows: Flows = field(default_factory=Flows)
    at: At = BEFORE
    joining: dict[int, At | None] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents' names."""
        return self.peers.names

    def release(
        self,
        kind: str,
        at: At,
        tensors: State,
        share: Callable[[], float | None] | None = None,
        cells: Mapping[str, int] | None = None,
    ) -> None:
        """Let the gate judge a message before neighbours can fetch it.

        `share` computes the largest share of one row in it, if that is not the links' own; `cells` are the numbers of
        rows in the table that it has.

        Raises:
            PolicyError: a rule of the agent does not permit it.
        """
        if self.gate is not None:
            asked = f"run {self.wire.run}, phase {at.phase}, round {at.round}"
            data = save({name: value.contiguous() for name, value in tensors.items()})
            place = {"run": self.wire.run, "phase": at.phase, "step": at.step}
            message = Outgoing(
                kind=kind,
                data=data,
                tensors=tensors,
                round=at.round,
                to="neighbours",
                asked=asked.encode(),
                share=share or self.share,
                cells=cells or {},
                replay=place,
            )
            self.gate.release(message)

    # -- in the server's threads -----------------------------------------------------------------------------
    def agreement(self) -> dict[str, str]:
        """The facts that all agents must have in common, name → text."""
        return self.said

    def answer(self, method: str, neighbour: int, request: State, seconds: float) -> State:
        """The answer to a neighbour's request: a message, or the sum of a link that is down; see `Answers`."""
        at = at_of(request)
        if method == "Take":
            return self.outbox.get(at, neighbour, seconds)
        with self.outbox.lock:
            if method == "Flow":
                return self._flow(neighbour)
            ended = self.outbox.ended(at.phase)
            if ended is not None:
                raise NoMessage(Why.ENDED, ended)
            if not self.outbox.is_lost(neighbour) or at.phase != self.at.phase:
                raise NoMessage(Why.LATE)
            agreed = At(at.phase, max(at.round, self.at.round + 1), 0)
            self.joining[neighbour] = at_of(request, "last")
            self.outbox.bring_up(neighbour, agreed)
            return {"up": agreed.tensor(), **self._flow(neighbour)}

    def _flow(self, neighbour: int) -> State:
        if neighbour not in self.flows.sums:
            raise NoMessage(Why.LATE)
        self.release("update", self.flows.last[neighbour], self.flows.sums[neighbour])
        return {"last": self.flows.last[neighbour].tensor(), **prefixed("sum", self.flows.sums[neighbour])}

    # -- in the agent's own ----------------------------------------------------------------------------------
    def fetch(
        self, at: At, neighbours: list[int], expected: Spec, seconds: float, whole: bool = False
    ) -> dict[int, State | NoMessage]:
        """The messages of neighbours in a step, or the reason why there is none.

        `whole` says that the messages are useless if one is missing, see `Wire.ask`.

        Raises:
            PhaseEnded: the other agents have converged, and ended the phase.
        """
        found = self.wire.ask({j: with_step("Take", at, expected) for j in neighbours}, seconds, whole=whole)
        for answer in found.values():
            if isinstance(answer, NoMessage) and answer.why is Why.ENDED:
                raise self.over(at.phase, answer.round)
        return found

    def over(self, phase: int, round: int) -> PhaseEnded:
        """Note that the others have ended a phase, and make the exception that says so."""
        self.outbox.end(phase, round)
        return PhaseEnded(round)

    def up(self, at: At) -> list[int]:
        """The neighbours whose links are not down in a step."""
        return [j for j in self.wire.neighbours if not self.outbox.is_down(j, at)]

    def spread(
        self,
        at: At,
        own: State,
        seconds: float,
        whole: bool = False,
        kind: str = "statement",
        share: Callable[[], float | None] | None = None,
        cells: Mapping[str, int] | None = None,
    ) -> tuple[State, Tensor]:
        """Spread every agent's entry over the graph, in as many steps as the graph's diameter, from the step `at` on.

        Args:
            at: the first of these steps.
            own: this agent's entry (1, ...).
            seconds: how long to wait in each step.
            whole: whether every agent's entry is needed.
            kind: the kind of message, for the agent's rules.
            share: as for `release`.
            cells: as for `release`.

        Returns:
            The entries of all agents (A, ...), and a mask of those that are known (A,). Each is signed by the agent
            that it is about, see `statements`.

        Raises:
            QuorumError: an entry is missing, and every one is needed.
            ProtocolError: a neighbour has passed on an entry that the agent it is about has not signed, or has none of
                its own.
        """
        self.release(kind, at, {name: value for name, value in own.items() if name not in PROOFS}, share, cells)
        own = self.wire.statements.signed(at, own)
        agents = len(self.names)
        known = torch.zeros(agents, dtype=torch.bool)
        table = {name: value.new_zeros((agents, *value.shape[1:])) for name, value in own.items()}
        known[self.me] = True
        for name, value in own.items():
            table[name][self.me] = value[0]
        for step in range(self.peers.diameter):
            now = At(at.phase, at.round, at.step + step)
            message = {"known": known.clone(), **prefixed("of", {k: v.clone() for k, v in table.items()})}
            self.outbox.put(now, message)
            answers = self.fetch(now, self.up(now), spec_of(message), seconds, whole)
            for j, answer in answers.items():
                if isinstance(answer, NoMessage):
                    self.failed(j, now, answer, whole)
                    continue
                self._check_spread(at, j, answer, known, table)
                new = answer["known"] & ~known
                for name, value in within(answer, "of").items():
                    table[name][new] = value[new]
                known |= new
        if whole and not bool(known.all()):
            missing = listed(self.names[i] for i in (~known).nonzero().flatten().tolist())
            raise QuorumError(
                f"nothing was heard of agents {missing}, and every agent is needed here. Start them, then this one "
                "again with resume, or raise patience_all"
            )
        del table["signature"]
        return table, known

    def _check_spread(self, at: At, neighbour: int, answer: State, known: Tensor, table: State) -> None:
        """Require a neighbour's own entry, and signatures of all entries that are new or differ from the known ones."""
        if not answer["known"][neighbour]:
            name = self.names[neighbour]
            raise ProtocolError(
                f"agent {name}, round {at.round}: it passes on what others say, without its own. Look at what it runs"
            )
        entries = within(answer, "of")
        for i in answer["known"].nonzero().flatten().tolist():
            entry = {name: value[i : i + 1] for name, value in entries.items()}
            mine = {name: table[name][i : i + 1] for name in entry}
            if not known[i] or hash_tensors(list(entry.values())) != hash_tensors(list(mine.values())):  # of NaN too
                self.wire.statements.check(i, at, entry, neighbour)

    def without(self, neighbour: int, round: int = 0) -> PyroFedError | None:
        """The error for a neighbour that has left and is needed; None if it has not left."""
        farewell = self.wire.left.get(neighbour)
        if farewell is None:
            return None
        text = f"agent {self.names[neighbour]} has left: {farewell.why}"
        if farewell.differs:
            return DifferError(text, text)
        return QuorumError(f"{text}. Start it again, then this one with resume", round=round)

    def failed(self, neighbour: int, at: At, refused: NoMessage, needed: bool) -> None:
        """Take down the link to a neighbour whose message is missing for the reason `refused`.

        Raises:
            QuorumError: the message is needed.
            DifferError: the message is needed, and the neighbour has left because agents do not run the same.
        """
        if needed:
            left = self.without(neighbour, max(at.round, 0))
            if left is not None:
                raise left
            said = self.wire.said.get(neighbour, refused.why.value)
            raise QuorumError(
                f"agent {self.names[neighbour]} has not answered, and round {at.round} needs every agent ({said}). "
                "Start it again, then this one with resume, or raise patience_all",
                round=max(at.round, 0),
            )
        self.outbox.take_down(neighbour, at)


class Neighbours(Network):
    """The round loop's network at one agent.

    Args:
        links: the links to its neighbours.
        consensus: the consensus steps of a round.
        symmetric: names of message entries that are symmetric matrices, of which a triangle is sent.
        coarse: names of message entries whose changes are sent in single precision.
    """

    def __init__(
        self,
        links: Links,
        consensus: Consensus,
        symmetric: frozenset[str] = frozenset(),
        coarse: frozenset[str] = frozenset(),
    ) -> None:
        self.links, self.consensus, self.symmetric, self.coarse = links, consensus, symmetric, coarse
        self.me, self.peers, self.settings = links.me, links.peers, links.settings
        self.centrality = self.peers.graph.centrality()
        self._round, self._wake, self._complete = -1, 0, True
        self._owed: State = {}
        self._unheard: list[str] = []
        self._bytes = 0.0
        self._down_rounds: dict[int, list[int]] = {}

    # -- the phase -------------------------------------------------------------------------------------------
    def begin(self, phase: int, round: int, algorithm: Algorithm, shared: State, local: State, kept: State) -> None:
        """Begin a phase: compare the agents' first states, or, on resuming, restore what has passed over the links."""
        links, self.phase, self.algorithm, self.needs_all = self.links, phase, algorithm, algorithm.needs_all
        if phase > 0 and not kept and links.outbox.ended(phase - 1) is None:
            links.outbox.end(phase - 1, round - 1)
        with links.outbox.lock:
            links.at = At(phase, -1, 0)
            empty = packed(shared, self.symmetric)
            links.flows = (
                Flows.restored(links.wire.neighbours, kept) if kept else Flows.none(links.wire.neighbours, empty)
            )
        self._owed = within(kept, "owed")
        links.outbox.restore(within(kept, "last"))
        if not kept:
            self._compare(phase, {**shared, **(local if phase == 0 else {})})

    def _compare(self, phase: int, state: State) -> None:
        """Require that all agents' first states, which are drawn from the seed, are the same.

        Raises:
            ProtocolError: names the agents whose states differ.
        """
        digest = int(hash_tensors([state[name] for name in sorted(state)])[:15], 16)
        wait = self.settings.patience_all if phase == 0 else self.settings.patience
        found, known = self.links.spread(At(phase, -1, 0), {"digest": torch.tensor([digest])}, wait, whole=phase == 0)
        odd = (known & (found["digest"] != digest)).nonzero().flatten().tolist()
        if odd:
            raise ProtocolError(
                f"agents {listed(self.peers.names[i] for i in odd)} begin at another point than "
                f"{self.peers.names[self.me]}, though models, settings and seeds agree: a draw from the prior may be "
                "impossible at somebody's rows. Widen the likelihood's support, or narrow the prior"
            )

    def saved_state(self) -> State:
        """The sums of the links, corrections that are still to be added to the belief, and the last message."""
        last = prefixed("last", self.links.outbox.last())
        return {**self.links.flows.saved_state(), **prefixed("owed", self._owed), **last}

    # -- the round -------------------------------------------------------------------------------------------
    def between(self, round: int, shared: State) -> State:
        """Bring links up again, and add to the belief what was missed over them; waits while no neighbour answers.

        Raises:
            QuorumError: no neighbour has answered within `patience_all`, or all have left.
        """
        self._round = round
        with self.links.outbox.lock:
            self.links.at = At(self.phase, round, 0)
        if round < self._wake:
            return shared
        end = time.monotonic() + self.settings.patience_all
        while True:
            self._make_up()
            self._knock(round)
            lost = [j for j in self.links.wire.neighbours if self.links.outbox.is_lost(j)]
            if len(lost) < len(self.links.wire.neighbours):
                break
            if time.monotonic() > end or all(j in self.links.wire.left for j in lost):
                raise self._alone(round, shared)
            time.sleep(self.settings.retry_every)
        here = At(self.phase, round, 0)
        if not self.links.up(here):  # all neighbours that answer are further on: this agent skips those rounds
            until = [self.links.outbox.up_from(j) for j in self.links.wire.neighbours if j not in lost]
            self._wake = min(at.round for at in until)
        for j in self.links.wire.neighbours:
            if self.links.outbox.is_down(j, here):
                self._down_rounds.setdefault(j, []).append(round)
        after = {name: value.clone() for name, value in shared.items()}
        for name, value in unpacked(self._owed, shared).items():
            after[name][self.me] += value[0]
        self._owed = {}
        return after

    def _alone(self, round: int, shared: State) -> QuorumError:
        """The error of an agent that no neighbour answers."""
        left = dict(self.links.wire.left)
        if len(left) < len(self.links.wire.neighbours):
            what = f"no neighbour of {self.peers.names[self.me]} has answered for {self.settings.patience_all} s"
        else:
            said = "; ".join(f"{self.peers.names[j]}: {left[j].why}" for j in sorted(left))
            what = f"all neighbours of {self.peers.names[self.me]} have left ({said})"
        error = QuorumError(
            f"{what}, and alone it would end at a posterior of its own rows. Start them, then this one again with "
            "resume",
            round=round,
        )
        error.algorithm, error.state = self.algorithm, shared
        return error

    def _make_up(self) -> None:
        """Take over newer sums of neighbours that have asked to use a link again."""
        with self.links.outbox.lock:
            asked = {j: last for j, last in self.links.joining.items() if last is not None}
            self.links.joining.clear()
            newer = [j for j, last in asked.items() if last > self.links.flows.last[j]]
        if not newer:
            return
        found = self.links.wire.once({j: self._about(j, "Flow") for j in newer})
        for j, answer in found.items():
            if isinstance(answer, NoMessage):
                self.links.outbox.bring_up(j, NEVER)  # the link stays down, and both ends agree on a round again
            else:
                self._adopt(j, answer)

    def _knock(self, round: int) -> None:
        """Agree with neighbours on the round from which links that are down are used again; the lower number asks."""
        lost = [j for j in self.links.wire.neighbours if j > self.me and self.links.outbox.is_lost(j)]
        if not lost:
            return
        found = self.links.wire.once({j: self._about(j, "Rejoin", At(self.phase, round, 0)) for j in lost})
        for j, answer in found.items():
            if isinstance(answer, NoMessage):
                if answer.why is Why.ENDED:
                    raise self.links.over(self.phase, answer.round)
                continue
            up = at_of(answer, "up")
            if up.phase != self.phase or up.round < round:
                raise ProtocolError(f"agent {self.peers.names[j]} agrees on round {up}, asked for {round} or later")
            if at_of(answer, "last") > self.links.flows.last[j]:
                self._adopt(j, answer)
            self.links.outbox.bring_up(j, up)

    def _about(self, neighbour: int, method: str, at: At | None = None) -> Ask:
        """A request for a neighbour's sum of a link; with a step also for the round from which the link is up."""
        sums = prefixed("sum", self.links.flows.sums[neighbour])
        step = Entry((3,), torch.int64)
        spec: Spec = {**spec_of(sums), "last": step}
        if at is not None:
            return with_step(method, at, {**spec, "up": step}, last=self.links.flows.last[neighbour])
        return with_step(method, self.links.at, spec)

    def _adopt(self, neighbour: int, answer: State) -> None:
        """Take over the other end's sum; the difference is added to the belief before the next round."""
        theirs = within(answer, "sum")
        if not all(bool(value.isfinite().all()) for value in theirs.values()):
            raise ProtocolError(
                f"agent {self.peers.names[neighbour]}, round {self._round}: its sum of the link is not finite. Look at "
                "its log, and start it again with resume"
            )
        ratio = float(self.centrality[neighbour] / self.centrality[self.me])
        with self.links.outbox.lock:
            more = self.links.flows.adopt(neighbour, at_of(answer, "last"), theirs, ratio)
        self._owed = {name: value + self._owed.get(name, 0.0) for name, value in more.items()}

    def awake(self, round: int, clients: list[int]) -> list[int]:
        """This agent, unless it has come back and still waits for the round from which its links are up."""
        return [self.me] if self.me in clients and round >= self._wake else []

    def download(self, algorithm: Algorithm, shared: State, clients: Tensor, round: int) -> State:
        """This agent's own state, and its centrality."""
        v = torch.from_numpy(self.centrality)[clients]
        return {**{name: value[clients] for name, value in shared.items()}, "centrality": v}

    def combine(
        self, algorithm: Algorithm, shared: State, messages: State, clients: Tensor, shares: Tensor, round: int
    ) -> tuple[State, Traffic]:
        """Mix with the neighbours whose links are up, by this agent's row of W or of the step's polynomial."""
        mine, told = packed(messages, self.symmetric), NeighbourValues.of(self.coarse, self.consensus)
        theirs: dict[int, State] = {}
        if self.needs_all:
            with self.links.outbox.lock:
                self.links.flows = Flows.none(self.links.wire.neighbours, mine)
        heard, sizes = 0, []
        for step in range(self.consensus.steps):
            matrix, shift = self.consensus.mixing(step, self.peers.graph.matrix)
            row = matrix[[self.me], :]
            at = At(self.phase, round, step)
            message = told.message(step, mine)
            self.links.release("update", at, message)
            self.links.outbox.put(at, message)
            news = self._exchange(at, spec_of(message), set(row.indices.tolist()))
            theirs = {j: told.after(theirs.get(j, new), new) for j, new in news.items()} if step else news
            sizes.append(encoded_size(spec_of_one(message)))
            heard += len(theirs) * sizes[-1]
            mine = self._mixed(algorithm, mine, told, theirs, row, shift)
            if not self.needs_all:
                with self.links.outbox.lock:
                    for j in news:
                        weight = float(row[0, j]) / (1.0 - shift)
                        self.links.flows.add(j, at, weight, theirs[j], told.known)
        self._bytes = sum(sizes) / len(sizes)
        after = {name: value.clone() for name, value in shared.items()}
        for name, value in unpacked(mine, shared).items():
            after[name][clients] = value
        traffic = np.array([heard])
        return after, Traffic(traffic, traffic)

    def _exchange(self, at: At, expected: Spec, heard: set[int]) -> dict[int, State]:
        """The messages of some neighbours in a step; links to those whose messages are missing are taken down."""
        wait = self.settings.patience_all if self.needs_all else self.settings.patience
        asked = [j for j in self.links.up(at) if j in heard]
        found = self.links.fetch(at, asked, expected, wait, self.needs_all)
        usable = {}
        for j, answer in found.items():
            if isinstance(answer, NoMessage):
                self.links.failed(j, at, answer, self.needs_all)
            elif not all(bool(value.isfinite().all()) for value in answer.values() if value.is_floating_point()):
                raise ProtocolError(
                    f"agent {self.peers.names[j]}, round {at.round}: its message is not finite. Look at its log: its "
                    "updates may diverge"
                )
            else:
                usable[j] = answer
        return usable

    def _mixed(
        self,
        algorithm: Algorithm,
        mine: State,
        told: NeighbourValues,
        theirs: dict[int, State],
        row: sparse.csr_array,
        shift: float,
    ) -> State:
        """Mix by the agent's row of the step, in W's order; weights of links that are down go to its own message."""
        order = [int(j) for j in row.indices]
        weights = dict(zip(order, row.data.tolist(), strict=True))
        lost = sum(weights[j] for j in order if j != self.me and j not in theirs)
        weights[self.me] = weights.get(self.me, 0.0) + lost
        taken = [j for j in order if j in theirs or j == self.me]
        if self.me not in taken and (weights[self.me] > 0 or shift):
            taken = sorted([*taken, self.me])
        weights = {j: (weights[j] - (shift if j == self.me else 0.0)) / (1.0 - shift) for j in taken}
        parts = [told.known if j == self.me else theirs[j] for j in taken]
        data, columns = np.array([weights[j] for j in taken]), np.arange(len(taken))
        own = sparse.csr_array((data, columns, np.array([0, len(taken)])), shape=(1, len(taken)))
        return told.mixed(algorithm, mine, own, concatenate(parts))

    # -- figures ---------------------------------------------------------------------------------------------
    def monitor(self, algorithm: Algorithm, before: State, after: State) -> dict[str, float]:
        """The figures of all agents whose entries have arrived."""
        on_graph, here = cast_checked(algorithm, OnGraph), slice(self.me, self.me + 1)
        own = on_graph.witness(select(before, here), select(after, here))
        wait = self.settings.patience_all if self.needs_all else self.settings.patience
        told, known = self.links.spread(At(self.phase, self._round, SPREAD), own, wait, whole=self.needs_all)
        self._complete = bool(known.all())
        self._unheard = [name for name, heard in zip(self.peers.names, known.tolist(), strict=True) if not heard]
        return {**on_graph.figures_of_witness(select(told, known)), "agents_heard": float(known.sum())}

    def complete(self) -> bool:
        """Whether the last figures are about all agents."""
        return self._complete

    def figures(self) -> dict[str, float]:
        """Spectral gap, and bytes that a link carries in a consensus step, as in a simulation."""
        return {"spectral_gap": self.peers.graph.gap, "bytes_per_edge": self._bytes}

    def findings(self) -> list[Finding]:
        """Notes on agents that were missing at the end, and on links that were down."""
        me, names, found = self.peers.names[self.me], self.peers.names, list[Finding]()
        if self._unheard:
            found.append(sentences.agents_not_heard(client=me, clients=list(self._unheard)))
        if self._down_rounds:
            down = sorted(self._down_rounds.items())
            clients, counts = [names[j] for j, _ in down], [len(rounds) for _, rounds in down]
            last = [rounds[-1] for _, rounds in down]
            found.append(sentences.links_were_down(client=me, clients=clients, rounds=counts, last=last))
        return found


def neighbours_of(links: Links, algorithm: OnGraph, everyone: bool = False) -> Neighbours:
    """The network of one phase; `everyone` says that a round means nothing if an agent is missing.

    Raises:
        GraphError: on this graph the algorithm is not exact if an agent is missing.
    """
    consensus = algorithm.consensus(links.peers.graph, sleepers=not everyone)
    return Neighbours(links, consensus, algorithm.symmetric, algorithm.coarse)
