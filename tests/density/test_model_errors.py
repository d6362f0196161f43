"""Models that cannot be split are refused by name, with the cure."""

import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pandas import DataFrame
from pyro import poutine
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn
from zoo_data import SEEN, N, X, Y, normal

import pyro_fed as pf
from pyro_fed.density.checks.source import held_data


def build(model, *args, **options):
    return pf.Federation(model, args, plate="data", num_clients=2, **options)


def weights():
    return pyro.sample("w", normal(0, 1, 3))


def latents_inside_alone(x, y):
    with pyro.plate("data", len(x)):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def discrete(x, y):
    w = weights()
    k = pyro.sample("k", dist.Categorical(torch.ones(2)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + k, 1.0), obs=y)


def discrete_inside(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(x @ w + k, 1.0), obs=y)


def sphere(x, y):
    u = pyro.sample("u", dist.ProjectedNormal(torch.ones(3)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ u, 1.0), obs=y)


def delta(x, y):
    w = pyro.sample("w", dist.Delta(torch.ones(3)).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def likelihood_outside(x, y):
    w = weights()
    pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x @ w, 1.0), obs=y)


def factor_outside(x, y):
    w = weights()
    pyro.factor("fit", -(y - x @ w).square().sum())
    with pyro.plate("data", len(x)):
        pyro.sample("z", dist.Normal(x @ w, 1.0), obs=y)


def centred_inside(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x - x.mean(0)) @ w, 1.0), obs=y)


def autoregressive(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    before = torch.cat([y.new_zeros(1), y[:-1]])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a * before.flip(0), 1.0), obs=y)


