"""Stein methods against reference draws of real posteriors: mean error and SD ratio, rounds and bytes.

    PYRO_FED_DATA=... python -m benchmarks.accuracy.stein_posteriors [--names kidiq] [--out FILE]

Seven posteriors of posteriordb, K = 5 clients, IID and sorted by a covariate, N = 100 particles, defaults:
DSVGD, ParallelDSVGD, SVGD on the pooled data, and published DSVGD (20 rounds). The bar is a mean error of 0.1
reference SDs and an SD ratio of 0.9 to 1.1.
"""

import argparse
import time
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import pyro_fed as pf
from tests.helpers import posteriordb

METHODS = {
    "DSVGD": pf.DSVGD(),
    "ParallelDSVGD": pf.ParallelDSVGD(),
    "SVGD (pooled)": pf.SVGD(),
    "published DSVGD": pf.PaperDSVGD(),
}


def measure(name, sort, algorithm):
    """Largest mean error in reference SDs, smallest and largest SD ratio, rounds, MB a client, seconds."""
    case = posteriordb.CASES[name]
    fed = case.federation(5, sort=sort)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the table says how good a result is
        idata = pf.run(algorithm, fed, progress=False, log_likelihood=False)
    group = idata["federation"]
    traffic = float(group["bytes_down"].sum() + group["bytes_up"].sum()) / 1e6 / fed.num_clients
    return *case.error(idata), group.sizes["round"], traffic, time.perf_counter() - began


def main():
    """Print the table and save the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", default="kidiq,earnings,mesquite,nes1980,sblrc,gauss_mix,diamonds")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", type=Path, default=Path("out/stein_posteriors.png"))
    options = parser.parse_args()
    figure, axis = plt.subplots(figsize=(7, 4))
    print(
        f"{'posterior':<12}{'clients':<9}{'method':<17}{'mean err':>9}{'SD min':>8}{'SD max':>8}"
        f"{'rounds':>8}{'MB/client':>11}{'s':>7}"
    )
    for column, method in enumerate(options.methods.split(",")):
        for row, name in enumerate(options.names.split(",")):
            for sort in (False, True):
                found = measure(name, sort, METHODS[method])
                kind = "sorted" if sort else "IID"
                print(
                    f"{name:<12}{kind:<9}{method:<17}{found[0]:9.3f}{found[1]:8.3f}{found[2]:8.3f}"
                    f"{found[3]:8d}{found[4]:11.2f}{found[5]:7.1f}",
                    flush=True,
                )
                axis.plot(
                    row + 0.1 * column,
                    found[0],
                    "s" if sort else "o",
                    color=f"C{column}",
                    label=None if row or sort else method,
                )
    axis.axhline(0.1, color="grey", lw=0.8)
    axis.set(yscale="log", ylabel="largest mean error / reference SD")
    axis.set_xticks(range(len(options.names.split(","))), options.names.split(","))
    axis.legend(fontsize=8)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
