"""The round loop: phases of algorithms, rounds of clients, and their record."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from pyro_fed.algorithm.capabilities import Chains, Indicators, OnGraph
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.combination_check import check_combination
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.record import Asked, Round
from pyro_fed.algorithm.schedule import Informed, Schedule
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.conventions import progress, resources, seeding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.resources import tick
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import CheckpointError, SettingError, TimeLimitError
from pyro_fed.policy import Resolved, phases_of
from pyro_fed.runtime.budget import BudgetEnded
from pyro_fed.runtime.checkpoint import Saved
from pyro_fed.runtime.context import Context, Phase
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.base import device_of
from pyro_fed.runtime.executors.local import Expected
from pyro_fed.runtime.messages import encoded_size, spec_of_one
from pyro_fed.runtime.network import Network, PhaseEnded
from pyro_fed.runtime.one_round import one_round, rounds_at_once, run_fused_rounds
from pyro_fed.runtime.run_errors import Growth, cut_short

#: Largest relative and absolute difference between the sites that honest clients keep and the server's record of them.
SITE_TOLERANCE = 1e-6
#: Algorithms that have been run to the end, each with its final states.
Finished = list[tuple[Algorithm, Start]]


def run_phases(
    algorithm: Algorithm, context: Context, rounds: int, given: Schedule | None, finished: Finished | None = None
) -> State:
    """The server's last state after the phases from which an algorithm starts, and the algorithm's own rounds."""
    context.budget.begin_rounds()
    saved = context.checkpoint.load() if context.checkpoint is not None else None
    with context.budget.of_preparation(f"the settings of {type(algorithm).__name__} were chosen"):
        phases = [] if context.start is not None else phases_of(Resolved(algorithm), context.problem)[:-1]
    context.choices += [(phase.algorithm, phase.choices) for phase in phases]
    chain = [*(phase.algorithm for phase in phases), algorithm]
    if saved is not None:
        _check_rounds(saved, chain, context, rounds)
    federation = context.federation
    check_combination(
        context.combination, chain, federation.num_clients, context.graph, int(federation.row_counts.sum())
    )
    networks = [  # the last phase is checked first, so that an error names the algorithm that the user chose
        context.connect(
            part, context.graph, given if part is algorithm else None, _num_clients(part, context), context.seed
        )
        for part in reversed(chain)
    ][::-1]
    device = context.problem.device
    context.record.findings += [
        sentences.computed_on_cpu(algorithm=type(part).__name__, device=str(device))
        for part in chain
        if device_of(part, context.problem) != device
    ]
    first, start = _finished_start(chain, finished)
    recorded_start: Start | None = None  # `start` with the server's record of the clients' sites
    for number, part in enumerate(chain):
        if number < first or (saved is not None and number < saved.phase):
            continue
        last = part is algorithm
        length = rounds if last else part.default_rounds(context.federation.num_clients)
        resumed = saved if saved is not None and number == saved.phase else None
        if resumed is not None:
            phase = _resumed_phase(part, context, length, resumed)
        else:
            settled = number > first and context.record.converged is True
            try:
                with context.budget.of_preparation(f"the first round of {type(part).__name__}"):
                    phase = _begin(part, number, context, length, start, recorded_start)
            except TimeLimitError as error:
                if start is not None:
                    error.algorithm, error.state = chain[number - 1], start.shared
                raise
            phase.settled = settled
            start = recorded_start = None  # free the states, which take much memory for a large model
            _give_back(context)
        phase.last, phase.given = last, given if last else None
        phase.name = type(part).__name__ if last else f"{type(part).__name__}, for {type(algorithm).__name__}"
        kept = resumed.network if resumed is not None else {}
        networks[number].begin(number, len(context.record.rounds), part, phase.shared, phase.local, kept)
        _loop(phase, context, networks[number])
        if not last or finished is not None:
            start = Start(phase.shared, context.executor.collect())
            recorded_start = Start(phase.shared, {**start.local, **phase.ledger})
            if isinstance(context.combination, Bounded) and phase.ledger:
                start = recorded_start
            if not context.executor.sums_alone:
                phase.ledger = phase.ledger or part.contributions().ledger_at_start(*start)
        _keep_sites(phase, context)
        if context.record.interrupted or context.record.stopped:
            break
        if finished is not None and start is not None and not context.budget.ended:
            finished.append((part, start))
    _give_back(context)
    return phase.shared


def _give_back(context: Context) -> None:
    """Return the memory of a large model's freed tensors to the system, since later tensors have other sizes."""
    if context.problem.traits.many_parameters:
        resources.give_back()


