"""A client's side of a deployment: it describes its rows, and does the work that the server asks for.

The problem is built once in each process. The client's state is handed in and handed back, since each order may be
handled by a new process: whoever carries the messages keeps it. A client whose state is lost says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from safetensors.torch import load, save

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.privacy import Private
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.analysis.criticism.loo import Pointwise, observed_plates
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.analysis.predicting.row_sums import RowSums, named_questions
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.compiling.process import with_known_structure
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.claimed_federation import own_federation, padded_index
from pyro_fed.deployment.limits import MAX_MESSAGE_BYTES
from pyro_fed.deployment.policy import approval
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.deployment.policy.rules import answer_share, level_counts, rows_share
from pyro_fed.deployment.remote.order import STATES, WORK, Order, Refusal, as_refusals, require
from pyro_fed.deployment.remote.remote_federation import Description
from pyro_fed.errors import SettingError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.policy import Setup, chain_of, resolve_for_run, stages_of
from pyro_fed.recipes import recipe as recipes
from pyro_fed.recipes.library import load_model
from pyro_fed.runtime.executors.base import LOG_LIK, MAX_ASKED_DRAWS, Reply, Work
from pyro_fed.runtime.executors.local import NewStates, Sequential
from pyro_fed.runtime.executors.remote import Host, Request, Verdict, WorkerPhase
from pyro_fed.runtime.messages import Header, Message, answer, decode, decode_header

#: Stands for a server's, whose numbers no client knows: the form that it asks of an algorithm is the same for all.
ANY_PRIVATE = Private(norm=1.0, noise_multiplier=1.0)

#: A user's function that loads rows: takes the model's module and the node's configuration, and returns the model's
#: positional arguments.
LoadRows = Callable[[ModuleType, Mapping[str, Any]], Any]


@dataclass(frozen=True)
class KeptState:
    """A client's state between two orders; `parts` new states of the round `waiting` wait for a verdict (-1: none)."""

    run: str
    phase: int
    waiting: int
    parts: int
    data: bytes


class Done(NamedTuple):
    """A followed order: the reply's header and tensors, the state after it, and what they were made from and by."""

    header: Header
    tensors: State
    kept: KeptState
    order: Order
    found: Reply | State
    num_rows: int
    algorithm: Algorithm


class _Client(NamedTuple):
    """A client of a process: its model's module, its rows, and its densities in the runs that it takes part in."""

    module: ModuleType
    federation: Federation
    problems: dict[tuple[int, int, str], Problem]


