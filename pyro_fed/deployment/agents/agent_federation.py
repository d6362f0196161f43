"""The federation and the executors as one agent knows them, in place of a simulation's.

States have one entry for each agent, so that the algorithm's functions, the noise and the schedule are the same. An
agent reads and writes its own entry; the others keep their values from the phase's beginning.

For the audit and for questions every agent answers at every agent's draws. These are two messages that are spread over
the graph like statements: each agent's draws, then its answers (log-likelihoods, or sums over its rows) at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


class AuditedAgent(Sequential):
    """An agent's own work, and its question to all agents about its draws."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.links = links

    def ask(self, kind: str, work: Work) -> State:
        """All agents' log-likelihoods (A, S) at this agent's draws; an indicator of its own rows alone."""
        if kind != LOG_LIK:
            return super().ask(kind, work)
        links, draws = self.links, work.shared["draws"][:1].clone()
        first, wait = At(AUDIT_PHASE, -1, 0), links.settings.patience
        try:
            every, _ = links.spread(first, {"draws": draws}, wait, whole=True)
            asked = {"draws": every["draws"].flatten(0, 1)[None]}
            own = super().ask(LOG_LIK, Work(work.round, work.seed, [links.me], asked))[LOG_LIK]
            told = {LOG_LIK: own.double().reshape(1, *every["draws"].shape[:2])}
            found, _ = links.spread(first._replace(step=links.peers.diameter), told, wait, True, "log_likelihood")
        except PolicyError as error:
            raise StoppedError(str(error)) from error
        return {LOG_LIK: found[LOG_LIK][:, links.me]}


class AskedAgents(Sequential):
    """All agents' answers to this agent's question, while every agent asks the same about its own result."""

    def __init__(self, links: Links, number: int) -> None:
        super().__init__()
        self.links, self.number = links, number

    def execute(self, work: Work) -> Reply:
        """Every agent's answer (A, ...) at this agent's draws."""
        links, asked = self.links, cast_checked(self.algorithm, OneRound)
        first, wait, me = At(AUDIT_PHASE, self.number, 0), links.settings.patience, torch.tensor([links.me])
        every, _ = links.spread(first, select(work.shared, me), wait, whole=True)
        own = self.data.of(me)
        received = [select(every, slice(j, j + 1)) for j in range(len(links.names))]
        orders = [Work(work.round, work.seed, [links.me], one) for one in received]
        answers = concatenate([super(AskedAgents, self).execute(order).messages for order in orders])

        def share() -> float | None:
            shares = [answer_share(asked, self.problem, one, own) for one in received]
            known = [one for one in shares if one is not None]
            return max(known) if len(known) == len(shares) else None

        found, _ = links.spread(
            first._replace(step=links.peers.diameter),
            {name: value[None] for name, value in answers.items()},
            wait,
            True,
            asked.answer_kind,
            share,
            asked.cells(answers),
        )
        return Reply({name: value[:, links.me] for name, value in found.items()}, {})
