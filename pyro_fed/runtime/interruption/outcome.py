"""What an interrupted run returns: a posterior that is marked as incomplete, or nothing but the state."""

from __future__ import annotations

import torch

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Round, as_figures
from pyro_fed.algorithm.states import State
from pyro_fed.errors import InterruptedRun, PartialWork
from pyro_fed.runtime.context import Context, Phase

#: Draws a chain that are the least to be called one: a single one is where it started.
FEWEST_DRAWS = 2


def interrupted(phase: Phase, context: Context, stop: KeyboardInterrupt) -> None:
    """Take note of the user's Ctrl-C in a phase; what its last state says may be a posterior or not.

    Args:
        phase: it, after its last whole round.
        context: the run.
        stop: the exception, which may have brought a part of the round's work.

    Raises:
        InterruptedRun: the state is no posterior: that of an algorithm that the user's own starts from, or of one that
            has had no round.
    """
    algorithm, record = phase.algorithm, context.record
    name = type(algorithm).__name__
    record.interrupted, record.converged = True, False if record.converged is not None else None
    if isinstance(stop, PartialWork) and phase.last:
        one = torch.ones(1, dtype=context.problem.dtype)
        phase.shared = algorithm.combine(phase.shared, stop.messages, one)
        record.rounds.append(Round(name, [0], 0, 0, 0.0, as_figures(stop.info)))
        record.notes.append(f"{name} was interrupted: the result is incomplete, the draws that there were")
        return
    record.notes.append(
        f"{name} was interrupted after {phase.done} of {phase.rounds} rounds: the result is incomplete, what it had "
        "found by then"
    )
    if not phase.last or not phase.done:
        where = "" if phase.last else ", with which the run starts"
        raise no_posterior(
            f"{name}{where}, after {phase.done} of {phase.rounds} rounds", context, algorithm, phase.shared
        )


def no_posterior(when: str, context: Context, algorithm: Algorithm, state: State) -> InterruptedRun:
    """The error that an interrupted run ends with where there is nothing to return.

    Args:
        when: it was interrupted.
        context: the run.
        algorithm: what ran.
        state: its last one.
    """
    folder = None if context.checkpoint is None else context.checkpoint.folder
    kept = "in this error's `state`" if folder is None else f"in {folder}: go on from there with resume=True"
    return InterruptedRun(
        f"interrupted in {when}, before there was a posterior. The state is kept {kept}", algorithm, state
    )