def _check_rounds(saved: Saved, chain: list[Algorithm], context: Context, rounds: int) -> None:
    """Refuse a saved state of a phase that this run does not have, or with more rounds than this run's."""
    folder = context.checkpoint.folder if context.checkpoint is not None else ""
    if saved.phase >= len(chain):
        raise CheckpointError(
            f"the state in {folder} is of phase {saved.phase}, counted from 0, and this run has {len(chain)}: it was "
            "changed after it was written; run again with another folder"
        )
    if saved.phase == len(chain) - 1 and saved.done > rounds:
        raise CheckpointError(
            f"the state in {folder} has had {saved.done} rounds of {type(chain[-1]).__name__}, and this run's number "
            f"of rounds is {rounds}: give it {saved.done} or more to go on, or choose another folder"
        )


def _keep_sites(phase: Phase, context: Context) -> None:
    """Put the clients' sites into the record, of the run's own algorithm or else of the first phase with sites."""
    record, algorithm = context.record, phase.algorithm
    if algorithm.pooled or any(len(value) != context.federation.num_clients for value in phase.ledger.values()):
        return  # a single site of all rows, which belongs to no client
    if not phase.ledger and phase.last and context.executor.states_are_here:
        phase.ledger = algorithm.contributions().ledger_at_start(phase.shared, context.executor.collect())
    if phase.ledger and context.combination is None and (phase.last or not record.sites):
        q = {f"q_{name}": phase.shared[name].detach().double() for name in ("precision", "eta")}
        if isinstance(algorithm, OnGraph):  # the agents' beliefs, which agree
            q = {name: value.mean(0) for name, value in q.items()}
        record.sites, record.sites_of = {**phase.ledger, **q}, type(algorithm).__name__


def _finished_start(chain: list[Algorithm], finished: Finished | None) -> tuple[int, Start | None]:
    """The number of the first phase of a chain that has not been run yet, and the states that it starts from."""
    for number in reversed(range(len(chain) - 1)):
        for part, start in finished or ():
            if part == chain[number]:
                return number + 1, start
    return 0, None


def _begin(
    algorithm: Algorithm, number: int, context: Context, rounds: int, start: Start | None, recorded: Start | None
) -> Phase:
    """A phase before its first round; `recorded` is `start` with the server's record of the sites."""
    record = context.record
    record.figures.clear()
    record.converged = None

    def first_states(start: Start | None) -> tuple[State, State]:
        generator = seeding.torch_generator(context.seed, seeding.SERVER, len(record.rounds))
        return algorithm.init(context.problem, _num_clients(algorithm, context), generator, start)

    shared, local = first_states(start) if context.start is None else context.start
    ledger = _ledger(algorithm, context, shared, local) if rounds else {}
    if ledger and start is not None and recorded is not None and not _sites_agree(start.local, recorded.local):
        ledger = _ledger(algorithm, context, *first_states(recorded))
    return Phase(algorithm, number, rounds, shared, local, ledger=ledger)


def _resumed_phase(algorithm: Algorithm, context: Context, rounds: int, saved: Saved) -> Phase:
    """The phase that was saved, to be continued; the record is restored."""
    clients = _num_clients(algorithm, context)
    odd = next((name for name, value in saved.local.items() if value.shape[:1] != (clients,)), None)
    if odd is not None:
        raise CheckpointError(
            f"the saved state's '{odd}' has shape {tuple(saved.local[odd].shape)}, expected an entry for each of "
            f"{clients} clients: it was changed after it was written; run again with another folder"
        )
    phase = Phase(algorithm, saved.phase, rounds, saved.shared, saved.local, saved.done)
    phase.ledger = _ledger(algorithm, context, saved.shared, saved.local)
    context.record.restore(saved.record)
    if context.hides_clients and phase.done < phase.rounds:
        context.record.converged = None  # a private run determines this only after its last round
    return phase