@dataclass
class Site:
    """The clients of a process, which take part in the `given` recipes; `questions` are those besides these."""

    model: str | Path
    given: list[str | Path]
    load_rows: LoadRows
    questions: bool = True
    how: str = "elsewhere"  # how the clients work, in errors
    clients: dict[str, _Client] = field(default_factory=dict)  # by name, once they are loaded
    gates: dict[str, Gate] = field(default_factory=dict)  # of clients with a policy, by name

    def gate_of(self, name: str, policy: str | Path) -> Gate:
        """A client's gate by a policy's file; PolicyError if model and recipes are not what it has approved."""
        self.gates[name] = approval.approved_gate(
            policy, name, self.model, lambda: [approval.recipe_facts(recipes.load(one)) for one in self.given]
        )
        return self.gates[name]

    def _approved_folder(self, name: str) -> Path | None:
        """The folder of a client whose own approved copies are run in place of the given files; None without any."""
        return self.gates[name].approved_folder if name in self.gates else None

    def outgoing_description(self, name: str, data: bytes, asked: bytes) -> Outgoing:
        """A description as the gate judges it; `data` are the bytes that leave, `asked` those of the question."""
        levels = level_counts(self.clients[name].federation.problem)
        return Outgoing(kind="description", data=data, asked=asked, levels=levels)

    def outgoing_reply(
        self,
        name: str,
        order: Order,
        message: Message,
        tensors: State,
        data: bytes,
        asked: bytes,
        before: str,
        masked: bool = False,
    ) -> Outgoing:
        """A reply as the gate judges it: its kind, numbers and shares of rows, and what it was computed from.

        `message` is the order's, `tensors` are what the reply tells (before they are masked), `data` the bytes that
        leave, `asked` the order's, and `before` is the hash of the client's state before the order.
        """
        federation = self.clients[name].federation
        question = self._question(order, federation.problem, name)
        copied = any(part.startswith("new.") for part in tensors)
        kind = _kind(order, masked, question, copied)
        answered = question if question is not None and kind == question.answer_kind else None
        cells = {} if answered is None else answered.cells(within(tensors, "messages"))

        def share() -> float | None:
            own, received = federation.client_data(), within(message.tensors, "shared")
            if answered is not None:
                return answer_share(answered, federation.problem, received, own)
            return rows_share(federation.problem, own, received["draws"][0] if kind == "log_likelihood" else None)

        return Outgoing(
            kind=kind,
            data=data,
            tensors=tensors,
            round=order.round,
            asked=asked,
            cells=cells,
            share=share,
            replay={
                "run": message.header.run,
                "seed": order.seed,
                "phase": order.phase,
                "algorithm": order.algorithm,
                "state": before,
            },
        )

    def description(self, name: str, config: Mapping[str, Any]) -> Description:
        """The client's description, for the server."""
        return Description.of(name, self._client(name, config).federation)

    def follow(
        self, name: str, config: Mapping[str, Any], record: Any, encoded: bytes, kept: KeptState | None
    ) -> Done | None:
        """Follow an order of the server; None if the client's state is lost, and the order does not bring one.

        `record` is the order, as `Order.to_record` makes it, `encoded` its tensors, and `kept` the state after the
        last order (None before the first). A Refusal says why a client does not follow it.
        """
        with as_refusals():
            order = Order.from_record(record)
            header = decode_header(encoded, MAX_MESSAGE_BYTES)
        order.check_header(header.message, name, None if kept is None else kept.run)
        if order.job == LOG_LIK:
            self._check_questions("its log-likelihood at draws")
        data = self._client(name, config).federation.client_data()
        own = int(data.num_rows.sum())
        order.check_rows(own)
        problem = self._problem(order, name)
        algorithm = self._algorithm(order, problem, name)
        order.check_tensors(header.tensors, problem.dim)
        if isinstance(algorithm, OneRound):
            draws = max((entry.shape[1] for entry in header.tensors.values() if len(entry.shape) > 1), default=0)
            require(draws <= MAX_ASKED_DRAWS, "a question", f"at most {MAX_ASKED_DRAWS} draws", draws)
        with as_refusals():
            message = decode(encoded, None, cap=MAX_MESSAGE_BYTES, finite=False)
        index = padded_index(data.row_index[0], order.width)  # as in a simulation
        host = Host(problem, ClientData(data.rows, index, data.num_rows), [order.client], Sequential())
        if not _restore_state(host, order, algorithm, kept, message.header.run):
            return None
        found = host.answer(_request(order, algorithm, message.tensors))
        if isinstance(found, Reply):
            new = host.executor.new[-1].states if order.copies else {}
            tensors = prefixed("messages", found.messages) | prefixed("info", found.info) | prefixed("new", new)
        else:
            tensors = prefixed("local" if order.job == STATES else "report", found)
        kept = _state_to_keep(host, message.header.run)
        return Done(answer(message.header), tensors, kept, order, found, own, algorithm)

    def _check_questions(self, what: str) -> None:
        if not self.questions:
            raise Refusal(
                f"this client answers only its recipe (client_app(questions=False)), but the server asks for {what}: "
                "run with audit=false, without loo and influence"
            )

    def _question(self, order: Order, problem: Problem, name: str) -> OneRound | None:
        """The question that an order asks besides the recipe; None for none. Never one for a single row's number."""
        known: Iterator[OneRound] = (Pointwise(site=site) for site in ("", *observed_plates(problem)))
        found = next((one for one in known if settings_line(one) == order.algorithm), None)
        if found is None and order.algorithm.startswith(f"{RowSums.__name__}("):
            fewest = self.gates[name].policy.min_cell if name in self.gates else 1
            estimands = named_questions(self.clients[name].module, problem, fewest)
            found = next((one for one in estimands.values() if settings_line(one) == order.algorithm), None)
        return found

    def _client(self, name: str, config: Mapping[str, Any]) -> _Client:
        if name not in self.clients:
            own = self._approved_folder(name)
            module = load_model(self.model if own is None else approval.copied_model(own), with_data=False)
            rows = self.load_rows(module, config)
            nested = getattr(module, "ROWS", None)
            federation = own_federation(module.model, name, rows, module.PLATE, nested, self.how)
            self.clients[name] = _Client(module, federation, {})
        return self.clients[name]

    def _problem(self, order: Order, name: str) -> Problem:
        """The client's densities for a run, with the run's numbers of rows and clients; traced steps are kept."""
        client, key = self.clients[name], (order.num_rows, order.num_clients, order.level)
        if key not in client.problems:
            own = replace(
                client.federation.problem,
                num_rows=order.num_rows,
                num_clients=order.num_clients,
                compiler=Compiler(order.level),
            )
            client.problems[key] = with_known_structure(own, order.level)
        return client.problems[key]

    def _algorithm(self, order: Order, problem: Problem, name: str) -> Algorithm:
        """The algorithm that the server names, made from this client's own recipes; or a question that it answers."""
        if (asked := self._question(order, problem, name)) is not None:
            self._check_questions(f"{order.algorithm:.100}")
            return asked
        known: list[str] = []
        own = self._approved_folder(name)
        for chosen in map(recipes.load, self.given) if own is None else approval.copied_recipes(own):
            graph = chosen.run_options(order.num_clients).get("graph")
            stages = stages_of(chosen.build(), problem, graph)
            named = (resolve_for_run(stage.algorithm, problem, Setup(graph)).algorithm for stage in stages)
            parts = (part for one in named for part in chain_of(one, problem))
            for part in (form for one in parts for form in _forms(one)):
                known.append(settings_line(part))
                if known[-1] == order.algorithm:
                    jobs = (WORK, STATES, LOG_LIK, *(part.indicators if isinstance(part, Indicators) else ()))
                    require(order.job in jobs, "job", f"one of {listed(jobs)}", order.job)
                    return part
        raise Refusal(
            f"the server runs {order.algorithm:.500}, this client's recipe says {known!r:.1000}: give both the same "
            "recipe"
        )


