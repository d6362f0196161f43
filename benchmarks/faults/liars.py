"""One or two liars of ten clients: how far they move the answer of each family, with and without `Bounded()`.

Logistic regression of 400 rows with three weights over ten like clients, float64. Client 4 (and 7) lies in every round
of every phase, see `LIES`; "another population" is honest about rows whose weights are the true ones times -2. A cell
is the largest error of a mean in SDs of the posterior of the honest clients, whose moments are exact
(`benchmarks.helpers.exact_logistic`); "stops": the run ended in an error. "honest": nobody lies, against the posterior
of all ten, and in the second column how many times as wide the widest SD is as without `Bounded`.

    python -m benchmarks.faults.liars [FAMILY ...] [--only "LIE;..."] [--out out/faults/liars.jsonl] [--print] [--again]

A cell is one run of some tenths of a second; each is written to OUT as soon as it is there, and one that is there is
not run again: the whole can be cut off, resumed, and run in parts. `--print` prints the tables of what is there,
`--held` leaves out the runs without.
`--prices` prints what `Bounded` costs where honest clients have unequal numbers of rows, `--dirichlet` where they have
unequal labels: README's first program.

Algorithms without a rule (DSGLD, P2PEP, P2PFedAvg, those as published) refuse `combination=`, and are not in it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.exact_logistic import CLIENTS, Moments, Rows, exact_moments, model, rows
from benchmarks.helpers.records import Records
from benchmarks.helpers.tables import heading, row
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import PyroFedError
from pyro_fed.runtime.executors import Executor, Faulty, Reply, Vectorised, Work
from pyro_fed.runtime.executors.local import Step

LIARS = (4, 7)
#: The round from which a late lie is told.
LATE = 10
QUIET: dict[str, Any] = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 2000}
#: Each with its rounds at most: a run that is lied to need not converge.
FAMILIES: dict[str, tuple[Any, int]] = {
    "FedEP": (pf.FedEP(), 30),
    "PVI": (pf.infer.PVI(), 100),
    "FedPA": (pf.infer.FedPA(client=pf.infer.tilted.Laplace()), 30),
    "FedSEP": (pf.infer.FedSEP(), 30),
    "FedLaplace": (pf.FedLaplace(), 30),
    "BCM": (pf.infer.BCM(), 30),
    "ConsensusMC": (pf.infer.ConsensusMC(num_samples=100, warmup_steps=50, num_chains=1, max_tree_depth=3), 1),
    "FedAIS": (pf.FedAIS(), 30),
    "DSVGD": (pf.DSVGD(start="gaussian", num_particles=50), 30),
    "ParallelDSVGD": (pf.infer.ParallelDSVGD(start="gaussian", num_particles=50), 20),
    "FSGLD": (pf.FSGLD(target_ess=200, num_chains=10), 150),
    "FALD": (pf.infer.FALD(target_ess=200, num_chains=4, burn_in=50), 60),
    "P2PVI, all hear all": (pf.P2PVI(start="local"), 30),
    "P2PVI, ring": (pf.P2PVI(start="local"), 30),
    "P2PVI, random": (pf.P2PVI(start="local"), 30),
    "FedAvg": (pf.FedAvg(step_size=0.05), 30),
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
    "2 to 1,024": [2**k for k in range(1, CLIENTS + 1)],
}
#: A lie of a message and its round.
Lie = Callable[[State, int], State]


class Remembering(Vectorised):
    """The steps of an algorithm of one round, whose clients say the same before every lie: they are done once."""

    steps_of: ClassVar[dict[tuple[Any, ...], Step]] = {}

    def steps(self, work: Work, at: torch.Tensor, noise: Noise) -> Step:
        """As they were done before, or now."""
        key = (float(self.data.rows[1].sum()), work.seed, *work.clients)
        if key not in self.steps_of:
            self.steps_of[key] = super().steps(work, at, noise)
        return self.steps_of[key]


class TrueRows(Vectorised):
    """Clients that know how many rows they have, whatever the server was told."""

    def __init__(self, num_rows: torch.Tensor) -> None:
        super().__init__()
        self.true = num_rows

    def start(self, algorithm: Any, problem: Any, data: ClientData, local: State, clients: Any = None) -> None:
        """With their own numbers."""
        super().start(algorithm, problem, data._replace(num_rows=self.true), local, clients)


class Claiming(pf.Federation):
    """A federation whose server is told something else of how many rows a client has."""

    claim = 0

    def client_data(self, clients: Any = None) -> ClientData:
        """With the number that the liar claims."""
        data = super().client_data(clients)
        return data._replace(num_rows=data.num_rows.index_fill(0, torch.tensor(LIARS[0]), self.claim))


class Liar(Faulty):
    """Clients whose messages are made by a function of them and of the round."""

    def __init__(self, lie: Lie, clients: tuple[int, ...], inner: Executor) -> None:
        super().__init__(inner, probability=0.0)
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


#: What says where the parameters are, and how much is known of them.
WHERE = ("eta", "residual", "score", "position", "point", "delta", "draws", "particles", "white", "change")
KNOWN = ("precision", "history")


def times(message: State, factor: float, *parts: str) -> State:
    """The message with the tensors that are called so times a factor; all where none is."""
    named = [name for name in message if any(part in name for part in parts)]
    chosen = named or [name for name, value in message.items() if value.is_floating_point()]
    return {name: value * factor if name in chosen else value for name, value in message.items()}


def same_way(message: State) -> State:
    """Always a little more of what says where the parameters are."""
    named = {name for name in message if any(part in name for part in WHERE)}
    return {name: value + 3 * value.abs().mean() if name in named else value for name, value in message.items()}


#: Kinds of `Faulty`, and lies within the form of a message: two who agree are two of these.
KINDS = ("negated", "tenfold", "hundredfold", "noise", "stale", "nan")
LIES: dict[str, Lie] = {
    "mean times 10": lambda message, round: times(message, 10.0, *WHERE),
    "precision times 10": lambda message, round: times(message, 10.0, *KNOWN),
    "precision times 10,000": lambda message, round: times(message, 1e4, *KNOWN),
    "precision negative": lambda message, round: times(message, -3.0, *KNOWN),
    "growing": lambda message, round: times(message, 1.0 + 0.2 * round),
    "the same way": lambda message, round: same_way(message),
    "late, hundredfold": lambda message, round: times(message, 100.0) if round >= LATE else message,
    "late, the same way": lambda message, round: same_way(message) if round >= LATE else message,
    "log-likelihoods": lambda message, round: times(message, -30.0, "value", "log_lik"),
}
OTHER, HONEST = "another population", "honest"
#: Rows that a client with 40 claims, and what it sends besides; lies of a client with as many rows as twenty others.
CLAIMS = {
    "claims 400 rows": (400, ""),
    "claims 1e12 rows": (10**12, ""),
    "claims 1e12, hundredfold": (10**12, "hundredfold"),
    "claims 1e12, noise": (10**12, "noise"),
}
MOST = {f"most rows, {lie}": lie for lie in ("negated", "hundredfold", "noise", "the same way")}
COLUMNS = (*KINDS, OTHER, *LIES)
ABOUT_ROWS = (*CLAIMS, *MOST)
Cell = tuple[str, str, int, bool]


def executor(family: str, lie: str, liars: tuple[int, ...], inner: Executor | None = None) -> Executor:
    """Where these clients tell this lie."""
    inner = inner or (Remembering() if family == "ConsensusMC" else Vectorised())
    if lie in KINDS:
        return Faulty(inner, probability=1.0, kinds=(lie,), clients=liars)
    return Liar(LIES[lie], liars, inner) if lie in LIES else inner


def moments(idata: Any) -> Moments:
    """Means and SDs."""
    draws = idata["posterior"]["w"].values
    flat = draws.reshape(-1, draws.shape[-1])
    return flat.mean(0), flat.std(0)


def run(family: str, parts: Rows, bounded: bool, at: Executor, claim: int = 0) -> Moments | None:
    """Means and SDs of a run, with a liar's claim of its rows if there is one; None where it stopped."""
    algorithm, rounds = FAMILIES[family]
    fed = (Claiming if claim else pf.Federation).from_clients(model, parts, plate="data")
    if isinstance(fed, Claiming):
        fed.claim = claim
    combination = pf.combination.Bounded() if bounded else None
    try:
        found = pf.run(
            algorithm,
            fed,
            num_rounds=rounds,
            executor=at,
            graph=GRAPHS.get(family),
            combination=combination,
            **QUIET,
        )
    except PyroFedError:
        return None
    return moments(found)


