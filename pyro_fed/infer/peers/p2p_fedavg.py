"""Decentralised federated averaging, a baseline for peer-to-peer inference.

Source: McMahan et al. (2017), over a graph as in Lian et al. (2017), references [10] and [22] of Wang et al.

    θ_i ← Σ_j W_ij (θ_j after L local steps of SGD on -log p_j / N_j)

Wang et al., Section V-B1: "FedAvg can also be viewed as a decentralized SGD method over a fully connected
network", W_ij = 1/N. The result is a point at every agent, not a posterior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.graph import Consensus, Graph
from pyro_fed.graph.mixing import mix
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.infer.averaging.local_sgd import LocalSGD, StepContributions


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class P2PFedAvg(LocalSGD, OnGraph):
    """Federated averaging over a graph: a point at every agent, and no posterior.

    Args:
        gossip_steps: consensus steps a round.

    References:
        McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data. Lian et al.
        (2017), Can decentralized algorithms outperform centralized algorithms?

    Example:
        >>> idata = pf.run(pf.infer.P2PFedAvg(chain_steps=50), fed, graph=pf.graph.ring(5))
    """

    additive: ClassVar[bool] = False
    without: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("damping", "server_optimiser"), "agents mix over the graph; use FedAvg, which has a server"
    )

    gossip_steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "gossip_steps")

    def contributions(self) -> Contributions:
        """The agents' steps, which cannot be bounded, because mixed points cannot be corrected later."""
        obstacle = "later rounds cannot undo a malicious update; use FedAvg, or P2PVI, whose agents keep sites"
        return StepContributions(self, obstacle)

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The setting `gossip_steps`, on every graph."""
        return self.gossip_steps

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start every agent at the same point."""
        server, local = super().init(problem, num_clients, generator, start)
        return {"point": server["point"].expand(num_clients, -1).clone()}, local

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of SGD; the message is the last point."""
        total = torch.full_like(data.num_rows, problem.num_rows)
        message, local, info = super().local_step(problem, {**shared, "num_rows": total}, local, data, noise)
        return {"point": shared["point"] + message["delta"]}, local, info

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return super().objections(received, {"delta": messages["point"] - received["point"]})

    def combine(self, shared: State, messages: State, weights: Any) -> State:
        return {"point": mix(weights, messages["point"])}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The largest step of an agent, and the largest distance of an agent from the mean."""
        disagreement = (after["point"] - after["point"].mean(0)).norm(dim=-1).amax()
        return {
            "change": float((after["point"] - before["point"]).norm(dim=-1).amax()),
            "distance": float(disagreement),
        }

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return shared["point"].unsqueeze(1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class PeerBurnIn(P2PFedAvg, BurnIn):
    """`P2PFedAvg` on minibatches by Adam, for the first rounds of another algorithm."""

    step_size: float = BurnIn.step_size  # Adam's rate, from round `rising` on
    batch_size: int | None = BurnIn.batch_size  # rows a step; None takes all
    gossip_tolerance: float = 0.1  # disagreement that a round's consensus leaves, relative to what it was

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        shared, local = super().init(problem, num_clients, generator, start)
        return shared, {**local, "rounds_before": torch.zeros(num_clients, dtype=torch.int64)}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take L steps of Adam, at the rate for the agent's own count of rounds."""
        known = {**shared, "rounds_before": local["rounds_before"]}
        message, _, info = super().local_step(problem, known, local, data, noise)
        return message, {"rounds_before": local["rounds_before"] + 1}, info

    def consensus_steps(self, graph: Graph, sleepers: bool) -> int:
        """The number of steps after which agents agree; one if groups take turns."""
        if graph.active(0) is not None:
            return 1
        return graph.consensus(self.gossip_tolerance).steps

    def consensus(self, graph: Graph, sleepers: bool) -> Consensus:
        """The consensus with the fewest steps."""
        if graph.active(0) is not None:
            return super().consensus(graph, sleepers)
        return graph.consensus(self.gossip_tolerance)
