"""Averaging over a graph for some rounds, as the start of an algorithm that refines its points."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pyro_fed.algorithm.contract import Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.graph import Consensus, Graph
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.infer.peers.p2p_fedavg import P2PFedAvg


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PeerBurnIn(P2PFedAvg, BurnIn):
    """`P2PFedAvg` on minibatches by Adam, for the rounds with which another algorithm begins.

    Args:
        step_size: Adam's rate, from round `rising` on.
        batch_size: rows a step; None takes all.
        gossip_tolerance: disagreement that a round's consensus leaves, relative to what it was.

    The others are those of `P2PFedAvg` and of `BurnIn`. The first two are declared again: a dataclass of two bases has
    the first one's defaults, and `P2PFedAvg`'s are for SGD.
    """

    step_size: float = BurnIn.step_size
    batch_size: int | None = BurnIn.batch_size
    gossip_tolerance: float = 0.1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent at the same point, with its number of rounds."""
        shared, local = super().init(problem, num_clients, generator, start)
        return shared, {**local, "rounds_before": torch.zeros(num_clients, dtype=torch.int64)}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make L steps of Adam, at the rate of the agent's own count of rounds."""
        known = {**shared, "rounds_before": local["rounds_before"]}
        message, _, info = super().local_step(problem, known, local, data, noise)
        return message, {"rounds_before": local["rounds_before"] + 1}, info

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """As many steps in a round as make the agents agree; one if groups take turns."""
        if graph.active(0) is not None:
            return 1
        return graph.consensus(self.gossip_tolerance).steps

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The consensus with the fewest steps."""
        if graph.active(0) is not None:
            return super().consensus(graph, sleepers)
        return graph.consensus(self.gossip_tolerance)
