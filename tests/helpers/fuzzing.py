"""Calls of the public face with random arguments: each succeeds or is refused in one sentence, and soon.

    python tests/helpers/fuzzing.py --calls 10000 --seed 1

prints how many calls were made, refused and successful, and every one that ended otherwise. The suite makes some
hundred of them. A call takes a valid one and puts something else into one to three of its arguments.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import io
import operator
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
import xarray as xr

import pyro_fed as pf
from pyro_fed.conventions.calls import checked
from pyro_fed.testing.suite import CHECKS

matplotlib.use("Agg")

#: Seconds that a call may take.
LONGEST = 20


class TooLong(BaseException):
    """A call that does not end."""


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@functools.cache
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    return x, x.sum(1)


@functools.cache
def federation():
    return pf.Federation(model, data(), plate="data", num_clients=3)


def frames():
    return {name: pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [0.0, 1.0, 1.5]}) for name in "ab"}


@functools.cache
def groups():
    def levels(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(pyro.sample("level", dist.Normal(m, 1.0)), 1.0), obs=y)

    return pf.Federation(levels, (data()[0][:, 0],), plate="data", num_clients=2)


@functools.cache
def result_of_groups():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(pf.FedEP(start="prior"), groups(), num_rounds=1, collect_local=False, **FAST)


@functools.cache
def result():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(pf.FedEP(start="prior"), federation(), num_rounds=1, **FAST)


@functools.cache
def other_result():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(pf.DSVGD(num_particles=10), federation(), num_rounds=2, **FAST)


FAST = {"progress": False, "compile": "off", "audit": False, "num_draws": 30}


def junk(rng):
    """Something: a number, a text, a class, a table, an array, of any size that can be held."""
    makers = [
        lambda: rng.choice([0, 1, 2, 3, 5, -1, -5, 2**31, 2**63, 10**30, True, False]),
        lambda: rng.choice([0.0, 0.5, 1.5, 2.5, -1.0, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")]),
        lambda: rng.choice(["", "3", "iid", "all", "data", "w", "auto", "nuts", "\x00", "../x", "a" * 300, "é"]),
        lambda: rng.choice([None, b"bytes", 1j, ..., NotImplemented]),
        lambda: rng.choice([pf.FedEP, pf.schedule.All, pf.partition.IID, pf.Federation, int, torch.nn.Linear, model]),
        lambda: rng.choice([[], [1], ["a"], [[0], [1]], (), (1, 2), (0.9, 0.99), {1, 2}, range(3), [None], [[]]]),
        lambda: rng.choice([{}, {"w": ["a"]}, {"w": "a"}, {"w": [1]}, {1: 2}, {"w": ["a", "b", "c"]}, {"name": None}]),
        lambda: rng.choice(
            [np.int64(3), np.float32(0.5), np.zeros(3), np.zeros((0, 2)), np.array("x"), np.array([None, 1])]
        ),
        lambda: rng.choice(
            [torch.tensor(2.0), torch.zeros(12), torch.zeros(12, 0), torch.zeros(0, 2), torch.ones(5, 2), torch.float32]
        ),
        lambda: (number for number in range(3)),
        lambda: rng.choice(
            [pd.DataFrame({"x": [1.0, 2.0], "y": ["a", None]}), pd.Series([1, 2], name="x"), pd.NA, xr.Dataset()]
        ),
        lambda: rng.choice(
            [torch.tensor(3), torch.tensor(True), torch.tensor([2 + 1j]), torch.eye(2).to_sparse(), np.float64("nan")]
        ),
        lambda: rng.choice([pf.FedAvg(), pf.schedule.All(), pf.partition.IID(), pf.graph.ring(3), data(), object()]),
        lambda: Path(rng.choice(["/dev/null", "/dev/null/x", "/proc/none", "/"])),
        lambda: lambda *_: None,
    ]
    return rng.choice(makers)()


def like(rng, value):
    """Something of the same kind that is odd in its value; anything in the place of None."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        kinds = [0, 1, 2, 7, -1, -3, 2**40, 10**30] if isinstance(value, int) else [0.0, 0.5, 0.99, 1.0, 2.5, -1.0, 1e9]
        return rng.choice([*kinds, 1e-300, float("nan"), float("inf"), str(value), float(value), np.int64(2)])
    if isinstance(value, str):
        return rng.choice(["", "auto", "full", "diag", "prior", "laplace", "data", "w", "x y", value.upper(), "\u2028"])
    if isinstance(value, torch.Tensor) and value.dim():
        return rng.choice(
            [
                value[:0],
                value[:1],
                value[..., :0],
                value.int(),
                value * torch.nan,
                value.mT if value.dim() > 1 else value,
                value[None],
            ]
        )
    if isinstance(value, tuple | list):
        return rng.choice([value[:1], value[::-1], (*value, *value), [like(rng, one) for one in value], list(value)])
    return junk(rng)