def error(found: Moments | None, exact: Moments) -> str:
    """The largest error of a mean in SDs."""
    return "stops" if found is None else f"{np.abs((found[0] - exact[0]) / exact[1]).max():.2g}"


def cells(families: list[str], lies: list[str], ways: tuple[bool, ...]) -> list[Cell]:
    """All that is measured of them, the cheap questions first."""
    number = {HONEST: (0,), **dict.fromkeys(ABOUT_ROWS, (1,))}
    return [
        (family, lie, liars, bounded)
        for family in families
        for lie in lies
        for liars in number.get(lie, (1, 2))
        for bounded in ways
    ]


def measured(cell: Cell) -> tuple[str, str]:
    """A cell, and its widest SD."""
    family, lie, count, bounded = cell
    liars = (0,) if lie in MOST else LIARS[:count]
    parts = rows(liars if lie == OTHER else (), SIZES["one has twenty times as many"] if lie in MOST else None)
    claim, told = CLAIMS.get(lie, (0, MOST.get(lie, lie)))
    inner = TrueRows(torch.tensor([len(y) for _, y in parts])) if claim else None
    found = run(family, parts, bounded, executor(family, told, liars, inner), claim)
    liars = liars if told else ()  # whoever sends what is true is one of the honest
    kept = [part for k, part in enumerate(parts) if k not in liars]
    exact = exact_moments(kept)
    width = "" if found is None else f"{(found[1] / exact[1]).max():.4g}"
    return error(found, exact), width


