"""What FedEP's run costs a row, as rows grow and as covariates grow: four models, a table and a figure.

    python -m benchmarks.speed.cost_per_row [MODEL ...] [--limit S] [--print] [--out FILE] [--figure FILE]

Rows from 10³ to 10⁶ at ten covariates, and covariates from 5 to 500 at 10⁴ rows; ten clients, one thread, seconds of
the processor, without audit and log-likelihoods. The first run of a shape traces it; the second, on new data of the
same shapes, is what is counted, with its federation. Cells are kept in `--out`, and what is there is not run again.
After a cell that took a tenth of `--limit` seconds the larger ones of its line are left out, and shown as "-".
"""

import argparse
import time
import warnings
from pathlib import Path

import torch

import pyro_fed as pf
from benchmarks.helpers.records import Records
from benchmarks.helpers.tables import heading, row
from benchmarks.speed import rows as by_rows

MODELS = ("logistic", "robust", "poisson", "network")
ROWS, COVARIATES = (1_000, 10_000, 100_000, 1_000_000), (5, 50, 500)
AT_COVARIATES, AT_ROWS, CLIENTS, HIDDEN = 10, 10_000, 10, 5


def network(x, y):
    """A layer of five units on the covariates, and coins."""
    import pyro
    import pyro.distributions as dist

    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], HIDDEN]).to_event(2))
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([HIDDEN]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=torch.tanh(x @ w + b) @ v), obs=y)


def timed(kind, rows, covariates, seed):
    """Seconds of the processor, and rounds, of a run on new data."""
    model = network if kind == "network" else by_rows.models()[kind][0]
    arguments = by_rows.data("logistic" if kind == "network" else kind, rows, covariates, seed)
    began = time.process_time()
    fed = pf.Federation(model, arguments, plate="data", num_clients=CLIENTS)
    idata = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False, audit=False)
    return time.process_time() - began, int((idata["federation"]["bytes_up"].sum("client") > 0).sum())


def measure(kinds, limit, path):
    """All cells, by "MODEL ROWS COVARIATES"; those that are kept already are taken as they are."""
    cells = Records(path)
    lines = [[(kind, rows, AT_COVARIATES) for rows in ROWS] for kind in kinds]
    lines += [[(kind, AT_ROWS, covariates) for covariates in COVARIATES] for kind in kinds]
    for line in lines:
        for kind, rows, covariates in line:
            key = f"{kind} {rows} {covariates}"
            if key not in cells:
                first, _ = timed(kind, rows, covariates, 1)
                again, rounds = timed(kind, rows, covariates, 2)
                cells.keep({"case": key, "first": first, "again": again, "rounds": rounds})
            if cells[key]["first"] > limit / 10:
                break
    return cells


def table(cells):
    """Microseconds a row of a whole run, and its rounds; "-" where it was left out."""

    def shown(kind, rows, covariates):
        cell = cells.get(f"{kind} {rows} {covariates}")
        return "-" if cell is None else f"{1e6 * cell['again'] / rows:.1f} ({cell['rounds']})"

    sizes = [(rows, AT_COVARIATES) for rows in ROWS] + [(AT_ROWS, covariates) for covariates in COVARIATES]
    print(heading("model", *(f"{rows:,} x {covariates}" for rows, covariates in sizes)))
    for kind in MODELS:
        print(row(kind, *(shown(kind, *size) for size in sizes)))


def draw(cells, path):
    """Microseconds a row against rows, and against covariates."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10.0, 4.2), sharey=True, layout="constrained")
    measured = {int(key.split()[2]) for key in cells}
    shown = [d for d in sorted({AT_COVARIATES, *COVARIATES}) if d in measured]
    for kind in MODELS:
        lines = ([(r, AT_COVARIATES, r) for r in ROWS], [(AT_ROWS, d, d) for d in shown])
        for axis, line in zip(axes, lines, strict=True):
            found = [(at, 1e6 * cells[key]["again"] / r) for r, d, at in line if (key := f"{kind} {r} {d}") in cells]
            axis.loglog(*zip(*found, strict=True), marker="o", label=kind) if found else None
    axes[0].set(xlabel=f"rows, at {AT_COVARIATES} covariates", ylabel="a run of FedEP, µs of the processor a row")
    axes[1].set(xlabel=f"covariates, at {AT_ROWS:,} rows")
    axes[1].set_xticks(shown, [str(d) for d in shown])
    axes[1].set_xticks([], minor=True)
    axes[0].legend()
    figure.savefig(path, dpi=150)


def main():
    """Measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--limit", type=float, default=600.0)
    parser.add_argument("--out", type=Path, default=Path("out/cost_per_row.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("docs/cost_per_row.png"))
    parser.add_argument("--print", action="store_true", help="measure nothing: print and draw the cells that are kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cells = measure([] if given.print else given.models, given.limit, given.out)
    table(cells)
    draw(cells, given.figure)


if __name__ == "__main__":
    main()