def algorithms():
    kinds = [value for name in dir(pf.infer) if isinstance(value := getattr(pf.infer, name), type)]
    return [kind for kind in kinds if hasattr(kind, "local_step") and not getattr(kind, "__abstractmethods__", None)]


def targets():
    """Name → (function, valid arguments, how often)."""
    x, y = data()
    found = {
        "run": (pf.run, {"algorithm": pf.FedAvg(chain_steps=1), "federation": federation(), "num_rounds": 1, "seed": 0,
                         "schedule": None, "graph": None, "executor": "sequential", "num_threads": 1, "start": None,
                         "log_likelihood": False, "collect_local": True, "min_clients": None, "combination": None,
                         "evaluate": None, "evaluate_every": 1, "checkpoint": None, "resume": False, **FAST}, 30),
        "explain": (pf.explain, {"algorithm": pf.FedAvg(), "federation": federation(), "graph": None,
                                 "combination": None}, 10),
        "fit": (pf.fit, {"federation": federation(), "max_rounds": 1, "max_bytes": None, "seed": 0, **FAST}, 2),
        "Federation": (pf.Federation, {"model": model, "args": (x, y), "kwargs": None, "plate": "data", "rows": None,
                                       "num_clients": 3, "partition": None, "shard": None, "seed": 0, "dtype": None,
                                       "dims": None, "coords": None, "quadrature": None}, 30),
        "from_clients": (pf.Federation.from_clients, {"model": model, "clients": [(x, y), (x + 1, y)], "plate": "data",
                                                      "rows": None, "kwargs": None, "shard": None, "dtype": None,
                                                      "dims": None, "coords": None, "quadrature": None}, 15),
        "predict": (pf.predict, {"idata": result(), "model": federation(), "args": None, "kwargs": None, "seed": 0}, 9),
        "posterior_epred": (pf.posterior_epred, {"idata": result(), "model": federation(), "args": None,
                                                 "kwargs": None, "groups": None, "seed": 0}, 3),
        "estimand": (pf.estimand, {"idata": result(), "federation": federation(), "f": None, "do": None,
                                   "by": "client", "site": None, "fewest": 1, "replicated": False, "seed": 0}, 10),
        "own_effects": (pf.own_effects, {"idata": result_of_groups(), "federation": groups(), "seed": 0}, 3),
        "glm": (pf.glm, {"formula": "y ~ x", "clients": frames(), "family": "gaussian", "priors": None,
                         "num_clients": None, "seed": 0, "dtype": None}, 10),
        "prior_predict": (pf.prior_predict, {"federation": federation(), "num_draws": 5, "seed": 0}, 3),
        "sbc": (pf.sbc, {"federation": federation(), "n": 1, "algorithm": pf.FedLaplace(), "seed": 0, "num_ranks": 5,
                         "simulate": None, "audit": False, "compile": "off"}, 3),
        "render_model": (pf.render_model, {"model": model, "args": (x, y), "kwargs": None, "plate": "data",
                                           "filename": None, "render_distributions": True,
                                           "render_deterministic": False}, 3),
        "power_scale": (pf.power_scale, {"idata": result(), "var_names": ["w"], "prior": ["w"]}, 3),
        "ksd": (pf.metrics.ksd, {"idata": result(), "federation": federation(), "kernel": None, "num_draws": 20,
                         "statistic": "V", "seed": 0}, 10),
        "compare": (pf.compare, {"results": {"a": result()}, "reference": None, "federation": None, "test": None}, 4),
        "findings": (pf.findings, {"results": result()}, 2),
        "test_metrics": (pf.metrics.test_metrics, {"idata": result(), "federation": federation(), "test": (x, y)}, 5),
        "column_sums": (pf.column_sums, {"rows": x}, 2),
        "pooled_moments": (pf.pooled_moments, {"parts": [pf.column_sums(x)]}, 2),
        "Faulty": (pf.executors.Faulty, {"inner": "sequential", "probability": 0.3, "kinds": ("raises",),
                                         "clients": None, "seed": 0}, 3),
        "Ray": (pf.executors.Ray, {"num_workers": 2, "address": None, "timeout": None, "startup": 3.0,
                                   "within": "sequential"}, 3),
        "Quadrature": (pf.Quadrature, {"order": 3, "max_order": 5, "max_nodes": 16, "shorten": 0.25}, 5),
    }  # fmt: skip
    excused = {name: "takes a run" for name in CHECKS if name != "check_settings_are_frozen"}
    options = {"federation": federation(), "num_rounds": 1}
    one = {"algorithm": pf.FedLaplace(), **options, "expected_failures": excused}
    found["checks"], found["check_algorithm"] = (pf.testing.checks, one, 1), (pf.testing.check_algorithm, one, 1)
    many = {"algorithms": [pf.FedLaplace()], **options, "expected_failures": None}
    found["parametrize_with_checks"] = pf.testing.parametrize_with_checks, many, 1
    if find_spec("opendp") is not None:  # the extra `privacy`
        found["Private"] = pf.Private, {"norm": 1.0, "noise_multiplier": 1.0, "delta": 1e-5}, 3
    components = {
        pf.schedule: {"RoundRobin": {"clients_per_round": 1}, "UniformRandom": {"clients_per_round": 2},
                      "Explicit": {"rounds": [[0], [1]]}, "Categorical": {"probabilities": (0.5, 0.5)}},
        pf.combination: {"Bounded": {"pull": 2.0, "precision": 4.0}, "Clipped": {"norm": 1.0},
                         "TrimmedMean": {"share": 0.2}, "Median": {}},
        pf.partition: {"Dirichlet": {"alpha": 0.3, "by": y}, "IID": {}, "ByGroup": {"by": y}},
        pf.graph: {"ring": {"num_agents": 3}, "star": {"num_agents": 3, "confidence": 0.5},
                   "grid": {"num_rows": 2, "num_columns": 2}, "erdos_renyi": {"num_agents": 4, "probability": 0.9},
                   "from_matrix": {"weights": [[1.0]]}, "small_world": {"num_agents": 6, "degree": 2, "rewiring": 0.1},
                   "random_regular": {"num_agents": 6, "degree": 4}, "complete": {"num_agents": 3}},
    }  # fmt: skip
    for module, by_name in components.items():
        for name, valid in by_name.items():
            found[f"{module.__name__.rpartition('.')[2]}.{name}"] = (getattr(module, name), valid, 3)
    for kind in [*algorithms(), pf.Auto, pf.infer.Averaging, pf.infer.StepControl]:
        found[kind.__name__] = (kind, defaults(kind), 3)
    for module in (pf.infer.tilted, pf.infer.update, pf.infer.optim):
        for name, kind in vars(module).items():
            if dataclasses.is_dataclass(kind) and kind.__module__.startswith(module.__name__) and given_by_name(kind):
                found[f"{module.__name__.rpartition('.')[2]}.{name}"] = kind, defaults(kind), 1
    return found | of_results() | of_federations() | of_codebooks() | of_the_rest()