def case_of(cell: Cell) -> str:
    """The name of a cell: "FedEP / honest / 0 / bounded"."""
    family, lie, count, bounded = cell
    return f"{family} / {lie} / {count} / {'bounded' if bounded else 'free'}"


def show(records: Records, families: list[str]) -> None:
    """Print the tables of what is there."""

    def both(family: str, lie: str, count: int) -> list[tuple[str, str]]:
        """Error and widest SD, without and with; empty where it was not run."""
        cases = [case_of((family, lie, count, bounded)) for bounded in (False, True)]
        return [(records[case]["error"], records[case]["width"]) if case in records else ("", "") for case in cases]

    def errors(family: str, lies: Iterable[str], count: int) -> list[str]:
        """A row of the table: errors without and with."""
        return [" / ".join(found for found, _ in both(family, lie, count)) for lie in lies]

    for count in (1, 2):
        print(f"\n{count} liar(s) of {CLIENTS}, without / with\n\n{heading('family', *COLUMNS)}")
        for family in families:
            print(row(f"`{family}`", *errors(family, COLUMNS, count)))
    print("\n" + heading("family", *ABOUT_ROWS))
    for family in families:
        print(row(f"`{family}`", *errors(family, ABOUT_ROWS, 1)))
    print("\n" + heading("family", "nobody lies, without", "with", "SDs wider"))
    for family in families:
        free, held = both(family, HONEST, 0)
        if free[0] and held[0]:
            known = free[1] and held[1] and float(free[1]) > 0
            wider = f"{float(held[1]) / float(free[1]):.3f}" if known else ""
            print(row(f"`{family}`", free[0], held[0], wider))


def prices(families: list[str]) -> None:
    """Print what `Bounded` costs where honest clients have unequal numbers of rows."""
    print("\n" + heading("family", "rows", "a mean moves by, SDs", "SDs wider"))
    for family in families:
        for name, sizes in SIZES.items():
            parts = rows(sizes=sizes)
            free, held = (run(family, parts, bounded, Vectorised()) for bounded in (False, True))
            ratio = "" if free is None or held is None or not free[1].all() else f"{(held[1] / free[1]).max():.3f}"
            print(row(f"`{family}`", name, "stops" if free is None else error(held, free), ratio), flush=True)


def dirichlet(families: list[str]) -> None:
    """Print what it costs in the first program of README: labels by Dirichlet(0.3), eight weights."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import scale

    x, y = load_breast_cancer(return_X_y=True)
    x, y = torch.tensor(scale(x)[:, :8]), torch.tensor(y).double()
    partition = pf.partition.Dirichlet(0.3, by=y)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=CLIENTS, partition=partition, seed=0)
    print("\n" + heading("family", "converged, without / with", "a mean moves by, SDs", "SDs, over those without"))
    for family in families:
        algorithm, _ = FAMILIES[family]
        options = QUIET | {"graph": GRAPHS.get(family), "num_draws": 8000}
        try:
            free = pf.run(algorithm, fed, **options)
            held = pf.run(algorithm, fed, combination=pf.combination.Bounded(), **options)
        except PyroFedError as stop:
            print(row(f"`{family}`", type(stop).__name__, "", ""), flush=True)
            continue
        before, after = (moments(idata) for idata in (free, held))
        ratio = after[1] / before[1]
        ends = " / ".join(str(idata.attrs.get("converged", "")) for idata in (free, held))
        moved = np.abs((after[0] - before[0]) / before[1]).max()
        print(row(f"`{family}`", ends, f"{moved:.2g}", f"{ratio.min():.3f} to {ratio.max():.3f}"), flush=True)


def main() -> None:
    """What is asked for."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--only", default="", metavar="LIE;...")
    parser.add_argument("--out", type=Path, default=Path("out/faults/liars.csv"))
    for flag in ("--print", "--again", "--held", "--prices", "--dirichlet"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    families = options.families or list(FAMILIES)
    lies = [lie.strip() for lie in options.only.split(";") if lie] or [HONEST, *COLUMNS, *ABOUT_ROWS]
    if unknown := {*families} - {*FAMILIES} | {*lies} - {HONEST, *COLUMNS, *ABOUT_ROWS}:
        parser.error(f"unknown: {sorted(unknown)}; families {list(FAMILIES)}, lies {[HONEST, *COLUMNS, *ABOUT_ROWS]}")
    if options.prices or options.dirichlet:
        (prices if options.prices else dirichlet)(families)
        return
    records = Records(options.out)
    if not options.print:
        for cell in cells(families, lies, (True,) if options.held else (False, True)):
            if case_of(cell) in records and not options.again:
                continue
            began = time.process_time()
            found, width = measured(cell)
            seconds = round(time.process_time() - began, 2)
            records.keep({"case": case_of(cell), "error": found, "width": width, "seconds": seconds})
    show(records, families)


if __name__ == "__main__":
    main()
