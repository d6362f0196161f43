"""Networks of a thousand to a million parameters: every algorithm's defaults beside FedAvg, and what a round costs.

    python -m benchmarks.networks                                    # 20 and 100 hidden units, three seeds
    python -m benchmarks.networks --hidden 1000 --seeds 1
    python -m benchmarks.networks --data cancer --hidden 20 --seeds 3 --algorithms FedDyn FedEP BayesADMM
    python -m benchmarks.networks --write                            # MEASURED.md from what is there
    python -m benchmarks.networks --cost --hidden 14 133 1333        # a round and memory against the parameters

scikit-learn's digits (1,437 rows to train on, 360 to test), one hidden layer of ReLU units, N(0, 1) on all weights, ten
clients (Dirichlet 0.5 by label), one thread. A cell is a set, a size, an algorithm and a seed, which is that of the
split, of the partition and of the run: a whole run with its draws and log-likelihoods, in a process of its own, in
seconds of the processor with compiling, and as a ratio to FedAvg's 50 rounds with its default settings, which are run
beside it. Each is added to `benchmarks/networks/sizes.jsonl` once it has ended, so that the whole can be cut off and
resumed; `--again` runs cells that are there. ECE: expected calibration error of the predictive probabilities. The peak
is the most memory that the process had until the run's end, torch and Pyro (0.4 GB) among it (Linux alone). Several
seeds: mean ± standard error over seeds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
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
from benchmarks.helpers.records import Records, run_missing
from benchmarks.helpers.tables import case_of, heading, nested, put, rounded, row, spread
from benchmarks.networks.cost import cell, resident
from pyro_fed.algorithm import Algorithm
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.metrics import predict_rows
from pyro_fed.results.to_arviz import unconstrained_draws

CLIENTS, TEST_ROWS, AVERAGING_ROUNDS = 10, 360, 50
TITLES = (
    "parameters", "algorithm", "accuracy", "log density", "ECE", "seconds", "× FedAvg", "MB a client", "peak GB",
    "seeds",
)  # fmt: skip
KEPT = Records(Path(__file__).with_name("sizes.jsonl"))
PAGE = Path(__file__).parent / "MEASURED.md"
BEGIN, END = "<!-- benchmarks/networks writes this table -->\n", "<!-- its end -->"
#: What a cell has, as `measured` returns it.
FIGURES = ("accuracy", "log_density", "ece", "seconds", "megabytes", "entropy_away", "peak_gb")
#: Pyro's own SVI on all rows, with a guide that is FedEP's family: where the Gaussians go.
POOLED = "pooled SVI"
#: Pyro's NUTS on all rows: the model's own posterior, of up to some hundred parameters.
EXACT = "pooled NUTS"


ALGORITHMS: dict[str, tuple[Callable[[], Algorithm], dict[str, Any]]] = {
    "FedAvg": (pf.FedAvg, {"num_rounds": AVERAGING_ROUNDS}),
    "FedProx": (pf.infer.FedProx, {"num_rounds": AVERAGING_ROUNDS}),
    "FedDyn": (pf.infer.FedDyn, {"num_rounds": AVERAGING_ROUNDS}),
    "FedLap": (pf.infer.FedLap, {"num_rounds": AVERAGING_ROUNDS}),
    "FedLapCov": (pf.infer.FedLapCov, {"num_rounds": 20}),
    "BayesADMM": (pf.infer.BayesADMM, {"num_rounds": 20}),
    POOLED: (partial(pf.infer.SVI, guide=AutoDiagonalNormal, num_steps=2000, num_samples=1, num_guide_draws=300), {}),
    EXACT: (partial(pf.NUTS, num_samples=250, warmup_steps=250, num_chains=2), {"audit": False}),
    "FedEP": (pf.FedEP, {}),
    "FedEP, 100 rounds": (pf.FedEP, {"num_rounds": 100}),
    "FedSEP": (pf.infer.FedSEP, {}),
    "PVI": (pf.infer.PVI, {"num_rounds": 20}),
    "P2PVI": (pf.P2PVI, {"graph": pf.graph.ring(CLIENTS)}),
    "FSGLD": (pf.FSGLD, {}),
    "DSVGD": (pf.DSVGD, {"num_rounds": CLIENTS}),
}


def network(hidden: int, classes: int = 10, sd: float = 1.0) -> Callable[[Tensor, Tensor], None]:
    """One hidden layer, N(0, sd²) on all weights."""

    def model(x: Tensor, y: Tensor) -> None:
        columns = x.shape[1]
        w1 = pyro.sample("w1", dist.Normal(x.new_zeros(columns, hidden), sd).to_event(2))
        b1 = pyro.sample("b1", dist.Normal(x.new_zeros(hidden), sd).to_event(1))
        w2 = pyro.sample("w2", dist.Normal(x.new_zeros(hidden, classes), sd).to_event(2))
        b2 = pyro.sample("b2", dist.Normal(x.new_zeros(classes), sd).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=torch.relu(x @ w1 + b1) @ w2 + b2), obs=y)

    return model


#: Sets of scikit-learn's, by what loads them; the share of their rows to test on is a fifth.
DATA: dict[str, Callable[..., Any]] = {"digits": load_digits, "cancer": load_breast_cancer, "wine": load_wine}
#: Rows unlike any that was trained on: each column is that of another test row, chosen by itself.
UNLIKE_SEED = 1


def federation(
    hidden: int,
    seed: int,
    data: str = "digits",
    model: Callable[..., None] | None = None,
    device: str | None = None,
) -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """Ten clients, and the test rows; a network of so many units where no other model is given."""
    columns, labels = DATA[data](return_X_y=True)
    order = torch.randperm(len(columns), generator=torch.Generator().manual_seed(seed))
    scaled = columns / 16 if data == "digits" else scale(columns)
    x, y = torch.tensor(scaled, dtype=torch.float32)[order], torch.tensor(labels)[order]
    held = TEST_ROWS if data == "digits" else len(x) // 5
    train, test = (x[:-held], y[:-held]), (x[-held:], y[-held:])
    skew = pf.partition.Dirichlet(0.5, by=train[1])
    model = network(hidden, len(set(labels.tolist()))) if model is None else model
    fed = pf.Federation(model, train, plate="data", num_clients=CLIENTS, partition=skew, seed=seed, device=device)
    return fed, test


def run(name: str, fed: pf.Federation, seed: int, **options: Any) -> tuple[Any, float]:
    """The result of an algorithm's defaults, and the processor's seconds."""
    make, own = ALGORITHMS[name]
    began = time.process_time()
    with quiet():
        idata = pf.run(make(), fed, seed=seed, progress=False, **own | options)
    return idata, time.process_time() - began


def scores(idata: Any, fed: pf.Federation, test: tuple[Tensor, Tensor]) -> list[float]:
    """Accuracy, log density and expected calibration error of a result's predictions."""
    found = pf.metrics.test_metrics(idata, fed, test)
    probs = probabilities(fed, unconstrained_draws(idata, fed.problem), test)
    return [found["accuracy"], found["log_predictive_density"], float(calibration_errors(probs, test[1])["ece"])]


