"""run(): an algorithm on a federation, from settings to InferenceData; and the checks of its arguments."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from pyro_fed import policy
from pyro_fed.algorithm.capabilities import Indicators, OnGraph, check_taken_up
from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Informed, Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.progress import Show, showing
from pyro_fed.conventions.resources import kept_while_computing
from pyro_fed.density.checks.not_finite import nan_density_notes
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.compiling.process import compile_problem, with_known_structure
from pyro_fed.density.forms import NonCentred, with_hint
from pyro_fed.density.running.handlers import check_outside, default_of
from pyro_fed.errors import DivergenceError, SettingError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.policy import Resolved, Setup, resolve_for_run, stages_of
from pyro_fed.policy.explanation import as_json
from pyro_fed.policy.resolving import affordable_draws, threads_of
from pyro_fed.policy.results import integrates_latents
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.budget import Budget
from pyro_fed.runtime.checkpoint import Checkpoint
from pyro_fed.runtime.context import Context, Evaluate, Evaluation
from pyro_fed.runtime.executors import Executor, resolve
from pyro_fed.runtime.fingerprint import fingerprint
from pyro_fed.runtime.finish import Finish
from pyro_fed.runtime.rounds import run_phases
from pyro_fed.runtime.stages import run_stages
from pyro_fed.runtime.start import read_start, start_states, start_text

#: Default number of draws of a density.
NUM_DRAWS = 1000

#: Largest number of threads, more than any machine has.
MAX_THREADS = 4096
#: Largest number of draws: those of one parameter fill a gigabyte.
MAX_NUM_DRAWS = 134_217_728
#: Arguments for a single algorithm, with the cure if a plan receives them.
OF_ONE_ALGORITHM = {
    "num_rounds": "its stages have rounds of their own; limit them by {name}(max_rounds=...)",
    "schedule": "each of its stages has its own",
    "combination": "its stages need every client's own message",
    "start": "its stages start from each other; run FedEP(), which can start there",
    "checkpoint": "only a single algorithm can be resumed",
}


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
    start: str | Path | InferenceData | None = None,
    min_clients: int | None = None,
    combination: Combination | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> InferenceData:
    """Run an algorithm on a federation.

    Args:
        algorithm: the algorithm to run, such as `pf.DSVGD(num_particles=100)`, or `pf.Auto()`, which tries several.
        federation: the model and its clients.
        num_rounds: number of rounds of communication; by default the algorithm's own.
        max_seconds: limit of the wall-clock time of the whole call. Rounds end after two thirds of it, at the next
            client or step, and the posterior of the finished rounds is returned, marked as incomplete. Checks may take
            two thirds of the remaining time. Checks that do not end in time are left out, which a doubt reports, and so
            are the clients' own latents and the log-likelihood. A compilation is interrupted, a single compiled step is
            not. The number of rounds within the limit varies from run to run: such an answer is not reproducible.
        schedule: the clients that work in each round; by default the algorithm's own schedule. Phases from which the
            algorithm starts keep their own.
        graph: the graph of agents, for an algorithm without a server, such as `pf.graph.ring(5)`. Agents that the
            schedule leaves out of a round are asleep in it.
        executor: "vectorised" (all clients of a round in one call), "sequential", or an Executor.
        num_draws: number of draws if the result is a density (particles are returned as they are). None takes 1000,
            or, with more than 1000 parameters, as many as fit into 20 million numbers.
        seed: the only source of randomness: the same seed gives the same answer with every executor. The noise of
            `pf.Private` does not depend on it: a private run cannot be repeated exactly.
        compile: "off", "trace" (steps become graphs of tensor operations, without Pyro), "inductor" (these graphs are
            compiled; a graph that cannot be compiled, or whose code gives other numbers, runs uncompiled, with a
            warning), or "auto": the fastest for the expected work, within `max_seconds`.
        progress: whether to show the progress: a bar in a terminal or a notebook, occasional lines elsewhere. Or a
            function that is called with a `Progress` after every round, see `pyro_fed.progress`.
        num_threads: number of torch threads during the run (restored afterwards); None leaves it unchanged. Small
            problems are fastest with one. "auto" takes one, or torch's own number if rows × parameters are a million or
            more. Another number of threads may change the last bits of sums.
        log_likelihood: whether to compute the pointwise log-likelihood of all rows. Without it the draws' log density,
            `lp` in `sample_stats`, is also left out if draws × rows exceed 5e7.
        collect_local: whether clients draw the latents inside the plate and the result contains them, which only a
            simulation can do. Without it they are integrated out of the rows' log-likelihoods.
        audit: whether to judge the result at its draws, by the model's own densities (see `pyro_fed.audit`), and to
            warn of doubts.
        start: an earlier run on the same model: its checkpoint folder (of the same algorithm), its result, or the file
            of its result. This run begins with the sites of that run's clients, matched by name: for clients that join
            or leave, and for new rows. The answer is that of a fresh run.
        min_clients: number of usable replies that a round needs (or all that were requested, if they are fewer). With
            fewer the round is not applied, and the run stops. None: the run stops after a long time without replies. 0:
            the same, but a round without any finite reply is skipped instead of counted as a divergence.
        combination: how the server combines the clients' messages, for faulty clients or for privacy, see
            `pyro_fed.combination`. Most combinations are for algorithms that only need sums, such as FedAvg and FedSEP.
        evaluate: a function that is called after every round with the posterior so far (InferenceData with only the
            group `posterior`, without latents inside the plate), and returns figures by name, such as
            `lambda idata: pf.metrics.test_metrics(idata, fed, test)`. The group `federation` contains them by round.
        evaluate_every: number of rounds from one evaluation to the next; in between the figures are NaN.
        checkpoint: folder in which the state is saved after every round; the latest two are kept.
        resume: whether to continue from the checkpoint. The answer is bit by bit that of an uninterrupted run (with
            `pf.Private` the remaining rounds have new noise). The run may have more rounds than the saved one, even
            if that was finished. The answer is then that of a run with so many rounds from the start; to the bit,
            unless `compile` is "auto", which depends on the number of rounds.

    Returns:
        arviz.InferenceData with the groups posterior, sample_stats, log_likelihood, observed_data, constant_data and
        federation (participation, bytes and seconds, by round and client), and audit after an audit (the estimated
        error of each mean and SD). Ctrl-C ends the rounds: a posterior that exists by then is returned, with
        `attrs["interrupted"]`. A second Ctrl-C, or one after the rounds, ends the checks. `attrs["stopped"]` reports
        that a time limit ended the rounds.

    Raises:
        SettingError: a setting out of its range; a graph that is missing, invalid, or for another number of agents.
        CheckpointError: a checkpoint of another run, or one that cannot be read.
        DivergenceError: an update is not finite; the error's `result` has the last finite state.
        QuorumError: too few clients replied; the error's `result` has the state before that round.
        InterruptedRun: Ctrl-C before there is a posterior; the error's `state`, or the checkpoint, has the last state.
        TimeLimitError: `max_seconds` is over before there is a posterior; the error's `state` has the last state.

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
        seconds = min(filter(None, (max_seconds, plan.max_seconds)), default=None)
        budget = Budget(plan.max_rounds, plan.max_bytes, seconds)
        check_of_plan(
            plan, num_rounds=num_rounds, schedule=schedule, combination=combination, start=start, checkpoint=checkpoint
        )
    check_seconds(max_seconds)
    name = type(algorithm).__name__
    with default_of(federation.problem.dtype), budget.of_preparation(f"the settings of {name} were chosen"):
        problem = with_known_structure(federation.problem, compile)
        stages = stages_of(algorithm, problem, graph)
    for one in stages:
        check_taken_up(one.algorithm)
    first = stages[0].algorithm
    if first.pooled and first.joint and integrates_latents(problem.traits):  # rows' latents are among the parameters
        federation = federation.joint.noncentred if isinstance(federation.problem, NonCentred) else federation.joint
        problem = federation.problem
    with default_of(federation.problem.dtype), budget.of_preparation(f"the settings of {name} were chosen"):
        resolved = Resolved(first)  # of a plan, each stage is resolved when its turn has come
        if plan is None:
            resolved = resolve_for_run(first, problem, Setup(graph, combination))
    first = resolved.algorithm.contributions().form_for(combination)
    rounds = first.default_rounds(federation.num_clients) if num_rounds is None else num_rounds
    if num_threads == "auto":
        num_threads = threads_of(problem.traits)
    if num_draws is None:
        chains = federation.num_clients if isinstance(first, OnGraph) else 1
        num_draws = affordable_draws(problem.traits, NUM_DRAWS, chains)
    check_numbers(rounds, num_draws, seed, min_clients, federation.num_clients, num_threads)
    check_indicator(first, schedule)
    check_folders(checkpoint=checkpoint, start=start if isinstance(start, str | Path) else None)
    if resume and checkpoint is None:
        raise SettingError("resume=True needs checkpoint=, the folder that holds the state")
    first = first.for_draws(num_draws)
    stages = [replace(one, algorithm=one.algorithm.for_draws(num_draws)) for one in stages]
    with (
        threads(num_threads),
        torch.no_grad(),
        default_of(federation.problem.dtype),
        showing(progress),
        kept_while_computing(),
    ):
        with budget.of_preparation(f"the first round of {name}"):
            problem = compile_problem(problem, compile, rounds, progress is not False, budget.max_seconds)
        context = Context(
            federation,
            problem,
            graph,
            resolve(executor),
            seed,
            progress is not False,
            Record(federation.client_names),
            min_clients,
            combination,
            budget=budget,
        )
        if evaluate is not None:
            context.evaluation = Evaluation(evaluate, evaluate_every, num_draws)
        if start is not None:
            start = read_start(start)
            context.start = start_states(first, federation, start)
        if checkpoint is not None:
            marks = fingerprint(first, federation, rounds, schedule, graph, seed, combination, start_text(start))
            context.checkpoint = Checkpoint(Path(checkpoint), marks, resume)
        finish = Finish(first, context, num_draws, log_likelihood, collect_local, audit)
        blame = context.checkpoint.blamed if context.checkpoint is not None else nullcontext
        try:
            with context.interruption, blame():
                if plan is not None:
                    return _with_choices(run_stages(plan, stages, finish), context)
                shared = run_phases(first, context, rounds, schedule)
                context.choices.append((first, resolved.choices))
        except (StoppedError, ImproperGaussianError) as error:
            _say_cause(error, context)
            _keep_result(error, finish)
            raise
        finally:
            context.executor.close()
            if context.checkpoint is not None:
                context.checkpoint.close()
        with blame():
            return _with_choices(finish(shared), context)


