"""Whether networks know what they do not know: accuracy, log density, calibration and entropy away from the data.

    python -m benchmarks.networks.calibration                              # all cells that are not there yet
    python -m benchmarks.networks.calibration --data wine --algorithms FedEP --seeds 3 --limit 150
    python -m benchmarks.networks.calibration --write                   # MEASURED.md from what is there

Three sets of scikit-learn's: digits, breast cancer, wine, a fifth of the rows to test on (360 of the digits), one
hidden layer of 20 ReLU units, N(0, 1) on all weights, ten clients (Dirichlet 0.5 by label), one thread. A cell is a
set, an algorithm and a seed, which is that of the split, of the partition and of the run; each is added to
`benchmarks/networks/calibration.jsonl` once it has ended, so that the whole can be cut off and resumed. `--limit`
starts no cell after so many seconds. What an algorithm is given is in `ALGORITHMS` of `benchmarks.networks`: points 50
rounds, all else their defaults. "pooled SVI" is Pyro's, 2,000 steps on all rows.

Points say nothing of what they do not know but by their probabilities; their entropy is that of one network.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.helpers.records import Records
from benchmarks.helpers.tables import case_of, heading, nested, put, rounded, row, spread
from benchmarks.networks.__main__ import DATA, EXACT, FIGURES, POOLED, federation, measured

KEPT = Records(Path(__file__).with_suffix(".jsonl"))
PAGE = Path(__file__).parent / "MEASURED.md"
BEGIN, END = "<!-- benchmarks/networks/calibration.py writes this table -->\n", "<!-- until here -->"
HIDDEN = 20
#: Columns of the table: a figure, and its title.
COLUMNS = {"accuracy": "accuracy", "log_density": "log density", "ece": "ECE", "entropy_away": "entropy away"}
TABLE = (
    "FedAvg", "FedProx", "FedDyn", "FedLap", "FedLapCov", "BayesADMM", "FedEP", "FedEP, 100 rounds", "P2PVI", "DSVGD",
    POOLED, EXACT,
)  # fmt: skip


def work(sets: list[str], names: list[str], seeds: int, limit: float) -> None:
    """Run what is not there, seed by seed, so that all algorithms have the same ones."""
    began = time.monotonic()
    for seed in range(seeds):
        for data in sets:
            for name in names:
                if (case := case_of((data, name, seed))) in KEPT:
                    continue
                if time.monotonic() - began > limit:
                    return
                figures = dict(zip(FIGURES[:-1], measured(name, HIDDEN, seed, data)[:-1], strict=True))
                KEPT.keep({"case": case, **rounded(figures)})
                print(*KEPT[case].values(), flush=True)


def table(cells: dict[str, Any]) -> str:
    """Mean ± standard error over seeds."""
    lines = [heading("data", "algorithm", *COLUMNS.values(), "seconds", "seeds")]
    for data, algorithms in ((data, cells[data]) for data in DATA if data in cells):
        size = federation(HIDDEN, 0, data)[0].problem.dim
        for name in TABLE:
            if name not in algorithms:
                continue
            found = list(algorithms[name].values())
            shown = [spread([cell[what] for cell in found]) for what in COLUMNS]
            seconds = np.median([cell["seconds"] for cell in found])
            label = name if " " in name else f"`{name}`"
            lines.append(row(f"{data}, {size:,}", label, *shown, f"{seconds:.1f}", len(found)))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, nargs="+", default=list(DATA))
    parser.add_argument("--algorithms", nargs="+", choices=TABLE, default=list(TABLE))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no cell is begun")
    parser.add_argument("--write", action="store_true", help="write the table into its page of docs/, and run nothing")
    given: Any = parser.parse_args()
    torch.set_num_threads(1)
    if given.write:
        put(PAGE, BEGIN, END, table(nested(KEPT)))
    else:
        work(given.data, given.algorithms, given.seeds, given.limit)


if __name__ == "__main__":
    main()
