"""What a recipe will send from a site, in words, before anything is sent.

The recipe is rehearsed at the site on its own rows, dealt to three clients: every phase with the messages that its
clients make. Nothing leaves. The shapes of messages follow from the model and the settings; how many rounds there will
be is the most that the algorithm takes, or the recipe's own number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Plan
from pyro_fed.analysis.predicting.row_sums import named_questions
from pyro_fed.density.problem import Problem
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.deployment.policy.rules import KINDS
from pyro_fed.errors import StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import ring
from pyro_fed.policy import Setup, phases_of, resolve_for_run, stages_of
from pyro_fed.recipes.recipe import Recipe
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.base import LOG_LIK, MOST_DRAWS, Reply
from pyro_fed.runtime.executors.local import Sequential
from pyro_fed.runtime.run import run

#: Clients of the rehearsal.
CLIENTS = 3
#: Numbers that a site sends for leave-one-out.
LOO_NUMBERS = 11


class Sent(NamedTuple):
    """Messages of one kind: the algorithm that asks for them, the most rounds, and the shapes of their numbers."""

    kind: str
    algorithm: str
    rounds: int
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """Numbers in a message."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())


class _Watching(Sequential):
    """Notes the shapes of the first message in each phase."""

    def __init__(self) -> None:
        self.seen: dict[str, Mapping[str, tuple[int, ...]]] = {}

    def execute(self, work: Work) -> Reply:
        reply = super().execute(work)
        name = type(self.algorithm).__name__
        self.seen.setdefault(name, {entry: tuple(value.shape[1:]) for entry, value in reply.messages.items()})
        return reply


def preview(
    model: Callable[..., Any], rows: tuple[Any, ...], plate: str, nested: Any, chosen: Recipe
) -> Iterator[Sent]:
    """What a recipe's messages will be, from a rehearsal on a site's own rows.

    Args:
        model: the Pyro model.
        rows: its arguments with the site's rows.
        plate: the plate over rows.
        nested: plates within it, `ROWS` of the model's file; None for none.
        chosen: the recipe.
    """
    federation = Federation(model, rows, plate=plate, rows=nested, num_clients=CLIENTS)
    problem, named = federation.problem, chosen.build()
    graph = ring(CLIENTS) if isinstance(named, OnGraph) and "graph" not in chosen.run else None
    options = chosen.run_options(CLIENTS)
    graph = options.get("graph", graph)
    for stage in stages_of(named, problem, graph):
        found = resolve_for_run(stage.algorithm, problem, Setup(graph))
        watching = _Watching()
        with warnings.catch_warnings(), suppress(StoppedError):  # a third of the rows may be too few for a posterior
            warnings.simplefilter("ignore")
            run(
                found.algorithm,
                federation,
                num_rounds=1,
                graph=graph,
                schedule=options.get("schedule"),
                executor=watching,
                compile="off",
                num_draws=2,
                audit=False,
                log_likelihood=False,
                progress=False,
            )
        own = None if isinstance(named, Plan) else chosen.run.get("num_rounds")
        for phase in phases_of(found, problem):
            name, last = type(phase.algorithm).__name__, phase.algorithm == found.algorithm
            rounds = own if last and own is not None else phase.algorithm.default_rounds(CLIENTS)
            yield Sent("update", name, rounds, watching.seen.get(name, {}))


def questions(module: Any, problem: Problem) -> tuple[Sent, ...]:
    """The questions that a server may ask besides a recipe, of a model's module and its densities."""
    estimands = named_questions(module, problem).items()
    draws = {"draws.": torch.empty(1, MOST_DRAWS)}
    return (
        *(
            Sent("estimate", name, 1, {n: tuple(one.shape) for n, one in asked.reply_like(draws).items()})
            for name, asked in estimands
        ),
        Sent("log_likelihood", "the audit, and influence", 1, {LOG_LIK: (MOST_DRAWS,)}),
        Sent("loo", "leave-one-out", 1, {"sums": (LOO_NUMBERS,)}),
    )


def in_words(sent: Sent, gate: Gate, share: Callable[[], float | None]) -> str:
    """A line on messages of one kind: how often, what, how many numbers, and whether the rules let them out."""
    rows = max(1, gate.rows)
    shapes = ", ".join(
        f"{name} {' x '.join(map(str, shape)) if shape else 'one number'}" for name, shape in sent.shapes.items()
    )
    times = "once" if sent.rounds == 1 else f"up to {sent.rounds} times"
    each = f"{sent.numbers:,} numbers ({shapes}), {sent.numbers / rows:.3g} for each row"
    tensors = {name: torch.empty(shape, device="meta") for name, shape in sent.shapes.items()}
    refused = gate.objection(Outgoing(kind=sent.kind, data=b"", tensors=tensors, share=share), 1)
    verdict = f"REFUSED by {refused[0]}: {refused[1]}" if refused else "may leave"
    return f"{sent.kind}, {sent.algorithm}, {times}: {KINDS[sent.kind]}; {each}; {verdict}"
