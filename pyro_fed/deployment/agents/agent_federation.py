"""The federation and the executors as one agent knows them, in place of a simulation's.

States have one entry for each agent, so that the algorithm's functions, the noise and the schedule are the same. An
agent reads and writes its own entry; the others keep their values from the phase's beginning.

For the audit and for questions every agent answers at every agent's draws. These are two messages that are spread over
the graph like statements: each agent's draws, then its answers (log-likelihoods, or sums over its rows) at all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.agents.links import AUDIT_PHASE, Links
from pyro_fed.deployment.agents.outbox import At
from pyro_fed.deployment.claimed_federation import ClaimedFederation, padded_index
from pyro_fed.deployment.limits import MAX_ROWS
from pyro_fed.deployment.policy.rules import answer_share
from pyro_fed.errors import PolicyError, ProtocolError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.runtime.executors.base import LOG_LIK, Reply, Work
from pyro_fed.runtime.executors.local import Sequential


class AgentFederation(ClaimedFederation):
    """The federation of all agents, which claim `counts` (A,) rows, with the rows of one, `own`, number `me`."""

    def __init__(self, own: Federation, names: Sequence[str], me: int, counts: Tensor) -> None:
        if bool((counts < 1).any()) or bool((counts > MAX_ROWS).any()):
            worst = int(((counts < 1) | (counts > MAX_ROWS)).nonzero()[0])
            raise ProtocolError(
                f"agent {names[worst]} says it has {int(counts[worst])} rows, expected 1 to {MAX_ROWS}: check the "
                "rows that it was given"
            )
        vars(self).update(vars(own.with_problem(own.problem)))
        self.me, self.claimed = me, counts
        self.client_names = list(names)
        nothing = torch.zeros(0, dtype=torch.int64)
        self.client_rows = [own.client_rows[0] if i == me else nothing for i in range(len(names))]
        self.problem = replace(own.problem, num_rows=int(counts.sum()), num_clients=len(names))

    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """Rows of some agents: index (C, n), num_rows (C,). Other agents' rows are this agent's first row."""
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        own = padded_index(self.client_rows[self.me], int(self.claimed.max()))
        index = own.new_zeros(self.num_clients, own.shape[1])
        index[self.me] = own[0]
        return ClientData(self.problem.rows, index[chosen], self.claimed[chosen])

    def pooled_data(self) -> ClientData:
        """Raise ProtocolError: an agent cannot pool rows."""
        raise ProtocolError(
            "an agent has only its own rows, and cannot run an algorithm on pooled data: take one for agents, P2PVI, "
            "P2PEP or P2PFedAvg"
        )


#: Most exchanges that a question about the result takes: of sites, and of log-likelihoods.
MAX_EXCHANGES = 2


class AuditedAgent(Sequential):
    """An agent's own work, and its questions to all agents about its draws, while every agent asks the same.

    Each exchange has a round of its own, so that it is an order of its own in the ledger; `first` is that of the first
    one, -1 that of the audit.
    """

    def __init__(self, links: Links, first: int = -1) -> None:
        super().__init__()
        self.links, self._next = links, At(AUDIT_PHASE, first, 0)

    def ask(self, kind: str, work: Work) -> State:
        """All agents' log-likelihoods (A, S) at this agent's draws; an indicator of its own rows alone."""
        if kind != LOG_LIK:
            return super().ask(kind, work)

        def answer(received: Work) -> State:
            return {LOG_LIK: super(AuditedAgent, self).ask(LOG_LIK, received)[LOG_LIK].double()}

        try:
            return self.exchange(work, {"draws": work.shared["draws"][:1].clone()}, answer)
        except PolicyError as error:
            raise StoppedError(str(error)) from error

    def exchange(
        self,
        work: Work,
        asked: State,
        answer: Callable[[Work], State],
        kind: str = "log_likelihood",
        share: Callable[[Sequence[State]], float | None] | None = None,
        cells: Callable[[State], Mapping[str, int]] = lambda _: {},
    ) -> State:
        """Every agent's answer (A, ...) to what this agent has `asked` (1, ...).

        Every agent tells all others what it asks, and then its answers to all. `kind`, `share` (of the questions) and
        `cells` (of the answers) are those of the message with the answers, see `Links.release`.
        """
        links, wait, first = self.links, self.links.settings.patience, self._next
        second = first._replace(step=first.step + links.peers.diameter)
        self._next = At(AUDIT_PHASE, first.round + 1, second.step + links.peers.diameter)
        every, _ = links.spread(first, asked, wait, whole=True)
        received = [select(every, slice(j, j + 1)) for j in range(len(links.names))]
        answers = concatenate([answer(Work(work.round, work.seed, [links.me], one)) for one in received])
        told = {name: value[None] for name, value in answers.items()}
        of_received = None if share is None else partial(share, received)
        found, _ = links.spread(second, told, wait, True, kind, of_received, cells(answers))
        return {name: value[:, links.me] for name, value in found.items()}


class AskedAgents(AuditedAgent):
    """All agents' answers to this agent's question, while every agent asks the same about its own result."""

    def execute(self, work: Work) -> Reply:
        """Every agent's answer (A, ...) at this agent's draws."""
        question, me = cast_checked(self.algorithm, OneRound), self.links.me
        own = self.data.of(torch.tensor([me]))

        def answer(received: Work) -> State:
            return super(AskedAgents, self).execute(received).messages

        def share(received: Sequence[State]) -> float | None:
            shares = [answer_share(question, self.problem, one, own) for one in received]
            known = [one for one in shares if one is not None]
            return max(known) if len(known) == len(shares) else None

        asked = select(work.shared, torch.tensor([me]))
        return Reply(self.exchange(work, asked, answer, question.answer_kind, share, question.cells), {})