def _with_choices(result: InferenceData, context: Context) -> InferenceData:
    """The result with the chosen settings of all algorithms of the run, and the reasons."""
    for part in (result, result["posterior"]):
        part.attrs["choices"] = as_json(context.choices)
    return result


def _keep_result(error: StoppedError | ImproperGaussianError, finish: Finish) -> None:
    """Attach the result of the last good state, if there is one, to an error; without audit, which adds nothing."""
    if not isinstance(error, StoppedError) or error.state is None or error.result is not None:
        return
    with suppress(DivergenceError), warnings.catch_warnings():  # a state that is no distribution has no draws
        warnings.simplefilter("ignore")  # the error is enough; the result contains the findings
        error.result = replace(finish, algorithm=error.algorithm, audit=False)(error.state)
        error.result.attrs["stopped"] = str(error)


def _say_cause(error: StoppedError | ImproperGaussianError, context: Context) -> None:
    """Add the sites whose density is not finite, if any, to an error's text; needs the rows in this process."""
    diverged = isinstance(error, DivergenceError)
    if isinstance(error, StoppedError) and not diverged:
        return
    causes = nan_density_notes(context.federation.problem) if context.federation.holds_data else []
    text = ". ".join([str(error), *(cause[0].upper() + cause[1:] for cause in causes)])
    error.args = (with_hint(text, context.problem) if diverged else text,)