def defaults(kind):
    return {field.name: field.default for field in dataclasses.fields(kind)}


def given_by_name(kind):
    """Whether a class is one of settings, each of which has a default."""
    fields = dataclasses.fields(kind)
    return (
        bool(fields)
        and not getattr(kind, "__abstractmethods__", None)
        and not any(field.default is dataclasses.MISSING for field in fields)
    )


def of_results():
    """What takes a result of a run, and figures; likewise."""
    idata, fed, one = result(), federation(), {"a": result()}
    known, agents = {"idata": idata, "federation": fed}, pf.graph.ring(3)
    found = {
        "influence": ({**known}, 4),
        "contributions": ({**known}, 3),
        "leave_one_client_out": ({**known, "num_draws": 100, "refit": False, "seed": 0}, 3),
        "loo": ({**known, "var_name": None, "pointwise": False, "executor": "sequential"}, 3),
        "waic": ({**known, "var_name": None, "pointwise": False, "executor": "sequential"}, 3),
        "check_clients": ({**known, "statistics": statistic, "var_name": None, "seed": 0}, 4),
        "steps": ({"idata": of_result("steps")}, 2),
        "Overview": ({"idata": idata}, 2),
        "Given": ({"precision": torch.ones(3, 2).double(), "eta": torch.zeros(3, 2).double()}, 3),
        "plot_chains": ({"idata": of_result("chains"), "labels": None, "most": 2, "figsize": None}, 2),
        "plot_forest": (
            {"results": one, "reference": None, "labels": None, "most": 6, "standardise": None},
            2,
        ),
        "plot_comparison": (
            {"results": one, "reference": None, "labels": None, "most": 2, "figsize": None},
            2,
        ),
        "plot_pair": ({"results": one, "reference": None, "labels": None, "figsize": None}, 2),
        "plot_convergence": ({"results": one, "metric": "change", "log": True, "figsize": None}, 2),
        "plot_particles": ({"idata": idata, "log_density": None, "labels": None, "limits": None}, 2),
        "plot_partition": ({"federation": fed, "ax": None, "figsize": None}, 2),
        "plot_graph": ({"graph": agents, "round": 0, "names": None, "figsize": (2.0, 2.0), "seed": 0}, 2),
        "plot_influence": ({"found": of_result("influence"), "ax": None, "figsize": None}, 2),
        "plot_client_forest": (
            {"found": of_result("contributions"), "labels": None, "most": 2, "annotate": False, "figsize": None},
            2,
        ),
        "with_loss": ({"model": model, "loss": pf.losses.DensityPower(beta=0.3)}, 2),
        "plot_contributions": ({"found": of_result("contributions"), "ax": None, "figsize": None}, 2),
        "plot_checks": ({"found": of_result("checks"), "statistic": None, "figsize": None}, 2),
        "plot_check_intervals": ({"found": of_result("checks"), "statistic": None, "figsize": None}, 2),
    }
    return {name: (operator.attrgetter(places().get(name, name))(pf), *rest) for name, rest in found.items()}


