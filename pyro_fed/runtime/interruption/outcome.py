"""The result of a run that was cut short by Ctrl-C or by its limit of time: a posterior that is marked as incomplete.

If there is no posterior yet, the run ends with an error that keeps the state.
"""

from __future__ import annotations

import torch

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Round, as_figures
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.conventions.time_limit import is_time
from pyro_fed.errors import InterruptedRun, PartialWork, TimeLimitError
from pyro_fed.runtime.context import Context, Phase

#: The fewest draws of a chain: a single one is its start.
FEWEST_DRAWS = 2


def cut_short(phase: Phase, context: Context, stop: KeyboardInterrupt) -> None:
    """Record that a phase was cut short, and refuse to go on if its state is no posterior.

    The state is a posterior in the last phase, if that has had a round, or starts from a phase that had converged, or
    if the exception brings a part of a round's draws (`PartialWork`).

    Raises:
        InterruptedRun: Ctrl-C, and the state is no posterior.
        TimeLimitError: the limit of time, and the state is no posterior.
    """
    algorithm, record = phase.algorithm, context.record
    name, when = type(algorithm).__name__, f"after {phase.done} of {phase.rounds} rounds"
    record.converged = False if record.converged is not None else None
    part = False
    if phase.last and isinstance(stop, PartialWork):
        part = True
        one = torch.ones(1, dtype=context.problem.dtype)
        phase.shared = algorithm.combine(phase.shared, stop.messages, one)
        record.rounds.append(Round(name, [0], 0, 0, 0.0, as_figures(stop.info)))
        when = "with the draws that there were"
    if is_time(stop):
        budget = context.budget
        budget.ended = budget.limit_of_time
        record.stopped = f"stopped at the limit of {budget.max_seconds:g} s, {when}"
    else:
        record.interrupted = True
        kept = "the draws that there were" if part else "what it had found by then"
        after = "" if part else f" {when}"
        record.findings.append(sentences.interrupted(algorithm=name, after=after, kept=kept))
    if not phase.last or not (part or phase.done or phase.settled):
        where = "" if phase.last else ", with which the run starts"
        raise no_posterior(f"{name}{where}, {when}", context, algorithm, phase.shared)


def no_posterior(when: str, context: Context, algorithm: Algorithm, state: State) -> InterruptedRun | TimeLimitError:
    """The error for a run that was cut short before there was a posterior; it keeps the state.

    `when` is a clause that says which algorithm was cut short, and after how many rounds.
    """
    folder = None if context.checkpoint is None else context.checkpoint.folder
    kept = "in this error's `state`" if folder is None else f"in {folder}: go on from there with resume=True"
    if not context.record.stopped:
        return InterruptedRun(
            f"interrupted in {when}, before there was a posterior. The state is kept {kept}", algorithm, state
        )
    error = TimeLimitError(
        f"{context.budget.ended} was over in {when}, before there was a posterior. Give the run more time, fewer rows "
        f"or a simpler model. The state is kept {kept}"
    )
    error.algorithm, error.state = algorithm, state
    return error
