"""Sums over rows at clients against ArviZ on all rows, and what leaves a client."""

import functools
import warnings

import conjugate
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from arviz_results import CRITERION, criterion, datasets
from late import late
from pyro import poutine
from scipy.special import logsumexp

import pyro_fed as pf
from pyro_fed.analysis.criticism.loo import Pointwise
from pyro_fed.ops.arviz_versions import NEW, elpd_se
from pyro_fed.recipes import library

az = late("arviz")
QUIET = {"progress": False, "audit": False}
MODELS = ("conjugate", "hierarchical_logistic", "eight_schools", "radon", "linear_regression", "negative_binomial")


@functools.cache
def fitted(name):
    """A gallery model over three clients, float64, and 300 draws of its first round: sums ask for no converged fit."""
    if name == "conjugate":
        fed = conjugate.federation(3)
    else:
        module = library.load_model(name)
        fewer = {"num_hospitals": 6} if name == "hierarchical_logistic" else {}
        args = module.load_data(**fewer)[0]
        args = tuple(a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args)
        fed = pf.Federation(module.model, args, plate=module.PLATE, rows=getattr(module, "ROWS", None), num_clients=3)
    return fed, _first_round(fed, num_draws=300)


def _first_round(fed, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "not converged")
        return pf.run(pf.FedEP(), fed, num_rounds=1, **QUIET | options)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the posteriors, and of Pareto's k by ArviZ