def places():
    """The public path of each name that is not one of `pf` itself."""
    modules = {"losses": pf.losses, "plots": pf.plots, "infer": pf.infer, "metrics": pf.metrics}
    return {name: f"{path}.{name}" for path, module in modules.items() for name in dir(module) if name not in dir(pf)}


def of_federations():
    """Methods of federations, graphs beside the simple ones, other partitions and schedules, executors; likewise."""
    fed, ring, (x, y) = federation(), pf.graph.ring(4), data()
    probs = torch.full((5, 4, 3), 1 / 3)
    return {
        "Federation.without": (without, {"names": ["1"]}, 3),
        "Federation.with_args": (fed.with_args, {"args": (x, y), "kwargs": None}, 3),
        "Federation.client_args": (fed.client_args, {"client": 0}, 2),
        "Federation.client_data": (fed.client_data, {"clients": [0, 1]}, 2),
        "graph.Clocks": (pf.graph.Clocks, {"graph": ring, "rates": 1.0}, 2),
        "graph.GossipPairs": (pf.graph.GossipPairs, {"graph": ring, "num_pairs": 1}, 2),
        "graph.LinkFailures": (pf.graph.LinkFailures, {"graph": ring, "probability": 0.1}, 2),
        "graph.Partitioned": (
            pf.graph.Partitioned, {"graph": ring, "parts": [[0, 1], [2, 3]], "start": 0, "stop": 2}, 2),
        "graph.Periodic": (pf.graph.Periodic, {"graphs": [ring, ring], "groups": None}, 2),
        "graph.rotating_stars": (pf.graph.rotating_stars, {"num_around": 4, "group_size": 2, "confidence": 0.5}, 2),
        "graph.mixing_bound": (pf.graph.mixing_bound, {"num_agents": 3, "gap": 0.5}, 1),
        "graph.consensus_rounds": (pf.graph.consensus_rounds, {"gap": 0.5, "tolerance": 0.1}, 1),
        "graph.from_networkx": (
            pf.graph.from_networkx, {"graph": nx.path_graph(3), "mixing": "metropolis", "holding": 0.0}, 2),
        "graph.FixedGraph": (pf.graph.FixedGraph, {"matrix": [[0.5, 0.5], [0.5, 0.5]], "name": "a"}, 2),
        "partition.Explicit": (pf.partition.Explicit, {"indices": [[0, 1], [2]]}, 2),
        "partition.FeatureSkew": (pf.partition.FeatureSkew, {"feature": x[:, 0], "by": None}, 2),
        "partition.LabelShards": (pf.partition.LabelShards, {"classes_per_client": 1, "by": y > 0}, 2),
        "partition.MajorityShare": (pf.partition.MajorityShare, {"share": 0.8, "by": y > 0}, 2),
        "partition.QuantitySkew": (pf.partition.QuantitySkew, {"alpha": 1.0, "min_rows": 1}, 2),
        "partition.SortedBy": (pf.partition.SortedBy, {"by": y}, 2),
        "partition.rows_on_disk": (
            pf.partition.rows_on_disk, {"source": [0.0, 1.0], "folder": "rows", "columns": None}, 1),
        "partition.parse": (pf.partition.parse, {"text": "dirichlet:0.3", "columns": y > 0, "named": None}, 3),
        "partition split": (split, {"partition": pf.partition.SortedBy(y), "num_clients": 2}, 3),
        "schedule.Availability": (
            pf.schedule.Availability, {"probabilities": (0.5, 0.9), "clients_per_round": 1}, 2),
        "schedule.KSD": (pf.schedule.KSD, {"clients_per_round": 1}, 1),
        "executors.resolve": (pf.executors.resolve, {"executor": "sequential"}, 2),
        "metrics.accuracy": (pf.metrics.accuracy, {"probs": probs[0], "value": torch.zeros(4)}, 2),
        "metrics.rmse": (pf.metrics.rmse, {"mean": torch.zeros(4), "value": torch.zeros(4)}, 2),
        "metrics.log_predictive_density": (pf.metrics.log_predictive_density, {"log_prob": torch.zeros(5, 4)}, 2),
    }  # fmt: skip


