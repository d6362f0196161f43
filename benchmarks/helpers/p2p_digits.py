"""Bayesian neural networks on scikit-learn's digits over graphs: what the peer-to-peer benchmarks share."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

import pyro_fed as pf
from models import bnn_classification
from pyro_fed.density.observations import observation
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.matrices import times

#: Section V-B's recipe in small: mean-field Gaussians, Bayes by backprop, one consensus step a round.
PUBLISHED: dict[str, Any] = {
    "weighting": "paper",
    "covariance": "diag",
    "start": "draw",
    "gossip_steps": 1,
    "trace": True,
}


def model(x: Tensor, y: Tensor) -> None:
    bnn_classification.model(x, y, hidden=30)


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test rows."""
    return bnn_classification.load_data()


def jittered(images: tuple[Tensor, Tensor], rows: int, noise: float = 0.1) -> tuple[Tensor, Tensor]:
    """So many rows made of 8 x 8 images: each shifted by up to a pixel, with noise in shares of the pixels' SDs."""
    generator = torch.Generator().manual_seed(0)
    x, y = images
    chosen = torch.randint(len(x), (rows,), generator=generator)
    padded = torch.nn.functional.pad(x[chosen].reshape(-1, 8, 8), (1, 1, 1, 1))
    down, right = torch.randint(3, (2, rows), generator=generator)
    place = torch.arange(8)
    shifted = padded[
        torch.arange(rows)[:, None, None], down[:, None, None] + place[:, None], right[:, None, None] + place
    ]
    grain = torch.randn(shifted.shape, generator=generator, dtype=x.dtype)
    return (shifted + noise * x.std() * grain).flatten(1), y[chosen]


def accuracy(problem: Any, means: Tensor, test: tuple[Tensor, Tensor]) -> Tensor:
    """Test accuracy at weights (..., D)."""
    flat = means.reshape(-1, means.shape[-1]).to(problem.dtype)
    logits = vmap(lambda z: observation(problem, z, test)["probs"])(flat)
    return (logits.argmax(-1) == test[1]).double().mean(-1).reshape(means.shape[:-1])


def run_accuracy(
    algorithm: Any,
    fed: pf.Federation,
    graph: pf.graph.Graph,
    rounds: int,
    every: int,
    test: tuple[Tensor, Tensor],
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy at each agent's mean: rounds (R,), accuracy (R, A)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "not converged": as published it never is
        idata = pf.run(
            algorithm,
            fed,
            graph=graph,
            num_rounds=rounds + 1,
            num_draws=1,
            log_likelihood=False,
            progress=False,
        )
    means = torch.from_numpy(idata["federation"]["belief_mean"].values)
    # A sleeping agent keeps the belief of the last round in which it was awake.
    for t in range(1, len(means)):
        means[t] = torch.where(means[t].isnan(), means[t - 1], means[t])
    means = means.nan_to_num(0.0)
    at = np.arange(0, rounds + 1, every)
    return at, np.stack([accuracy(fed.problem, means[t], test).numpy() for t in at])


@dataclass(frozen=True, kw_only=True)
class Kept(pf.P2PVI):
    """Keeps its final beliefs in `kept`; `width` is that of the first beliefs' SDs, a share of the prior's."""

    width: float = 1.0
    kept: list[Any] = field(default_factory=list, compare=False)

    def init(self, problem: Any, num_clients: int, generator: torch.Generator, start: Any) -> tuple[Any, Any]:
        shared, local = super().init(problem, num_clients, generator, start)
        if self.width == 1:
            return shared, local
        first = gaussian(shared)
        narrow = type(first).from_moments(first.mean(), self.width**2 / first.precision)
        return {**shared, **as_state(narrow)}, local

    def sample(self, shared: dict[str, Tensor], num_draws: int, generator: torch.Generator) -> Tensor:
        self.kept.append(gaussian(shared))
        return super().sample({name: value[:1] for name, value in shared.items()}, num_draws, generator)


def final_accuracy(
    settings: dict[str, Any],
    fed: pf.Federation,
    graph: pf.graph.Graph,
    rounds: int,
    test: tuple[Tensor, Tensor],
) -> np.ndarray:
    """Accuracy at each agent's last mean, (A,)."""
    return at_mean_and_by_draws(settings, fed, graph, rounds, test)[0]


def at_mean_and_by_draws(
    settings: dict[str, Any],
    fed: pf.Federation,
    graph: pf.graph.Graph,
    rounds: int,
    test: tuple[Tensor, Tensor],
    num_draws: int = 20,
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy at each agent's last mean, and of its prediction averaged over draws of its belief, each (A,)."""
    algorithm = Kept(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pf.run(algorithm, fed, graph=graph, num_rounds=rounds, num_draws=1, log_likelihood=False, progress=False)
    belief = algorithm.kept[-1]
    mean, root = belief.mean(), belief.root()
    noise = torch.randn(num_draws, *mean.shape, generator=torch.Generator().manual_seed(0), dtype=mean.dtype)
    draws = torch.stack([mean + times(root, one) for one in noise])  # (S, A, D)
    probs = torch.stack([probabilities(fed.problem, draws[:, agent], test).mean(0) for agent in range(len(mean))])
    right = (probs.argmax(-1) == test[1]).double().mean(-1)
    return accuracy(fed.problem, mean, test).numpy(), right.numpy()


def probabilities(problem: Any, z: Tensor, test: tuple[Tensor, Tensor]) -> Tensor:
    """Classes' probabilities of the test rows at weights (S, D): (S, n, 10)."""
    found: Tensor = vmap(lambda one: observation(problem, one, test)["probs"])(z.to(problem.dtype))
    return found