def entropy_away(idata: Any, fed: pf.Federation, test: tuple[Tensor, Tensor]) -> float:
    """Entropy (nats) of a result's predictions on rows unlike the data."""
    away = probabilities(fed, unconstrained_draws(idata, fed.problem), (unlike(test[0]), test[1]))
    return float(-(away * away.clamp_min(1e-30).log()).sum(-1).mean())


def logits(w: Tensor, x: Tensor, hidden: int, classes: int = 10) -> Tensor:
    """Outputs (..., n, C) of the network at its flat vectors (..., D)."""
    first, bias, second, last = w.split([x.shape[-1] * hidden, hidden, hidden * classes, classes], -1)
    units = torch.relu(x @ first.unflatten(-1, (-1, hidden)) + bias.unsqueeze(-2))
    return units @ second.unflatten(-1, (hidden, classes)) + last.unsqueeze(-2)


def probabilities(fed: pf.Federation, draws: Any, rows: tuple[Tensor, Tensor]) -> Tensor:
    """Of the classes, (n, C), averaged over the draws."""
    probs = predict_rows(fed.problem, draws, rows).probs
    assert probs is not None  # a classifier has them
    return probs


def unlike(x: Tensor) -> Tensor:
    """Rows of the same columns, each shuffled by itself, so that no row is like one of the data."""
    generator = torch.Generator().manual_seed(UNLIKE_SEED)
    return torch.stack([column[torch.randperm(len(x), generator=generator)] for column in x.T], 1)


