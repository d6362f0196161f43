"""One liar in ten clients: how far it moves the answer of each family, with and without `combination=Bounded()`.

Logistic regression of 400 rows with three weights over ten like clients, float64. Client 4 lies in every round of
every phase: its messages times -1, 10 and 100, replaced by normal numbers ten times as large, or its first message over
and over; or it is honest about rows of another population, whose weights are the true ones times -2. A cell is the
largest error of a mean in SDs of the posterior of the other nine (long NUTS), without / with the combination; "stops":
the run ended in an error that names the client or the cause. The last columns are the price where all are honest: the
error against the posterior of all ten with the combination, and the ratio of its SDs to those without. Two liars are in
the second table.

    python -m benchmarks.faults.liars [FAMILY ...]

Families without a rule are not in it: DSVGD and its kin, FedAIS, DSGLD, P2PEP, and P2PVI where not all hear all.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.errors import PyroFedError

#: Means and SDs.
Moments = tuple[np.ndarray, np.ndarray]
#: Each client's.
Rows = list[tuple[torch.Tensor, torch.Tensor]]

LIARS = (4, 7)
KINDS = ("negated", "tenfold", "hundredfold", "noise", "stale")
OTHER = "another population"
CLIENTS, ROWS, DIM = 10, 400, 3
QUIET = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 2000}
FAMILIES = {
    "FedEP": pf.FedEP(),
    "PVI": pf.PVI(),
    "FedPA": pf.FedPA(client=pf.tilted.Laplace()),
    "FedSEP": pf.FedSEP(),
    "FedLaplace": pf.FedLaplace(),
    "ConsensusMC": pf.ConsensusMC(num_samples=200, warmup_steps=200, num_chains=1),
    "P2PVI, all hear all": pf.P2PVI(start="local"),
    "FSGLD": pf.FSGLD(target_ess=200),
    "FedAvg": pf.FedAvg(step_size=0.05),
}
#: Rounds at most, and of chains: a run that is lied to need not converge.
ROUNDS, VISITS = 60, 300


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """Logistic regression."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([DIM]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(others: tuple[int, ...] = ()) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's rows; those of `others` are of another population."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    chance = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    size = ROWS // CLIENTS
    parts = []
    for k in range(CLIENTS):
        at = slice(k * size, (k + 1) * size)
        weights = -2 * truth if k in others else truth
        parts.append((x[at], (chance[at] < torch.sigmoid(x[at] @ weights)).double()))
    return parts


def moments(idata: Any) -> Moments:
    """Means and SDs."""
    draws = idata["posterior"]["w"].values.reshape(-1, DIM)
    return draws.mean(0), draws.std(0)


def reference(
    parts: list[tuple[torch.Tensor, torch.Tensor]], left_out: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Of the clients that are left, by long NUTS."""
    kept = [part for k, part in enumerate(parts) if k not in left_out]
    fed = pf.Federation.from_clients(model, kept, plate="data")
    return moments(pf.run(pf.NUTS(num_samples=2000), fed, progress=False, audit=False, log_likelihood=False))


def attacked(algorithm: Any, fed: pf.Federation, kind: str, liars: tuple[int, ...], bounded: bool) -> Moments | None:
    """Means and SDs of a run; None where it stopped."""
    executor = pf.executors.Faulty(probability=1.0, kinds=(kind,), clients=liars) if kind in KINDS else "vectorised"
    graph = pf.graph.complete(CLIENTS) if isinstance(algorithm, pf.P2PVI) else None
    combination = pf.combination.Bounded() if bounded else None
    rounds = VISITS if isinstance(algorithm, pf.FSGLD) else ROUNDS
    try:
        found = pf.run(
            algorithm, fed, num_rounds=rounds, executor=executor, graph=graph, combination=combination, **QUIET
        )
    except PyroFedError:
        return None
    return moments(found)


def off(found: Moments | None, exact: Moments) -> str:
    """The largest error of a mean in SDs."""
    return "stops" if found is None else f"{np.abs((found[0] - exact[0]) / exact[1]).max():.2g}"


def table(names: list[str], liars: tuple[int, ...]) -> None:
    """Print one."""
    honest, another = rows(), rows(liars)
    fed, fed_another = (pf.Federation.from_clients(model, parts, plate="data") for parts in (honest, another))
    nine, ten = reference(honest, liars), reference(honest, ())
    columns = [*KINDS, OTHER, "honest", "SD ratio"]
    print(
        f"\n{len(liars)} liar(s) of {CLIENTS}\n\n| family | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 1)}"
    )
    for name in names:
        cells = []
        for kind in (*KINDS, OTHER):
            runs = [
                attacked(FAMILIES[name], fed_another if kind == OTHER else fed, kind, liars, bounded)
                for bounded in (False, True)
            ]
            cells.append(" / ".join(off(one, nine) for one in runs))
        price, free = (attacked(FAMILIES[name], fed, "", (), bounded) for bounded in (True, False))
        ratio = (
            "stops" if price is None or free is None else f"{(price[1] / free[1]).max():.3f}" if free[1].all() else ""
        )
        print(f"| `{name}` | {' | '.join([*cells, off(price, ten), ratio])} |", flush=True)


def main() -> None:
    """Both tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(FAMILIES)
    table(names, LIARS[:1])
    if not sys.argv[1:]:
        table(["FedEP", "PVI", "FedLaplace"], LIARS)


if __name__ == "__main__":
    main()
