"""Non-IID label skew: 50 agents on digits, most with one or two labels, complete graph and ring.

Images pooled to 4 by 4 pixels. P2PVI (exact weighting, softmax regression, full covariance) beside
decentralised FedAvg on the same model, with equally many rounds and consensus steps; FedAvg at the best of
a few step sizes, chosen by its own test accuracy.

    python -m benchmarks.accuracy.p2p_label_skew
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.p2p_digits import accuracy, digits
from pyro_fed.infer.sites.gaussian_sites import gaussian

AGENTS, ROUNDS, STEPS = 50, 10, 10
STEP_SIZES = (0.1, 0.3, 1.0)


def model(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1], 10), 3.0).to_event(2))
    b = pyro.sample("b", dist.Normal(x.new_zeros(10), 3.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w + b), obs=y)


def pooled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Images of 4 by 4: means over 2 by 2 pixels, and an offset that centres them."""
    return torch.nn.functional.avg_pool2d(x.reshape(-1, 1, 8, 8), 2).flatten(1) * 2 - 0.6, y


def points(algorithm: Any, fed: pf.Federation, graph: pf.graph.Graph) -> Tensor:
    """Each agent's final mean, (A, D)."""
    kept: list[Tensor] = []

    base: Any = type(algorithm)

    class Kept(base):  # type: ignore[misc]  # a class that is known when it runs
        def sample(self, shared: dict[str, Tensor], num_draws: int, generator: torch.Generator) -> Tensor:
            kept.append(gaussian(shared).mean() if "eta" in shared else shared["point"])
            return super().sample({name: value[:1] for name, value in shared.items()}, num_draws, generator)

    settings = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pf.run(
            Kept(**settings),
            fed,
            graph=graph,
            num_rounds=ROUNDS,
            num_draws=1,
            log_likelihood=False,
            progress=False,
        )
    return kept[-1]


def main() -> dict[tuple[str, str], float]:
    train, test = (pooled(*part) for part in digits())
    part = pf.partition.Dirichlet(0.1, by=train[1])
    fed = pf.Federation(model, train, plate="data", num_clients=AGENTS, partition=part)
    found = {}
    for name, graph in {"complete": pf.graph.complete(AGENTS), "ring": pf.graph.ring(AGENTS)}.items():
        exact = pf.P2PVI(
            covariance="full",
            start="prior",
            gossip_steps=STEPS,
            num_points=4,
            curvature="fisher",
            damping=0.5,
        )
        by_agent = accuracy(fed.problem, points(exact, fed, graph), test)
        found[name, "P2PVI"] = float(by_agent.mean())
        print(
            f"{name:8s} P2PVI      mean accuracy {by_agent.mean():.3f}, worst agent {by_agent.min():.3f}",
            flush=True,
        )
        for step in STEP_SIZES:
            averaging = pf.infer.P2PFedAvg(chain_steps=20, step_size=step, gossip_steps=STEPS)
            by_agent = accuracy(fed.problem, points(averaging, fed, graph), test)
            found[name, f"FedAvg {step}"] = float(by_agent.mean())
            print(
                f"{name:8s} FedAvg {step:<5g} mean {by_agent.mean():.3f}, worst agent {by_agent.min():.3f}",
                flush=True,
            )
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
