"""Networks of 10 to 100 parameters by the algorithms' defaults, and by those of the other side of the threshold.

    python -m benchmarks.networks.small [--kinds known counts ...] [--units 5 12] [--seeds 2]
    python -m benchmarks.networks.small --sides --algorithms FedEP P2PVI

A curve of three columns, 240 rows at five clients, N(0, 1) on all weights, tanh if nothing else is said:

    known       its noise 0.3 is given
    learned     its scale is learned
    quiet       a noise of 0.05, its scale learned
    rectified   as `learned`, ReLU
    deep        as `learned`, two layers of so many units
    two_scales  a mean and a scale of each row, both outputs
    counts      Poisson of a softplus
    classes     three labels

Log density of a test row (400), mean over seeds, the worst in brackets, and seconds of the processor. `--sides` has
`full`, full covariances and exact steps, beside `diag`, diagonal sites by stochastic gradients.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import softplus

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row
from benchmarks.networks.kinds import curve, layers, quiet_curve, regression
from pyro_fed.policy.networks import SMALL_ROUNDS

CLIENTS, TRAIN, TEST, NOISE = 5, 240, 400, 0.3
ALGORITHMS = ("FedEP", "FedSEP", "PVI", "P2PVI", "FedLap", "FedLapCov", "BayesADMM", "FSGLD", "DSVGD", "FedAIS")
#: What is set beside covariance="diag" to have the steps of large models; of the others they are the default's.
DIAGONAL: dict[str, dict[str, Any]] = {
    "FedEP": {"client": pf.infer.tilted.IVON(rounds=SMALL_ROUNDS), "start": "fedavg"}
}
SIDED = ("FedEP", "FedSEP", "PVI", "P2PVI", "FedLap", "FedLapCov", "BayesADMM")


def known(x: Tensor, y: Tensor, units: int) -> None:
    """The scale given."""
    mean = layers(x, [units, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, NOISE), obs=y)


def learned(x: Tensor, y: Tensor, units: int, act: Any = torch.tanh, depth: int = 1) -> None:
    """The scale learned."""
    regression(x, y, widths=(*[units] * depth, 1), act=act)


def two_scales(x: Tensor, y: Tensor, units: int) -> None:
    """A mean and a scale of each row."""
    out = layers(x, [units, 2], torch.tanh)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(out[..., 0], out[..., 1].exp()), obs=y)


def counts(x: Tensor, y: Tensor, units: int) -> None:
    """Poisson of a softplus."""
    rate = softplus(layers(x, [units, 1], torch.tanh)[..., 0])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def classes(x: Tensor, y: Tensor, units: int) -> None:
    """Three labels."""
    logits = layers(x, [units, 3], torch.tanh)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def noisy_curve(x: Tensor) -> Tensor:
    """The curve and noise."""
    return curve(x) + NOISE * torch.randn(len(x))


def labels(x: Tensor) -> Tensor:
    """Three labels by the curve and a square."""
    logits = torch.stack([2 * curve(x), 2 * x[:, 2].square() - 1, -2 * curve(x)], -1)
    return dist.Categorical(logits=logits).sample()


KINDS: dict[str, tuple[Callable[..., None], Callable[[Tensor], Tensor]]] = {
    "known": (known, noisy_curve),
    "learned": (learned, noisy_curve),
    "quiet": (learned, quiet_curve),
    "rectified": (partial(learned, act=torch.relu), noisy_curve),
    "deep": (partial(learned, depth=2), noisy_curve),
    "two_scales": (two_scales, lambda x: curve(x) + NOISE * x[:, 2].exp() * torch.randn(len(x))),
    "counts": (counts, lambda x: torch.poisson(softplus(2 * curve(x)))),
    "classes": (classes, labels),
}


def data(kind: str, units: int, seed: int) -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """The clients and the rows to test on."""
    model, outcome = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = torch.randn(TRAIN + TEST, 3)
        y = outcome(x)
    train, test = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    return pf.Federation(partial(model, units=units), train, plate="data", num_clients=CLIENTS, seed=seed), test


def measured(algorithm: Any, kind: str, units: int, seed: int) -> tuple[float, float]:
    """Log density of a test row, minus infinity where there is none, and seconds."""
    fed, test = data(kind, units, seed)
    options: dict[str, Any] = {"graph": pf.graph.ring(CLIENTS)} if isinstance(algorithm, pf.P2PVI) else {}
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            idata = pf.run(algorithm, fed, seed=seed, progress=False, audit=False, log_likelihood=False, **options)
            seconds = time.process_time() - began
            return float(pf.metrics.test_metrics(idata, fed, test)["log_predictive_density"]), seconds
    except (
        pf.errors.DivergenceError,
        pf.errors.QuorumError,
        pf.errors.DataError,
    ):  # the last of predictions that are NaN
        return -torch.inf, time.process_time() - began


def columns(names: list[str], sides: bool) -> dict[str, Any]:
    """Algorithms by what heads their columns."""
    if not sides:
        return {f"`{name}`": getattr(pf.infer, name)() for name in names}
    found = {}
    for name in names:
        found[f"`{name}`, full"] = getattr(pf.infer, name)(covariance="full")
        found[f"`{name}`, diag"] = getattr(pf.infer, name)(covariance="diag", **DIAGONAL.get(name, {}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--units", nargs="+", type=int, default=[5, 12])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS)
    parser.add_argument("--sides", action="store_true", help="both sides of the threshold, set by hand")
    given = parser.parse_args()
    torch.set_num_threads(1)
    runs = columns(given.algorithms or list(SIDED if given.sides else ALGORITHMS), given.sides)
    print(heading("network, units, parameters", *runs, "seconds"))
    for kind in given.kinds:
        for units in given.units if kind != "deep" else [-(-one // 2) for one in given.units]:
            cells, seconds = [], []
            for algorithm in runs.values():
                found = [measured(algorithm, kind, units, seed) for seed in range(given.seeds)]
                densities = [density for density, _ in found]
                cells.append(f"{sum(densities) / given.seeds:.3g} ({min(densities):.3g})")
                seconds.append(f"{sum(spent for _, spent in found) / given.seeds:.1f}")
            size = data(kind, units, 0)[0].problem.dim
            print(row(f"{kind}, {units}, {size}", *cells, ", ".join(seconds)), flush=True)


if __name__ == "__main__":
    main()
