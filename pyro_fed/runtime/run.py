"""run(): an algorithm on a federation, from settings to InferenceData."""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.func import grad, vmap

from pyro_fed.algorithm.capabilities import (
    DrawStats,
    Indicators,
    OnGraph,
    Pooled,
    check_taken_up,
    resolved,
)
from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.audit import Evidence
from pyro_fed.audit import audit as audited
from pyro_fed.conventions import seeding
from pyro_fed.density.compiling.compiler import Compiler, choose_level, threads
from pyro_fed.density.compiling.mapping import trial
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DivergenceError, SettingError, StoppedError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import to_inference_data
from pyro_fed.runtime.checkpoint import Checkpoint, fingerprint
from pyro_fed.runtime.collecting import collected, integration_notes
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.evaluation import Evaluate, Evaluation
from pyro_fed.runtime.executors import Executor, resolve
from pyro_fed.runtime.handover import hand_over
from pyro_fed.runtime.rounds import run_phases


def run(
    algorithm: Algorithm,
    federation: Federation,
    *,
    num_rounds: int | None = None,
    schedule: Schedule | None = None,
    graph: Graph | None = None,
    executor: str | Executor = "vectorised",
    num_draws: int = 1000,
    seed: int = 0,
    compile: str = "auto",
    progress: bool = True,
    num_threads: int | None = 1,
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
        algorithm: what to run, such as `pf.DSVGD(num_particles=100)`.
        federation: the model and its clients.
        num_rounds: rounds of communication; the algorithm's own number by default.
        schedule: who works in a round; the algorithm's own by default. A phase that the algorithm starts from
            keeps its own.
        graph: who talks to whom, of an algorithm without a server, such as `pf.graph.ring(5)`; agents that the
            schedule leaves out of a round are asleep in it.
        executor: "vectorised" (all clients of a round in one call), "sequential", or an Executor.
        num_draws: draws of the posterior, where the result is a density (particles are returned as they are).
        seed: the only source of randomness; same seed, same answer, whatever the executor.
        compile: "off", "trace" (steps become graphs of tensor operations, without Pyro), "inductor" (these are
            compiled), or "auto": what the expected work repays.
        progress: show a progress bar.
        num_threads: torch threads during the run (restored afterwards); None leaves them. Small problems are
            fastest with one.
        log_likelihood: compute the pointwise log-likelihood of all rows.
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
        resume: go on from the checkpoint; the answer is that of an uninterrupted run, bit by bit.

    Returns:
        arviz.InferenceData with groups posterior, sample_stats, log_likelihood, observed_data, constant_data and
        federation (who took part, bytes and seconds over round and client). Ctrl-C ends the run early and returns
        what is done so far.

    Raises:
        SettingError: a setting out of its range; a graph that is missing, invalid, or for another number of agents.
        CheckpointError: a checkpoint of another run, or one that cannot be read.
        DivergenceError: an update left the finite numbers; its `result` holds the last finite state.
        QuorumError: too few clients replied; its `result` holds the state before that round.
    """
    if not isinstance(algorithm, Algorithm) or not isinstance(federation, Federation):
        raise SettingError(
            "run takes an algorithm and a federation, such as pf.run(pf.FedEP(), fed), "
            f"received {algorithm!r} and {federation!r}"
        )
    algorithm = resolved(algorithm)
    check_taken_up(algorithm)
    rounds = algorithm.default_rounds(federation.num_clients) if num_rounds is None else num_rounds
    _check_numbers(rounds, num_draws, seed, min_clients, federation.num_clients)
    _check_indicator(algorithm, schedule)
    if resume and checkpoint is None:
        raise SettingError("resume=True needs checkpoint=, the folder that holds the state")
    if isinstance(algorithm, Pooled) and algorithm.joint and federation.problem.local_dim:
        federation = federation.joint
    with threads(num_threads), torch.no_grad():
        problem = _compiled(federation.problem, compile, rounds, progress)
        record = Record(federation.client_names)
        algorithm = algorithm if graph is None or not isinstance(algorithm, OnGraph) else algorithm.on_graph(graph)
        context = Context(
            federation, problem, graph, resolve(executor), seed, progress, record, min_clients, combination
        )
        if evaluate is not None:
            context.evaluation = Evaluation(evaluate, evaluate_every, num_draws)
        if checkpoint is not None:
            marks = fingerprint(algorithm, federation, rounds, schedule, graph, seed, combination, start)
            context.checkpoint = Checkpoint(Path(checkpoint), marks, resume)
        if start is not None:
            context.start = hand_over(algorithm, federation, Path(start))
        finish = _Finish(algorithm, context, num_draws, log_likelihood, collect_local, audit)
        try:
            shared = run_phases(algorithm, context, rounds, schedule)
        except StoppedError as error:
            if error.state is not None:
                with suppress(DivergenceError):  # a state that was never a distribution has no draws
                    error.result = replace(finish, algorithm=error.algorithm)(error.state)
            raise
        finally:
            context.executor.close()
        return finish(shared)


def _check_numbers(rounds: int, num_draws: int, seed: int, min_clients: int | None, num_clients: int) -> None:
    if rounds < 1:
        raise SettingError(f"num_rounds must be at least 1, received {rounds}")
    if seed < 0:
        raise SettingError(f"seed must not be negative, received {seed}")
    if num_draws < 1:
        raise SettingError(f"num_draws must be at least 1, received {num_draws}")
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


@dataclass
class _Finish:
    algorithm: Algorithm
    context: Context
    num_draws: int
    log_likelihood: bool
    collect_local: bool
    audit: bool

    def __call__(self, shared: State) -> InferenceData:
        context, record = self.context, self.context.record
        generator = seeding.torch_generator(context.seed, seeding.DRAWS)
        try:
            draws = self.algorithm.sample(shared, self.num_draws, generator).to(context.problem.dtype)
        except ImproperGaussianError as error:
            if record.interrupted:
                raise KeyboardInterrupt("interrupted before there was a distribution to draw from") from error
            raise
        if not bool(torch.isfinite(draws).all()):
            raise DivergenceError(
                f"{type(self.algorithm).__name__}: the draws of the last state are not finite: it is no distribution, "
                "or one far beyond the range of its numbers. Take smaller steps, give parameters of very different "
                "scales a common one, or use dtype=torch.float64"
            )
        stats = self.algorithm.sample_stats(shared, draws) if isinstance(self.algorithm, DrawStats) else {}
        self._judge(shared, draws)
        results = (context.federation, context.problem, draws)
        if context.problem.local_dim and self.collect_local and context.federation.holds_data:
            results = collected(*results, context.seed)
        return to_inference_data(
            self.algorithm, *results, stats, record, context.seed, self.log_likelihood, self.collect_local
        )

    def _judge(self, shared: State, draws: Tensor) -> None:
        """Add to the record what speaks against the result, and say it."""
        context, record = self.context, self.context.record
        failed = record.failed()
        record.notes += failed
        record.doubts += self.algorithm.warnings(record, context.problem)
        if record.converged is False and "change" in record.latest:
            change = record.latest["change"]
            record.doubts.append(f"not converged after {len(record.figures)} rounds: the last change was {change:.3g}")
        if context.problem.local_dim:
            record.doubts += integration_notes(context.problem, draws.flatten(0, 1))
        whole = context.federation.holds_data and context.combination is None and not failed
        if self.audit and whole:  # else the result is not meant to be the posterior of all rows
            record.doubts += audited(
                Evidence(self.algorithm, context.federation, context.problem, shared, draws, record, context.seed)
            )
        for sentence in record.said():
            warnings.warn(sentence, UserWarning, stacklevel=5)


def _compiled(problem: Problem, mode: str, rounds: int, progress: bool) -> Problem:
    """The problem as this run compiles it; compiled steps are kept for the next run."""
    particles, clients = trial(problem)

    def log_density(z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
        log_prior, pointwise = problem.log_parts(z, rows)
        return log_prior + pointwise.sum()

    def scores(z: Tensor, *rows: Tensor) -> Tensor:
        """As a step does it: over the particles of each client, and over the clients."""
        found: Tensor = vmap(lambda one: vmap(grad(log_density), (0, None))(z, one))(rows)
        return found

    level = choose_level(mode, scores, (particles, *clients))
    compiler = Compiler(level, mode == "auto" and level == "trace", rounds, problem.compiler.cache)
    return replace(problem, compiler=compiler, progress=progress)
