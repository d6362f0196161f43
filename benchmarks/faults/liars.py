"""One liar in ten clients: how far it moves the answer of each family, with and without `combination=Bounded()`.

Logistic regression of 400 rows with three weights over ten like clients, float64. Client 4 lies in every round of
every phase: its messages times -1, 10 and 100, replaced by normal numbers ten times as large, or its first message over
and over; or it is honest about rows of another population, whose weights are the true ones times -2. A cell is the
largest error of a mean in SDs of the posterior of the other nine (long NUTS), without / with the combination; "stops":
the run ended in an error that names the client or the cause. The last columns are the price where all are honest: the
error against the posterior of all ten with the combination, and the ratio of its SDs to those without. `--two` has
two liars.

    python -m benchmarks.faults.liars [FAMILY ...] [--two | --more | --prices]

Algorithms without a rule (DSGLD, P2PEP, P2PFedAvg, those as published) refuse `combination=`, and are not in it.
`--prices`: what it costs where honest clients have unequal numbers of rows; `--more`: kinds of lies that the first
table has not.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.algorithm.states import State
from pyro_fed.errors import PyroFedError
from pyro_fed.runtime.executors import Faulty, Reply, Work


class Liar(Faulty):
    """One client whose messages are made by a function of them and of the round."""

    def __init__(self, lie: Callable[[State, int], State], clients: tuple[int, ...] = (4,)) -> None:
        super().__init__(probability=0.0)
        self.lie, self.liars = lie, clients

    def execute(self, work: Work) -> Reply:
        """The replies, with the liars' own."""
        reply = super().execute(work)
        messages = reply.messages
        silent = set(reply.failures)
        there = [client for slot, client in enumerate(work.clients) if slot not in silent]
        for i, client in enumerate(there):
            if client in self.liars:
                told = self.lie({name: value[i].clone() for name, value in messages.items()}, work.round)
                messages = {name: value.clone() for name, value in messages.items()}
                for name, value in told.items():
                    messages[name][i] = value
        return replace(reply, messages=messages)


def _some(message: State, factor: float, *parts: str) -> State:
    """The message with some of its tensors times a factor, those that are called so; all where none is."""
    named = [name for name in message if any(part in name for part in parts)]
    chosen = named or [name for name, value in message.items() if value.is_floating_point()]
    return {name: value * factor if name in chosen else value for name, value in message.items()}


def _same_way(message: State) -> State:
    """Always a little more of what says where the parameters are."""
    where = ("eta", "residual", "score", "position", "point", "delta", "draws", "particles")
    named = {name for name in message if any(part in name for part in where)}
    return {name: value + 3 * value.abs().mean() if name in named else value for name, value in message.items()}


#: The round from which a late lie is told.
LATE = 10
#: Other lies: of precisions or means alone, growing from round to round, infinite, and of two who agree.
MORE = {
    "mean alone": Liar(lambda message, round: _some(message, 10.0, "eta", "residual", "score", "position")),
    "precision alone": Liar(lambda message, round: _some(message, 10.0, "precision", "history")),
    "precision times 10,000": Liar(lambda message, round: _some(message, 1e4, "precision", "history")),
    "precision negative": Liar(lambda message, round: _some(message, -3.0, "precision", "history")),
    "the same way each round": Liar(lambda message, round: _same_way(message)),
    "late, hundredfold": Liar(lambda message, round: _some(message, 100.0) if round >= LATE else message),
    "late, the same way": Liar(lambda message, round: _same_way(message) if round >= LATE else message),
    "log-likelihoods": Liar(lambda message, round: _some(message, -30.0, "value", "log_lik")),
    "growing": Liar(lambda message, round: _some(message, 1.0 + 0.2 * round)),
    "infinite": Liar(lambda message, round: _some(message, float("inf"))),
    "two who agree": Liar(lambda message, round: _some(message, 10.0, "eta", "residual", "score", "position"), (4, 7)),
}
#: Means and SDs.
Moments = tuple[np.ndarray, np.ndarray]
#: Each client's.
Rows = list[tuple[torch.Tensor, torch.Tensor]]

