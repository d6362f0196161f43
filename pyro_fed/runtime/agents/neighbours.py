"""The round loop's network at one agent: consensus with those neighbours that answer.

In a step an agent puts its message into its outbox, fetches those of its neighbours, and takes its row of W,

    q_i ← Σ_j W_ij b_j          (or the row of a polynomial's step, see `graph.consensus`),

with the weight of a neighbour that cannot be had put on its own belief: `graph.LinkFailures`' rule. What a simulation
takes from all agents is had as follows.

    W, consensus steps, centralities    from the graph of the peers file
    where beliefs begin                 every agent draws it from the seed; a digest is compared before the first round
    rows of all agents                  spread over the graph before the first round
    figures, and whether to stop        every agent's `witness`, spread over the graph after each round in as many steps
                                        as its diameter has: all judge the same numbers. An agent that misses one does
                                        not stop by itself; one that finds that the others have stops with them

A link fails where a neighbour's message has not come within `patience`, or where it says that it leaves, and stays down
until both ends have agreed on a round and have made up for what one of them missed (see `flows`). An agent that nobody
answers does not go on alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, concatenate, packed, prefixed, select, unpacked, within
from pyro_fed.density.fingerprint import hashed
from pyro_fed.errors import ProtocolError, PyroFedError, QuorumError, listed
from pyro_fed.graph import Consensus
from pyro_fed.runtime.agents.farewell import DifferError
from pyro_fed.runtime.agents.flows import Flows
from pyro_fed.runtime.agents.outbox import NEVER, At, Outbox, Refused, Why, at_of
from pyro_fed.runtime.agents.peers import Peers
from pyro_fed.runtime.agents.settings import LinkSettings
from pyro_fed.runtime.agents.wire import Answers, Ask, Wire, with_step
from pyro_fed.runtime.messages import Spec, encoded_size, spec_of, spec_of_one
from pyro_fed.runtime.messages.header import Entry
from pyro_fed.runtime.messages.told import Told
from pyro_fed.runtime.network import Network, PhaseEnded, Traffic

#: Steps that spread figures come after those of consensus, whose number is far below.
SPREAD = 10**6
#: The phase after the last.
END = 10**6
#: Where an agent is before the first phase.
BEFORE = At(-1, -1, 0)


@dataclass
class Links(Answers):
    """An agent's side of its links: what it shares with the server's threads.

    Args:
        me: the agent's number.
        peers: all agents.
        settings: waits and sizes.
        said: what all agents must have in common.
    """

    me: int
    peers: Peers
    settings: LinkSettings
    said: dict[str, str]
    wire: Wire = field(init=False)
    outbox: Outbox = field(default_factory=Outbox)
    flows: Flows = field(default_factory=Flows)
    at: At = BEFORE
    joining: dict[int, At | None] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The agents'."""
        return self.peers.names

    # -- in the server's threads -----------------------------------------------------------------------------
    def agreement(self) -> dict[str, str]:
        """What all agents must have in common."""
        return self.said

    def answer(self, method: str, neighbour: int, request: State, seconds: float) -> State:
        """A message, or what has passed over a link that is down."""
        at = at_of(request)
        if method == "Take":
            return self.outbox.get(at, neighbour, seconds)
        with self.outbox.lock:
            if method == "Flow":
                return self._flow(neighbour)
            ended = self.outbox.ended(at.phase)
            if ended is not None:
                raise Refused(Why.ENDED, ended)
            if not self.outbox.is_lost(neighbour) or at.phase != self.at.phase:
                raise Refused(Why.LATE)
            agreed = At(at.phase, max(at.round, self.at.round + 1), 0)
            self.joining[neighbour] = at_of(request, "last")
            self.outbox.bring_up(neighbour, agreed)
            return {"up": agreed.tensor(), **self._flow(neighbour)}

    def _flow(self, neighbour: int) -> State:
        if neighbour not in self.flows.sums:
            raise Refused(Why.LATE)
        return {"last": self.flows.last[neighbour].tensor(), **prefixed("sum", self.flows.sums[neighbour])}

    # -- in the agent's own ----------------------------------------------------------------------------------
    def fetch(
        self, at: At, neighbours: list[int], expected: Spec, seconds: float, whole: bool = False
    ) -> dict[int, State | Refused]:
        """The messages of neighbours in a step, or why one is not to be had; as `Wire.ask` takes `whole`.

        Raises:
            PhaseEnded: they have all converged, and gone on.
        """
        found = self.wire.ask({j: with_step("Take", at, expected) for j in neighbours}, seconds, whole=whole)
        for answer in found.values():
            if isinstance(answer, Refused) and answer.why is Why.ENDED:
                raise self.over(at.phase, answer.round)
        return found

    def over(self, phase: int, round: int) -> PhaseEnded:
        """The others have ended a phase; this agent says so too from now on."""
        self.outbox.end(phase, round)
        return PhaseEnded(round)

    def up(self, at: At) -> list[int]:
        """The neighbours whose links are not down in a step."""
        return [j for j in self.wire.neighbours if not self.outbox.is_down(j, at)]

    def spread(self, at: At, own: State, seconds: float, whole: bool = False) -> tuple[State, Tensor]:
        """What every agent says, (A, ...), after as many steps as the graph's diameter has.

        Args:
            at: the first of these steps.
            own: what this one says, (1, ...).
            seconds: to wait in each.
            whole: whether it means nothing without one of them.

        Returns:
            The table, and whose entries are known, (A,).

        Raises:
            QuorumError: one is missing, and none may.
        """
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
                if isinstance(answer, Refused):
                    self.failed(j, now, answer, whole)
                    continue
                new = answer["known"] & ~known
                for name, value in within(answer, "of").items():
                    table[name][new] = value[new]
                known |= new
        if whole and not bool(known.all()):
            missing = listed(self.names[i] for i in (~known).nonzero().flatten().tolist())
            raise QuorumError(f"nothing was heard of agents {missing}")
        return table, known

    def without(self, neighbour: int, round: int = 0) -> PyroFedError | None:
        """The error of an agent that cannot go on without a neighbour that has left; None where it has not."""
        farewell = self.wire.left.get(neighbour)
        if farewell is None:
            return None
        text = f"agent {self.names[neighbour]} has left: {farewell.why}"
        if farewell.differs:
            return DifferError(text, text)
        return QuorumError(f"{text}. Start it again, then this one with resume", round=round)

    def failed(self, neighbour: int, at: At, refused: Refused, needed: bool) -> None:
        """A neighbour's message cannot be had: its link is down from here on.

        Raises:
            QuorumError: the round means nothing without it.
            DifferError: nor does it, and it has left since agents do not run the same.
        """
        if needed:
            left = self.without(neighbour, max(at.round, 0))
            if left is not None:
                raise left
            said = self.wire.said.get(neighbour, refused.why.value)
            raise QuorumError(
                f"agent {self.names[neighbour]} has not answered, and round {at.round} means nothing without it "
                f"({said}). Start it again, then this one with resume, or raise patience_all",
                round=max(at.round, 0),
            )
        self.outbox.take_down(neighbour, at)


