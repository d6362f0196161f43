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
down until both ends have agreed on a round, and on what has passed over it (see `links`). An agent that no neighbour
answers does not go on alone.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, concatenate, packed, prefixed, select, unpacked, within
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.agents.links import SPREAD, Flows, Links
from pyro_fed.deployment.agents.outbox import NEVER, At, NoMessage, Why, at_of
from pyro_fed.deployment.agents.wire import Ask, with_step
from pyro_fed.errors import ProtocolError, QuorumError, listed
from pyro_fed.graph import Consensus
from pyro_fed.runtime.messages import Spec, encoded_size, spec_of, spec_of_one
from pyro_fed.runtime.network import NeighbourValues, Network, Traffic
from pyro_fed.runtime.safetensors_header import Entry


class Neighbours(Network):
    """The round loop's network at one agent; changes of `coarse` entries are sent in single precision.

    Of `symmetric` entries, which are matrices, a triangle is sent.
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
        apart = phase > 0 and isinstance(algorithm, OnGraph) and algorithm.begins_apart
        if not kept and not apart:
            self._compare(phase, {**shared, **(local if phase == 0 else {})})

    def _compare(self, phase: int, state: State) -> None:
        """Require that all agents' first states, which are drawn from the seed, are the same."""
        digest = int(hash_tensors([state[name] for name in sorted(state)])[:15], 16)
        wait = self.settings.patience_all if phase == 0 else self.settings.patience
        found, known = self.links.spread(At(phase, -1, 0), {"digest": torch.tensor([digest])}, wait, whole=phase == 0)
        odd = (known & (found["digest"] != digest)).nonzero().flatten().tolist()
        if odd:
            raise ProtocolError(
                f"agents {listed(self.peers.names[i] for i in odd)} start from another point than "
                f"{self.peers.names[self.me]}, though models, settings and seeds agree: a draw from the prior may be "
                "impossible at somebody's rows. Widen the likelihood's support, or narrow the prior"
            )

    def saved_state(self) -> State:
        """The sums of the links, corrections that are still to be added to the belief, and the last message."""
        last = prefixed("last", self.links.outbox.last())
        return {**self.links.flows.saved_state(), **prefixed("owed", self._owed), **last}

    # -- the round -------------------------------------------------------------------------------------------
    def between(self, round: int, shared: State) -> State:
        """The state with what was missed over links that are up again; waits while no neighbour answers."""
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
            reasons = "; ".join(f"{self.peers.names[j]}: {left[j].why}" for j in sorted(left))
            what = f"all neighbours of {self.peers.names[self.me]} have left ({reasons})"
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
                f"agent {self.peers.names[neighbour]}, round {self._round}: its sum of the link is not finite. See "
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
                    f"agent {self.peers.names[j]}, round {at.round}: its message is not finite. See its log: its "
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
    """The network of one phase; with `everyone`, a round needs every agent."""
    consensus = algorithm.consensus(links.peers.graph, sleepers=not everyone)
    return Neighbours(links, consensus, algorithm.symmetric, algorithm.coarse)
