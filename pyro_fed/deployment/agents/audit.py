"""The audit of an agent's result and the questions about it: every agent answers at every agent's draws.

These are two messages that are spread over the graph like statements: each agent's draws, then its answers at the draws
of all. For the audit these are the log-likelihoods (A, S) of its rows; an agent's own importance weights follow from
them, as a server's do (`runtime.checks`). For leave-one-out and estimands they are sums over its rows.
"""

from __future__ import annotations

import torch

from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.deployment.agents.neighbours import AUDIT, Links
from pyro_fed.deployment.agents.outbox import At
from pyro_fed.deployment.policy.shares import answer_share
from pyro_fed.errors import PolicyError, StoppedError
from pyro_fed.runtime.executors.base import LOG_LIK, Reply, Work
from pyro_fed.runtime.executors.local import Sequential


class AuditedAgent(Sequential):
    """An agent's own work, and its question to all agents about its draws.

    Args:
        links: the agent's side of its links.

    Example:
        >>> context = Context(federation, problem, graph, AuditedAgent(links), seed, progress, record)
    """

    def __init__(self, links: Links) -> None:
        super().__init__()
        self.links = links

    def ask(self, kind: str, work: Work) -> State:
        """All agents' log-likelihoods (A, S) at this agent's draws; an indicator of its own rows alone.

        Raises:
            StoppedError: an agent is away, or does not answer by its rules.
        """
        if kind != LOG_LIK:
            return super().ask(kind, work)
        links, draws = self.links, work.shared["draws"][:1].clone()
        first, wait = At(AUDIT, -1, 0), links.settings.patience
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
    """All agents' answers to this agent's question about its result, while every agent asks the same about its own.

    Args:
        links: the agent's side of its links.
        number: the question's number, the same at all agents.

    Example:
        >>> with_estimand(result, federation, AskedAgents(links, 0), module, "risk")
    """

    def __init__(self, links: Links, number: int) -> None:
        super().__init__()
        self.links, self.number = links, number

    def execute(self, work: Work) -> Reply:
        """Every agent's answer (A, ...) at this agent's draws."""
        links, asked = self.links, cast_checked(self.algorithm, OneRound)
        first, wait, me = At(AUDIT, self.number, 0), links.settings.patience, torch.tensor([links.me])
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