class Neighbours(Network):
    """What one agent does of a run's exchanges.

    Args:
        links: to its neighbours.
        consensus: the steps of a round.
        symmetric: entries of messages that are symmetric matrices.
        coarse: entries whose changes are told in single precision.
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
        self.weights = self.peers.links(self.me)
        self._round, self._wake, self._complete = -1, 0, True
        self._owed: State = {}
        self._unheard: list[str] = []
        self._bytes = 0.0
        self._down_rounds: dict[int, list[int]] = {}

    # -- the phase -------------------------------------------------------------------------------------------
    def begin(self, phase: int, round: int, algorithm: Algorithm, shared: State, local: State, kept: State) -> None:
        """See that all begin alike; take up what has passed over the links."""
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
        """Require that all agents' first states are the same, which are drawn from the seed alone.

        Raises:
            ProtocolError: names who differs.
        """
        digest = int(hashed([state[name] for name in sorted(state)])[:15], 16)
        wait = self.settings.patience_all if phase == 0 else self.settings.patience
        found, known = self.links.spread(At(phase, -1, 0), {"digest": torch.tensor([digest])}, wait, whole=phase == 0)
        odd = (known & (found["digest"] != digest)).nonzero().flatten().tolist()
        if odd:
            raise ProtocolError(
                f"agents {listed(self.peers.names[i] for i in odd)} begin at another point than "
                f"{self.peers.names[self.me]}, though models, settings and seeds agree: a draw from the prior may be "
                "impossible at somebody's rows. Widen the likelihood's support, or narrow the prior"
            )

    def kept(self) -> State:
        """What has passed over the links, what is still to be made up for, and the message that was sent last."""
        last = prefixed("last", self.links.outbox.last())
        return {**self.links.flows.kept(), **prefixed("owed", self._owed), **last}

    # -- the round -------------------------------------------------------------------------------------------
    def between(self, round: int, shared: State) -> State:
        """Links that are up again, and what had been missed over them; waits while nobody answers."""
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
        if not self.links.up(here):  # all that answer are further on: those rounds are slept through
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
        """The error of an agent that nobody answers."""
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
        """Take over the sums of neighbours that have asked to be heard again, where theirs are newer."""
        with self.links.outbox.lock:
            asked = {j: last for j, last in self.links.joining.items() if last is not None}
            self.links.joining.clear()
            newer = [j for j, last in asked.items() if last > self.links.flows.last[j]]
        if not newer:
            return
        found = self.links.wire.once({j: self._about(j, "Flow") for j in newer})
        for j, answer in found.items():
            if isinstance(answer, Refused):
                self.links.outbox.bring_up(j, NEVER)  # it is asked anew
            else:
                self._adopt(j, answer)

    def _knock(self, round: int) -> None:
        """Ask neighbours behind links that are down from which round they are up; the lower number asks."""
        lost = [j for j in self.links.wire.neighbours if j > self.me and self.links.outbox.is_lost(j)]
        if not lost:
            return
        found = self.links.wire.once({j: self._about(j, "Rejoin", At(self.phase, round, 0)) for j in lost})
        for j, answer in found.items():
            if isinstance(answer, Refused):
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
        """A question about what has passed over a link."""
        sums = prefixed("sum", self.links.flows.sums[neighbour])
        step = Entry((3,), torch.int64)
        spec: Spec = {**spec_of(sums), "last": step}
        if at is not None:
            return with_step(method, at, {**spec, "up": step}, last=self.links.flows.last[neighbour])
        return with_step(method, self.links.at, spec)

    def _adopt(self, neighbour: int, answer: State) -> None:
        """Take the other end's sum; the difference goes into the belief before the next round."""
        theirs = within(answer, "sum")
        if not all(bool(value.isfinite().all()) for value in theirs.values()):
            raise ProtocolError(f"agent {self.peers.names[neighbour]} sent what is not finite")
        ratio = float(self.centrality[neighbour] / self.centrality[self.me])
        with self.links.outbox.lock:
            more = self.links.flows.adopt(neighbour, at_of(answer, "last"), theirs, ratio)
        self._owed = {name: value + self._owed.get(name, 0.0) for name, value in more.items()}

    def awake(self, round: int, clients: list[int]) -> list[int]:
        """This agent, unless it has just come back and waits for the round from which it is heard again."""
        return [self.me] if self.me in clients and round >= self._wake else []

    def download(self, algorithm: Algorithm, shared: State, clients: Tensor, round: int) -> State:
        """Its own state, and its centrality."""
        v = torch.from_numpy(self.centrality)[clients]
        return {**{name: value[clients] for name, value in shared.items()}, "centrality": v}

    def combine(
        self, algorithm: Algorithm, shared: State, messages: State, clients: Tensor, shares: Tensor, round: int
    ) -> tuple[State, Traffic]:
        """Its row of W, or of the step's polynomial, over the links that are up."""
        mine, told = packed(messages, self.symmetric), Told(self.coarse)
        theirs: dict[int, State] = {}
        if self.needs_all:
            with self.links.outbox.lock:
                self.links.flows = Flows.none(self.links.wire.neighbours, mine)
        heard, sizes = 0, []
        for step, shift in enumerate(self.consensus.shifts):
            at = At(self.phase, round, step)
            message = told.message(step, mine)
            self.links.outbox.put(at, message)
            news = self._exchange(at, spec_of(message))
            theirs = {j: told.after(theirs[j], new) for j, new in news.items()} if step else news
            sizes.append(encoded_size(spec_of_one(message)))
            heard += len(theirs) * sizes[-1]
            mine = self._mixed(algorithm, mine, told, theirs, shift)
            if not self.needs_all:
                with self.links.outbox.lock:
                    for j, other in theirs.items():
                        self.links.flows.add(j, at, self.weights[j] / (1.0 - shift), other, told.known)
        self._bytes = sum(sizes) / len(sizes)
        after = {name: value.clone() for name, value in shared.items()}
        for name, value in unpacked(mine, shared).items():
            after[name][clients] = value
        traffic = np.array([heard])
        return after, Traffic(traffic, traffic)

    def _exchange(self, at: At, expected: Spec) -> dict[int, State]:
        """The messages of the neighbours that can be had; the links to the others are down from here on."""
        wait = self.settings.patience_all if self.needs_all else self.settings.patience
        found = self.links.fetch(at, self.links.up(at), expected, wait, self.needs_all)
        usable = {}
        for j, answer in found.items():
            if isinstance(answer, Refused):
                self.links.failed(j, at, answer, self.needs_all)
            elif not all(bool(value.isfinite().all()) for value in answer.values() if value.is_floating_point()):
                raise ProtocolError(f"agent {self.peers.names[j]}, round {at.round}: its message is not finite")
            else:
                usable[j] = answer
        return usable

    def _mixed(self, algorithm: Algorithm, mine: State, told: Told, theirs: dict[int, State], shift: float) -> State:
        """The agent's row of the step, in W's own order, with the weight of links that are down on its own message."""
        row = self.peers.graph.matrix[[self.me], :]
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
        """The figures of all agents that have been heard of."""
        assert isinstance(algorithm, OnGraph)
        here = slice(self.me, self.me + 1)
        own = algorithm.witness(select(before, here), select(after, here))
        wait = self.settings.patience_all if self.needs_all else self.settings.patience
        told, known = self.links.spread(At(self.phase, self._round, SPREAD), own, wait, whole=self.needs_all)
        self._complete = bool(known.all())
        self._unheard = [name for name, heard in zip(self.peers.names, known.tolist(), strict=True) if not heard]
        return {**algorithm.judged(select(told, known)), "agents_heard": float(known.sum())}

    def complete(self) -> bool:
        """Whether every agent was heard of."""
        return self._complete

    def figures(self) -> dict[str, float]:
        """As in a simulation."""
        return {"spectral_gap": self.peers.graph.gap, "bytes_per_edge": self._bytes}

    def notes(self) -> list[str]:
        """Agents that were not there at the end, and links that were down."""
        notes = []
        if self._unheard:
            notes.append(
                f"{self.peers.names[self.me]} has heard nothing of agents {listed(self._unheard)} in its last round: "
                "what their rows have said since they were last heard is not in its belief, and the disagreement is "
                "that of the others"
            )
        parts = [
            f"{self.peers.names[j]} in {len(rounds)} rounds, the last one {rounds[-1]}"
            for j, rounds in sorted(self._down_rounds.items())
        ]
        if not parts:
            return notes
        return [
            *notes,
            f"links of {self.peers.names[self.me]} were down: to {'; '.join(parts)}. Their weight was the agent's own "
            "meanwhile, and what one end had missed was made up for before a link was used again",
        ]


def neighbours_of(links: Links, algorithm: OnGraph) -> Neighbours:
    """The network of one phase.

    Raises:
        GraphError: the algorithm is not exact where an agent of this graph is missing.
    """
    consensus = algorithm.consensus(links.peers.graph, sleepers=True)
    return Neighbours(links, consensus, algorithm.symmetric, algorithm.coarse)
