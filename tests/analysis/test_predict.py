"""Posterior predictive draws against closed forms and the approximations of the DSVGD paper's A.3."""

import math
import warnings
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data, unequal_lines
from arviz_results import arviz_function, extend, groups_of, is_drawn
from late import late
from pyro.infer import Predictive
from zoo import CASES

import pyro_fed as pf
from pyro_fed.errors import DataError
from pyro_fed.results.to_arviz import make_inference_data

az, xr = late("arviz"), late("xarray")


def posterior(**sites):
    """An InferenceData of one chain from arrays (draw, ...)."""
    data = {
        n: (["chain", "draw", *(f"{n}_dim_{i}" for i in range(v.ndim - 1))], np.asarray(v)[None])
        for n, v in sites.items()
    }
    return make_inference_data({"posterior": xr.Dataset(data)}, {})


def test_the_predictive_of_a_gaussian_is_gaussian():
    """y* ~ N(x'm, x'Sx + 1): moments of 20,000 draws within 5 SE (one false alarm in 10^5 runs)."""
    x = torch.tensor([[1.0, 0.0], [0.5, -2.0], [3.0, 1.0]], dtype=torch.float64)
    mean, root = np.array([1.0, -0.5]), np.array([[0.5, 0.0], [0.3, 0.2]])
    w = mean + np.random.default_rng(0).normal(size=(20_000, 2)) @ root.T
    y = pf.predict(posterior(w=w), line, (x, None), seed=1).posterior_predictive["y"]
    assert y.dims == ("chain", "draw", "data")
    variance = np.diag(x.numpy() @ root @ root.T @ x.numpy().T) + 1
    error = np.sqrt(variance / 20_000)
    assert np.all(np.abs(y.values[0].mean(0) - x.numpy() @ mean) < 5 * error)
    assert np.all(np.abs(y.values[0].var(0) / variance - 1) < 5 * np.sqrt(2 / 20_000))


def test_numpy_arguments_are_taken_as_the_federation_takes_them():
    x = np.random.default_rng(0).normal(size=(4, 2))
    fitted = posterior(w=np.random.default_rng(1).normal(size=(50, 2)))
    found, expected = (pf.predict(fitted, line, (a, None)).posterior_predictive["y"] for a in (x, torch.from_numpy(x)))
    np.testing.assert_array_equal(found, expected)


def powers(x, y, power=1):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x**power, 0.01), obs=y)


def one_slope(x, y=None):
    b = pyro.sample("b", dist.Normal(0.0, 3.0))
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + b * x, 0.1), obs=y)


def known_effects(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 2):
        b = pyro.sample("b", dist.Normal(0.0, 3.0), obs=torch.full((2,), 1.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + b[0] * x, 0.1), obs=y)


B = torch.tensor(1.5)
X, Y = torch.linspace(-1.0, 1.0, 8), torch.linspace(-1.5, 1.5, 8)


@pytest.mark.parametrize(
    ("model", "args", "new"),
    [
        (pyro.condition(one_slope, {"b": B}), (X, Y), (torch.tensor([5.0, -5.0]), None)),
        (pyro.condition(one_slope, {"b": B, "y": Y}), (X,), (torch.tensor([5.0, -5.0]),)),
        (known_effects, (X, Y), (torch.tensor([5.0, -5.0]), None)),
    ],
)
def test_what_is_observed_and_no_row_stays_as_it_is(model, args, new):
    """y* ~ N(1.5 x, 0.1²): the mean of 100 draws within 5 SE."""
    fed = pf.Federation(model, args, plate="data", num_clients=2)
    for rows, x in (((), X.numpy()), ((new,), new[0].numpy())):
        y = pf.predict(posterior(w=np.zeros(100)), fed, *rows).posterior_predictive
        assert list(y) == ["y"]
        np.testing.assert_allclose(y["y"].values[0].mean(0), 1.5 * x, atol=0.05)


def test_what_partial_held_at_the_federation_is_held_where_it_predicts():
    """It was left out: rows were predicted by the defaults of the model's parameters, without a word."""
    x = torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64)
    fed = pf.Federation(partial(powers, power=3), (x, x**3), plate="data", num_clients=2)
    fitted = posterior(w=np.ones(20))
    for args, kwargs, power in [((x, None), None, 3), ((x, None), {"power": 2}, 2), (None, {"x": x, "y": None}, 3)]:
        found = pf.predict(fitted, fed, args, kwargs).posterior_predictive["y"].values[0]
        np.testing.assert_allclose(found.mean(0), x.numpy() ** power, atol=0.02)


def test_draws_are_independent_over_draws_and_rows():
    x = torch.zeros(2, 2, dtype=torch.float64)
    y = pf.predict(posterior(w=np.zeros((4000, 2))), line, (x, None)).posterior_predictive["y"].values[0]
    assert len(np.unique(y)) == y.size
    assert abs(np.corrcoef(y.T)[0, 1]) < 5 / math.sqrt(4000)
    assert abs(np.corrcoef(y[1:, 0], y[:-1, 0])[0, 1]) < 5 / math.sqrt(4000)