@functools.cache
def codebook_files():
    """A folder with a codebook, a table, and what is made of them."""
    folder = Path(tempfile.mkdtemp())
    (folder / "codebook.toml").write_text(
        '[columns.age]\ntype = "number"\nrange = [0, 120]\n[columns.died]\ntype = "category"\nlevels = ["no", "yes"]\n'
        '[outcomes.death]\ntime = "age"\nevent = "died"\nlevel = "yes"\nends = [45, 60]\n',
        encoding="utf-8",
    )
    rows = [f"{age},{'no' if age % 2 else 'yes'}" for age in range(30, 60)]
    (folder / "north.csv").write_text("\n".join(["age,died", *rows, ""]), encoding="utf-8")
    book = pf.codebook.read_codebook(folder / "codebook.toml")
    summary = pf.codebook.check(book, folder / "north.csv").summary
    summary.write(folder / "north.json")
    pf.codebook.constants([summary]).write(folder / "constants.json")
    return folder, book, summary


def of_codebooks():
    """The checks of tables; likewise."""
    folder, book, summary = codebook_files()
    several = [summary, dataclasses.replace(summary, site="south")]
    found = {
        "read_codebook": {"path": folder / "codebook.toml"},
        "check": {"codebook": book, "data": folder / "north.csv", "site": "north", "fewest": None},
        "read_rows": {
            "codebook": book,
            "data": pd.DataFrame({"age": [50.0, 51.0], "died": ["no", "yes"]}),
            "site": "north",
        },
        "schema": {"codebook": book, "site": "north"},
        "read_summary": {"path": str(folder / "north.json")},
        "compare": {"summaries": several},
        "constants": {"summaries": several, "columns": None},
        "read_constants": {"path": folder / "constants.json"},
        "table_one": {"summaries": several},
        "kaplan_meier": {"summaries": several, "outcome": "death"},
    }
    return {f"codebook.{name}": (getattr(pf.codebook, name), given, 2) for name, given in found.items()}


