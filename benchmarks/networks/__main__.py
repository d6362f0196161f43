"""Networks of a thousand to a million parameters: every algorithm's defaults beside FedAvg, and what a round costs.

    python -m benchmarks.networks                                    # 20 and 100 hidden units, three seeds
    python -m benchmarks.networks --hidden 1000 --seeds 1
    python -m benchmarks.networks --data cancer --hidden 20 --seeds 3 --algorithms FedDyn FedEP BayesADMM
    python -m benchmarks.networks --cost --hidden 14 133 1333        # a round and memory against the parameters

scikit-learn's digits (1,437 rows to train on, 360 to test), one hidden layer of ReLU units, N(0, 1) on all weights, ten
clients (Dirichlet 0.5 by label), one thread. Each row is a whole run with its draws and log-likelihoods, in seconds of
the processor and as a ratio to FedAvg's 50 rounds with its default settings in the same process; compiling is among
them. ECE: expected calibration error of the predictive probabilities. The peak is the most memory that the process had
meanwhile, with torch, Pyro and what the rows before have left compiled (Linux alone). Several seeds: mean ± standard
error over seeds, each with a split, a partition and a run of its own.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import scale
from torch import Tensor

import pyro_fed as pf
from benchmarks.networks.cost import cell, forget_peak, resident
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.metrics import predict_rows
from pyro_fed.results.to_arviz import unconstrained_draws

CLIENTS, TEST_ROWS, AVERAGING_ROUNDS = 10, 360, 50
TITLES = (
    "parameters", "algorithm", "accuracy", "log density", "ECE", "entropy away", "seconds", "× FedAvg", "MB a client",
    "peak GB",
)  # fmt: skip
#: Pyro's own SVI on all rows, with a guide that is FedEP's family: where the Gaussians go.
POOLED = "pooled SVI"


ALGORITHMS: dict[str, tuple[Callable[[], pf.Algorithm], dict[str, Any]]] = {
    "FedAvg": (pf.FedAvg, {"num_rounds": AVERAGING_ROUNDS}),
    "FedProx": (pf.FedProx, {"num_rounds": AVERAGING_ROUNDS}),
    "FedDyn": (pf.FedDyn, {"num_rounds": AVERAGING_ROUNDS}),
    "FedLap": (pf.FedLap, {"num_rounds": AVERAGING_ROUNDS}),
    "FedLapCov": (pf.FedLapCov, {"num_rounds": 20}),
    "BayesADMM": (pf.BayesADMM, {"num_rounds": 20}),
    POOLED: (partial(pf.SVI, guide=AutoDiagonalNormal, num_steps=2000, num_samples=1, num_guide_draws=300), {}),
    "FedEP": (pf.FedEP, {}),
    "FedEP, 100 rounds": (pf.FedEP, {"num_rounds": 100}),
    "FedSEP": (pf.FedSEP, {}),
    "PVI": (pf.PVI, {"num_rounds": 20}),
    "P2PVI": (pf.P2PVI, {"num_rounds": 20, "graph": pf.graph.ring(CLIENTS)}),
    "FSGLD": (pf.FSGLD, {}),
    "DSVGD": (pf.DSVGD, {"num_rounds": CLIENTS}),
}


def network(hidden: int, classes: int = 10) -> Callable[[Tensor, Tensor], None]:
    """One hidden layer."""

    def model(x: Tensor, y: Tensor) -> None:
        columns = x.shape[1]
        w1 = pyro.sample("w1", dist.Normal(x.new_zeros(columns, hidden), 1.0).to_event(2))
        b1 = pyro.sample("b1", dist.Normal(x.new_zeros(hidden), 1.0).to_event(1))
        w2 = pyro.sample("w2", dist.Normal(x.new_zeros(hidden, classes), 1.0).to_event(2))
        b2 = pyro.sample("b2", dist.Normal(x.new_zeros(classes), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=torch.relu(x @ w1 + b1) @ w2 + b2), obs=y)

    return model


#: Sets of scikit-learn's, by what loads them; the share of their rows to test on is a fifth.
DATA: dict[str, Callable[..., Any]] = {"digits": load_digits, "cancer": load_breast_cancer, "wine": load_wine}
#: Rows unlike any that was trained on: each column is that of another test row, chosen by itself.
UNLIKE_SEED = 1


def federation(hidden: int, seed: int, data: str = "digits") -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """Ten clients, and the test rows."""
    columns, labels = DATA[data](return_X_y=True)
    order = torch.randperm(len(columns), generator=torch.Generator().manual_seed(seed))
    scaled = columns / 16 if data == "digits" else scale(columns)
    x, y = torch.tensor(scaled, dtype=torch.float32)[order], torch.tensor(labels)[order]
    held = TEST_ROWS if data == "digits" else len(x) // 5
    train, test = (x[:-held], y[:-held]), (x[-held:], y[-held:])
    skew = pf.partition.Dirichlet(0.5, by=train[1])
    fed = pf.Federation(
        network(hidden, len(set(labels.tolist()))), train, plate="data", num_clients=CLIENTS, partition=skew, seed=seed
    )
    return fed, test


def run(name: str, fed: pf.Federation, seed: int, **options: Any) -> tuple[Any, float]:
    """The result of an algorithm's defaults, and the processor's seconds."""
    make, own = ALGORITHMS[name]
    began = time.process_time()
    with quiet():
        idata = pf.run(make(), fed, seed=seed, progress=False, **own | options)
    return idata, time.process_time() - began


def predicted_ece(idata: Any, fed: pf.Federation, test: tuple[Tensor, Tensor]) -> float:
    """Expected calibration error of a result's predictions."""
    predicted = predict_rows(fed.problem, unconstrained_draws(idata, fed.problem), test)
    return float(calibration_errors(predicted.probs, test[1])["ece"])


