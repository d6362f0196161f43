"""run(): an algorithm on a federation, from settings to InferenceData."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from pyro_fed.algorithm.capabilities import (
    Bounding,
    DrawsAhead,
    FitsSize,
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
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.compiling.levels import compiled, recalled
from pyro_fed.density.latents.layered import check_affordable
from pyro_fed.density.no_number import no_number
from pyro_fed.density.noncentred import NonCentred
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
from pyro_fed.runtime.run_checks import check_folders, check_indicator, check_numbers, check_of_plan, check_seconds
from pyro_fed.runtime.stages import run_stages

#: Draws of a density where none are asked for.
NUM_DRAWS = 1000


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
    budget = _budget(plan, max_seconds)  # its clock begins here
    if plan is not None:
        check_of_plan(
            plan,
            num_rounds=num_rounds,
            schedule=schedule,
            combination=combination,
            start=start,
            checkpoint=checkpoint,
        )
    with default_of(federation.problem.dtype):
        problem = recalled(federation.problem, compile)
        stages = stages_of(algorithm, problem, graph)
    for one in stages:
        check_taken_up(one.algorithm)
    first = _suited(stages[0].algorithm, combination)
    if isinstance(first, FitsSize):
        check_affordable(federation.problem)
    rounds = first.default_rounds(federation.num_clients) if num_rounds is None else num_rounds
    if num_threads == "auto":
        num_threads = None if repays_threads(federation.problem) else 1
    if num_draws is None:
        num_draws = affordable_draws(federation.problem, NUM_DRAWS, _chains(first, federation))
    check_numbers(rounds, num_draws, seed, min_clients, federation.num_clients, num_threads)
    check_seconds(max_seconds)
    check_indicator(first, schedule)
    check_folders(checkpoint=checkpoint, start=start)
    if resume and checkpoint is None:
        raise SettingError("resume=True needs checkpoint=, the folder that holds the state")
    first = _for_draws(first, num_draws)
    stages = [replace(one, algorithm=_for_draws(one.algorithm, num_draws)) for one in stages]
    whole = _as_one(federation) if isinstance(first, Pooled) and first.joint else federation
    problem, federation = problem if whole is federation else whole.problem, whole
    with (
        threads(num_threads),
        torch.no_grad(),
        default_of(federation.problem.dtype),
        showing(progress),
        kept_while_computing(),
    ):
        context = Context(
            federation,
            compiled(problem, compile, rounds, progress is not False, budget.max_seconds),
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
            context.start = hand_over(first, federation, Path(start))
        if checkpoint is not None:
            marks = fingerprint(first, federation, rounds, schedule, graph, seed, combination, start)
            context.checkpoint = Checkpoint(Path(checkpoint), marks, resume)
        finish = Finish(first, context, num_draws, log_likelihood, collect_local, audit)
        try:
            with context.interruption:
                if plan is not None:
                    return run_stages(plan, stages, finish)
                shared = run_phases(first, context, rounds, schedule)
        except (StoppedError, ImproperGaussianError) as error:
            _say_cause(error, context)
            if isinstance(error, StoppedError) and error.state is not None and error.result is None:
                with suppress(DivergenceError):  # a state that was never a distribution has no draws
                    # its error speaks against it: it is not audited, which could take long
                    error.result = replace(finish, algorithm=error.algorithm, audit=False)(error.state)
                    error.result.attrs["stopped"] = str(error)
            raise
        finally:
            context.executor.close()
            if context.checkpoint is not None:
                context.checkpoint.close()
        return finish(shared)


def _budget(plan: Plan | None, max_seconds: float | None) -> Budget:
    """What the run may cost: its own limit of time or its plan's, whichever is shorter, and the plan's others."""
    if plan is None:
        return Budget(max_seconds=max_seconds)
    seconds = min(filter(None, (max_seconds, plan.max_seconds)), default=None)
    return Budget(plan.max_rounds, plan.max_bytes, seconds)


def _suited(algorithm: Algorithm, combination: Combination | None) -> Algorithm:
    """The algorithm in the form that what is done with its messages asks for."""
    private = combination if isinstance(combination, Private) else None
    if private is not None and isinstance(algorithm, NoiseTracking):
        algorithm = algorithm.evenly()
    if isinstance(algorithm, NoiseWithin):
        algorithm = algorithm.privately(private)
    if isinstance(combination, Bounded) and isinstance(algorithm, Bounding):
        algorithm = algorithm.boundable()
    return algorithm


def _as_one(federation: Federation) -> Federation:
    """The federation with the latents inside its plate among the model's parameters, where there are such latents."""
    if not federation.problem.local_dim:
        return federation
    return federation.joint.noncentred if isinstance(federation.problem, NonCentred) else federation.joint


def _chains(algorithm: Algorithm, federation: Federation) -> int:
    """How many chains a result has: one an agent of a graph."""
    return federation.num_clients if isinstance(algorithm, OnGraph) else 1


def _for_draws(algorithm: Algorithm, num_draws: int) -> Algorithm:
    """The algorithm, told how many draws the result is to have where it makes them in its rounds."""
    return algorithm.for_draws(num_draws) if isinstance(algorithm, DrawsAhead) else algorithm


def _say_cause(error: StoppedError | ImproperGaussianError, context: Context) -> None:
    """The error names the site whose density is no number too, where there is one and its rows are here."""
    diverged = isinstance(error, DivergenceError)
    if isinstance(error, StoppedError) and not diverged:
        return
    found = no_number(context.federation.problem) if context.federation.holds_data else []
    said = ". ".join([str(error), *(cause[0].upper() + cause[1:] for cause in found)])
    error.args = (with_hint(said, context.problem) if diverged else said,)
