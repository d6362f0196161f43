"""The run of one agent of a graph: from its own rows to its own InferenceData."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import torch
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.analysis.predicting.row_sums import PREDICTED, named_questions
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.nested_settings import settings_line
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.compiling.process import compile_problem
from pyro_fed.density.fingerprint import (
    COLUMNS_CURE,
    LABELS_CURE,
    hash_tensors,
    label_digests,
    operations_hash,
    shared_arguments,
)
from pyro_fed.density.latents.modes import MAX_STARTS
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.containers import Table
from pyro_fed.deployment.agents.agent_federation import MAX_EXCHANGES, AgentFederation, AskedAgents, AuditedAgent
from pyro_fed.deployment.agents.certificates import Identity
from pyro_fed.deployment.agents.links import END_PHASE, Links
from pyro_fed.deployment.agents.neighbours import neighbours_of
from pyro_fed.deployment.agents.outbox import At, DifferError, Farewell, NoMessage
from pyro_fed.deployment.agents.peers import LinkSettings, Peers
from pyro_fed.deployment.agents.wire import Unwelcome, Wire, with_step
from pyro_fed.deployment.claimed_federation import one_group_numbers, own_federation
from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.deployment.policy.rules import level_counts, rows_share
from pyro_fed.deployment.remote.questions import ABOUT_CLIENTS, ANSWER_KINDS, LOO, check_questions, with_answer
from pyro_fed.errors import DivergenceError, PolicyError, ProtocolError, QuorumError, SettingError, StoppedError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.entries import evenly
from pyro_fed.policy import Setup, resolve_for_run
from pyro_fed.recipes.library import labels_in
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.checkpoint import Checkpoint
from pyro_fed.runtime.checks import CheckInputs
from pyro_fed.runtime.context import Context
from pyro_fed.runtime.fingerprint import fingerprint
from pyro_fed.runtime.finish import Finish, said_of
from pyro_fed.runtime.network import Network, connect
from pyro_fed.runtime.rounds import run_phases
from pyro_fed.runtime.run import NUM_DRAWS, check_folders, check_numbers


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One of the agents of a peers file.

    Args:
        model: the Pyro model, the same at every agent.
        plate: name of the model's plate over rows.
        rows: the model's positional arguments, with this agent's rows.
        nested: where the plate is over groups, the plates whose rows belong to them, like `rows` of `Federation`.
        identity: the agent's name, key and certificate.
        peers: all agents and their graph.
        algorithm: one without a server, such as `pf.P2PVI()`; the same at every agent.
        num_rounds: number of rounds; by default the algorithm's own.
        seed: the run's seed, the same at every agent.
        num_draws: number of draws of the agent's belief.
        compile: how steps are compiled, see `pyro_fed.run`.
        settings: waiting times and sizes.
        listen: address at which to listen; by default the one in the peers file.
        checkpoint: folder in which the state is saved after every round.
        resume: go on from the checkpoint.
        progress: whether to show the progress.
        gate: the site's rules on what may leave, and its ledger: `Gate.open(folder, name)`; by default all may leave.
        audit: whether all agents judge their results by the log-likelihoods of all rows at their draws, which each adds
            up over its own; the same at every agent. An agent whose rules let none leave takes part in none.
        questions: what all agents ask about their results: estimands that `module` names; "loo" for leave-one-out and
            WAIC; "influence"; "leave_one_client_out", how well the others predict each agent. The same at every agent.
            An agent whose rules let no answers leave takes part in none.
        module: the model's file as it was imported, for the estimands that it names, `DIMS` and `COORDS`.

    Example:
        >>> peers = load_peers(Path("peers.toml"))
        >>> me = Identity.load(Path("certificates"), "north")
        >>> agent = Agent(model=model, plate="data", rows=(x, y), identity=me, peers=peers, algorithm=pf.P2PVI())
        >>> idata = run_agent(agent)
    """

    model: Callable[..., Any]
    plate: str
    rows: tuple[Any, ...]
    identity: Identity
    peers: Peers
    algorithm: Algorithm
    nested: Mapping[str, str | Sequence[str]] | None = None
    num_rounds: int | None = None
    seed: int = 0
    num_draws: int = NUM_DRAWS
    compile: str = "auto"
    settings: LinkSettings = field(default_factory=LinkSettings)
    listen: str | None = None
    checkpoint: Path | None = None
    resume: bool = False
    progress: bool = True
    gate: Gate | None = None
    audit: bool = True
    questions: Sequence[str] = ()
    module: ModuleType | None = None

    @property
    def audited(self) -> bool:
        """Whether it takes part in the audit."""
        return self.audit and self._permits("log_likelihood")

    @property
    def permitted_questions(self) -> list[str]:
        """The questions in which it takes part."""
        kinds = {name: ANSWER_KINDS.get(name, ("estimate",)) for name in self.questions}
        return [name for name in self.questions if all(map(self._permits, kinds[name]))]

    def _permits(self, kind: str) -> bool:
        return self.gate is None or self.gate.policy.permits(kind)