class Final(NamedTuple):
    """The server's last state, and whether the algorithm has converged; None if it has no criterion."""

    shared: State
    converged: bool | None


def final_state(algorithm: Algorithm, federation: Federation, *, seed: int = 0) -> Final:
    """The server's last state, and whether it has converged, of a run without progress bar, warnings or draws."""
    record = Record(federation.client_names)
    context = Context(federation, federation.problem, None, resolve("vectorised"), seed, progress=False, record=record)
    algorithm = policy.resolve(algorithm, federation.problem.traits).algorithm
    with threads(1), torch.no_grad():
        try:
            shared = run_phases(algorithm, context, algorithm.default_rounds(federation.num_clients), None)
        finally:
            context.executor.close()
    return Final(shared, record.converged)


def check_of_plan(plan: Plan, **given: Any) -> None:
    """Refuse arguments for a single algorithm (`OF_ONE_ALGORITHM`) that are not None, for a plan."""
    for name, value in given.items():
        if value is not None:
            kind = type(plan).__name__
            cure = OF_ONE_ALGORITHM[name].format(name=kind)
            raise SettingError(
                f"{kind} does not take {name}=: {cure}. Leave it out, or run one algorithm, such as pf.FedEP()"
            )


def check_folders(**folders: str | Path | None) -> None:
    """Refuse texts that are not None and name no folder; an empty text would mean the current folder."""
    for name, folder in folders.items():
        if folder is not None and (not str(folder).strip() or "\0" in str(folder)):
            raise SettingError(f"{name} must be a folder's path, received {str(folder)!r}; such as {name}='state'")
        if folder is not None and str(folder).startswith("~"):
            raise SettingError(
                f"{name}={str(folder)!r} would be a folder called '~' in the current folder: write "
                f"Path({str(folder)!r}).expanduser()"
            )