def _sites_agree(own: State, recorded: State) -> bool:
    """Whether the clients' own sites agree with the server's record of them, up to rounding."""
    return all(
        value.shape == own[name].shape
        and torch.allclose(value.double(), own[name].double(), SITE_TOLERANCE, SITE_TOLERANCE)
        for name, value in recorded.items()
        if name in own and value.is_floating_point()
    )


def _ledger(algorithm: Algorithm, context: Context, shared: State, local: State) -> State:
    """The server's record of the clients' sites; empty if it never sees a single client's message."""
    if context.executor.sums_alone:
        return {}
    bounded = isinstance(context.combination, Bounded)
    return algorithm.contributions().ledger_at_start(shared, local, bounded=bounded)


def _num_clients(algorithm: Algorithm, context: Context) -> int:
    return 1 if algorithm.pooled else context.federation.num_clients


def _loop(phase: Phase, context: Context, network: Network) -> None:
    """Run rounds until the algorithm converges, its rounds or its budget end, or the user interrupts."""
    algorithm, record = phase.algorithm, context.record
    data = context.federation.pooled_data() if algorithm.pooled else context.federation.client_data()
    # The compiler's choice depends on the number of remaining rounds.
    ahead = replace(context.problem.compiler, rounds=phase.rounds, seconds=context.budget.seconds_left())
    context.problem = replace(context.problem, compiler=ahead)
    ours = type(context.executor).execute.__module__.startswith("pyro_fed.")
    context.expected = None if ours else Expected(algorithm, context.problem, data, phase.local)
    context.executor.start(algorithm, context.problem, data, phase.local)
    phase.local = {}  # the executor has its own
    if record.converged:
        return
    if not phase.done:
        _save(phase, context, network)  # so that a run that is killed in its first round can be resumed
    before = len(record.rounds) - phase.done
    growth = Growth()
    growth.begin(phase.shared)
    bar = progress.begin(phase.name, phase.rounds, "round", done=phase.done, shown=context.progress)
    try:
        with context.budget.of_rounds():
            one_by_one = 0  # rounds before this one are run one at a time, since running them at once has failed
            while phase.done < phase.rounds and not record.converged:
                tick()
                index, before_these = phase.done, len(record.rounds)
                together = rounds_at_once(phase, context, network, phase.rounds - index) if index >= one_by_one else 1
                if together == 1 or not _fused_rounds(phase, context, network, data, together):
                    one_by_one = max(one_by_one, index + together)
                    _round(phase, context, network, data, index)
                if phase.last:
                    growth.look(algorithm, phase.shared, phase.done, phase.rounds, record)
                said = _postfix(phase, context)
                for _ in range(len(record.rounds) - before_these):
                    bar.advance(said)
                if not record.converged:
                    context.interruption.check()
    except KeyboardInterrupt as stop:
        del record.rounds[before + phase.done :], record.figures[phase.done :]  # a round cut short does not count
        cut_short(phase, context, stop)
    except BudgetEnded:
        pass  # the budget remembers it
    except PhaseEnded as end:
        missed = [Round(type(algorithm).__name__, [], 0, 0, 0.0, {}) for _ in range(len(record.rounds), end.round + 1)]
        record.rounds += missed
        record.figures += [{} for _ in missed]
        record.converged = True
    finally:
        bar.close()
    record.findings += network.findings()
    record.blocked = record.converged is True and record.latest.get("fraction", 1.0) <= 0
    if record.blocked:
        record.converged = False


def _round(phase: Phase, context: Context, network: Network, data: ClientData, index: int) -> None:
    """One round of the phase: choose the clients, do their work, record the round, and save the state."""
    record = context.record
    phase.shared = network.between(len(record.rounds), phase.shared)
    clients, asked = _select(phase, context, index)
    clients = network.awake(len(record.rounds), clients)
    after = one_round(phase, context, network, data, clients)
    record.rounds[-1].asked = asked
    record.figures.append(_figures(phase, context, network, after))
    phase.shared, phase.done = after, index + 1
    record.converged = _state_of(phase, context, network)
    _save(phase, context, network)


def _fused_rounds(phase: Phase, context: Context, network: Network, data: ClientData, number: int) -> bool:
    """Run `number` rounds at once, with the same result as calls of `_round`; False if that is not possible."""
    record = context.record
    clients = [_select(phase, context, phase.done + i)[0] for i in range(number)]
    with resources.collected_later():
        found = run_fused_rounds(phase, context, data, clients)
    if found is None:
        return False
    for one, after in found:
        record.rounds.append(one)
        record.figures.append(_figures(phase, context, network, after))
        phase.shared, phase.done = after, phase.done + 1
    record.converged = _state_of(phase, context, network)
    return True