def measured(name: str, hidden: int, seed: int, data: str = "digits") -> list[float]:
    """Accuracy, log density, ECE, seconds, MB sent by a client, entropy (nats) away from the data, and the peak GB."""
    fed, test = federation(hidden, seed, data)
    idata, seconds = run(name, fed, seed)
    peak = resident("VmHWM") / 1e9
    sent = float(idata["federation"]["bytes_up"].sum()) / CLIENTS / 1e6
    return [*scores(idata, fed, test), seconds, sent, entropy_away(idata, fed, test), peak]


def work(sizes: list[int], seeds: int, names: list[str], data: str, again: bool) -> None:
    """Run the cells that are not there, each in a process of its own, FedAvg's first."""
    all_names = dict.fromkeys(["FedAvg", *names])
    cells = [case_of((data, hidden, name, seed)) for hidden in sizes for seed in range(seeds) for name in all_names]
    for record in run_missing(KEPT, cells, record_of, again=again, warm=False):
        print(*record.values(), flush=True)


def record_of(case: str) -> dict[str, float]:
    """The figures of a cell."""
    data, hidden, name, seed = case.split(" / ")
    torch.set_num_threads(1)
    return rounded(dict(zip(FIGURES, measured(name, int(hidden), int(seed), data), strict=True)))


def table(cells: dict[str, Any], data: str) -> str:
    """One row a size and algorithm, of all that there are of a set."""
    lines = [heading(*TITLES)]
    for hidden in sorted(cells[data], key=int):
        size = federation(int(hidden), 0, data)[0].problem.dim
        base = cells[data][hidden]["FedAvg"]
        for name in (name for name in ALGORITHMS if name in cells[data][hidden]):
            found = cells[data][hidden][name]
            mean = {what: float(np.mean([one[what] for one in found.values()])) for what in FIGURES}
            ratio = np.mean([one["seconds"] for one in found.values()]) / np.mean([base[at]["seconds"] for at in found])
            shown = [spread([one[what] for one in found.values()]) for what in FIGURES[:3]]
            costs = [f"{mean['seconds']:.1f}", f"{ratio:.2f}", f"{mean['megabytes']:.2f}", f"{mean['peak_gb']:.2f}"]
            lines.append(row(f"{size:,}", f"`{name}`", *shown, *costs, len(found)))
    return "\n".join(lines) + "\n"


def cost(sizes: list[int], names: list[str], limit: float) -> None:
    """Seconds of a round and memory by size, see `benchmarks.networks.cost`."""
    print(heading("parameters", *(f"`{name}`" for name in names)))
    for hidden in sizes:
        print(row(f"{parameters(hidden):,}", *(cell(name, hidden, limit) for name in names)), flush=True)


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
    parser.add_argument(
        "--algorithms", nargs="+", choices=ALGORITHMS, default=["FedEP", "FedSEP", "P2PVI", "FSGLD", "DSVGD"]
    )
    parser.add_argument("--data", choices=DATA, default="digits")
    parser.add_argument("--again", action="store_true", help="run cells that are there once more")
    parser.add_argument("--write", action="store_true", help="write the table into its page of docs/, and run nothing")
    parser.add_argument("--cost", action="store_true", help="seconds of a round in place of the table")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of CPU time of a cell of --cost")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.cost:
        cost(given.hidden, given.algorithms, given.limit)
    elif given.write:
        put(PAGE, BEGIN, END, table(nested(KEPT), "digits"))
    else:
        work(given.hidden, given.seeds, given.algorithms, given.data, given.again)
        print(table(nested(KEPT), given.data), end="")


if __name__ == "__main__":
    main()