def run_agent(agent: Agent) -> InferenceData:
    """Run an agent with its neighbours, until all agents have converged or the rounds are over.

    The draws are the agent's chain of `pyro_fed.run(..., graph=peers.graph, executor="sequential")` on all agents' rows
    with the same seed: the noise is the same, and so are the sums, in the same order.

    Args:
        agent: the agent, its rows, and what it runs.

    Returns:
        InferenceData with the groups `posterior` (this agent's draws) and `federation` (its own rounds and figures, the
        largest move and the disagreement of all agents, and how many agents were heard in each round), and those of the
        questions, such as `loo` and `estimand_NAME`; the attribute `no_loo` or `no_estimand_NAME` says why one has no
        answer.

    Raises:
        SettingError: an algorithm that needs a server, a setting out of its range, or an estimand by "predicted".
        ProtocolError: a neighbour runs something else, or sends something that is not a message of this run.
        Unwelcome: a neighbour does not have the certificate that it should have.
        PolicyError: a rule of the agent's own policy does not permit a message; the neighbours are told the rule.
        QuorumError: no neighbour answers; the error's `result` has the belief so far, if there is one.
        CheckpointError: a checkpoint of another run.

    Example:
        >>> peers = load_peers(Path("peers.toml"))
        >>> me = Identity.load(Path("certificates"), "north")
        >>> idata = run_agent(Agent(model=model, plate="data", rows=(x, y), identity=me, peers=peers,
        ...                         algorithm=pf.P2PVI()))
    """
    name = agent.identity.name
    me = agent.peers.number(name)
    with threads(1), torch.no_grad():
        labels = labels_in(agent.module)
        own = own_federation(agent.model, name, agent.rows, agent.plate, agent.nested, "by agents", **labels)
        algorithm = _algorithm(agent, own)
        rounds = algorithm.default_rounds(len(agent.peers.names)) if agent.num_rounds is None else agent.num_rounds
        check_numbers(rounds, agent.num_draws, agent.seed, None, len(agent.peers.names), None)
        check_folders(checkpoint=agent.checkpoint)
        names = [name for name in agent.questions if name not in ABOUT_CLIENTS]
        check_questions(own, agent.module, names, "" if LOO in agent.questions else None)
        _refuse_predicted(own, agent.module, names)
        if agent.resume and agent.checkpoint is None:
            raise SettingError("resume=True needs checkpoint=, the folder that holds the state")
        agreement = _agreement(agent, algorithm, own, rounds)
        if agent.gate is not None:
            agent.gate.rows = own.num_rows
            levels = level_counts(own.problem)
            agent.gate.release(
                Outgoing(kind="agreement", data=json.dumps(agreement).encode(), to="neighbours", levels=levels)
            )
        share = cache(partial(rows_share, own.problem, own.client_data()))
        links = Links(me, agent.peers, agent.settings, agreement, agent.gate, share)
        links.wire = Wire(me, agent.peers, agent.identity, agent.settings, agreement, links.answer, agent.listen)
        try:
            _agree(links)
            federation = _agent_federation(own, links)
            found = _run_rounds(agent, algorithm, federation, links, rounds)
            _take_leave(links, Farewell(links.wire.run, "it has finished its rounds", done=True))
            return found
        except Exception as error:  # not KeyboardInterrupt: neighbours wait for an agent that is interrupted
            _take_leave(links, _farewell(links, error))
            raise
        finally:
            links.outbox.close()
            links.wire.close()


