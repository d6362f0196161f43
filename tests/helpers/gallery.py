"""Models that people come for, and their posteriors by NUTS on all rows.

    python tests/helpers/gallery.py          # compute what `gallery.json` lacks, a minute a model
    python tests/helpers/gallery.py NAME...  # compute these anew

2 × 2,000 draws: a mean's standard error is some 0.02 SD, an SD's some 2 %.
"""

import importlib
import json
import sys
from pathlib import Path

import numpy as np

import pyro_fed as pf

FILE = Path(__file__).with_name("gallery.json")
NAMES = (
    "capture_recapture",
    "gaussian_process",
    "hidden_markov",
    "item_response",
    "measurement_error",
    "missing_covariate",
    "negative_binomial",
    "ordinal_regression",
    "regularised_horseshoe",
    "robust_regression",
    "varying_slopes",
    "weibull_survival",
    "zero_inflated",
)


def federation(name, num_clients=5):
    """The model's data over clients, drawn at random."""
    module = importlib.import_module(f"models.{name}")
    args, rows = module.load_data()[0], getattr(module, "ROWS", None)
    return pf.Federation(module.model, args, plate=module.PLATE, rows=rows, num_clients=num_clients)


def moments(idata, names=None):
    """Means and SDs of each site's values, in one row."""
    found = {}
    for name, draws in idata.posterior.data_vars.items():
        if names is None or name in names:
            values = draws.values.reshape(draws.shape[0] * draws.shape[1], -1)
            found[name] = {"mean": values.mean(0).tolist(), "sd": values.std(0).tolist()}
    return found


def error(idata, name):
    """The largest error of a mean, in reference SDs, and the least and largest ratio of SDs to the reference's."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))[name]
    found = moments(idata, kept)
    assert set(found) == set(kept)
    mean, sd, own_mean, own_sd = (
        np.concatenate([part[site][moment] for site in kept]) for part in (found, kept) for moment in ("mean", "sd")
    )
    varies = own_sd > 0  # a Cholesky factor has constants
    ratio = (sd / np.where(varies, own_sd, 1))[varies]
    away = np.abs(mean - own_mean)[varies] / own_sd[varies]
    return float(away.max()), float(ratio.min()), float(ratio.max())


def reference(name):
    """Of the sites that all rows have in common."""
    long = pf.NUTS(num_samples=2000, warmup_steps=1000, num_chains=2, target_accept_prob=0.9)
    fed = federation(name)
    idata = pf.run(long, fed, progress=False, log_likelihood=False, audit=False, collect_local=False)
    return moments(idata)


if __name__ == "__main__":
    every = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    for model in sys.argv[1:] or [name for name in NAMES if name not in every]:
        every[model] = reference(model)
        text = json.dumps(dict(sorted(every.items())), indent=1)
        FILE.write_text(text + "\n", encoding="utf-8")
        print(model, flush=True)
