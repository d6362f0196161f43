"""Every figure and table of the five papers that a script reproduces, one after the other.

    python -m benchmarks.papers [--only NAME,...] [--out out/papers] [--list] [--again]     (or: make papers)

Each item is one command in a process of its own; what it prints goes to OUT/NAME.txt once it has ended well, and an
item that has its file is not run again: the whole can be cut off and resumed. `--list` says what there is, by paper,
with the time that it takes. Items marked † in `benchmarks/README.md` need PYRO_FED_DATA, those of Fashion-MNIST its
files (`helpers/fashion_mnist.py`); both are passed over without. Ends with 1 where an item failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.helpers.fashion_mnist import found_folder
from pyro_fed.conventions.output import replaced_file


@dataclass(frozen=True)
class Item:
    """One command: the page of `docs/papers/`, the figure, the script and its arguments, and minutes of one core."""

    paper: str
    figure: str
    module: str
    arguments: tuple[str, ...] = ()
    minutes: float = 1.0
    needs_data: bool = False
    needs_fashion: bool = False

    def command(self) -> list[str]:
        """To be run from the repository's root."""
        return [sys.executable, "-m", f"benchmarks.papers.{self.module}", *self.arguments]


def logistic(figure: str, minutes: float, *arguments: str) -> Item:
    """A figure of `logistic_accuracy`."""
    return Item("dsvgd", f"Fig. {figure}", "logistic_accuracy", ("--figure", figure, *arguments), minutes)


SEEDS = ("--seeds", "2")
ITEMS = {
    "dsvgd_mixtures": Item("dsvgd", "Fig. 2, 3, 9, 10", "mixtures", minutes=4),
    "dsvgd_figure_4": logistic("4", 6, *SEEDS),
    "dsvgd_figure_5": logistic("5", 2, *SEEDS),
    "dsvgd_figure_11": logistic("11", 6, *SEEDS),
    "dsvgd_figure_12": logistic("12", 13, *SEEDS),
    "dsvgd_figure_13": logistic("13", 2, *SEEDS),
    "dsvgd_figure_14": logistic("14", 3, *SEEDS),
    "dsvgd_figure_15": logistic("15", 5, *SEEDS),
    "dsvgd_figure_6": Item("dsvgd", "Fig. 6, 17", "bnn_regression_rmse", minutes=15, needs_data=True),
    "dsvgd_figure_7": Item("dsvgd", "Fig. 7", "bnn_accuracy_by_round", ("--rounds", "10"), 1),
    "dsvgd_figure_7_fashion": Item(
        "dsvgd",
        "Fig. 7, 18, Fashion-MNIST",
        "bnn_accuracy_by_round",
        (
            *("--data", "fashion", "--rows", "2000", "--test-rows", "1000", "--side", "7", "--hidden", "20"),
            *("--rounds", "10", "--out", "out/bnn_accuracy_fashion.png"),
        ),
        2,
        needs_fashion=True,
    ),
    "dsvgd_figure_8_fashion": Item(
        "dsvgd",
        "Fig. 8, 19, 20, Fashion-MNIST",
        "calibration_digits",
        ("--data", "fashion", "--seeds", "1", "--out", "out/calibration_fashion.png"),
        15,
        needs_fashion=True,
    ),
    "dsvgd_figure_8": Item("dsvgd", "Fig. 8, 19, 20", "calibration_digits", minutes=10),
    "selection_digits": Item("selection", "Fig. 2 to 5, network", "client_selection", ("--seeds", "3"), 6),
    "selection_100_units": Item(
        "selection",
        "Fig. 2 to 5, network of 100 units",
        "client_selection",
        ("--hidden", "100", "--out", "out/selection_100_units.png"),
        8,
    ),
    "selection_120": Item(
        "selection",
        "Fig. 2 to 5, 120 clients",
        "client_selection",
        ("--data", "ringnorm", "--clients", "120", "--rounds", "120", "--seeds", "4", "--out", "out/selection_120.png"),
        8,
    ),
    "fedep_table_4": Item("fedep", "Table 4", "table4", minutes=2),
    "fedep_figure_1": Item("fedep", "Fig. 1", "table4", ("--figure", "out/papers/fedep_figure_1.png"), 0.1),
    "fedep_digits": Item("fedep", "Table 2, 5, Fig. 2, 3 (stand-in)", "fedep_digits", minutes=15),
    "fedep_inferences": Item("fedep", "Table 2, 3, 6 (stand-in)", "fedep_inferences", minutes=4),
    "fedep_tags": Item("fedep", "Table 3 (stand-in)", "fedep_inferences", ("--tags",), 4),
    "fedep_settings": Item("fedep", "Table 7, 8 (stand-in)", "fedep_settings", minutes=5),
    "fedep_ablations": Item("fedep", "Fig. 4, 6 (stand-in)", "fedep_ablations", minutes=3),
    "fedep_momentum": Item("fedep", "Table 7's momentum", "fedep_momentum", minutes=1),
    "fedep_recipes": Item(
        "fedep",
        "every recipe, ten clients",
        "recipes",
        ("--minutes", "60"),
        60,
    ),
    "fsgld_figure_1": Item("fsgld", "Fig. 1", "fsgld_figures", ("--only-1",), 0.1),
    "fsgld_section_5_1": Item("fsgld", "Fig. 2, 3, 4", "fsgld_figures", minutes=5),
    "fsgld_table_1": Item("fsgld", "Table 1, Fig. 5", "fsgld_sections_5_2_and_5_3", ("--rounds", "60"), 25),
    "fsgld_bytes": Item("fsgld", "beside QLSD, VR-FALD*", "langevin_bytes", minutes=2),
    "fsgld_overfit": Item("fsgld", "Table 1, what its train and test are", "fsgld_overfit", minutes=7),
    "p2p_figure_1": Item("p2p", "Fig. 1", "p2p_linear_regression", minutes=0.3),
    "p2p_theorem_1": Item("p2p", "Theorem 1, Corollaries 1, 2", "p2p_rate", minutes=0.2),
    "p2p_figure_3": Item("p2p", "Fig. 3", "p2p_stars", ("--informed",), 0.6),
    "p2p_figure_3_fashion": Item(
        "p2p",
        "Fig. 3, Fashion-MNIST",
        "p2p_stars",
        ("--informed", "--data", "fashion", "--rounds", "10"),
        3,
        needs_fashion=True,
    ),
    "p2p_figure_2": Item("p2p", "Fig. 2 (stand-in)", "p2p_feature_skew", minutes=2),
    "p2p_figure_4": Item("p2p", "Fig. 4", "p2p_stars", ("--published", "25"), 3),
    "p2p_figure_4_exact": Item("p2p", "Fig. 4, rows counted once", "p2p_stars", ("--exact", "25", "100"), 1),
    "p2p_figure_4_sds": Item("p2p", "Fig. 4, rate in SDs", "p2p_stars", ("--published", "--sds", "25"), 3),
    "p2p_figure_4_rows": Item(
        "p2p", "Fig. 4, rows as in the paper", "p2p_stars", ("--rows", "2307", "--published", "25"), 5
    ),
    "p2p_figure_4_n100": Item(
        "p2p", "Fig. 4, N = 100, rows as in the paper", "p2p_stars", ("--rows", "594", "--published", "100"), 8
    ),
}