def check_numbers(
    rounds: int, num_draws: int, seed: int, min_clients: int | None, num_clients: int, num_threads: int | str | None
) -> None:
    """Refuse numbers outside their ranges."""
    if isinstance(num_threads, int) and not 1 <= num_threads <= MAX_THREADS:
        bound = "at least 1, or None" if num_threads < 1 else f"at most {MAX_THREADS}"
        raise SettingError(f"num_threads must be {bound}, received {num_threads}")
    if rounds < 1:
        raise SettingError(f"num_rounds must be at least 1, received {rounds}")
    if seed < 0:
        raise SettingError(f"seed must not be negative, received {seed}")
    if not 1 <= num_draws <= MAX_NUM_DRAWS:
        bound = "at least 1" if num_draws < 1 else f"at most {MAX_NUM_DRAWS}"
        raise SettingError(f"num_draws must be {bound}, received {num_draws}")
    if min_clients is not None and not 0 <= min_clients <= num_clients:
        raise SettingError(f"min_clients must lie in 0..{num_clients}, received {min_clients}")


def check_seconds(max_seconds: float | None) -> None:
    """Refuse a time limit that is not a positive number of seconds."""
    if max_seconds is not None and not 0 < max_seconds < math.inf:
        raise SettingError(f"max_seconds must be positive, received {max_seconds}; None is no limit")


def check_indicator(algorithm: Algorithm, schedule: Schedule | None) -> None:
    """Refuse a schedule that needs an indicator which the algorithm does not have."""
    if isinstance(schedule, Informed) and not schedule.asks:
        raise SettingError(
            f"schedule {type(schedule).__name__} does not say what it asks the clients for: use KSD or HIP, or a class "
            "of your own with `asks`"
        )
    available = algorithm.indicators if isinstance(algorithm, Indicators) else ()
    if schedule is None or not schedule.asks or schedule.asks in available:
        return
    answer = f"it gives {list(available)}" if available else "it gives none"
    raise SettingError(
        f"schedule {type(schedule).__name__} asks clients for the indicator {schedule.asks!r}, which "
        f"{type(algorithm).__name__} cannot give ({answer}): use UniformRandom, RoundRobin or Availability"
    )