def of_the_rest():
    """Weights of graphs, reports, curves of reliability and cost, and what has few arguments; likewise."""
    path, weights = nx.path_graph(3), pf.graph.ring(3).matrix
    probs, table = torch.full((4, 3), 0.6), of_result("compared")
    several = {"a": result(), "b": other_result()}
    return {
        "graph.lazy": (pf.graph.lazy, {"weights": [[0.5, 0.5], [0.5, 0.5]], "holding": 0.5}, 1),
        "graph.max_degree": (pf.graph.max_degree, {"graph": path}, 1),
        "graph.metropolis": (pf.graph.metropolis, {"graph": path}, 1),
        "graph.uniform": (pf.graph.uniform, {"graph": path, "self_weight": 0.5}, 1),
        "graph.spectral_gap": (pf.graph.spectral_gap, {"matrix": weights}, 1),
        "graph.stationary_distribution": (pf.graph.stationary_distribution, {"matrix": weights}, 1),
        "graph.Consensus": (pf.graph.Consensus, {"shifts": (0.5, 0.2)}, 1),
        "schedule.All": (pf.schedule.All, {}, 1),
        "schedule.Shuffled": (pf.schedule.Shuffled, {}, 1),
        "schedule.HIP": (pf.schedule.HIP, {"clients_per_round": 1}, 1),
        "schedule.Informed": (pf.schedule.Informed, {"clients_per_round": 1}, 1),
        "executors.Sequential": (pf.executors.Sequential, {}, 1),
        "executors.Vectorised": (pf.executors.Vectorised, {}, 1),
        "metrics.multilabel": (
            pf.metrics.multilabel, {"probs": probs, "value": torch.ones(4, 3), "threshold": 0.5}, 2),
        "shared": (pf.shared, {"name": "groups", "value": 3}, 1),
        "set_progress": (set_progress, {"show": False}, 1),
        "plot_consensus": (
            pf.plots.plot_consensus,
            {"idata": of_result("agents"), "parameter": 0, "reference": (0.0, 1.0), "ax": None, "figsize": None},
            2,
        ),
        "plot_kaplan_meier": (
            pf.plots.plot_kaplan_meier,
            {"curves": pf.codebook.kaplan_meier([codebook_files()[2]]), "ax": None, "figsize": (2.0, 2.0)},
            2,
        ),
        "metrics.calibration_table": (pf.metrics.calibration_table, {"result": calibrated(), "name": None}, 1),
        "plot_calibration": (
            pf.plots.plot_calibration,
            {"table": pf.metrics.calibration_table(calibrated()), "ax": None, "figsize": (2.0, 2.0)},
            2,
        ),
        "plot_cost": (
            pf.plots.plot_cost, {"table": table, "error": "mean_error", "ax": None, "figsize": (2.0, 2.0)}, 2),
        "plot_reliability": (
            pf.plots.plot_reliability,
            {"results": of_result("labels"), "federation": labelled(), "test": labels(), "bins": 4, "ax": None,
             "figsize": None},
            2,
        ),
        "write_report": (
            pf.write_report,
            {"path": "report.html", "table": table, "results": several, "federation": federation(), "title": "a",
             "lead": "", "reference": None, "test": None, "command": ""},
            1,
        ),
    }  # fmt: skip


@functools.wraps(pf.progress.set_progress)
def set_progress(*args, **keywords):
    """Progress bars as asked, then as they were."""
    pf.progress.set_progress(*args, **keywords)
    pf.progress.set_progress(True)


def labels():
    x, y = data()
    return x, (y > 0).double()


