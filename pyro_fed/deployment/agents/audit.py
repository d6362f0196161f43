"""The audit of an agent's result: every agent tells the log-likelihood of its rows at every agent's draws.

These are two messages that are spread over the graph like statements: each agent's draws (S, D), then A × S numbers
each. An agent's own importance weights follow from them, as a server's do (`runtime.ending.by_sums`).
"""

from __future__ import annotations

from pyro_fed.algorithm.states import State
from pyro_fed.deployment.agents.neighbours import AUDIT, Links
from pyro_fed.deployment.agents.outbox import At
from pyro_fed.errors import PolicyError, StoppedError
from pyro_fed.runtime.executors.base import LOG_LIK, Work
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
