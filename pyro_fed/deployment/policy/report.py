"""What a recipe will send from a site, in words; and a page for a data-protection officer on what has left it.

Before anything is sent, the recipe is rehearsed at the site on its own rows, dealt to three clients: every phase with
the messages that its clients make. Their shapes follow from the model and the settings; how many rounds there will be
is the most that the algorithm takes, or the recipe's own number.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Plan
from pyro_fed.analysis.criticism import loo
from pyro_fed.analysis.predicting.row_sums import named_questions
from pyro_fed.analysis.report import page, tables
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.problem import Problem
from pyro_fed.deployment.policy.gate import Gate, Outgoing, verify
from pyro_fed.deployment.policy.rules import COMPUTED, KINDS, Policy
from pyro_fed.errors import DataError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import ring
from pyro_fed.policy import Setup, phases_of, resolve_for_run, stages_of
from pyro_fed.recipes.recipe import Recipe
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.base import LOG_LIK, MAX_ASKED_DRAWS, Reply
from pyro_fed.runtime.executors.local import Sequential
from pyro_fed.runtime.run import run

TEMPLATES = Path(__file__).parent / "templates"
#: What each rule says, in words; `{}` is its value.
RULES = {
    "approval": "A run leaves only if this site has approved its model, settings, package version and rules: {}",
    "kinds": "Kinds of messages that may leave: {}",
    "min_rows": "Nothing leaves if the site has fewer rows than {}",
    "min_cell": "A table leaves only if each cell that is not empty has at least so many rows: {}",
    "min_level": "A hash of a text column's labels leaves only if each label has at least so many rows: {}",
    "max_numbers_per_row": "The most numbers in one message for each row of the site: {}",
    "max_share": "The largest share that one row may have in a number that leaves (dominance): {}",
    "max_rounds": "The most orders that are answered with numbers computed from the rows: {}",
    "error_text": "The text of an error, which may have values of rows in it, may leave: {}",
    "keep_orders": "The orders are kept at the site, so that each message can be computed again: {}",
}

#: A line of the ledger.
Line = dict[str, Any]
#: Clients of the rehearsal.
REHEARSAL_CLIENTS = 3


class Sent(NamedTuple):
    """Messages of one kind: the algorithm that asks, the most rounds, and the shapes of their numbers."""

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
    """What a recipe's messages will be, from a rehearsal on a site's own rows."""
    federation = Federation(model, rows, plate=plate, rows=nested, num_clients=REHEARSAL_CLIENTS)
    problem, named = federation.problem, chosen.build()
    graph = ring(REHEARSAL_CLIENTS) if isinstance(named, OnGraph) and "graph" not in chosen.run else None
    options = chosen.run_options(REHEARSAL_CLIENTS)
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
            rounds = own if last and own is not None else phase.algorithm.default_rounds(REHEARSAL_CLIENTS)
            yield Sent("update", name, rounds, watching.seen.get(name, {}))


def questions(module: Any, problem: Problem) -> tuple[Sent, ...]:
    """The questions that a server or other agents may ask besides a recipe, of a model's module and its densities."""
    estimands = named_questions(module, problem).items()
    draws = {"draws.": torch.empty(1, MAX_ASKED_DRAWS)}
    full = (problem.dim, problem.dim) if problem.traits.few_parameters else (problem.dim,)
    site = {"precision": full, "eta": (problem.dim,)}
    return (
        *(
            Sent("estimate", name, 1, {n: tuple(one.shape) for n, one in asked.reply_like(draws).items()})
            for name, asked in estimands
        ),
        Sent("log_likelihood", "the audit, influence and leave_one_client_out", 1, {LOG_LIK: (MAX_ASKED_DRAWS,)}),
        Sent("state", "leave_one_client_out, for each agent that asks", 1, site),
        Sent("loo", "leave-one-out", 1, {"sums": (len(loo.SUMS),)}),
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


# -- The officer's page ------------------------------------------------------------------------------------------


def write_report(path: Path, ledger: Path, head: str | None = None) -> None:
    """Write an HTML page on what left a site, from its ledger, after that was verified (`head` as for `verify`)."""
    lines = verify(ledger, head)
    if not lines:
        raise DataError(f"{ledger} has no lines: nothing has left, and there is nothing to report")
    left, refused = [one for one in lines if one["left"]], [one for one in lines if not one["left"]]
    first, last = lines[0]["time"][:10], lines[-1]["time"][:10]
    sites = ", ".join(sorted({str(one["site"]) for one in lines}))
    page.write_page(
        path,
        "what_left.html",
        TEMPLATES,
        title=f"What left {sites}",
        lead=f"{first} to {last}; from the site's own ledger of {len(lines):,} lines",
        summary=_summary(sites, left, refused),
        checked=head is not None,
        chain=_chain(lines, head),
        facts=_facts(lines, left, refused),
        tables=[_by_kind(left), _refusal_table(refused), rules_table(lines)],
        messages=_list(lines),
        colophon=f"Made by pyro-fed node report, pyro_fed {VERSION}, from a ledger with the SHA-256 "
        f"{hashlib.sha256(ledger.read_bytes()).hexdigest()}.",
    )


def _summary(sites: str, left: list[Line], refused: list[Line]) -> str:
    computed = [one for one in left if one["kind"] in COMPUTED]
    numbers, size = sum(one["numbers"] for one in computed), sum(one["bytes"] for one in left)
    return (
        f"Messages that left {sites}: {len(left):,}, of {size:,} bytes. Computed from the rows: {len(computed):,}, "
        f"with {numbers:,} numbers together; each is a function of all of the site's rows, and none is a row. The "
        "others have no number that was computed from a row's values. Refused by the site's rules, so that they did "
        f"not leave: {len(refused):,}."
    )


def _chain(lines: list[Line], head: str | None) -> str:
    last = f"The last line's hash is {lines[-1]['hash']}."
    if head is None:
        return (
            "Each line was checked against the one before it: none was changed, removed or moved before the last one. "
            f"Whether lines are missing at the end was not checked, since no hash was given that had been kept. {last}"
        )
    return f"Each line was checked, up to and beyond the one whose hash was kept elsewhere: all are there. {last}"


def table(
    title: str, note: str, columns: list[str], rows: Iterable[Iterable[object]], none: str = ""
) -> dict[str, Any]:
    """A table of the page; `none` is what it says without rows."""
    return {"title": title, "note": note, "columns": columns, "rows": [list(row) for row in rows], "none": none}


def _by_kind(left: list[Line]) -> dict[str, Any]:
    rows = []
    for kind, to in dict.fromkeys((str(one["kind"]), str(one["to"])) for one in left):
        some = [one for one in left if (one["kind"], one["to"]) == (kind, to)]
        most = max(one["numbers"] / max(1, one["rows"]) for one in some)
        each = f"{most:.3g}" if kind in COMPUTED else "none"
        dates = f"{some[0]['time'][:16].replace('T', ' ')} to {some[-1]['time'][:16].replace('T', ' ')}"
        numbers = sum(one["numbers"] for one in some)
        rows.append([kind, KINDS.get(kind, ""), to, f"{len(some):,}", f"{numbers:,}", each, dates])
    columns = ["kind", "what it says", "to", "messages", "numbers", "most numbers in a message for each row", "when"]
    return table("What left, and how often", "Times are UTC.", columns, rows, "Nothing has left.")


def _refusal_table(refused: list[Line]) -> dict[str, Any]:
    counts = Counter((str(one["refused_by"]), str(one["kind"])) for one in refused)
    rows = [[rule, kind, f"{count:,}"] for (rule, kind), count in counts.most_common()]
    note = "These messages were computed, judged and not sent."
    return table("What was refused", note, ["by the rule", "kind", "messages"], rows, "No message was refused.")


def rules_table(lines: list[Line]) -> dict[str, Any]:
    """The rules in force at a ledger's lines, as a table of the page."""
    rows: list[list[str]] = []
    for line in lines:
        if "rules" in line:
            since, usual = line["time"][:10], Policy().rules()
            same = line["rules"] == usual
            rows += [["none: all may leave", since, line["policy"][:12]]] if same else []
            changed = {name: value for name, value in line["rules"].items() if value != usual.get(name)}
            rows += [[RULES.get(name, name + ": {}").format(_value_in_words(value)), since, line["policy"][:12]]
                     for name, value in changed.items()]  # fmt: skip
    approvals = [str(one) for one in dict.fromkeys(line["approval"] for line in lines) if one]
    approved = (
        f"Approved by the site: {', '.join(approvals)}." if approvals else "The site had approved nothing by hash."
    )
    note = f"Rules of policy.toml, which the site's own process applies before a message is sent. {approved}"
    return table("Under which rules", note, ["rule", "from", "hash of the rules"], rows)


def _value_in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _facts(lines: list[Line], left: list[Line], refused: list[Line]) -> dict[str, str]:
    """The facts of the ledger that the template has beside the words of GDPR and HIPAA."""
    computed = [one for one in left if one["kind"] in COMPUTED]
    most = max((one["numbers"] / max(1, one["rows"]) for one in computed), default=0.0)
    fewest = min((int(one["rows"]) for one in computed), default=0)
    aggregate = (
        f"messages are functions of all of the site's rows together ({fewest:,} or more), with at most {most:.3g} "
        "numbers for each row. They are no rows, and they are not anonymous by that alone: SECURITY.md of pyro_fed "
        "says how much an attack reconstructs from such messages"
    )
    rules = any(one["policy"] != Policy().digest for one in lines)
    judged = "by the rules above" if rules else "by no rule: the site had none"
    return {
        "kinds": ", ".join(sorted({str(one["kind"]) for one in left})),
        "aggregate": aggregate if computed else "no message that was computed from the rows has left",
        "chained": f"{len(lines):,} hash-chained lines, one for each message, written before it was sent",
        "judging": f"each message was judged before it was sent, {judged}; refused: {len(refused):,}",
    }


def _list(lines: list[Line]) -> dict[str, Any]:
    rows = [
        [one["number"], one["time"].replace("+00:00", ""), one["kind"], one["to"],
         "" if one["round"] < 0 else one["round"], "left" if one["left"] else f"refused: {one['refused_by']}",
         f"{one['numbers']:,}", f"{one['bytes']:,}", one["sha256"][:16]]
        for one in lines[-tables.MAX_ROWS:]
    ]  # fmt: skip
    more = len(lines) - len(rows)
    note = f"The latest {len(rows):,}; {more:,} earlier ones are in the ledger." if more else "All of them."
    columns = ["number", "time (UTC)", "kind", "to", "round", "left", "numbers", "bytes", "SHA-256, its beginning"]
    return table("Every message", note, columns, rows)
