"""run(): an algorithm on a federation, from settings to InferenceData."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from pyro_fed.algorithm.capabilities import (
    Bounding,
    DrawsAhead,
    FitsSize,
    Indicators,
    NoiseTracking,
    NoiseWithin,
    OnGraph,
    Pooled,
    check_taken_up,
)
from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.plan import Plan, stages_of
from pyro_fed.algorithm.privacy import Private
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.memory import kept_while_computing
from pyro_fed.conventions.progress import Show, showing
from pyro_fed.density.checks.funnels import with_hint
from pyro_fed.density.compiling.compiler import LEVELS, choose_level, maps, threads
from pyro_fed.density.compiling.mapping import trial
from pyro_fed.density.compiling.process import renewed
from pyro_fed.density.latents.layered import check_affordable
from pyro_fed.density.no_number import no_number
from pyro_fed.density.noncentred import NonCentred
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import check_outside, default_of
from pyro_fed.density.size import affordable_draws, repays_threads
from pyro_fed.errors import DivergenceError, SettingError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.budget import Budget
from pyro_fed.runtime.checkpoint import Checkpoint, fingerprint
from pyro_fed.runtime.checkpoint.handover import hand_over
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.ending import Finish
from pyro_fed.runtime.evaluation import Evaluate, Evaluation
from pyro_fed.runtime.executors import Executor, resolve
from pyro_fed.runtime.rounds import run_phases
from pyro_fed.runtime.stages import run_stages

#: Draws of a density where none are asked for.
NUM_DRAWS = 1000

#: More threads than any machine has.
MAX_THREADS = 4096
#: Draws of one parameter that fill a gigabyte.
MOST_DRAWS = 134_217_728


@checked
def run(
    algorithm: Algorithm | Plan,
    federation: Federation,
    *,
    num_rounds: int | None = None,
    max_seconds: float | None = None,
    schedule: Schedule | None = None,
    graph: Graph | None = None,
    executor: str | Executor = "vectorised",
    num_draws: int | None = None,
    seed: int = 0,
    compile: str = "auto",
    progress: Show = True,
    num_threads: int | Literal["auto"] | None = 1,
    log_likelihood: bool = True,
    collect_local: bool = True,
    audit: bool = True,
    start: str | Path | None = None,
    min_clients: int | None = None,
    combination: Combination | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> InferenceData:
    """Run an algorithm on a federation.

    Args:
        algorithm: what to run, such as `pf.DSVGD(num_particles=100)`, or `pf.Auto()`, which tries several.
        federation: the model and its clients.
        num_rounds: rounds of communication; the algorithm's own number by default.
        max_seconds: on the clock, after which the rounds end, at the next client or compiled step: the result is what
            the rounds that were done have found, as `num_rounds` would give it with their number, and says that it is
            incomplete. Its checks may take as long again; what is left then is left out, and said. How many rounds
            there is time for differs from run to run, so that such an answer is not reproducible.
        schedule: who works in a round; the algorithm's own by default. A phase that the algorithm starts from
            keeps its own.
        graph: who talks to whom, of an algorithm without a server, such as `pf.graph.ring(5)`; agents that the
            schedule leaves out of a round are asleep in it.
        executor: "vectorised" (all clients of a round in one call), "sequential", or an Executor.
        num_draws: draws of the posterior, where the result is a density (particles are returned as they are); None
            takes 1000, and of a model of more than 1000 parameters as many as 20 million numbers have room for.
        seed: the only source of randomness; same seed, same answer, whatever the executor.
        compile: "off", "trace" (steps become graphs of tensor operations, without Pyro), "inductor" (these are
            compiled), or "auto": what the expected work repays, and `max_seconds` leave time for.
        progress: whether to show how far the run is: a bar in a terminal or a notebook, a line now and then
            elsewhere; or a function that is called with a `Progress` after every round, see `pyro_fed.set_progress`.
        num_threads: torch threads during the run (restored afterwards); None leaves them. Small problems are
            fastest with one. "auto": one, or where rows × parameters are a million or more, those that torch has; sums
            of other orders may differ in the last bits.
        log_likelihood: compute the pointwise log-likelihood of all rows. Without it the draws' log density, `lp` in
            `sample_stats`, is left out too where draws × rows are more than 5e7.
        collect_local: let the clients draw the latents inside the plate and collect them, as only a simulation can;
            without, the log-likelihood of a row has them integrated out.
        audit: judge the result at its draws, by the model's own densities (see `pyro_fed.audit`), and warn of what
            speaks against it.
        start: checkpoint folder of an earlier run of the same algorithm on the same model, whose clients' sites this
            run begins with, by the clients' names: for clients that join or leave.
        min_clients: usable replies that a round needs (of those asked, where these are fewer); with fewer the round
            is not applied and the run stops. None: a run stops when nobody has replied for long. 0: likewise, and
            a round in which no reply at all is finite is skipped, where it is a divergence otherwise.
        combination: what the server puts in the place of the clients' messages, against clients that lie or for
            privacy, see `pyro_fed.combination`; for algorithms that need sums alone, such as FedAvg and FedSEP.
        evaluate: called after every round with the posterior so far (InferenceData with the group `posterior` alone;
            latents inside the plate left out) for figures by name, such as
            `lambda idata: pf.metrics.test_metrics(idata, fed, test)`; they stand in the group `federation` by round.
        evaluate_every: rounds from one evaluation to the next; between them the figures are NaN.
        checkpoint: folder that gets the state after every round (the latest two are kept).
        resume: go on from the checkpoint; the answer is that of an uninterrupted run, bit by bit. The run may have
            more rounds than the one that was saved, a finished one too: its answer is that of a run of so many from the
            start, to the bit where `compile` is not "auto", which chooses by their number how steps are computed.

    Returns:
        arviz.InferenceData with groups posterior, sample_stats, log_likelihood, observed_data, constant_data and
        federation (who took part, bytes and seconds over round and client), and audit, where there was one (how far
        off each mean and SD is, as far as it could tell). Ctrl-C ends the run early: it returns what has been found
        so far, with `attrs["interrupted"]`, where that is a posterior; a second one, or one at the end, its checks.
        `attrs["stopped"]` says where a limit of time ended it.

    Raises:
        SettingError: a setting out of its range; a graph that is missing, invalid, or for another number of agents.
        CheckpointError: a checkpoint of another run, or one that cannot be read.
        DivergenceError: an update left the finite numbers; its `result` holds the last finite state.
        QuorumError: too few clients replied; its `result` holds the state before that round.
        InterruptedRun: Ctrl-C before there was a posterior; its `state`, or the checkpoint, holds what there was.
        TimeLimitError: `max_seconds` were over before; likewise.

    Example:
        >>> fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
        >>> idata = pf.run(pf.FedEP(), fed)
        >>> idata.attrs["doubts"]
        ''
        >>> idata = pf.run(pf.P2PVI(), fed, num_rounds=50, graph=pf.graph.ring(10), seed=1)
    """
    if not isinstance(algorithm, Algorithm | Plan) or not isinstance(federation, Federation):
        raise SettingError(
            "run takes an algorithm and a federation, such as pf.run(pf.FedEP(), fed), "
            f"received {algorithm!r} and {federation!r}"
        )
    check_outside()
    plan = algorithm if isinstance(algorithm, Plan) else None
    budget = Budget(max_seconds=max_seconds)  # its clock begins here
    if plan is not None:
        _check_of_plan(
            plan,
            num_rounds=num_rounds,
            schedule=schedule,
            combination=combination,
            start=start,
            checkpoint=checkpoint,
        )
    stages = stages_of(algorithm, federation.problem, graph)
    for one in stages:
        check_taken_up(one.algorithm)
    first = stages[0].algorithm
    if isinstance(combination, Private) and isinstance(first, NoiseTracking):
        first = first.evenly()
    if isinstance(first, NoiseWithin):
        first = first.privately(combination if isinstance(combination, Private) else None)
    if isinstance(combination, Bounded) and isinstance(first, Bounding):
        first = first.boundable()
    if isinstance(first, FitsSize) and max_seconds is None:
        check_affordable(federation.problem)
    rounds = first.default_rounds(federation.num_clients) if num_rounds is None else num_rounds
    if num_threads == "auto":
        num_threads = None if repays_threads(federation.problem) else 1
    if num_draws is None:
        num_draws = affordable_draws(federation.problem, NUM_DRAWS, _chains(first, federation))
    check_numbers(rounds, num_draws, seed, min_clients, federation.num_clients, num_threads)
    first = _for_draws(first, num_draws)
    stages = [replace(one, algorithm=_for_draws(one.algorithm, num_draws)) for one in stages]
    if max_seconds is not None and not 0 < max_seconds < math.inf:
        raise SettingError(f"max_seconds must be positive, received {max_seconds}; None is no limit")
    _check_indicator(first, schedule)
    _check_folders(checkpoint=checkpoint, start=start)
    if resume and checkpoint is None:
        raise SettingError("resume=True needs checkpoint=, the folder that holds the state")
    if isinstance(first, Pooled) and first.joint and federation.problem.local_dim:
        apart = isinstance(federation.problem, NonCentred)
        federation = federation.joint.noncentred if apart else federation.joint
    with (
        threads(num_threads),
        torch.no_grad(),
        default_of(federation.problem.dtype),
        showing(progress),
        kept_while_computing(),
    ):
        seconds = min(filter(None, (max_seconds, plan.max_seconds if plan else None)), default=None)
        problem = compiled(federation.problem, compile, rounds, progress is not False, seconds)
        record = Record(federation.client_names)
        context = Context(
            federation, problem, graph, resolve(executor), seed, progress is not False, record, min_clients, combination
        )
        if evaluate is not None:
            context.evaluation = Evaluation(evaluate, evaluate_every, num_draws)
        if start is not None:
            context.start = hand_over(first, federation, Path(start))
        if checkpoint is not None:
            marks = fingerprint(first, federation, rounds, schedule, graph, seed, combination, start)
            context.checkpoint = Checkpoint(Path(checkpoint), marks, resume)
        finish = Finish(first, context, num_draws, log_likelihood, collect_local, audit)
        try:
            with context.interruption:
                context.budget = budget
                if plan is not None:
                    budget.max_rounds, budget.max_bytes = plan.max_rounds, plan.max_bytes
                    budget.max_seconds = seconds
                    return run_stages(plan, stages, finish)
                shared = run_phases(first, context, rounds, schedule)
        except StoppedError as error:
            if isinstance(error, DivergenceError):
                error.args = (with_hint(_with_cause(str(error), federation), problem),)
            if error.state is not None and error.result is None:
                with suppress(DivergenceError):  # a state that was never a distribution has no draws
                    # its error speaks against it: it is not audited, which could take long
                    error.result = replace(finish, algorithm=error.algorithm, audit=False)(error.state)
                    error.result.attrs["stopped"] = str(error)
            raise
        except ImproperGaussianError as error:
            error.args = (_with_cause(str(error), federation),)
            raise
        finally:
            context.executor.close()
            if context.checkpoint is not None:
                context.checkpoint.close()
        return finish(shared)


def _chains(algorithm: Algorithm, federation: Federation) -> int:
    """How many chains a result has: one an agent of a graph."""
    return federation.num_clients if isinstance(algorithm, OnGraph) else 1


def _for_draws(algorithm: Algorithm, num_draws: int) -> Algorithm:
    """The algorithm, told how many draws the result is to have where it makes them in its rounds."""
    return algorithm.for_draws(num_draws) if isinstance(algorithm, DrawsAhead) else algorithm


#: Arguments that belong to one algorithm, and what there is instead where several are tried.
OF_ONE_ALGORITHM = {
    "num_rounds": "its stages have rounds of their own; limit them by {name}(max_rounds=...)",
    "schedule": "each of its stages has its own",
    "combination": "its stages need every client's own message",
    "start": "it hands over between its stages by itself; run FedEP(), which can start there",
    "checkpoint": "only a single algorithm can be resumed",
}


def _check_of_plan(plan: Plan, **given: Any) -> None:
    """Refuse what belongs to one algorithm where several are tried."""
    for name, value in given.items():
        if value is not None:
            kind = type(plan).__name__
            cure = OF_ONE_ALGORITHM[name].format(name=kind)
            raise SettingError(
                f"{kind} does not take {name}=: {cure}. Leave it out, or run one algorithm, such as pf.FedEP()"
            )


def _check_folders(**folders: str | Path | None) -> None:
    """Refuse texts that name no folder: an empty one would be the folder that the program runs in.

    Raises:
        SettingError: names the argument.
    """
    for name, folder in folders.items():
        if folder is not None and (not str(folder).strip() or "\0" in str(folder)):
            raise SettingError(f"{name} must be a folder's path, received {str(folder)!r}; such as {name}='state'")


def check_numbers(
    rounds: int, num_draws: int, seed: int, min_clients: int | None, num_clients: int, num_threads: int | str | None
) -> None:
    """Refuse numbers out of their ranges.

    Args:
        rounds: of the algorithm.
        num_draws: of a density.
        seed: of the run.
        min_clients: the quorum.
        num_clients: how many there are.
        num_threads: of torch.

    Raises:
        SettingError: names the argument.
    """
    if isinstance(num_threads, int) and not 1 <= num_threads <= MAX_THREADS:
        bound = "at least 1, or None" if num_threads < 1 else f"at most {MAX_THREADS}"
        raise SettingError(f"num_threads must be {bound}, received {num_threads}")
    if rounds < 1:
        raise SettingError(f"num_rounds must be at least 1, received {rounds}")
    if seed < 0:
        raise SettingError(f"seed must not be negative, received {seed}")
    if not 1 <= num_draws <= MOST_DRAWS:
        bound = "at least 1" if num_draws < 1 else f"at most {MOST_DRAWS}"
        raise SettingError(f"num_draws must be {bound}, received {num_draws}")
    if min_clients is not None and not 0 <= min_clients <= num_clients:
        raise SettingError(f"min_clients must lie in 0..{num_clients}, received {min_clients}")


def _check_indicator(algorithm: Algorithm, schedule: Schedule | None) -> None:
    given = algorithm.indicators if isinstance(algorithm, Indicators) else ()
    if schedule is None or not schedule.asks or schedule.asks in given:
        return
    has = f"it gives {list(given)}" if given else "it gives none"
    raise SettingError(
        f"schedule {type(schedule).__name__} asks clients for the indicator {schedule.asks!r}, which "
        f"{type(algorithm).__name__} cannot give ({has}): use UniformRandom, RoundRobin or Availability"
    )


def compiled(problem: Problem, mode: str, rounds: int, progress: bool, seconds: float | None = None) -> Problem:
    """The problem as this run compiles it; compiled steps, and the level that works, are kept for the next run."""
    kept = problem.compiler
    common = renewed(problem) if kept.level == "off" and LEVELS.get(mode) != "off" else None
    levels = kept.levels if common is None else common.levels
    if mode not in levels:
        particles, clients = trial(problem)

        def log_density(z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, rows)
            return log_prior + pointwise.sum()

        def scores(z: Tensor, *rows: Tensor) -> Tensor:
            """As a step does it: over the particles of each client, and over the clients."""
            found: Tensor = vmap(lambda one: vmap(grad(log_density), (0, None))(z, one))(rows)
            return found

        example = (particles, *clients)
        if mode == "auto":  # whether it can be traced is seen once anything is
            level = "trace" if maps(scores, example) else "loop"
        else:
            level = choose_level(mode, scores, example)
        if level != LEVELS[mode]:  # with a warning, which the next run gives again
            return replace(problem, compiler=kept.at(mode, level, rounds, None, seconds), progress=progress)
        levels[mode] = level
    return replace(problem, compiler=kept.at(mode, levels[mode], rounds, common, seconds), progress=progress)


def _with_cause(said: str, federation: Federation) -> str:
    """What ended a run, and the site whose density is no number, where there is one and its rows are here."""
    found = no_number(federation.problem) if federation.holds_data else []
    return ". ".join([said, *(cause[0].upper() + cause[1:] for cause in found)])