def run(name: str, item: Item, out: Path) -> bool:
    """Run an item and keep what it prints; whether it ended well."""
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(item.command(), capture_output=True, text=True, env=environment, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        print(f"{name}: FAILED after {seconds:.0f} s\n{done.stderr[-2000:]}", flush=True)
        return False
    said = f"{' '.join(item.command()[1:])}\n{item.paper}, {item.figure}: {seconds:.0f} s\n\n{done.stdout}"
    with replaced_file(out / f"{name}.txt") as file:
        file.write(said.encode())
    print(said, flush=True)
    return True


def has_fashion_mnist() -> bool:
    """Whether the files of Fashion-MNIST are there."""
    try:
        found_folder()
    except FileNotFoundError:
        return False
    return True


def chosen(only: str | None) -> dict[str, Item]:
    """The items asked for, by name or by paper."""
    if only is None:
        return ITEMS
    words = only.split(",")
    unknown = [word for word in words if word not in ITEMS and word not in {item.paper for item in ITEMS.values()}]
    if unknown:
        raise SystemExit(
            f"no such items: {unknown}; there are {list(ITEMS)}, and the papers' names stand for all of one"
        )
    return {name: item for name, item in ITEMS.items() if name in words or item.paper in words}


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for and not there yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers")
    parser.add_argument("--only", help="names of items or papers, with commas between them")
    parser.add_argument("--out", type=Path, default=Path("out/papers"))
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--again", action="store_true", help="run items that have been run")
    options = parser.parse_args(arguments)
    items = chosen(options.only)
    if options.list:
        for name, item in items.items():
            print(f"{name:26} {item.paper:10} {item.figure:34} {item.minutes:5.1f} min  {' '.join(item.command()[1:])}")
        print(f"{sum(item.minutes for item in items.values()):.0f} minutes of one core in all, about")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, item in items.items():
        if (options.out / f"{name}.txt").exists() and not options.again:
            print(f"{name}: there already")
        elif item.needs_data and "PYRO_FED_DATA" not in os.environ:
            print(f"{name}: needs PYRO_FED_DATA, passed over")
        elif item.needs_fashion and not has_fashion_mnist():
            print(f"{name}: needs Fashion-MNIST, passed over")
        elif not run(name, item, options.out):
            failed.append(name)
    if failed:
        print(f"failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
