"""The server's side of clients elsewhere: its run, and the executor that makes each order and reads its answer.

A subclass of the executor carries the orders and answers (`exchange`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.algorithm.states import State, prefixed, select, within
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.deployment.remote.order import STATES, WORK, Order
from pyro_fed.deployment.remote.remote_federation import RemoteFederation
from pyro_fed.errors import SettingError
from pyro_fed.recipes.recipe import Recipe
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.executors.base import LOG_LIK, Reply, Work
from pyro_fed.runtime.executors.local import NewStates, expected_reply, keep
from pyro_fed.runtime.executors.remote import Remote, Request
from pyro_fed.runtime.messages import Header, Spec, decode, spec_of
from pyro_fed.runtime.run import run
from pyro_fed.runtime.safetensors_header import Entry


def algorithm_and_options(
    chosen: Recipe, options: Mapping[str, Any], num_clients: int, where: str
) -> tuple[Algorithm | Plan, dict[str, Any]]:
    """A recipe's algorithm, and the arguments of `run`; of a plan `num_rounds` is the setting `max_rounds`."""
    found = chosen.run_options(num_clients) | dict(options)
    if not issubclass(chosen.algorithm, Plan):
        return chosen.build(), found
    rounds = found.pop("num_rounds", None)
    return chosen.build({} if rounds is None else {"max_rounds": rounds}, where=where), found


def run_at_clients(
    algorithm: Algorithm | Plan, federation: RemoteFederation, executor: Executor, options: Mapping[str, Any]
) -> InferenceData:
    """The result of `pyro_fed.run`, without what needs rows."""
    return run(algorithm, federation, executor=executor, log_likelihood=False, collect_local=False, **options)


class RemoteClients(Remote):
    """Clients that answer orders, each a worker of its own; with `copies` replies bring their new states."""

    def __init__(self, copies: bool = False) -> None:
        self.copies = copies

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The clients' names, in the order of their numbers."""

    @abstractmethod
    def accept(self, header: Header) -> None:
        """Take a reply with this header; ProtocolError if it answers no open request."""

    def prepare(self) -> None:
        """Begin a phase; SettingError if the algorithm needs pooled data."""
        if self.algorithm.pooled:
            name = type(self.algorithm).__name__
            raise SettingError(
                f"{name} needs all rows in one place, and in a deployment they stay at the clients: take FedEP, or run "
                f"{name} on pooled data by pf.run"
            )
        super().prepare()
        self._expected: tuple[Spec, Spec, Spec] | None = None
        self._made: dict[int, list[NewStates]] = {}

    def worker_of(self, client: int) -> int:
        """Each client is a worker of its own."""
        return client

    def execute(self, work: Work) -> Reply:
        """Do a round's work; copies of the clients' new states are kept until `settle`."""
        if work.round != self._round:
            self._made = {}
        return super().execute(work)

    def settle(self, taken: Tensor, told: State) -> None:
        """Note the verdict for the clients' next requests, and apply it to the copies of their states."""
        super().settle(taken, told)
        made = [one for several in self._made.values() for one in several]
        keep(self.algorithm, self.local, made, taken, told)
        self._changed -= set(self._made)
        self._made = {}

    def kind(self, request: Request) -> str:
        """The kind of a request's message."""
        return "work" if request.work is not None and request.indicator is None else "ask"

    def number(self, request: Request) -> int:
        """The round of a request's message."""
        return max(self._round if request.work is None else request.work.round, 0)

    def order(self, client: int, request: Request) -> Order:
        """The order of a request."""
        phase, verdict, work = request.phase, request.verdict, request.work
        return Order(
            job=STATES if work is None else request.indicator or WORK,
            algorithm=settings_line(self.algorithm.contributions().form_for_clients()),
            num_clients=len(self.names),
            num_rows=self.problem.num_rows,
            width=int(self.data.num_rows.max()),
            client=client,
            slots="" if work is None else " ".join(map(str, work.slots)),
            phase=self._phase,
            begins=phase is not None,
            verdict=-1 if verdict is None else verdict.round,
            round=-1 if work is None else work.round,
            seed=0 if work is None else work.seed,
            level=self.problem.compiler.level,
            copies=self._copied(request),
        )

    def tensors(self, request: Request) -> State:
        """The tensors of a request."""
        tensors: State = {}
        if request.phase is not None:
            tensors |= prefixed("local", request.phase.local)
        if request.verdict is not None:
            tensors |= {"taken": request.verdict.taken} | prefixed("told", request.verdict.feedback)
        if request.work is not None:
            tensors |= prefixed("shared", request.work.shared)
        return tensors

    def _copied(self, request: Request) -> bool:
        """Whether the reply brings the client's new state."""
        return self.copies and bool(self.local) and request.work is not None and request.indicator is None

    def decoded(self, client: int, request: Request, data: bytes) -> Reply | State:
        """The answer in a client's reply, whose shapes must be those that the server's own model asks for."""
        # Numbers that are not finite are the round loop's to judge.
        message = decode(data, self._spec(client, request), finite=False)
        self.accept(message.header)
        if request.work is None:
            return within(message.tensors, "local")
        if request.indicator is not None:
            return within(message.tensors, "report")
        if self._copied(request):
            slots = torch.tensor(request.work.slots)
            at = self.at([client]).expand(len(slots))
            self._made.setdefault(client, []).append(NewStates(slots, at, within(message.tensors, "new")))
        return Reply(within(message.tensors, "messages"), within(message.tensors, "info"))

    def expected(self, work: Work) -> tuple[Spec, Spec, Spec]:
        """Shapes and dtypes of a visit's messages, figures and new state; of the phase's first work."""
        if self._expected is None:
            self._expected = expected_reply(self.algorithm, self.problem, self.data, self.local, work)
        return self._expected

    def _spec(self, client: int, request: Request) -> Spec:
        """The shapes and dtypes that this client's reply must have."""
        at = self.at([client])
        if request.work is None:
            known = spec_of(prefixed("local", select(self.local, at)))
            grown = {} if self._expected is None else self._expected[2]  # states may have grown in a round
            new = {f"local.{name}": Entry((1, *entry.shape), entry.dtype) for name, entry in grown.items()}
            return known | {name: entry for name, entry in new.items() if name in known}
        if request.indicator is not None:
            return spec_of(prefixed("report", self.report(request)))
        visits = len(request.work.clients)
        kinds = ("messages", "info", "new") if self._copied(request) else ("messages", "info")
        return {
            f"{kind}.{name}": Entry((visits, *entry.shape), entry.dtype)
            for kind, spec in zip(kinds, self.expected(request.work), strict=False)
            for name, entry in spec.items()
        }

    def report(self, request: Request) -> State:
        """An answer to the request's question on the server's made-up row, for its shapes and dtypes."""
        shared, indicator = cast_checked(request.work, Work).shared, cast_checked(request.indicator, str)
        if indicator == LOG_LIK:
            return {LOG_LIK: torch.zeros(shared["draws"].shape[:2], dtype=torch.float64)}
        row = ClientData(self.data.rows, torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))
        local = {name: value[:1] for name, value in self.local.items()}
        return cast_checked(self.algorithm, Indicators).indicate(indicator, self.problem, shared, local, row)
