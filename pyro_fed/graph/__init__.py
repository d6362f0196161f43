"""Who talks to whom: mixing matrices, topologies, graphs that change from round to round.

Source: Wang et al., *Peer-to-peer variational federated learning over arbitrary graphs*, Section II.

    pf.graph.ring(5)                              a fixed graph, doubly stochastic
    pf.graph.star(9, confidence=0.5)              Section V-B2
    pf.graph.from_networkx(g, mixing="uniform")   any networkx graph
    pf.graph.LinkFailures(pf.graph.ring(5), 0.3)  30 % of the links fail in each round

Convention of the paper: W_ij is the weight that agent i gives to what it receives from agent j; rows sum to
one, and an edge j → i of a directed graph means that i receives from j.
"""

from pyro_fed.conventions.doors import public_dir
from pyro_fed.graph.analysis import consensus_rounds, mixing_bound, spectral_gap, stationary_distribution
from pyro_fed.graph.base import FixedGraph, Graph
from pyro_fed.graph.builders import (
    complete,
    erdos_renyi,
    from_matrix,
    from_networkx,
    grid,
    random_regular,
    ring,
    small_world,
    star,
)
from pyro_fed.graph.consensus import Consensus
from pyro_fed.graph.mixing import lazy, max_degree, metropolis, uniform
from pyro_fed.graph.varying import Clocks, GossipPairs, LinkFailures, Partitioned, Periodic, rotating_stars

__all__ = [
    "Clocks",
    "Consensus",
    "FixedGraph",
    "GossipPairs",
    "Graph",
    "LinkFailures",
    "Partitioned",
    "Periodic",
    "complete",
    "consensus_rounds",
    "erdos_renyi",
    "from_matrix",
    "from_networkx",
    "grid",
    "lazy",
    "max_degree",
    "metropolis",
    "mixing_bound",
    "random_regular",
    "ring",
    "rotating_stars",
    "small_world",
    "spectral_gap",
    "star",
    "stationary_distribution",
    "uniform",
]
__dir__ = public_dir(__all__)