@pytest.mark.parametrize("name", MODELS)
def test_sums_of_the_clients_are_those_of_arviz(name):
    fed, idata = fitted(name)
    found, expected = pf.loo(idata, fed, pointwise=True), az.loo(idata, pointwise=True)
    for field in CRITERION:
        assert criterion(found, field) == pytest.approx(criterion(expected, field), abs=1e-6)
    assert bool(found.warning) == bool(expected.warning)
    each = [criterion(one, "elpd_i").values for one in (found, expected)]
    np.testing.assert_allclose(*each, atol=1e-6)
    np.testing.assert_allclose(found.pareto_k.values, expected.pareto_k.values, atol=1e-6)
    assert sum(found.k_counts.values()) == expected.n_data_points
    assert found.by_client["elpd"].sum() == pytest.approx(criterion(expected, "elpd"), abs=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the posteriors
@pytest.mark.parametrize("name", MODELS)
def test_waic_of_the_clients_is_that_of_all_rows(name):
    """Watanabe (2010): log mean density less its logarithm's variance, a row; ArviZ has it in 0.23 alone."""
    fed, idata = fitted(name)
    found, log = pf.metrics.waic(idata, fed), datasets(idata)["log_likelihood"]
    rows = next(iter(log.data_vars.values())).stack(sample=("chain", "draw")).values.reshape(-1, 300)
    variance = rows.var(1)
    each = logsumexp(rows, 1) - np.log(300) - variance
    assert criterion(found, "elpd", "waic") == pytest.approx(each.sum(), abs=1e-6)
    assert criterion(found, "p", "waic") == pytest.approx(variance.sum(), abs=1e-6)
    assert found.se == pytest.approx(elpd_se(each.var(), len(each)), abs=1e-6)
    assert bool(found.warning) == bool((variance > 0.4).any())


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # ArviZ's calls of pandas
def test_arviz_compares_them():
    """Two models of the same rows, of which one lacks a column."""
    fed, idata = fitted("conjugate")
    x, y = conjugate.data()
    other = pf.Federation(conjugate.model, (x[:, :2], y), plate="data", num_clients=3)
    both = {"a": (idata, fed), "b": (pf.run(pf.FedEP(), other, num_draws=300, **QUIET), other)}
    ours = az.compare({name: pf.loo(*each, pointwise=True) for name, each in both.items()})
    theirs = az.compare({name: each[0] for name, each in both.items()})
    for column in ("rank", "elpd_loo", "p_loo", "elpd_diff", "weight", "se", "dse"):
        np.testing.assert_allclose(ours[column].astype(float), theirs[column].astype(float), atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the posteriors
@pytest.mark.parametrize("name", MODELS[1:])
def test_client_by_client(name):
    """Workers are asked in `runtime/executors/test_ray.py`."""
    fed, idata = fitted(name)
    found, expected = pf.loo(idata, fed, executor="sequential"), az.loo(idata)
    for field in ("elpd", "se", "p"):
        assert criterion(found, field) == pytest.approx(criterion(expected, field), abs=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of a short run
def test_chains_count_as_many_independent_draws_as_they_are_worth():
    fed, _ = fitted("conjugate")
    short = pf.FSGLD(num_chains=2, local_steps=4, thin=4, burn_in=0)
    idata = pf.run(short, fed, num_rounds=60, **QUIET | {"log_likelihood": True})
    assert criterion(pf.loo(idata, fed), "elpd") == pytest.approx(criterion(az.loo(idata), "elpd"), abs=1e-6)


def test_no_row_leaves_its_client():
    """What a client sends is as long, whatever its rows, and sums over them."""
    fed, idata = fitted("conjugate")
    found = pf.loo(idata, fed)
    assert getattr(found, "elpd_i" if NEW else "loo_i", None) is None
    draws = torch.as_tensor(idata.posterior["w"].values[0])
    shared = {"draws": draws, "efficiency": torch.ones(()).double(), "good_k": torch.tensor(0.7).double()}
    algorithm = Pointwise()
    received = algorithm.download(shared, torch.arange(3))
    messages, _, _ = algorithm.local_step(fed.problem, received, {}, fed.client_data(), ())
    assert {tuple(value.shape) for value in messages.values()} == {(3,)}


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # a hospital weighs much
def test_latents_that_stay_at_home_are_integrated_out():
    module = library.load_model("hierarchical_logistic")
    fed, _ = fitted("hierarchical_logistic")
    idata = _first_round(fed, num_draws=100, collect_local=False)
    found = pf.loo(idata, fed)
    assert found.n_data_points == 6  # hospitals, each left out as a whole
    assert criterion(found, "elpd") == pytest.approx(criterion(az.loo(idata), "elpd"), abs=1e-6)
    assert module.PLATE == "hospital"


def test_what_cannot_be_left_out():
    fed, idata = fitted("conjugate")
    with pytest.raises(pf.errors.DataError, match=r"no observed site 'z'; the model has \['y'\]"):
        pf.loo(idata, fed, var_name="z")
    for function in (pf.loo, pf.metrics.waic):
        with pytest.raises(pf.errors.DataError, match=f"^{function.__name__} takes a result"):
            function("idata.nc", fed)
    with pytest.raises(pf.errors.SettingError, match="at least 25 draws, received 10"):
        pf.loo(idata.isel(draw=slice(10)), fed)


def with_gaps(x, y, kept):
    w = pyro.sample("w", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)), poutine.mask(mask=kept):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def without_gaps(x, y):
    return with_gaps(x, y, torch.ones(len(y), dtype=torch.bool))


def test_masked_rows_are_not_left_out():
    """Every fourth row, and all of the first client's: the same as without them, but for the rows' labels."""
    x, noise = torch.randn(2, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = (torch.arange(40) % 4 > 0) & (torch.arange(40) >= 10)
    parts = list(zip(*(value.split(10) for value in (x, x + noise, kept)), strict=True))
    fed = pf.Federation.from_clients(with_gaps, parts, plate="data")
    other = pf.Federation.from_clients(without_gaps, [(a[k], b[k]) for a, b, k in parts[1:]], plate="data")
    idata, alone = pf.run(pf.FedEP(), fed, **QUIET), pf.run(pf.FedEP(), other, **QUIET)
    found, expected = pf.loo(idata, fed, pointwise=True), pf.loo(alone, other, pointwise=True)
    for answer in (found, az.loo(idata, pointwise=True)):
        assert answer.n_data_points == int(kept.sum())
        for field in ("elpd", "se", "p"):
            assert criterion(answer, field) == pytest.approx(criterion(expected, field), abs=1e-6)
        each = [criterion(one, "elpd_i").values for one in (answer, expected)]
        np.testing.assert_allclose(*each, atol=1e-6)
    assert sum(found.k_counts.values()) == int(kept.sum())
    assert found.by_client["rows"].tolist() == [0, *(int(part[2].sum()) for part in parts[1:])]
    for labels in (criterion(found, "elpd_i")["data"], idata.log_likelihood["data"]):
        assert labels.values.tolist() == kept.nonzero()[:, 0].tolist()
    assert idata.observed_data.sizes["data"] == 40


def saturated(x, y):
    w = pyro.sample("w", dist.Normal(2.0, 0.1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)


def test_rows_that_are_predicted_with_certainty_count():
    """Their log density is zero at every draw, as that of masked rows is; their weights are all equal."""
    x = torch.cat([torch.linspace(-2, 2, 20), torch.tensor([4e3, 5e3])])
    fed = pf.Federation(saturated, (x, (x > 0.1).float()), plate="data", num_clients=2)
    idata = pf.run(pf.FedLaplace(), fed, **QUIET)
    assert (idata.log_likelihood["y"][..., -2:] == 0).all()
    assert idata.log_likelihood.sizes["data"] == pf.loo(idata, fed).n_data_points == 22
    assert pf.compare({"FedLaplace": idata})["bad_pareto_k"]["FedLaplace"] == 0
