"""Posterior predictive checks at clients, against their distribution and against data that the model cannot make."""

import conjugate
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

QUIET = {"progress": False, "compile": "off", "audit": False, "log_likelihood": False}


def test_p_values_are_those_of_the_predictive_distribution():
    """The mean of a client's rows is Gaussian under the posterior predictive: p within 5 standard errors."""
    fed, (x, y) = conjugate.federation(), conjugate.data()
    count = 4000
    idata = pf.run(pf.FedEP(), fed, **QUIET, num_draws=count)
    found = pf.check_clients(idata, fed, {"mean": np.mean, "first": lambda rows: rows[0]})
    mean, cover = conjugate.exact(x, y)
    for k, rows in enumerate(fed.client_rows):
        design = x[rows].mean(0)
        expected = dist.Normal(design @ mean, (design @ cover @ design + conjugate.NOISE_SD**2 / len(rows)).sqrt())
        p = float(1 - expected.cdf(y[rows].mean()))
        one = found.isel(client=k).sel(statistic="mean")
        assert float(one["p_value"]) == pytest.approx(p, abs=5 * (p * (1 - p) / count) ** 0.5)
        assert float(one["observed"]) == pytest.approx(float(y[rows].mean()))
        assert float(one["sd"]) == pytest.approx(float(expected.scale), rel=5 / (2 * count) ** 0.5)
    assert found["replicated"].shape == (4, 2, count)


def shops(num_rows, shop, y=None):
    """A level a shop, and counts that the model takes for Poisson."""
    mu = pyro.sample("mu", dist.Normal(torch.tensor(1.0), 1.0))
    with pyro.plate("shop", 3):
        a = pyro.sample("a", dist.Normal(mu, 1.0))
    with pyro.plate("day", num_rows):
        pyro.sample("y", dist.Poisson(a[shop].exp()), obs=y)


def counts(zeros):
    generator = torch.Generator().manual_seed(1)
    shop = torch.arange(3).repeat_interleave(torch.tensor([40, 60, 80]))
    y = torch.poisson(torch.tensor([2.0, 6.0, 15.0])[shop], generator=generator)
    return shop, torch.where((shop == 1) & (torch.arange(180) % 4 == 0), 0.0, y) if zeros else y


@pytest.mark.parametrize("collect", [True, False])
def test_the_client_whose_rows_the_model_cannot_make_has_its_p_at_the_edge(collect):
    """Zeros are frequent in one shop; each client's own effect, nested rows, collected or drawn again."""
    shop, y = counts(zeros=True)
    fed = pf.Federation(
        shops,
        (180, shop, y),
        plate="shop",
        rows={"day": "shop"},
        partition=pf.partition.ByGroup(by=["east", "mid", "west"]),
    )
    idata = pf.run(pf.FedEP(), fed, **QUIET, num_draws=300, collect_local=collect)
    found = pf.check_clients(idata, fed, {"zeros": lambda rows: (rows == 0).sum(), "mean": np.mean})
    p = found["p_value"].to_pandas()
    assert p.loc["mid", "zeros"] < 0.01
    assert (p.drop(index="mid")["zeros"] > 0.02).all()
    assert p["mean"].between(0.2, 0.8).all()  # a level of its own fits each mean


@pytest.mark.usefixtures("close_figures")
def test_the_figures_show_what_was_found():
    fed = conjugate.federation()
    idata = pf.run(pf.FedEP(), fed, **QUIET, num_draws=100)
    found = pf.check_clients(idata, fed, np.max)
    axes = pf.plots.plot_checks(found)
    assert [ax.get_title().split(":")[0] for ax in axes] == fed.client_names
    left, right = pf.plots.plot_influence(pf.influence(idata))
    assert [label.get_text() for label in left.get_yticklabels()] == fed.client_names
    assert len(right.patches) == 2 * fed.num_clients
    with pytest.raises(pf.errors.SettingError, match=r"takes the dataset that pf\.influence returns"):
        pf.plots.plot_influence(found)
    with pytest.raises(pf.errors.SettingError, match=r"no statistic 'min'; there are \['max'\]"):
        pf.plots.plot_checks(found, statistic="min")


def test_what_is_no_check():
    fed = conjugate.federation()
    idata = pf.run(pf.FedEP(), fed, **QUIET, num_draws=50)
    with pytest.raises(
        pf.errors.DataError, match=r"statistic 'statistic' at client 0: expected a finite number, received"
    ):
        pf.check_clients(idata, fed, lambda rows: rows)
    with pytest.raises(pf.errors.SettingError, match="takes a function of the rows"):
        pf.check_clients(idata, fed, {})
    with pytest.raises(pf.errors.DataError, match=r"no observed site 'z'; the model has \['y'\]"):
        pf.check_clients(idata, fed, np.mean, var_name="z")