LIARS = (4, 7)
KINDS = ("negated", "tenfold", "hundredfold", "noise", "stale")
OTHER = "another population"
CLIENTS, DIM = 10, 3
QUIET: dict[str, Any] = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 2000}
FAMILIES = {
    "FedEP": pf.FedEP(),
    "PVI": pf.PVI(),
    "FedPA": pf.FedPA(client=pf.tilted.Laplace()),
    "FedSEP": pf.FedSEP(),
    "FedLaplace": pf.FedLaplace(),
    "BCM": pf.BCM(),
    "ConsensusMC": pf.ConsensusMC(num_samples=200, warmup_steps=100, num_chains=1),
    "FedAIS": pf.FedAIS(),
    "DSVGD": pf.DSVGD(start="gaussian"),
    "ParallelDSVGD": pf.ParallelDSVGD(start="gaussian"),
    "FSGLD": pf.FSGLD(target_ess=200),
    "FALD": pf.FALD(target_ess=200),
    "P2PVI, all hear all": pf.P2PVI(start="local"),
    "P2PVI, ring": pf.P2PVI(start="local"),
    "P2PVI, random": pf.P2PVI(start="local"),
    "FedAvg": pf.FedAvg(step_size=0.05),
}
GRAPHS = {
    "P2PVI, all hear all": pf.graph.complete(CLIENTS),
    "P2PVI, ring": pf.graph.ring(CLIENTS),
    "P2PVI, random": pf.graph.erdos_renyi(CLIENTS, 0.4, seed=0),
}
#: Rows of honest clients, by name.
SIZES = {
    "equal": [40] * CLIENTS,
    "1 / k": [400 // k for k in range(1, CLIENTS + 1)],
    "one has half": [180] + [20] * (CLIENTS - 1),
    "one has twenty times as many": [400] + [20] * (CLIENTS - 1),
    "half of them few": [5] * 5 + [200] * 5,
    "1 to 361": [1, 3, 8, 15, 22, 40, 60, 90, 200, 361],
}
#: Rounds at most, and of chains: a run that is lied to need not converge.
ROUNDS, VISITS = 30, 150


def model(x: torch.Tensor, y: torch.Tensor) -> None:
    """Logistic regression."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([DIM]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def rows(others: tuple[int, ...] = (), sizes: list[int] | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each client's rows, 40 or of the `sizes`; those of `others` are of another population."""
    sizes = SIZES["equal"] if sizes is None else sizes
    generator, total = torch.Generator().manual_seed(1), sum(sizes)
    x = torch.randn(total, DIM, generator=generator, dtype=torch.float64)
    truth = torch.randn(DIM, generator=generator, dtype=torch.float64)
    chance = torch.rand(total, generator=generator, dtype=torch.float64)
    parts = []
    for k, size in enumerate(sizes):
        at = slice(sum(sizes[:k]), sum(sizes[:k]) + size)
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


def attacked(name: str, fed: pf.Federation, kind: str, liars: tuple[int, ...], bounded: bool) -> Moments | None:
    """Means and SDs of a run; None where it stopped."""
    liar = {**MORE, **{kind: Faulty(probability=1.0, kinds=(kind,), clients=liars) for kind in KINDS}}
    executor = liar.get(kind, "vectorised")
    combination = pf.combination.Bounded() if bounded else None
    algorithm = FAMILIES[name]
    rounds = VISITS if isinstance(algorithm, pf.FSGLD | pf.FALD) else ROUNDS
    graph = GRAPHS.get(name)
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
                attacked(name, fed_another if kind == OTHER else fed, kind, liars, bounded) for bounded in (False, True)
            ]
            cells.append(" / ".join(off(one, nine) for one in runs))
        price, free = (attacked(name, fed, "", (), bounded) for bounded in (True, False))
        ratio = (
            "stops" if price is None or free is None else f"{(price[1] / free[1]).max():.3f}" if free[1].all() else ""
        )
        print(f"| `{name}` | {' | '.join([*cells, off(price, ten), ratio])} |", flush=True)


def prices() -> None:
    """Print what `Bounded` costs FedEP where honest clients have unequal numbers of rows."""
    print("\n| rows | a mean moves by, SDs | SDs wider |\n| --- | --- | --- |")
    for name, sizes in SIZES.items():
        fed = pf.Federation.from_clients(model, rows(sizes=sizes), plate="data")
        free, price = (attacked("FedEP", fed, "", (), bounded) for bounded in (False, True))
        ratio = "stops" if price is None or free is None else f"{(price[1] / free[1]).max():.3f}"
        print(f"| {name} | {off(price, free) if free else 'stops'} | {ratio} |", flush=True)


def more(names: list[str]) -> None:
    """Print what other kinds of lies do under `Bounded`."""
    honest = rows()
    fed = pf.Federation.from_clients(model, honest, plate="data")
    nine = reference(honest, LIARS[:1])
    print(f"\n| family | {' | '.join(MORE)} |\n|{' --- |' * (len(MORE) + 1)}")
    for name in names:
        cells = [off(attacked(name, fed, kind, (), bounded=True), nine) for kind in MORE]
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """The tables that are asked for."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    if "--prices" in sys.argv:
        prices()
    elif "--more" in sys.argv:
        more(names or list(FAMILIES))
    elif "--two" in sys.argv:
        table(names or ["FedEP", "PVI", "FedLaplace"], LIARS)
    else:
        table(names or list(FAMILIES), LIARS[:1])


if __name__ == "__main__":
    main()