def event_over_rows(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


def divided_by_rows(x, y):
    w = weights()
    with pyro.plate("data", len(x)), poutine.scale(scale=1.0 / len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def empirical_prior(x, y):
    w = pyro.sample("w", dist.Normal(x.mean(0), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def empirical_support(y):
    a = pyro.sample("a", dist.Uniform(y.min(), y.max()))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def sequential(x, y):
    w = weights()
    for i in pyro.plate("data", len(x)):
        pyro.sample(f"y_{i}", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def no_observation(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.deterministic("mean", x @ w)


def no_latent(x, y):
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def forgotten_obs(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0))


def one_latent_a_row(x, y):
    b = pyro.sample("b", dist.Normal(torch.zeros(len(x)), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def imputed_and_used(x, y, seen):
    w = weights()
    with pyro.plate("data", len(x)):
        v = pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=seen)
        pyro.sample("z", dist.Normal(v, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (latents_inside_alone, "the model has no latent site outside plate 'data', shared by all"),
        (discrete, r"latent site 'k' \(Categorical\) is discrete.*MixtureSameFamily"),
        (discrete_inside, r"latent site 'k' \(Bernoulli\) is discrete"),
        (sphere, r"latent site 'u' \(ProjectedNormal\) has the support .* no transform"),
        (delta, r"latent site 'w' is a Delta: report computed values by `pyro.deterministic\('w', value\)`"),
        (likelihood_outside, r"observed site 'y' is outside plate 'data'.*Move it inside"),
        (factor_outside, r"observed site 'fit' is outside plate 'data'.*Move it inside"),
        (
            centred_inside,
            r"observed site 'y' in plate 'data' does not factorise over rows: row \d+ .*standardise",
        ),
        (event_over_rows, r"observed site 'y' in plate 'data' does not factorise over rows"),
        (divided_by_rows, r"observed site 'y' in plate 'data' does not factorise over rows"),
        (
            empirical_prior,
            r"the prior of site 'w', outside plate 'data', changes with the rows of data.*summaries",
        ),
        (sequential, r"site 'y_0' is in a sequential plate: write `with pyro.plate\('data', n\):`"),
        (no_observation, r"plate 'data' contains no observed site"),
        (no_latent, "the model has no latent site: there is nothing to infer"),
        (
            forgotten_obs,
            r"plate 'data' contains no observed site \(it contains the latent sites \['y'\]\): put the likelihood",
        ),
        (one_latent_a_row, r"latent site 'b' has shape \(13,\) with all rows and \(2,\) with some .* inside the plate"),
    ],
)
def test_what_does_not_split_is_refused(model, message):
    with pytest.raises(pf.errors.ModelError, match=message):
        build(model, X, Y)


def test_a_support_that_depends_on_the_rows_is_refused():
    with pytest.raises(pf.errors.ModelError, match="the support of a latent site, outside plate 'data', changes"):
        build(empirical_support, Y)


def test_terms_of_neighbouring_rows_are_refused():
    with pytest.raises(pf.errors.ModelError, match="observed site 'y' in plate 'data' does not factorise"):
        build(autoregressive, Y)


def test_imputed_entries_that_are_used_again_are_refused():
    with pytest.raises(
        pf.errors.ModelError, match=r"imputed entries \(obs_mask\) in plate 'data' are used again by site 'z'"
    ):
        build(imputed_and_used, X, Y, SEEN)


def linear(x, y):
    w = weights()
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_an_unknown_plate_lists_the_plates():
    with pytest.raises(pf.errors.ModelError, match=r"no plate 'data'; its plates are \['rows'\]. Pass plate="):
        build(linear, X, Y)
    with pytest.raises(pf.errors.ModelError, match=r"no plate 'data'; its plates are \['rows'\]"):
        pf.Federation.from_clients(linear, [(X, Y)], plate="data")


def fixed_size(x, y):
    w = weights()
    with pyro.plate("data", 10):
        pyro.sample("y", dist.Normal((x @ w)[:10], 1.0), obs=y[:10])


def test_a_plate_of_another_size_than_the_rows():
    with pytest.raises(pf.errors.DataError, match="plate 'data' has size 10, but the data split by rows have 13 rows"):
        build(fixed_size, X, Y, shard=("x", "y"))


def test_rows_that_nothing_splits():
    """A plate of a fixed size, whose model ignores the indices it yields."""

    def ignores(y=Y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    said = r"runs on all 13 rows but fails on a client's part of them.*split by rows are \[\]"
    with pytest.raises(pf.errors.ModelError, match=said):
        pf.Federation(ignores, plate="data", num_clients=2)


def first_helper(x):
    return second_helper(x)


def second_helper(x):
    return third_helper(x)


def third_helper(x):
    return fourth_helper(x) + len(FOUND)


def fourth_helper(x):
    return x + len(NOT_LOOKED_FOR)


FOUND, NOT_LOOKED_FOR = torch.zeros(N), torch.zeros(N)


def test_data_that_a_model_holds_are_looked_for_a_few_calls_deep():
    """Further calls lead into libraries, whose tables are no data; a class that a model calls holds none."""

    def model(x):
        return DataFrame({"x": first_helper(x)})

    assert [one.name for one in held_data(model, N)] == ["FOUND"]


def test_the_wrong_arguments():
    said = r"the model takes \(x, y\), but received one argument by position.*as a tuple, in this order: \(x, y\)"
    with pytest.raises(pf.errors.DataError, match=said):
        pf.Federation(likelihood_outside, X, plate="data", num_clients=2)
    with pytest.raises(pf.errors.DataError, match=r"as one tuple, Federation\(model, \(x, y\), plate=...\)"):
        pf.Federation(likelihood_outside, X, Y, plate="data", num_clients=2)
    with pytest.raises(pf.errors.DataError, match="unexpected keyword argument 'z'"):
        pf.Federation(likelihood_outside, (X, Y), {"z": X}, plate="data", num_clients=2)


def test_arguments_with_other_numbers_of_rows():
    def labels(x, y):
        w = weights()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    with pytest.raises(
        pf.errors.DataError, match=r"data have the shape \(9,\), its distribution Bernoulli the shape \(13,\)"
    ):
        build(labels, X, (Y[:9] > 0).double())


def test_sites_that_a_value_decides_are_named():
    def rejecting(y):
        s = pyro.sample("s", dist.HalfNormal(1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0, s), obs=y)
        if s > 1.05:
            pyro.factor("reject", torch.tensor(-torch.inf))

    with pytest.raises(
        pf.errors.ModelError, match=r"has sites \['reject'\] at some values of its latents and not at others"
    ):
        build(rejecting, Y)


@pytest.mark.filterwarnings("ignore:__array_wrap__")  # of NumPy 2, before torch raises
def test_numpy_on_what_the_model_is_given():
    def logged(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        z = torch.tensor(np.log1p(x))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * z, 1.0), obs=y)

    with pytest.raises(pf.errors.ModelError, match=r"take torch's functions, such as torch\.log1p"):
        build(logged, Y.abs().numpy(), Y.numpy())


def test_text_without_rows():
    def by_label(s, y):
        b = pyro.sample("b", normal(0, 1, 2))
        with pyro.plate("data", len(s)):
            pyro.sample("y", dist.Normal(b[s], 1.0), obs=y)

    text, y = np.array(["m", "f"] * 5, dtype=object), np.arange(10.0)
    with pytest.raises(pf.errors.DataError, match="argument 's' is text, or of dtype object, and has no rows"):
        pf.Federation.from_clients(by_label, [(text, y), (text[:0], y[:0])], plate="data")


def module_of_priors():
    """A layer whose weights are sampled where it is called."""
    net = nn.Sequential(nn.Linear(3, 1))
    to_pyro_module_(net)
    for name, value in list(net[0].named_parameters()):
        setattr(net[0], name, PyroSample(dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())))
    return net


def test_a_module_called_inside_the_plate_is_told_to_be_called_before_it():
    net = module_of_priors()

    def model(x, y):
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    with pytest.raises(
        pf.errors.ModelError, match=r"Sites 0\.weight, 0\.bias are drawn by a module that is called inside"
    ):
        pf.Federation(model, (torch.randn(6, 3), torch.zeros(6)), plate="data", num_clients=2)


def test_frozen_weights_are_not_named_at_every_run():
    frozen = nn.Linear(3, 2).requires_grad_(False)

    def model(x, y):
        pyro.module("frozen", frozen)
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(frozen(x) @ w, 1.0), obs=y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed = pf.Federation(model, (torch.randn(6, 3), torch.zeros(6)), plate="data", num_clients=2)
        pf.run(pf.FedLaplace(), fed, progress=False, audit=False)
    assert sum("weight was not registered" in str(one.message) for one in caught) <= 1  # 20 and more


def test_a_model_without_frozen_weights_leaves_the_warnings_as_they_are():
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.resetwarnings()
        fed = pf.Federation(model, (torch.zeros(6),), plate="data", num_clients=2)
        pf.run(pf.FedLaplace(), fed, progress=False, audit=False, compile="off")
        assert warnings.filters == []


@pytest.mark.parametrize(
    ("prior", "named"),
    [
        (lambda y: dist.Beta(y.new_ones(2), 1.0).to_event(1), "Beta has integers"),
        (lambda y: dist.Dirichlet(torch.tensor([1, 1])), "Dirichlet has integers as concentration"),
        (lambda y: dist.Normal(torch.tensor([0, 1]), torch.tensor([1, 2])).to_event(1), "loc, scale"),
    ],
    ids=["beta", "dirichlet", "normal"],
)
def test_priors_in_whole_numbers_are_refused_by_name(prior, named):
    def model(y):
        p = pyro.sample("p", prior(y))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(p[0], 1.0), obs=y.double())

    with pytest.raises(pf.errors.ModelError, match=rf"latent site 'p': .*{named}.*cannot be sampled.*torch.ones\(2\)"):
        pf.Federation(model, (torch.arange(6) % 2,), plate="data", num_clients=2)


def line(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def line_with_noise(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    sd = pyro.sample("sd", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, sd), obs=y)


def test_covariates_without_columns():
    with pytest.raises(pf.errors.ModelError, match=r"have no elements, 'w' of shape \(0,\): .* no columns"):
        build(line, X[:, :0], Y)


@pytest.mark.parametrize(
    ("model", "dtype", "scale"),
    [
        (line, torch.float32, 1e30),
        (line, torch.float64, 1e30),
        (line, torch.float64, 1e150),
        (line, torch.float64, 1e300),
        (line_with_noise, torch.float64, 1e300),
    ],
)
def test_numbers_beyond_the_range_of_a_density_are_named(model, dtype, scale):
    """All rows, or one: site, latents and rows, and not the gradient, which is right."""
    x, y = X.to(dtype), 1.0 + Y.to(dtype).abs()
    with pytest.raises(
        pf.errors.ModelError, match=r"site 'y': .* in 12 of the 12 rows .* 'w'.* divide the data by their own"
    ):
        build(model, x, scale * y)
    y[2] *= scale
    with pytest.raises(pf.errors.ModelError, match=r"site 'y': .* in 1 of the 12 rows examined \(rows 2\)") as error:
        build(model, x, y)
    assert ".item()" not in str(error.value)


def test_large_numbers_that_the_latents_explain_are_none(recwarn):
    """Of 1e9 by a prior as wide, whose first points are all far away: a density of -1e17, and a right gradient."""

    def income(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 1e9))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    y = 1e9 + torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = pf.run(pf.FedEP(), build(income, y), progress=False, compile="off", audit=False)
    assert abs(float(found.posterior["mu"].mean()) - float(y.mean())) < 5 * 20**-0.5
