"""What is shown to the people of a study: what a request is, what would leave a site, how many mails are to come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.algorithm.schedule import Informed
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.analysis.predicting.row_sums import RowSums
from pyro_fed.density.problem import Problem
from pyro_fed.deployment.files.letter import Letter
from pyro_fed.deployment.policy.rules import KINDS
from pyro_fed.deployment.remote.order import STATES, WORK, Order
from pyro_fed.deployment.remote.site import Done
from pyro_fed.policy import Setup, chain_of, resolve_for_run, stages_of
from pyro_fed.runtime.executors.base import LOG_LIK

#: A tensor with no more numbers is printed whole.
MAX_NUMBERS_IN_FULL = 12
#: What the parts of a reply are.
PARTS = {
    "messages": "for the server",
    "info": "a figure of the site's computation",
    "new": "the site's new state, from which the next algorithm starts",
    "local": "the site's state",
    "report": "an answer to the question",
}


def request_words(letter: Letter, key: str, model: Path, recipe: Path) -> str:
    """What the first request of a study is, for the person at a site."""
    more = letter.more
    options = ", ".join(f"{name} {value}" for name, value in dict(more.get("options", {})).items()) or "none"
    return "\n".join(
        [
            f"Study {more.get('name')!s:.200}, id {letter.study}; this site is {letter.site}, of "
            f"{', '.join(map(str, more.get('sites', []))):.2000}",
            f"signed by the key {key}",
            f"model (code that runs here): {model}",
            f"recipe: {recipe}",
            f"options: {options:.2000}",
            f"needs: {more.get('needs')!s:.2000}",
        ]
    )


def description_words(description: dict[str, Any]) -> str:
    """What the first answer says."""
    return (
        "The first answer has no values of rows. It says the number of rows, the shapes and dtypes of columns, their "
        f"names, hashes of labels, and this site's public key:\n{json.dumps(description, indent=1)}"
    )


def order_words(order: Order, algorithm: Algorithm) -> str:
    """What an order asks for."""
    if isinstance(algorithm, RowSums):
        return f"Asked: {KINDS['estimate']}. The estimand is {algorithm.name!r}: {algorithm.question!r}"
    if isinstance(algorithm, OneRound):
        return f"Asked: {KINDS['loo']}"
    if order.job == LOG_LIK:
        return "Asked: the log-likelihood of this site's rows, summed over the rows, at each of some draws (the checks)"
    if order.job == STATES:
        return f"Asked: the site's own state of {order.algorithm:.300}, from which the next algorithm starts"
    if order.job != WORK:
        return f"Asked: the indicator {order.job:.100} of {order.algorithm:.300}"
    return f"Asked: the site's part of round {order.round + 1} of {order.algorithm:.300}"


def reply_words(done: Done) -> str:
    """What would leave: every tensor with its shape, and its numbers where these are few."""
    numbers = sum(value.numel() for value in done.tensors.values())
    lines = [f"Would leave: {numbers:,} numbers, computed from {done.num_rows:,} rows; no row itself"]
    lines += [_tensor_words(name, value) for name, value in done.tensors.items()]
    return "\n".join(lines)


def _tensor_words(name: str, value: Tensor) -> str:
    part, _, own = name.partition(".")
    shape = " x ".join(map(str, value.shape)) or "1"
    text = f"  {own}: {shape} {str(value.dtype).removeprefix('torch.')}, {PARTS.get(part, part)}"
    if value.numel() > MAX_NUMBERS_IN_FULL:
        return text
    return f"{text}: {', '.join(format(float(one), '.4g') for one in value.flatten())}"


def needs_words(algorithm: Algorithm | Plan, num_rounds: int | None, num_sites: int, audit: bool) -> str:
    """How many exchanges a recipe needs, as far as it says so itself, before anything is known of the rows."""
    if isinstance(algorithm, Plan):
        return _sentence("those of its stages, which the first `combine` prints", audit)
    rounds = algorithm.default_rounds(num_sites) if num_rounds is None else num_rounds
    start = "those of another algorithm from which it starts, if the model needs one"
    return _sentence(f"{_of(algorithm, rounds)}, besides {start}", audit)


def needs_words_of(
    algorithm: Algorithm | Plan, num_rounds: int | None, num_sites: int, audit: bool, problem: Problem, graph: Any
) -> str:
    """How many exchanges a recipe needs for a model: those of all phases of its first stage."""
    stages = stages_of(algorithm, problem, graph)
    first = resolve_for_run(stages[0].algorithm, problem, Setup(graph)).algorithm
    chain = chain_of(first, problem)
    rounds = [part.default_rounds(num_sites) for part in chain]
    if num_rounds is not None:
        rounds[-1] = num_rounds
    parts = [_of(part, number) for part, number in zip(chain, rounds, strict=True)]
    more = f", and more if the first of {len(stages)} stages leaves doubts" if len(stages) > 1 else ""
    return _sentence(", then ".join(parts) + more, audit)


def _of(algorithm: Algorithm, rounds: int) -> str:
    """The number of exchanges of an algorithm; a schedule that asks how important sites are takes another each."""
    each = 2 if isinstance(algorithm.default_schedule(), Informed) else 1
    number, name = rounds * each, type(algorithm).__name__
    if rounds > 1 and type(algorithm).converged is not Algorithm.converged:
        return f"at most {number} for {name}, which stops when it has converged"
    return f"{number} for {name}"


def _sentence(model: str, audit: bool) -> str:
    checks = ", and 1 for the checks of the result" if audit else ""
    return f"1 exchange for the descriptions, then {model}{checks}"
