"""Checks, before a run, that its phases allow the combination of messages."""

from __future__ import annotations

from pyro_fed.algorithm.capabilities import OnGraph, SiteKeeping
from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.privacy import Private
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph

#: Why algorithms that visit one client after the other cannot be private, by kind of draws.
UNHIDDEN = {
    "chains": (
        "a visit moves a chain by one client's rows, weighted to all rows, so that hiding one client takes K times the "
        "noise of a sum over K clients (benchmarks/privacy/chains)"
    ),
    "particles": (
        "clients take turns, and hiding each turn takes √K times the noise of their sum, or √(K N) times with N "
        "particles: at epsilon = 10 no run stays finite (benchmarks/privacy/chains)"
    ),
}


def check_combination(
    combination: Combination | None,
    chain: list[Algorithm],
    num_clients: int,
    graph: Graph | None = None,
    num_rows: int = 0,
) -> None:
    """Refuse a combination that a phase of the run, or the number of clients, does not allow (SettingError)."""
    if combination is None:
        return
    combination.check_clients(num_clients)
    if isinstance(combination, Private):
        _check_private(combination, chain[-1], num_rows)
    for algorithm in reversed(chain):  # the run's own algorithm first, since the user named it
        name = type(algorithm).__name__
        if isinstance(combination, Bounded):
            _check_bounding(combination, algorithm, chain[-1], graph)
            continue
        if not algorithm.additive and not isinstance(algorithm, SiteKeeping):
            raise SettingError(f"{name} uses its messages one by one, which {combination} does not allow")
        gets_correction = isinstance(algorithm, SiteKeeping) and algorithm.corrected
        keeps_account = gets_correction and combination.shortens
        if not algorithm.additive and not keeps_account:
            raise SettingError(
                f"{name}: its clients keep sites that depend on their own messages, from which {combination} deviates; "
                "use Bounded or Clipped, which send corrections, or FedSEP, whose clients keep no sites"
            )
        if algorithm.needs_all:
            raise SettingError(
                f"{name}, with which {type(chain[-1]).__name__} starts, needs the exact messages of all clients, which "
                f"{combination} changes: use start='prior'"
            )


def _check_private(private: Private, algorithm: Algorithm, num_rows: int) -> None:
    """Refuse private runs for which no sound mechanism gives a useful result, with the measurement that shows it."""
    name = type(algorithm).__name__
    if private.unit == "row":
        private.check_units(num_rows, "row")
        if not algorithm.contributions().noise_in_draws:
            raise SettingError(
                f"{name}: Private(unit='row') protects single rows where a message is a sum over rows whose terms the "
                f"client shortens one by one; {name}'s is not, and a bound on it would be that of the whole client: "
                "use SummedLangevin(row_norm=...), or unit='client'"
            )
    if algorithm.draws_are in UNHIDDEN and not algorithm.contributions().noise_in_draws:
        raise SettingError(f"{name} has no differential privacy: {UNHIDDEN[algorithm.draws_are]}. Use SummedLangevin")


def _check_bounding(combination: Bounded, algorithm: Algorithm, last: Algorithm, graph: Graph | None) -> None:
    name = type(algorithm).__name__
    first = "" if algorithm is last else f", with which {type(last).__name__} starts,"
    obstacle = algorithm.contributions().bounding_obstacle()
    if obstacle is None or algorithm.pooled:
        raise SettingError(
            f"{name}{first} has no rule for {combination}; FedEP, PVI, FedPA, FedSEP, BCM, FedLaplace, ConsensusMC, "
            "FedAvg, FSGLD, FALD, DSVGD, ParallelDSVGD, FedAIS and P2PVI have one"
        )
    if obstacle:
        raise SettingError(f"{name}{first} cannot be bounded: {obstacle}")
    if isinstance(algorithm, OnGraph) and (graph is None or graph.active(0) is not None or not stands_still(graph)):
        raise SettingError(
            f"{name}{first} cannot be bounded on this graph: agents are held to what their neighbours' neighbours say, "
            "and these change from round to round; give a graph that stays the same, such as pf.graph.ring(...)"
        )


def stands_still(graph: Graph) -> bool:
    """Whether an agent has the same neighbours in every round."""
    return not graph.random and graph.window == 1


def all_hear_all(graph: Graph) -> bool:
    """Whether the graph is complete, so that one consensus step makes all agents agree, in every round."""
    return graph.active(0) is None and stands_still(graph) and graph.gap > 1 - SAME_SHARE