def unlike(x: Tensor) -> Tensor:
    """Rows of the same columns, each shuffled by itself, so that no row is like one of the data."""
    generator = torch.Generator().manual_seed(UNLIKE_SEED)
    return torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)


def measured(name: str, hidden: int, seed: int, data: str = "digits") -> list[float]:
    """Accuracy, log density, ECE, seconds, megabytes sent by a client, entropy (nats) on rows unlike the data."""
    fed, test = federation(hidden, seed, data)
    idata, seconds = run(name, fed, seed)
    found = pf.metrics.test_metrics(idata, fed, test)
    draws = unconstrained_draws(idata, fed.problem)
    predicted = predict_rows(fed.problem, draws, test)
    away = predict_rows(fed.problem, draws, (unlike(test[0]), test[1])).probs
    entropy = float(-(away * away.clamp_min(1e-30).log()).sum(-1).mean())
    ece = float(calibration_errors(predicted.probs, test[1])["ece"])
    sent = float(idata["federation"]["bytes_up"].sum()) / CLIENTS / 1e6
    return [found["accuracy"], found["log_predictive_density"], ece, seconds, sent, entropy]


def table(sizes: list[int], seeds: int, names: list[str], data: str = "digits") -> None:
    """One row an algorithm and size."""
    print(f"| {' | '.join(TITLES)} |\n{'| --- ' * len(TITLES)}|")
    for hidden in sizes:
        base = 0.0
        for name in dict.fromkeys(["FedAvg", *names]):
            forget_peak()
            figures = np.array([measured(name, hidden, seed, data) for seed in range(seeds)])
            peak = resident("VmHWM") / 1e9
            mean, error = figures.mean(0), figures.std(0) / max(1, seeds - 1) ** 0.5
            base = mean[3] if name == "FedAvg" else base
            shown = [f"{mean[at]:.3f}" + (f" ± {error[at]:.3f}" if seeds > 1 else "") for at in (0, 1, 2, 5)]
            size = federation(hidden, 0, data)[0].problem.dim
            costs = [f"{mean[3]:.1f}", f"{mean[3] / base:.2f}", f"{mean[4]:.2f}", f"{peak:.2f}"]
            cells = [f"{size:,}", f"`{name}`", *shown, *costs]
            print("| " + " | ".join(cells) + " |", flush=True)


def cost(sizes: list[int], names: list[str], limit: float) -> None:
    """Seconds of a round and memory by size, see `benchmarks.networks.cost`."""
    print("| parameters | " + " | ".join(f"`{name}`" for name in names) + " |")
    print("| --- |" + " --- |" * len(names))
    for hidden in sizes:
        cells = [cell(name, hidden, limit) for name in names]
        print("| " + " | ".join([f"{parameters(hidden):,}", *cells]) + " |", flush=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings: what is not audited, and runs cut short, is said in the module's header."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parameters(hidden: int) -> int:
    """Of a network on 64 pixels and ten digits."""
    return 75 * hidden + 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=["FedEP", "FedSEP", "PVI", "P2PVI"])
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--cost", action="store_true", help="seconds of a round in place of the table")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a cell of --cost may take")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cost:
        cost(given.hidden, given.algorithms, given.limit)
    else:
        table(given.hidden, given.seeds, given.algorithms, given.data)


if __name__ == "__main__":
    main()