def test_the_seed_decides():
    x, _ = line_data()
    w = posterior(w=np.ones((3, 2)))
    first, again, other = (pf.predict(w, line, (x, None), seed=s).posterior_predictive["y"] for s in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def logistic(x, y=None):
    w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def test_eq_23_the_probit_approximation():
    """Draws of a KDE against Eq. (23) with σ² = λ² x x'. Eq. (24) prints 1/λ², which is far off."""
    rng, width = np.random.default_rng(1), 0.55
    particles = rng.normal(size=(8, 2))
    draws = np.repeat(particles, 1500, 0) + width * rng.normal(size=(12_000, 2))
    x = torch.tensor([[1.0, 1.0], [-1.0, 2.0], [0.5, 0.1], [2.0, -1.0]], dtype=torch.float64)
    frequency = pf.predict(posterior(w=draws), logistic, (x,)).posterior_predictive["y"].values[0].mean(0)

    def probit(variance):
        kappa = 1 / np.sqrt(1 + np.pi / 8 * variance * (x.numpy() ** 2).sum(1))
        return (1 / (1 + np.exp(-kappa * (particles @ x.numpy().T)))).mean(0)

    assert np.abs(frequency - probit(width**2)).max() < 0.01 + 5 * 0.5 / math.sqrt(12_000)
    assert np.abs(frequency - probit(width**-2)).max() > 0.03


def network(x, y=None):
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(2, 3), 1.0).to_event(2))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=torch.relu(x @ w1) @ w2), obs=y)


def test_eq_27_the_average_of_the_particles_outputs():
    """Of a narrow KDE (λ = 0.05) the first-order average Σ f(x, w_n)/N is exact up to O(λ²)."""
    rng, width = np.random.default_rng(2), 0.05
    sizes = {"w1": (2, 3), "w2": (3,)}
    particles = {name: rng.normal(size=(6, *size)) for name, size in sizes.items()}
    draws = {n: np.repeat(v, 2000, 0) for n, v in particles.items()}
    draws = {n: v + width * rng.normal(size=v.shape) for n, v in draws.items()}
    x = torch.tensor([[1.0, 1.0], [-1.0, 2.0], [0.3, -0.4]], dtype=torch.float64)
    frequency = pf.predict(posterior(**draws), network, (x,)).posterior_predictive["y"].values[0].mean(0)
    hidden = np.maximum(np.einsum("ri,pih->prh", x.numpy(), particles["w1"]), 0)
    output = 1 / (1 + np.exp(-np.einsum("prh,ph->pr", hidden, particles["w2"])))
    assert np.abs(frequency - output.mean(0)).max() < 0.005 + 5 * 0.5 / math.sqrt(12_000)


def test_it_agrees_with_pyros_predictive():
    """Means over 4,000 draws of each: differences have SE 0.03."""
    x, _ = line_data(rows=4)
    w = np.random.default_rng(3).normal(size=(4000, 2))
    ours = pf.predict(posterior(w=w), line, (x, None)).posterior_predictive["y"].values[0]
    theirs = Predictive(line, {"w": torch.as_tensor(w).float()})(x.float(), None)["y"].numpy()
    scale = np.sqrt(1 + (x.numpy() ** 2).sum(1))
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) < 5 * scale * math.sqrt(2 / 4000))
    assert np.all(np.abs(np.log(ours.std(0) / theirs.std(0))) < 5 * math.sqrt(1 / 4000))


@pytest.mark.usefixtures("close_figures")
@pytest.mark.filterwarnings("ignore:the particles have not converged")  # after a few steps
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")  # ArviZ's calls of matplotlib
@pytest.mark.filterwarnings("ignore:num_samples is larger than the number of predictive")  # ArviZ 1.x wants 50
def test_training_rows_serve_plot_ppc():
    fed = unequal_lines()
    idata = pf.run(pf.papers.PaperSVGD(num_particles=10, local_steps=5), fed, num_rounds=1, progress=False, audit=False)
    drawn = pf.predict(idata, fed)
    assert drawn.posterior_predictive["y"].shape == (1, 10, 23)
    np.testing.assert_array_equal(drawn.observed_data["y"], idata.observed_data["y"])
    arviz_function("plot_ppc")(drawn)
    assert is_drawn()
    extend(idata, drawn)
    assert "posterior_predictive" in groups_of(idata)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_model_predicts_its_training_rows(case):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pyro.param")
        fed = pf.Federation(case.model, case.args, case.kwargs, plate="data", num_clients=2)
    z = 0.1 * torch.randn(3, fed.problem.dim, dtype=fed.problem.dtype)
    values = {name: torch.stack([fed.problem.constrain(one)[name] for one in z]).numpy() for name in fed.problem.sites}
    names = [name for name in fed.problem.layout.observed if name not in fed.problem.layout.factors]
    if not names:
        with pytest.raises(DataError, match="nothing to predict"):
            pf.predict(posterior(**values), fed)
        return
    drawn = pf.predict(posterior(**values), fed).posterior_predictive
    for name in names:
        assert drawn[name].shape == (1, 3, *fed.problem.layout.observed[name].shape)
        assert drawn[name].dims[2:] == fed.problem.layout.observed[name].dims
        assert bool(np.isfinite(drawn[name]).all())


def test_what_cannot_be_predicted():
    w = posterior(w=np.zeros((2, 2)))
    with pytest.raises(DataError, match="arguments for new data"):
        pf.predict(w, line)
    with pytest.raises(DataError, match=r"no values for the latent sites \['w'\]; it has \['v'\]"):
        pf.predict(posterior(v=np.zeros((2, 2))), line, (torch.zeros(3, 2), None))


def test_a_row_that_was_taken_out_is_refused():
    """A vector of two columns would be two rows of one."""
    x, y = line_data(12)
    federation = pf.Federation(line, (x, y), plate="data", num_clients=2)
    found = posterior(w=np.zeros((5, x.shape[1])))
    with pytest.raises(DataError, match=r"argument 'x' has the shape \(2,\), expected rows .* is x\[:1\], not x\[0\]"):
        pf.predict(found, federation, (x[0], None))
    assert pf.predict(found, federation, (x[:1], None)).posterior_predictive["y"].shape == (1, 5, 1)