def _refuse_predicted(own: Federation, module: ModuleType | None, names: Sequence[str]) -> None:
    """Refuse calibration: its bins are by the draws, and tables at the draws of all agents differ by single rows."""
    known = named_questions(module, own.problem) if names else {}
    if odd := [name for name in names if known[name].question.by == PREDICTED]:
        raise SettingError(
            f"agents do not answer the estimand {odd[0]!r} by {PREDICTED!r}: each would tell all others its bins at "
            "every agent's draws, which differ by single rows. Leave it out, or run the model with a server"
        )


def _take_leave(links: Links, farewell: Farewell) -> None:
    """Tell the neighbours that the agent leaves, after its ledger has a line on that."""
    if links.gate is not None:
        with suppress(ProtocolError):  # a ledger that is not whole has stopped the run: neighbours are told so
            links.gate.release(Outgoing(kind="notice", data=farewell.encode(), to="neighbours"))
    links.wire.leave(farewell, links.wire.neighbours)


def _farewell(links: Links, error: Exception) -> Farewell:
    """The message to the neighbours about an error, without words that may have rows in them."""
    wire = links.wire
    why, differs = f"it has stopped ({type(error).__name__}); its own log says why", isinstance(error, DifferError)
    if isinstance(error, DifferError):
        why = error.told
    elif isinstance(error, PolicyError):
        why = str(error)
    elif isinstance(error, QuorumError) and wire.left:
        why = "; ".join(
            f"agent {links.names[j]} has left it: {farewell.why}" for j, farewell in dict(wire.left).items()
        )
    return Farewell(wire.run, why, differs=differs)


def _algorithm(agent: Agent, own: Federation) -> Algorithm:
    """The algorithm that is run on the agents' graph; SettingError for one that is not for agents."""
    if isinstance(agent.algorithm, Plan):
        raise SettingError(
            f"{type(agent.algorithm).__name__} tries several algorithms; agents run one, such as P2PVI()"
        )
    algorithm = resolve_for_run(agent.algorithm, own.problem, Setup(agent.peers.graph)).algorithm
    if not isinstance(algorithm, OnGraph):
        raise SettingError(f"{type(algorithm).__name__} needs a server; agents run P2PVI, P2PEP or P2PFedAvg")
    return algorithm


def _agreement(agent: Agent, algorithm: Algorithm, own: Federation, rounds: int) -> dict[str, str]:
    """The facts that all agents must have in common, name → text."""
    problem = own.problem
    arguments = problem.arguments
    tables = arguments.orders(problem.model, (Table,))
    rows = [[label, part, list(leaf.shape[1:]), str(leaf.dtype)] for label, part, leaf in arguments.columns]
    return {
        "versions": f"pyro_fed {VERSION}, torch {torch.__version__}, pyro {pyro.__version__}",
        "agents and graph": agent.peers.described(),
        "algorithm": settings_line(algorithm),
        "rounds": str(rounds),
        "seed": str(agent.seed),
        "audit (see --no-audit)": f"at {agent.num_draws} draws" if agent.audited else "none",
        "questions (see --ask)": _questions_text(agent),
        "plate": problem.plate,
        # before the model, whose operations follow from these
        f"columns of data frames ({COLUMNS_CURE})": json.dumps(tables, default=str),
        "rows": json.dumps(rows),
        "dtype": str(problem.dtype),
        **{f"shared argument {name}": digest for name, digest in _shared_argument_digests(problem).items()},
        "model (the operations of its density, and constants in them)": _row_operations(problem),
        "plates nested in it": json.dumps(arguments.nested_by_name),
        "sites": json.dumps({site: list(one.shape) for site, one in problem.sites.items()}),
        f"labels of text ({LABELS_CURE})": json.dumps(label_digests(problem)),
    }


