"""An algorithm as it is run on a model: every open setting chosen by the table of its kind; threads and draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

#: Numbers that all draws of a large model may have together: 160 MB in double precision.
DRAWN_NUMBERS = 20_000_000
#: Rows × parameters from which on a pass over them is worth several threads: some 0.5 ms on one. Below, threads wait
#: for one another longer than they work.
THREADED_NUMBERS = 1_000_000
NO_SETUP = Setup()
#: Families of algorithms, and the modules with their tables, each loaded when one of them is first resolved.
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
#: Codes of findings about an answer that no weights of draws around it mend, each with why.
NOT_MENDED_BY_WEIGHTS = {sentences.mode_without_draws.code: "which misses a mode that no weights bring back"}


def threads_of(traits: Traits) -> int | None:
    """Threads for "auto": one, or torch's own number if a pass over the rows is long enough."""
    return None if traits.num_rows * traits.dim >= THREADED_NUMBERS else 1


def affordable_draws(traits: Traits, wanted: int, chains: int) -> int:
    """The wanted number of draws of a chain, or as many as `DRAWN_NUMBERS` has room for if the model is large."""
    if traits.dim <= LARGE_DIM:
        return wanted
    return max(1, min(-(-wanted // chains), max(MIN_DRAWS, DRAWN_NUMBERS // traits.dim // chains)))


def resolve(algorithm: Algorithm, traits: Traits, setup: Setup = NO_SETUP) -> Resolved:
    """The algorithm with every open setting chosen, each with its reason; a user's settings stay unchanged.

    An algorithm that no table knows is returned unchanged, and so is one without open settings.

    Raises:
        SettingError: it cannot be run on this model; names what can.

    Example:
        >>> resolve(pf.FedEP(), fed.problem.traits).algorithm
        FedEP(covariance='full', curvature='hessian', start='laplace')
    """
    found = algorithm.delegate()
    return apply_table(found, table_of(type(found)), traits, setup)


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
    """`resolve`, in the form of the algorithm that the graph asks for."""
    found = resolve(algorithm, problem.traits, setup)
    if setup.graph is None or not isinstance(found.algorithm, OnGraph):
        return found
    return replace(found, algorithm=found.algorithm.on_graph(setup.graph))


def stages_of(named: Algorithm | Plan, problem: Problem, graph: Graph | None) -> list[Stage]:
    """The stages that are run for an algorithm or a plan, with open settings; the graph is None with a server."""
    given = named.stages(problem, graph) if isinstance(named, Plan) else [named]
    stages = [one if isinstance(one, Stage) else Stage(one) for one in given]
    return [replace(one, algorithm=one.algorithm.delegate()) for one in stages]


def why_not_from(algorithm: Algorithm, findings: Iterable[Finding]) -> str:
    """Why an algorithm need not start from an answer with these findings, as a clause; "" if it may mend them.

    Chains may leave the place from which they start, and a guide is fitted to the rows: only weights cannot.
    """
    from pyro_fed.infer.surrogates.fedais import FedAIS  # as the tables, when a stage is judged

    if not isinstance(algorithm, FedAIS):
        return ""
    return next((NOT_MENDED_BY_WEIGHTS[one.code] for one in findings if one.code in NOT_MENDED_BY_WEIGHTS), "")


def phases_of(found: Resolved, problem: Problem) -> list[Resolved]:
    """An algorithm after all that it starts from."""
    chain = [found]
    while (first := chain[0].algorithm.warm_start(problem)) is not None:
        phase, name = resolve(first, problem.traits), type(chain[0].algorithm).__name__
        choices = (replace(one, reason=f"as {name} has it") if one.reason == AS_SET else one for one in phase.choices)
        chain.insert(0, replace(phase, choices=tuple(choices)))
    return chain


def chain_of(algorithm: Algorithm, problem: Problem) -> list[Algorithm]:
    """An algorithm after all that it starts from, none with open settings."""
    return [one.algorithm for one in phases_of(resolve(algorithm, problem.traits), problem)]
