"""Models that people come for, over clients, and how far an answer is from their known posteriors.

These are the benchmark's: four chains of 2,000 of NUTS on all rows, of which every fourth draw is kept. A mean's
standard error is some 0.02 SD, an SD's some 2 %.
"""

import importlib

import numpy as np

import pyro_fed as pf
from pyro_fed.analysis.bench.cases.library import gallery_cases

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


def error(idata, name):
    """The largest error of a mean, in reference SDs, and the least and largest ratio of SDs to the reference's."""
    case = next(case for case in gallery_cases() if case.name == name)
    known = case.reference(case.data()).values
    found = {site: idata.posterior[site].values for site in known}
    flat, own = (np.concatenate([_rows(part[site]) for site in known], 1) for part in (found, known))
    varies = np.ptp(own, axis=0) > 0  # a Cholesky factor has constants
    sd, own_sd = flat.std(0)[varies], own.std(0)[varies]
    away = np.abs(flat.mean(0) - own.mean(0))[varies] / own_sd
    return float(away.max()), float((sd / own_sd).min()), float((sd / own_sd).max())


def _rows(values):
    """(chain, draw, *shape) as (draws, entries)."""
    return values.reshape(values.shape[0] * values.shape[1], -1)