def _questions_text(agent: Agent) -> str:
    """The questions and at how many draws, with SHA-256 of the model's file where they name functions of its rows."""
    questions, file = agent.permitted_questions, getattr(agent.module, "__file__", None)
    if not questions:
        return "none"
    text = f"{listed(questions)} at {agent.num_draws} draws"
    if file is None or set(questions) <= set(ABOUT_CLIENTS):
        return text
    return f"{text} of a file {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"


def _row_operations(problem: Problem) -> str:
    """The operations of the density of one row (or of one group with one row), with a fixed quadrature rule."""
    if problem.local_dim:
        problem = replace(problem, quadrature=Quadrature(order=1, mode_steps=1))
    return operations_hash(problem, rows=1, nested=1)


def _shared_argument_digests(problem: Problem) -> dict[str, str]:
    """Hashes of the arguments that all agents share. The number of groups, which is each agent's own, is set to one."""
    ones = {name: repr(number) for name, number in one_group_numbers(problem).items()}
    return {name: hash_tensors([], ones.get(name, text)) for name, text in shared_arguments(problem).items()}


def _agree(links: Links) -> None:
    """Require that all neighbours, and so all agents, run the same: a DifferError names what differs."""
    mine = links.agreement
    for j in links.wire.neighbours:
        name = links.names[j]
        try:
            theirs = links.wire.hello(j, links.settings.patience_all)
        except NoMessage as error:
            left = next(iter(dict(links.wire.left)), None)
            if left is not None:
                raise links.without(left) or error from error
            reason = links.wire.failures.get(j, "no answer")
            raise QuorumError(
                f"agent {name} at {links.peers.addresses[j]} has not answered within {links.settings.patience_all} s "
                f"({reason}). Start it, see that its address can be reached, or raise patience_all"
            ) from error
        for key in {**mine, **theirs}:
            if mine.get(key) != theirs.get(key):
                what = f"agents {links.names[links.me]} and {name} differ in {key}"
                raise DifferError(f"{what}: {mine.get(key)!s:.300} and {theirs.get(key)!s:.300}", what)
        links.wire.agreed.add(j)


def _agent_federation(own: Federation, links: Links) -> AgentFederation:
    """The federation of all agents, after each has stated, signed, its number of rows and the quadrature it needs.

    All then use the largest number of nodes and of steps; nodes are placed by tails if one agent needs that, and
    modes are looked for from every place that an agent needs. A simulation, with all rows, finds the same rule.
    """
    rule, places = own.problem.quadrature, torch.zeros(MAX_STARTS, max(1, own.problem.local_dim), dtype=torch.float64)
    for i, place in enumerate(rule.starts or ()):
        places[i] = torch.tensor(place)
    needs = {"order": rule.order or 0, "steps": rule.mode_steps or 0, "tails": int(rule.tails or False)}
    figures = {"rows": own.num_rows, **needs}
    wait = links.settings.patience_all
    statements = links.wire.statements
    known = statements.introduction(hash_tensors(pytree.tree_leaves(own.problem.rows)))
    told = {**{k: torch.tensor([v]) for k, v in figures.items()}, "starts": places[None], **known}
    found, _ = links.spread(At(-1, -1, 0), told, wait, whole=True)
    statements.bind(found["nonce"])
    if own.problem.local_dim:
        for what, most in (("order", rule.max_order), ("steps", rule.max_mode_steps)):
            odd = ((found[what] < 1) | (found[what] > most)).nonzero().flatten().tolist()
            if odd:
                raise ProtocolError(
                    f"agent {links.names[odd[0]]} says it needs {int(found[what][odd[0]])} as the {what} of its "
                    f"quadrature, expected 1 to {most}"
                )
        needs = {what: int(found[what].max()) for what in needs}
        starts = found["starts"].flatten(0, 1)
        starts = starts[starts.isfinite().all(1) & (starts != 0).any(1)].unique(dim=0)
        each = tuple(map(tuple, starts[evenly(len(starts), MAX_STARTS)].tolist()))
        rule = replace(rule, order=needs["order"], mode_steps=needs["steps"], tails=needs["tails"] > 0, starts=each)
        own = copy(own)
        own.problem = replace(own.problem, quadrature=rule)
    return AgentFederation(own, links.names, links.me, found["rows"])


