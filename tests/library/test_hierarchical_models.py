"""Models with latents a group or a row: their contract, their densities against scipy, their federations."""

import importlib
import os
import re
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from late import late

import pyro_fed as pf
from pyro_fed.recipes import experiment, library

stats = late("scipy.stats")

GROUPED = ("radon", "hierarchical_logistic")
NAMES = (*GROUPED, "gaussian_mixture")
MODELS = {name: importlib.import_module(f"models.{name}") for name in NAMES}


def arguments(name):
    """The training data in float64; radon's simulated, so that they are there."""
    options = {"simulate": True} if name == "radon" else {}
    train, test = MODELS[name].load_data(**options)
    assert test is None
    return tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in train)


def prior_draw(name, args, **options):
    pyro.set_rng_seed(0)
    trace = pyro.poutine.trace(MODELS[name].model).get_trace(*args, **options)
    return {site: trace.nodes[site]["value"] for site in trace.stochastic_nodes if trace.nodes[site]["fn"] is not None}


def log_joint(name, args, latents, **options):
    return pyro.poutine.trace(pyro.condition(MODELS[name].model, latents)).get_trace(*args, **options).log_prob_sum()


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_ordinary_pyro_and_its_data_come_by_seed(name):
    module = MODELS[name]
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert not re.search(r"(import|from) pyro_fed", source)
    with pyro.validation_enabled(True):
        trace = pyro.poutine.trace(module.model).get_trace(*arguments(name))
        trace.compute_log_prob()
    assert torch.isfinite(trace.log_prob_sum())
    for again, first in zip(arguments(name), arguments(name), strict=True):
        assert torch.equal(torch.as_tensor(again), torch.as_tensor(first))


@pytest.mark.parametrize("slopes", [False, True])
def test_radon_density(slopes):
    floor, county, uranium, y = args = arguments("radon")
    p = prior_draw("radon", args, slopes=slopes)
    p = {site: value.detach() for site, value in p.items() if site not in ("county", "house")}
    n = {site: value.numpy() for site, value in p.items()}
    expected = stats.norm(0, 1).logpdf([*n["gamma"], n["mu_b"]]).sum()
    expected += sum(stats.halfnorm(0, 1).logpdf(n[s]) for s in ("tau_a", "sigma", *(["tau_b"] if slopes else [])))
    expected += stats.norm(n["gamma"][0] + n["gamma"][1] * uranium, n["tau_a"]).logpdf(n["a"]).sum()
    slope = n["b"] if slopes else np.full(len(uranium), n["mu_b"])
    if slopes:
        expected += stats.norm(n["mu_b"], n["tau_b"]).logpdf(slope).sum()
    mean = n["a"][county] + slope[county] * floor.numpy()
    expected += stats.norm(mean, n["sigma"]).logpdf(y).sum()
    assert float(log_joint("radon", args, p, slopes=slopes)) == pytest.approx(expected, rel=1e-10)


def test_hierarchical_logistic_density():
    x, hospital, _, y = args = arguments("hierarchical_logistic")
    p = {k: v for k, v in prior_draw("hierarchical_logistic", args).items() if k not in ("hospital", "patient")}
    n = {site: value.numpy() for site, value in p.items()}
    expected = stats.norm(0, 1.5).logpdf(n["mu"]) + stats.halfnorm(0, 1).logpdf(n["tau"])
    expected += stats.norm(0, 1).logpdf(n["beta"]).sum() + stats.norm(n["mu"], n["tau"]).logpdf(n["a"]).sum()
    logits = n["a"][hospital] + x.numpy() @ n["beta"]
    expected += stats.bernoulli(1 / (1 + np.exp(-logits))).logpmf(y).sum()
    assert float(log_joint("hierarchical_logistic", args, p)) == pytest.approx(expected, rel=1e-10)


def test_gaussian_mixture_density_is_that_of_the_two_components():
    (y,) = arguments("gaussian_mixture")
    problem = pf.Federation(MODELS["gaussian_mixture"].model, (y,), plate="data", num_clients=3).problem
    z = 0.3 * torch.randn(problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = {site: value.numpy() for site, value in problem.constrain(z).items()}
    parts = [stats.norm(p["low"] + k * p["gap"], p["sigma"][k]).pdf(y) for k in (0, 1)]
    expected = np.log((1 - p["weight"]) * parts[0] + p["weight"] * parts[1])
    np.testing.assert_allclose(problem.pointwise_log_lik(z), expected, rtol=1e-10)


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_model_is_split_by_group(name):
    module, args = MODELS[name], arguments(name)
    fed = pf.Federation(module.model, args, plate=module.PLATE, rows=module.ROWS, num_clients=4)
    assert list(fed.problem.layout.local) == ["a"]
    assert fed.num_rows == fed.problem.layout.local["a"].shape[0] == int(args[1].max()) + 1
    z = torch.zeros(fed.problem.dim, dtype=torch.float64)
    assert torch.isfinite(fed.problem.pointwise_log_lik(z)).all()


def test_the_slope_is_a_second_latent_of_the_county():
    args = arguments("radon")
    radon = MODELS["radon"]
    fed = pf.Federation(radon.model, args, {"slopes": True}, plate="county", rows=radon.ROWS, num_clients=4)
    assert list(fed.problem.layout.local) == ["a", "b"]
    assert fed.problem.local_dim == 2


def test_the_command_line_finds_the_groups():
    fed, test = experiment.build_federation(library.load_model("hierarchical_logistic"), 3, "iid", 0)
    assert fed.num_rows == 12 and test is None


def test_measured_radon():
    folder = os.environ.get("PYRO_FED_DATA")
    if not folder or not (Path(folder) / "posteriordb" / "radon_mn" / "data.json").is_file():
        pytest.skip("the radon data are not here: PYRO_FED_DATA names no folder with posteriordb/radon_mn/data.json")
    (floor, county, uranium, y), _ = MODELS["radon"].load_data()
    assert (len(y), len(uranium), float(floor.sum())) == (919, 85, 153.0)
    assert county.bincount().max() == 116
