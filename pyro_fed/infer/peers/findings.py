"""Warnings about the beliefs of agents at the end of a run."""

from __future__ import annotations

from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE


def disagreement(record: Record) -> list[Finding]:
    """A warning if agents still disagree at the end."""
    sds = record.latest.get("disagreement", 0.0)
    return [sentences.agents_disagree(sds=sds)] if sds > NEGLIGIBLE else []


def stalled_agents(record: Record) -> list[Finding]:
    """A warning about agents that could not apply any part of their last change."""
    stalled = (record.last("fraction") == 0).nonzero()[0].tolist()
    workers = record.workers("fraction")
    return [sentences.agents_could_not_move(clients=[workers[i] for i in stalled])] if stalled else []


def unused_rows(record: Record, batch_size: int | None) -> list[Finding]:
    """A warning about rows that no round has used, with the number of rounds needed."""
    left = record.last("rows_left")
    if left.sum() == 0:
        return []
    more = -(-int(left.max()) // int(batch_size or 1))
    cure = f"run at least {more} more rounds, or use larger batches"
    return [sentences.rows_never_used(rows=int(left.sum()), cures=[cure])]


def published_target(record: Record, batch_size: int | None, drawn: bool) -> list[Finding]:
    """A warning about the target of the published weighting; `drawn`: the prior mean is a draw."""
    agents = len(record.client_names)
    counted = (len(record.figures) if batch_size is None else 1) / agents
    how = "again in every round" if batch_size is None else "once"
    start = "; and a mean drawn at random stands for the prior's" if drawn else ""
    return [sentences.published_weighting(agents=agents, counted=counted, again=how, start=start)]
