"""Error against bytes: how near the posterior each family is after so many bytes sent by its clients, as a figure.

    python -m benchmarks.speed.error_against_bytes [RECIPE ...] [--cases CASE ...] [--out FILE] [--figure FILE]

Two cases of `pyro-fed bench` over ten clients: a linear regression sorted by a covariate, whose posterior is known in
closed form, and README's logistic regression with a hierarchical prior, of long NUTS runs, dealt out by
Dirichlet(0.3). Recipes as they are, some of them as published (fedsep, fedpa, dsgld). The error of a parameter is that
of its mean, in SDs, or that of its log SD, whichever is larger; of a run the largest of all its parameters (and
agents), from 4,000 draws. Bytes are those of all clients, with the phases that an algorithm starts from.

Runs are kept in FILE as they end, so that the script can be cut off and resumed.
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import torch

import pyro_fed as pf
from benchmarks.helpers.records import Records
from pyro_fed.analysis.bench.cases.case import Split
from pyro_fed.analysis.bench.cases.library import all_cases
from pyro_fed.analysis.plots.style import MARKERS
from pyro_fed.recipes import recipe

CASES = {"linear_regression": "sorted/10", "logistic_regression": "dirichlet:0.3/10"}
TITLES = {
    "linear_regression": "linear regression, 11 parameters",
    "logistic_regression": "logistic regression, 32 parameters",
}
#: Families, the recipes of each, and how they are drawn.
FAMILIES = {
    "sites": ("fedlaplace", "fedep", "fedsep", "pvi", "fedpa", "bayes_admm", "streaming_vb"),
    "weights": ("fedais",),
    "particles": ("dsvgd", "pdsvgd"),
    "chains": ("fsgld", "dsgld", "fald", "vr_fald", "summed_langevin", "qlsd"),
    "one round": ("consensus_mc",),
    "peers": ("p2p_vi", "p2p_ep", "p2p_push_sum"),
}
COLOURS = dict(zip(FAMILIES, ("C0", "C2", "C1", "C3", "C5", "C4"), strict=True))
DRAWS = 4000
#: Runs of more rounds than this are measured after every hundredth part of them.
MOST_EVALUATIONS = 100
SECONDS = 240.0


def errors(case, args, agents):
    """The function that `pf.run` calls after a round: a posterior's largest error, of all agents where these differ."""
    values = case.reference(args).values
    known = {
        name: (value.reshape(-1, *value.shape[2:]).mean(0), value.reshape(-1, *value.shape[2:]).std(0))
        for name, value in values.items()
    }

    def measured(idata):
        off = []
        for name, (mean, sd) in known.items():
            draws = idata["posterior"][name].values
            axes = 1 if agents else (0, 1)
            found, spread = draws.mean(axes), draws.std(axes)
            off += [np.abs(found - mean) / sd, np.abs(np.log(np.maximum(spread, 1e-12) / sd))]
        return {"error": max(float(part.max()) for part in off)}

    return measured


def measure(name, recipe_name):
    """Bytes sent so far and error, by evaluated round."""
    case = all_cases()[name]
    split = Split.parse(CASES[name])
    fed = split.federation(case, 0)
    algorithm = recipe.load(recipe_name)
    options = algorithm.run_options(fed.num_clients)
    made = algorithm.build()
    rounds = options.get("num_rounds") or made.default_rounds(fed.num_clients)
    measured = errors(case, case.data(), made.draws_are == "agents")
    began = time.process_time()
    idata = pf.run(
        made,
        fed,
        seed=0,
        progress=False,
        audit=False,
        log_likelihood=False,
        evaluate=measured,
        evaluate_every=max(1, rounds // MOST_EVALUATIONS),
        max_seconds=SECONDS,
        **{"num_draws": DRAWS, **options},
    )
    group = idata["federation"]
    sent = group["bytes_up"].sum("client").values.cumsum()
    error = group["error"].values
    last = measured(idata)["error"]
    kept = np.isfinite(error)
    return {
        "bytes": [*sent[kept].astype(float).tolist(), float(sent[-1])],
        "error": [*error[kept].tolist(), last],
        "rounds": int(group.sizes["round"]),
        "seconds": time.process_time() - began,
    }


def draw(found, path):
    """The figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11.0, 5.2), sharey=True, layout="constrained")
    for axis, name in zip(axes, CASES, strict=True):
        ends: list[tuple[float, float]] = []
        for family, members in FAMILIES.items():
            for number, one in enumerate(members):
                run = found.get(f"{name}/{one}", {})
                if not run.get("error") or not np.isfinite(run["error"][-1]):
                    continue
                ends.append((run["bytes"][-1], run["error"][-1]))
                axis.plot(run["bytes"], run["error"], color=COLOURS[family], lw=1.1)
                axis.plot(*ends[-1], MARKERS[number], color=COLOURS[family], ms=5, label=one)
        first = min(sent for sent, _ in ends)
        axis.axhline(0.1, color="0.75", lw=0.8)
        axis.set(xscale="log", yscale="log", title=TITLES[name], xlabel="bytes sent by ten clients")
        axis.set(ylim=(0.015, 60), xlim=(first / 3, 2 * max(sent for sent, _ in ends)))
    axes[0].set_ylabel("largest error of a mean (SDs) or of a log SD")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [one for members in FAMILIES.values() for one in members]
    parser.add_argument("recipes", nargs="*", default=every)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("out/error_against_bytes.jsonl"))
    parser.add_argument("--figure", type=Path, default=Path("docs/error_against_bytes.png"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = Records(given.out)
    for name in given.cases:
        for one in given.recipes:
            if f"{name}/{one}" in found:
                continue
            try:
                run = measure(name, one)
                said = f"{run['bytes'][-1] / 1e6:.2f} MB, error {run['error'][-1]:.3f}, {run['rounds']} rounds"
            except pf.PyroFedError as error:
                run = {"said": str(error)}
                said = str(error)[:150]
            print(f"{name:22s}{one:18s}{said}", flush=True)
            found.keep({"case": f"{name}/{one}", **run})
    draw(found, given.figure)


if __name__ == "__main__":
    main()
