"""The choice of an algorithm's open settings by the table of its kind, and of threads and draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module

from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import Algorithm, Plan, Stage
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MIN_DRAWS
from pyro_fed.density.problem import Problem
from pyro_fed.density.traits import LARGE_DIM, Traits
from pyro_fed.graph import Graph
from pyro_fed.policy.choice import AS_SET, Resolved, Setup, Table, apply_table

#: Largest number of entries of all draws of a large model: 160 MB in double precision.
DRAWN_NUMBERS = 20_000_000
#: Smallest rows × parameters for several threads: a pass takes about 0.5 ms on one. Below it, threads wait for each
#: other longer than they work.
THREADED_NUMBERS = 1_000_000
NO_SETUP = Setup()
#: Families of algorithms and the modules with their tables, which are loaded on first use.
TABLES = {
    "averaging": "pyro_fed.policy.gaussian",
    "ep": "pyro_fed.policy.ep",
    "langevin": "pyro_fed.policy.sampling",
    "laplace": "pyro_fed.policy.gaussian",
    "papers": "pyro_fed.policy.sampling",
    "peers": "pyro_fed.policy.peers",
    "pooled": "pyro_fed.policy.sampling",
    "sites": "pyro_fed.policy.gaussian",
    "stein": "pyro_fed.policy.stein",
    "surrogates": "pyro_fed.policy.sampling",
    "variational": "pyro_fed.policy.sampling",
}
INFER = "pyro_fed.infer."
#: Later stages of a plan begin at a mode without draws if more than this share of the mass is in such modes: a smaller
#: one does not spare them the other modes.
NEARLY_ALL_MASS = 0.9
#: Codes of findings about a result that importance weights cannot correct, with the reasons.
NOT_MENDED_BY_WEIGHTS = {
    sentences.mode_without_draws.code: "which misses a mode that importance weights cannot restore"
}


def threads_of(traits: Traits) -> int | None:
    """The number of threads for "auto": one, or torch's default if a pass over the rows is long enough."""
    return None if traits.num_rows * traits.dim >= THREADED_NUMBERS else 1


def affordable_draws(traits: Traits, requested: int, chains: int) -> int:
    """The number of draws of a chain: as requested, or for a large model at most what `DRAWN_NUMBERS` allows."""
    if traits.dim <= LARGE_DIM:
        return requested
    return max(1, min(-(-requested // chains), max(MIN_DRAWS, DRAWN_NUMBERS // traits.dim // chains)))


def resolve(algorithm: Algorithm, traits: Traits, setup: Setup = NO_SETUP) -> Resolved:
    """The algorithm with every open setting chosen, each with its reason; the user's settings are unchanged.

    An algorithm without a table, or without open settings, is returned unchanged.

    Raises:
        SettingError: it cannot be run on this model; the message names alternatives.

    Example:
        >>> resolve(pf.FedEP(), fed.problem.traits).algorithm
        FedEP(covariance='full', curvature='hessian', start='laplace')
    """
    delegate = algorithm.delegate()
    return apply_table(delegate, table_of(type(delegate)), traits, setup)


def table_of(kind: type[Algorithm]) -> Table:
    """The rules of a kind of algorithm: its own, or those of its nearest base class."""
    for one in kind.__mro__:
        family = one.__module__.removeprefix(INFER).partition(".")[0]
        if one.__module__.startswith(INFER) and family in TABLES:
            tables: Mapping[type, Table] = import_module(TABLES[family]).TABLES
            if one in tables:
                return tables[one]
    return Table()


def resolve_for_run(algorithm: Algorithm, problem: Problem, setup: Setup = NO_SETUP) -> Resolved:
    """`resolve`, for the form of the algorithm that the graph requires."""
    resolved = resolve(algorithm, problem.traits, setup)
    if setup.graph is None or not isinstance(resolved.algorithm, OnGraph):
        return resolved
    return replace(resolved, algorithm=resolved.algorithm.on_graph(setup.graph))


def stages_of(named: Algorithm | Plan, problem: Problem, graph: Graph | None) -> list[Stage]:
    """The stages of a run of an algorithm or a plan, with open settings; the graph is None with a server."""
    given = named.stages(problem, graph) if isinstance(named, Plan) else [named]
    stages = [one if isinstance(one, Stage) else Stage(one) for one in given]
    return [replace(one, algorithm=one.algorithm.delegate()) for one in stages]


def why_not_from(algorithm: Algorithm, findings: Iterable[Finding]) -> str:
    """Why an algorithm cannot correct a result with these findings, as a clause; "" if it may.

    Chains may leave their start, and guides are fitted to the rows; only importance weights depend on the start.
    """
    from pyro_fed.infer.surrogates.fedais import FedAIS  # imported when a stage is judged

    if not isinstance(algorithm, FedAIS):
        return ""
    return next((NOT_MENDED_BY_WEIGHTS[one.code] for one in findings if one.code in NOT_MENDED_BY_WEIGHTS), "")


def begins_at_another_mode(chain: Sequence[Algorithm], findings: Iterable[Finding]) -> bool:
    """Whether later stages begin at a mode that has no draws of an algorithm: nearly all mass is in such modes.

    `chain` is the algorithm, preceded by those that it starts from: the first has to be a search for a mode.
    """
    from pyro_fed.infer.laplace.fedlaplace import FedLaplace  # imported when a stage is judged

    if not isinstance(chain[0], FedLaplace):
        return False
    shares = (one.figures["lost"] for one in findings if one.code == sentences.mode_without_draws.code)
    return any(float(share) > NEARLY_ALL_MASS for share in shares)


def phases_of(found: Resolved, problem: Problem) -> list[Resolved]:
    """An algorithm, preceded by the algorithms that it starts from."""
    chain = [found]
    while (first := chain[0].algorithm.warm_start(problem)) is not None:
        phase, name = resolve(first, problem.traits), type(chain[0].algorithm).__name__
        choices = (replace(one, reason=f"as {name} has it") if one.reason == AS_SET else one for one in phase.choices)
        chain.insert(0, replace(phase, choices=tuple(choices)))
    return chain


def chain_of(algorithm: Algorithm, problem: Problem) -> list[Algorithm]:
    """An algorithm, preceded by the algorithms that it starts from, without open settings."""
    return [one.algorithm for one in phases_of(resolve(algorithm, problem.traits), problem)]