@functools.cache
def labelled():
    """A federation of labels, whose probabilities have a curve of reliability."""

    def of_labels(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=x.dtype), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return pf.Federation(of_labels, labels(), plate="data", num_clients=3)


@functools.cache
def calibrated():
    """Shares of labels by bins of the predicted ones."""
    fed = labelled()
    idata = pf.run(pf.FedLaplace(), fed, num_draws=10, progress=False, audit=False, compile="off")
    return pf.estimand(idata, fed, by={"predicted": [0.5, 1.0]})


@checked
def without(names):
    return federation().without(*names) if isinstance(names, list | tuple) else federation().without(names)


def statistic(y):
    return y.mean()


@checked
def split(partition, num_clients):
    """A federation of the partition, whose arguments are looked at where the rows are."""
    return pf.Federation(model, data(), plate="data", num_clients=num_clients, partition=partition)


@functools.cache
def of_result(what):
    """A table of each client, or a result of another kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if what == "steps":
            return pf.fit(federation(), max_rounds=20, **FAST)
        if what == "compared":
            return pf.compare({"a": result(), "b": other_result()}, "b", federation=federation())
        if what == "labels":
            return pf.run(pf.FedEP(start="prior"), labelled(), num_rounds=1, **FAST)
        if what == "agents":
            return pf.run(pf.P2PVI(trace=True), federation(), graph=pf.graph.ring(3), num_rounds=2, **FAST)
        if what == "chains":
            return pf.run(pf.NUTS(num_samples=30, warmup_steps=10, num_chains=1), federation(), **FAST)
    if what == "checks":
        return pf.check_clients(result(), federation(), statistic)
    return getattr(pf, what)(result(), federation())


def random_call(rng, found):
    """A call: its name, function and arguments."""
    name = rng.choices(list(found), weights=[often for _, _, often in found.values()])[0]
    function, valid, _ = found[name]
    given = dict(valid)
    for key in rng.sample(list(given), k=min(len(given), rng.choice([1, 1, 1, 2, 3]))):
        given[key] = like(rng, given[key]) if rng.random() < 0.6 else junk(rng)
    if rng.random() < 0.05:
        given[rng.choice(["rounds", "client", "", "num_round", "x y"])] = junk(rng)
    if rng.random() < 0.02 and given:
        given.pop(rng.choice(list(given)))
    return name, function, given


@contextlib.contextmanager
def limited(seconds=LONGEST):
    """A call that may take so long."""

    def late(*_):
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(function, given):
    """ "success", "refused", or the traceback of what should not have been."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**given)
    except pf.PyroFedError as error:
        return "refused" if str(error).strip() else "refused without a word"
    except (Exception, TooLong):
        return traceback.format_exc()
    finally:
        plt.close("all")
    return "success"


def small_enough(given):
    """Whether no argument asks for more work than a test can do, though it would be done."""
    return all(
        not (isinstance(value, int | float) and abs(value) > 10**3) for key, value in given.items() if key in HEAVY
    )


#: Arguments whose size is work that a user may want.
HEAVY = {"num_rounds", "max_rounds", "num_draws", "num_agents", "num_rows", "num_columns"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, found, counts = random.Random(options.seed), targets(), collections.Counter()
    wrong, began = collections.OrderedDict(), time.perf_counter()
    while counts.total() < options.calls:
        name, function, given = random_call(rng, found)
        if not small_enough(given):
            continue
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            said = outcome(function, given)
        kind = said if said in ("success", "refused") else "WRONG"
        counts[kind] += 1
        if kind == "WRONG":
            where = [line for line in said.splitlines() if line.strip().startswith("File")][-1].strip()
            wrong.setdefault((name, where, said.strip().splitlines()[-1][:150]), given)
    for (name, where, last), given in wrong.items():
        odd = {key: value for key, value in given.items() if value is not found[name][1].get(key)}
        print(f"{name}({odd!r:.300})\n    {last}\n    {where}")
    print(f"{counts.total()} calls in {time.perf_counter() - began:.0f} s: {dict(counts)}, {len(wrong)} kinds of wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        main()
