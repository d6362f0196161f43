"""Whether a run is possible with a combination: refused before anything runs."""

from __future__ import annotations

from pyro_fed.algorithm.capabilities import OnGraph, SiteKeeping
from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.privacy import Private
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.errors import SettingError
from pyro_fed.graph import Graph

#: Why draws of a kind cannot be had privately by visits of one client after the other.
UNHIDDEN = {
    "chains": (
        "a visit moves a chain by one client's rows, weighted as if they were everybody's, so that hiding one client "
        "takes K times the noise that a sum over K clients does (benchmarks/privacy/chains)"
    ),
    "particles": (
        "its server takes one client's turn after the other, and to hide each takes √K times the noise that their sum "
        "does, in N particles √N times that: at epsilon = 10 none stays finite (benchmarks/privacy/chains)"
    ),
}


def check_combination(
    combination: Combination | None,
    chain: list[Algorithm],
    num_clients: int,
    graph: Graph | None = None,
    num_rows: int = 0,
) -> None:
    """Refuse, by a SettingError, a combination that a phase of the run, or the number of clients, does not allow."""
    if combination is None:
        return
    combination.check_clients(num_clients)
    if isinstance(combination, Private):
        _check_private(combination, chain[-1], num_rows)
    for algorithm in reversed(chain):  # the run's own first: it is the one that the user named
        name = type(algorithm).__name__
        if isinstance(combination, Bounded):
            _check_bounding(combination, algorithm, chain[-1], graph)
            continue
        if not algorithm.additive and not isinstance(algorithm, SiteKeeping):
            raise SettingError(f"{name} looks at its messages one by one: {combination} cannot stand in for them")
        told = isinstance(algorithm, SiteKeeping) and algorithm.corrected
        keeps_account = told and combination.shortens
        if not algorithm.additive and not keeps_account:
            raise SettingError(
                f"{name}: its clients keep sites that follow their own messages, {combination} would part the two; "
                "use Bounded or Clipped, which tell them, or FedSEP, whose clients keep none"
            )
        if algorithm.needs_all:
            raise SettingError(
                f"{name}, with which {type(chain[-1]).__name__} starts, needs every client's honest answer, which "
                f"{combination} does not: use start='prior'"
            )


def _check_private(private: Private, algorithm: Algorithm, num_rows: int) -> None:
    """Refuse private runs for which no sound mechanism gives a useful answer, with the measurement that shows it."""
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
    """Whether one consensus step makes all agents agree, in every round."""
    return graph.active(0) is None and stands_still(graph) and graph.gap > 1 - SAME_SHARE
