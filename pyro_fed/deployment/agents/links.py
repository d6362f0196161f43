"""An agent's side of its links: answers to neighbours, statements that are spread, and what has passed over each link.

An exchange may happen on one side only: i has received j's message of a step, but j has not received i's. No protocol
can exclude that. So each end adds up what it has received over the link,

    F_ij = Σ_steps W_ij (b_j - b_i)

and remembers the last step in the sum. If both ends have taken the same steps, detailed balance gives
v_i F_ij = -v_j F_ji. Before a link that was down is used again, the end whose sum is older takes over the other's,
F_ij ← -(v_j / v_i) F_ji, and adds the difference to its belief. Then Σ_i v_i q_i is again the product of all sites, and
each datum counts once, also after an agent has gone back to an earlier checkpoint: the sums are saved with the belief.

Source: flow updating (Jesus, Baquero & Almeida, *Fault-tolerant aggregation by flow updating*, 2009), for weights of a
reversible W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from safetensors.torch import save
from torch import Tensor

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.density.fingerprint import hash_tensors
from pyro_fed.deployment.agents.outbox import At, DifferError, NoMessage, Outbox, Why, at_of
from pyro_fed.deployment.agents.peers import LinkSettings, Peers
from pyro_fed.deployment.agents.statements import PROOFS
from pyro_fed.deployment.agents.wire import Wire, with_step
from pyro_fed.deployment.limits import MAX_CLIENTS
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.errors import ProtocolError, PyroFedError, QuorumError, listed
from pyro_fed.runtime.messages import Spec, spec_of
from pyro_fed.runtime.network import PhaseEnded

#: Beyond the number of any phase and of any consensus step: the phase after the last, and that of the audit before it.
END_PHASE = MAX_CLIENTS
AUDIT_PHASE = END_PHASE - 1
#: Number of the first step that spreads figures.
SPREAD = END_PHASE
#: The step of an agent before the first phase.
BEFORE = At(-1, -1, 0)


@dataclass
class Flows:
    """The sums F_ij (1, ...) of an agent's links in a phase, and the last step in each, by neighbour j."""

    sums: dict[int, State] = field(default_factory=dict)
    last: dict[int, At] = field(default_factory=dict)

    @classmethod
    def none(cls, neighbours: list[int], like: State) -> Flows:
        """Sums of zero, before the first step; `like` is a state with the shapes of a belief (C, ...)."""
        empty = {name: value.new_zeros((1, *value.shape[1:])) for name, value in like.items()}
        return cls(dict.fromkeys(neighbours, empty), dict.fromkeys(neighbours, BEFORE))

    def add(self, neighbour: int, at: At, weight: float, theirs: State, mine: State) -> None:
        """Add an exchange, W_ij (b_j - b_i), to a link's sum; `theirs` is b_j, `mine` b_i, both (1, ...)."""
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: before[name] + weight * (theirs[name] - mine[name]) for name in before}
        self.last[neighbour] = at

    def adopt(self, neighbour: int, at: At, theirs: State, ratio: float) -> State:
        """The correction (1, ...) to the belief from taking over the other end's sum F_ji; `ratio` is v_j / v_i."""
        before = self.sums[neighbour]
        self.sums[neighbour] = {name: -ratio * theirs[name] for name in before}
        self.last[neighbour] = at
        return {name: value - before[name] for name, value in self.sums[neighbour].items()}

    def saved_state(self) -> State:
        """Sums and steps as tensors, for a checkpoint."""
        found: State = {}
        for neighbour, sums in self.sums.items():
            found |= prefixed(f"{neighbour}", {**prefixed("sum", sums), "last": self.last[neighbour].tensor()})
        return found

    @classmethod
    def restored(cls, neighbours: list[int], kept: State) -> Flows:
        """Sums and steps from tensors that `saved_state` has made."""
        parts = {neighbour: within(kept, f"{neighbour}") for neighbour in neighbours}
        sums = {neighbour: within(part, "sum") for neighbour, part in parts.items()}
        return cls(sums, {neighbour: At.of(part["last"]) for neighbour, part in parts.items()})


@dataclass
class Links:
    """An agent's side of its links, shared by its own thread and the gRPC server's threads."""

    me: int
    peers: Peers
    settings: LinkSettings
    agreement: dict[str, str]  # what all agents must have in common, name → text
    gate: Gate | None = None  # which every message passes; None for an agent without a policy
    share: Callable[[], float | None] | None = None  # computes the largest share of one of its rows in its messages
    wire: Wire = field(init=False)  # set after construction
    outbox: Outbox = field(default_factory=Outbox)
    flows: Flows = field(default_factory=Flows)
    at: At = BEFORE  # the step in which the agent is
    joining: dict[int, At | None] = field(default_factory=dict)  # neighbours that ask for a link, with their last step

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
        """Let the gate judge a message before neighbours can fetch it; `share` and `cells` are as for `Outgoing`."""
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
    def answer(self, method: str, neighbour: int, request: State, seconds: float) -> State:
        """The answer to a neighbour's request: a message, or the sum of a link that is down."""
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
        """The messages of neighbours in a step, or why there is none; PhaseEnded once the others have ended it."""
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
        """Every agent's entry (A, ...) and which are known (A,), after as many steps as the graph's diameter.

        Each entry is signed by the agent that it is about. `whole` says that every one is needed: QuorumError if one is
        missing. `kind`, `share` and `cells` are as for `release`.
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
                f"agents {missing} were not heard, and every agent is needed here. Start them, then this one "
                "again with resume, or raise patience_all"
            )
        del table["signature"]
        return table, known

    def _check_spread(self, at: At, neighbour: int, answer: State, known: Tensor, table: State) -> None:
        """Require a neighbour's own entry, and signatures of all entries that are new or differ from the known ones."""
        if not answer["known"][neighbour]:
            name = self.names[neighbour]
            raise ProtocolError(
                f"agent {name}, round {at.round}: it passes on the others' statements, without its own. Check what "
                "it runs"
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
        """Take down the link to a neighbour whose message is missing; raise the error that says why if it is needed."""
        if needed:
            left = self.without(neighbour, max(at.round, 0))
            if left is not None:
                raise left
            reason = self.wire.failures.get(neighbour, refused.why.value)
            raise QuorumError(
                f"agent {self.names[neighbour]} has not answered, and round {at.round} needs every agent ({reason}). "
                "Start it again, then this one with resume, or raise patience_all",
                round=max(at.round, 0),
            )
        self.outbox.take_down(neighbour, at)