def _figures(phase: Phase, context: Context, network: Network, after: State) -> dict[str, float]:
    """The figures of the last recorded round; empty if no client worked."""
    rounds = context.record.rounds
    if not rounds[-1].clients:
        return {}
    figures = network.monitor(phase.algorithm, phase.shared, after) | network.figures()
    taken = rounds[-1].info.get("fraction", ())
    if len(taken):  # the smallest share of a client's change that was applied
        figures = {"fraction": float(min(taken)), **figures}
    if context.combination is not None:
        figures |= context.combination.figures(sum(bool(past.clients) for past in rounds))
    evaluation = context.evaluation
    if evaluation is not None and phase.last and (phase.done + 1) % evaluation.every == 0:
        evaluated = evaluation.figures(phase.algorithm, context, after)
        if both := sorted(evaluated.keys() & (figures.keys() | rounds[-1].info.keys())):
            raise SettingError(f"evaluate returned figures named {both}, which the run has itself: choose other names")
        figures |= evaluated
    return figures


def _state_of(phase: Phase, context: Context, network: Network) -> bool | None:
    """Whether the algorithm has converged; None while undecided, or if it has no criterion."""
    record = context.record
    if context.hides_clients and phase.done < phase.rounds:  # stopping by figures would reveal more about the rows
        return None
    figures = record.figures
    measured = figures if all(figures) else [one for one in figures if one]
    verdict = phase.algorithm.converged(measured) if measured else None
    if verdict and figures[-1] and network.complete():
        return True
    return None if verdict is None or phase.done < phase.rounds else False


def _save(phase: Phase, context: Context, network: Network) -> None:
    """Write the state to the checkpoint folder, if there is one."""
    if context.checkpoint is not None:
        local, record = context.executor.collect(), context.record.to_plain()
        context.checkpoint.save(Saved(phase.number, phase.done, phase.shared, local, record, network.saved_state()))


def _select(phase: Phase, context: Context, index: int) -> tuple[list[int], Asked | None]:
    """The clients of a round, and the bytes that each client received and sent for the choice, if all were asked."""
    algorithm, num_clients = phase.algorithm, _num_clients(phase.algorithm, context)
    schedule = phase.schedule
    drawn = index // schedule.period(num_clients)
    generator = partial(seeding.numpy_generator, context.seed, seeding.SCHEDULE, drawn)
    if isinstance(schedule, Informed):
        return _ask(phase, context, schedule, generator())
    if not isinstance(algorithm, Chains):
        return schedule.chosen(index, num_clients, generator()), None
    if phase.slots is None or phase.drawn != drawn:  # a period of the schedule begins
        phase.drawn, phase.slots = drawn, schedule.of_slots(num_clients, algorithm.num_slots, generator)
    return phase.slots(index), None


def _ask(
    phase: Phase, context: Context, schedule: Informed, rng: np.random.Generator
) -> tuple[list[int], Asked | None]:
    """The clients that the schedule chooses by the indicators of all clients, and the bytes of this exchange."""
    everyone = torch.arange(_num_clients(phase.algorithm, context))
    algorithm = cast_checked(phase.algorithm, Indicators)  # `run` has refused the schedule otherwise
    received = phase.algorithm.download(phase.shared, everyone)
    work = Work(len(context.record.rounds), context.seed, everyone.tolist(), received)
    reports = context.executor.ask(schedule.asks, work)
    importance = algorithm.importance(schedule.asks, phase.shared, reports).double().cpu().numpy()
    asked = encoded_size(spec_of_one(received)), encoded_size(spec_of_one(reports))
    return schedule.choose(importance, rng), asked


def _postfix(phase: Phase, context: Context) -> str:
    """The text of the progress bar after a round: its clients, and two figures."""
    record = context.record
    clients, names = record.rounds[-1].clients, record.client_names
    who = f"client {names[clients[0]]}" if len(clients) == 1 else f"{len(clients)} clients"
    if phase.algorithm.pooled:
        who = "all rows"
    return ", ".join([who, *(f"{name} {value:.3g}" for name, value in list(record.latest.items())[:2])])