def _kind(order: Order, masked: bool, question: OneRound | None, copied: bool) -> str:
    """The kind of a reply to an order, of `policy.KINDS`; `copied` says that it brings the client's new state."""
    if order.job == STATES:
        return "state"
    if order.job == LOG_LIK:
        return "log_likelihood"
    if question is not None:
        return question.answer_kind
    if order.job != WORK:
        return "indicator"
    return "masked" if masked else "state" if copied else "update"


def _forms(algorithm: Algorithm) -> Iterator[Algorithm]:
    """An algorithm, and the form that it has at the clients of a private run, where that is another one."""
    yield algorithm
    with suppress(SettingError):  # it cannot be run privately
        private: Algorithm = algorithm.contributions().form_for(ANY_PRIVATE).contributions().form_for_clients()
        if settings_line(private) != settings_line(algorithm):
            yield private


def _request(order: Order, algorithm: Algorithm, tensors: State) -> Request:
    phase = WorkerPhase(order.phase, algorithm, within(tensors, "local")) if order.begins else None
    verdict = Verdict(order.verdict, tensors["taken"], within(tensors, "told")) if order.verdict >= 0 else None
    work = None
    if order.job != STATES:
        clients = [order.client] * len(order.places)
        work = Work(order.round, order.seed, clients, within(tensors, "shared"), order.places)
    return Request(phase, verdict, work, None if order.job in (WORK, STATES) else order.job)


def _restore_state(host: Host, order: Order, algorithm: Algorithm, kept: KeptState | None, run: str) -> bool:
    """Restore the state after the last message; False if it is lost, and the order does not bring one."""
    if kept is None or (kept.run, kept.phase) != (run, order.phase):
        return order.begins
    tensors = load(kept.data)
    host.answer(Request(WorkerPhase(order.phase, algorithm, within(tensors, "local")), None))
    host.executor.waiting = kept.waiting
    made = [within(tensors, f"new{i}") for i in range(kept.parts)]
    host.executor.new = [NewStates(one["slots"], one["at"], within(one, "state")) for one in made]
    return True


def _state_to_keep(host: Host, run: str) -> KeptState:
    """The state for the next message."""
    executor = host.executor
    tensors = prefixed("local", executor.local)
    for i, made in enumerate(executor.new):
        tensors |= prefixed(f"new{i}", {"slots": made.slots, "at": made.at} | prefixed("state", made.states))
    data = save({name: value.clone().contiguous() for name, value in tensors.items()})
    return KeptState(run, host.phase, executor.waiting, len(executor.new), data)