def _run_rounds(
    agent: Agent, algorithm: Algorithm, federation: AgentFederation, links: Links, rounds: int
) -> InferenceData:
    """Run the agent's rounds, and make its result."""
    record = Record(federation.client_names)
    problem = compile_problem(federation.problem, agent.compile, rounds, agent.progress)

    def network(part: Algorithm, graph: Any, schedule: Any, num_clients: int, seed: int) -> Network:
        connect(part, graph, schedule, num_clients, seed)  # for its checks
        return neighbours_of(links, cast_checked(part, OnGraph), part.needs_all)

    context = Context(
        federation, problem, agent.peers.graph, AuditedAgent(links), agent.seed, agent.progress, record, connect=network
    )
    if agent.checkpoint is not None:
        marks = fingerprint(algorithm, federation, rounds, None, agent.peers.graph, agent.seed, None, None)
        # A finished run cannot be given more rounds: the neighbours have been told that this agent has ended.
        context.checkpoint = Checkpoint(agent.checkpoint, marks, agent.resume, any_rounds=False)
    finish = Finish(algorithm, context, agent.num_draws, False, False, audit=agent.audited)
    blamed = context.checkpoint.blamed if context.checkpoint is not None else nullcontext
    try:
        with context.interruption, blamed():
            shared = run_phases(algorithm, context, rounds, None)
        _end(links, len(record.rounds))  # who is a step behind does not wait for this agent's audit
        found = _result(finish, shared, links.me)
        fewest = 1 if agent.gate is None else agent.gate.policy.min_cell
        for number, name in enumerate(agent.permitted_questions):
            asked = AskedAgents(links, MAX_EXCHANGES * number)
            found = with_answer(found, federation, asked, agent.module, name, fewest)
        with suppress(ProtocolError, Unwelcome):  # a neighbour's message can no longer change the result
            _leave(links)
        return found
    except StoppedError as error:
        if error.state is not None and error.algorithm == algorithm:
            with suppress(DivergenceError):  # a state that was never a distribution has no draws
                finish.audit = False
                error.result = _result(finish, error.state, links.me)
                error.result.attrs["stopped"] = str(error)
        raise
    finally:
        if context.checkpoint is not None:
            context.checkpoint.close()


def _result(finish: Finish, shared: State, me: int) -> InferenceData:
    """The agent's own chain."""
    context, agents = finish.context, finish.context.federation.num_clients
    own = finish.algorithm.conclude(context.problem, {name: value[me : me + 1] for name, value in shared.items()})
    alone = {name: value.expand(agents, *value.shape[1:]).clone() for name, value in own.items()}
    draws = finish.drawn(alone)[me : me + 1]
    finish.judge(CheckInputs(finish.algorithm, context, own, draws, finish.audit))
    record = context.record
    record.findings += record.clients_failed()
    return said_of(finish.result(alone, draws), record)


def _end(links: Links, rounds: int) -> None:
    """Tell neighbours that still ask for a round's message that there are no more."""
    last = max(links.at.phase, 0)
    if links.outbox.ended(last) is None:
        links.outbox.end(last, rounds - 1)


def _leave(links: Links) -> None:
    """Stay until the neighbours have fetched this agent's last messages, and know that it has ended."""
    at = At(END_PHASE, -1, 0)
    there = links.up(at)
    done = {"done": torch.ones(1, dtype=torch.bool)}
    links.release("notice", at, done)
    links.outbox.put(at, done)
    found = links.wire.ask({j: with_step("Take", at, done) for j in there}, links.settings.patience)
    left = {j for j, answer in found.items() if not isinstance(answer, NoMessage)}
    links.outbox.wait_until_taken(at, left, links.settings.patience)
