"""Observed against predicted shares: those of the pooled rows, and no small number of ones or zeros leaves."""

import itertools

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

import pyro_fed as pf
from pyro_fed.analysis.predicting.row_sums import Question, RowValues, client_sums
from pyro_fed.errors import DataError, SettingError
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.to_arviz import make_inference_data

ENDS = [0.25, 0.5, 0.75, 1.0]


def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)


def counted(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Poisson((w * x).exp()), obs=y)


@pytest.fixture(scope="module")
def case():
    generator = torch.Generator().manual_seed(0)
    x = 1.5 * torch.randn(240, generator=generator, dtype=torch.float64)
    y = torch.bernoulli(torch.sigmoid(x), generator=generator)
    draws = 1.0 + 0.3 * torch.randn(1, 40, generator=generator, dtype=torch.float64)
    names = {"north": slice(0, 100), "south": slice(100, 240)}
    fed = pf.Federation.from_clients(
        model, {name: (x[part], y[part]) for name, part in names.items()}, plate="rows", dtype=torch.float64
    )
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], draws.numpy())})}, {})
    return fed, idata, x.numpy(), y.numpy(), draws.numpy(), names


def wilson(p, n, z=1.959963984540054):
    middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return (middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)


def test_the_table_is_that_of_the_rows(case):
    fed, idata, x, y, draws, names = case
    table = pf.metrics.calibration_table(pf.estimand(idata, fed, by={"predicted": ENDS}))
    risk = (1 / (1 + np.exp(-draws[0][:, None] * x))).mean(0)
    expected = []
    for client, part in {**names, "overall": slice(None)}.items():
        for low, high in itertools.pairwise([0.0, *ENDS]):
            mask = (risk[part] > low) & (risk[part] <= high)
            n, p = mask.sum(), y[part][mask].mean()
            expected.append((client, high, n, risk[part][mask].mean(), p, *wilson(p, n)))
    expected = pd.DataFrame(expected, columns=table.columns)
    assert table["client"].tolist() == expected["client"].tolist()
    np.testing.assert_allclose(table.iloc[:, 1:].to_numpy(float), expected.iloc[:, 1:].to_numpy(float), atol=1e-12)


def test_a_client_that_claims_more_ones_than_rows_is_named(case):
    fed, idata, *_ = case
    found = pf.estimand(idata, fed, by={"predicted": ENDS})
    found["posterior"]["observed"].loc[{"client": "south"}] *= 3
    with pytest.raises(DataError, match=r"share of ones between 0 and 1 .* from clients \['south'\]"):
        pf.metrics.calibration_table(found)


def test_a_bin_of_few_ones_is_withheld_with_those_from_which_they_follow():
    """Three bins of ten rows: one has a single event. With it goes a second bin, so that two sums stay unknown."""
    groups = [end for end in ENDS[:3] for _ in range(10)]
    observed = torch.tensor([True] + [False] * 9 + ([True] * 5 + [False] * 5) + ([True] * 6 + [False] * 4))
    question = Question(None, "y", ({},), "predicted", tuple(ENDS), 3)
    found = client_sums(question, RowValues(torch.ones(2, 1, 30), groups, observed))
    assert found.withheld == ENDS[:2] and found.counts == {0.75: 10} and found.ones == {0.75: 6}
    few_zeros = client_sums(question, RowValues(torch.ones(2, 1, 30), groups, ~observed))
    assert few_zeros.withheld == ENDS[:2]
    nothing = client_sums(question._replace(fewest=1), RowValues(torch.ones(2, 1, 30), groups, observed))
    assert nothing.withheld == [] and nothing.ones == {0.25: 1, 0.5: 5, 0.75: 6}


@pytest.mark.parametrize("fewest", [3, 5])
def test_the_ones_of_withheld_bins_have_several_values(fewest):
    """Of rows, ones and zeros alike: two unknown cells or more, whose known sum is large enough for each."""
    rng = np.random.default_rng(fewest)
    question = Question(None, "y", ({},), "predicted", tuple(ENDS), fewest)
    withheld = 0
    for _ in range(200):
        groups = rng.choice(ENDS, int(rng.integers(4 * fewest, 60))).tolist()
        observed = torch.as_tensor(rng.random(len(groups)) < rng.beta(1, 2))
        found = client_sums(question, RowValues(torch.ones(1, 1, len(groups)), groups, observed))
        hidden = torch.tensor([one in found.withheld for one in groups])
        assert all(one > 0 for one in found.counts.values())
        for cells in (torch.ones_like(observed), observed, ~observed):
            small = [
                end
                for end in ENDS
                if 0 < sum(c for g, c in zip(groups, cells.tolist(), strict=True) if g == end) < fewest
            ]
            assert set(small) <= set(found.withheld)
            if small and found.counts:
                assert len(found.withheld) >= 2 and int((cells & hidden).sum()) >= fewest
        withheld += len(found.withheld)
    assert withheld > 50


def test_what_cannot_be_compared_is_refused(case):
    fed, idata, *_ = case
    texts = (
        ({"predicted": [0.5, 0.2]}, "ascending"),
        ({"predicted": [0.25, 0.5]}, "ascending to 1"),
        ({"predicted": np.array([])}, "one column with its groups"),
        ("predicted", "takes the ends of the bins"),
    )
    for by, text in texts:
        with pytest.raises(SettingError, match=text):
            pf.estimand(idata, fed, by=by)
    with pytest.raises(SettingError, match="leave do out"):
        pf.estimand(idata, fed, by={"predicted": ENDS}, do={"x": [0.0]})
    with pytest.raises(DataError, match="has none"):
        pf.metrics.calibration_table(pf.estimand(idata, fed))
    counts = pf.Federation.from_clients(counted, {"a": (torch.ones(4), torch.full((4,), 2.0))}, plate="rows")
    with pytest.raises(DataError, match="must be 0 or 1"):
        pf.estimand(idata, counts, by={"predicted": ENDS})


def test_ends_may_be_an_array(case):
    fed, idata, *_ = case
    found, expected = (pf.estimand(idata, fed, by={"predicted": ends}) for ends in (np.array(ENDS), ENDS))
    assert found.posterior.equals(expected.posterior) and found.posterior.attrs == expected.posterior.attrs


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("filler", [0.0, torch.nan])
def test_masked_rows_are_not_observed(replicated, filler):
    """As for leave-one-out: 40 rows, of which the 20 that are observed are ones; and those of a column's group."""

    def masked(x, y, seen):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)), pyro.poutine.mask(mask=seen):
            pyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)

    x, seen = torch.linspace(-2, 2, 40), torch.arange(40) % 2 == 0
    rows = x, torch.where(seen, 1.0, filler), seen
    fed = pf.Federation.from_clients(masked, {"a": rows}, plate="rows", dtype=torch.float64)
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], np.ones((1, 4)))})}, {})
    if replicated:
        for by in (None, "seen"):
            found = pf.estimand(idata, fed, by=by, replicated=True).posterior
            assert found["rows"].values.sum() == 20 and (found["estimand"].sel(of="observed") == 1).all()
    else:
        table = pf.metrics.calibration_table(pf.estimand(idata, fed, by={"predicted": [0.5, 1.0]}))
        assert table["rows"].tolist() == [10, 10] * 2 and (table["observed"] == 1).all()
        risk = torch.sigmoid(x[seen]).numpy()
        np.testing.assert_allclose(table["predicted"][:2], [risk[:10].mean(), risk[10:].mean()], rtol=1e-6)


def test_a_mask_of_parts_of_rows_is_refused():
    def pairs(x, y, seen):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x[:, None].expand(-1, 2), 1.0).mask(seen).to_event(1), obs=y)

    seen = torch.ones(8, 2, dtype=torch.bool)
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], np.ones((1, 4)))})}, {})
    for i in (1, 0):
        seen[3, i] = False
        rows = torch.arange(8.0), torch.arange(16.0).reshape(8, 2), seen.clone()
        fed = pf.Federation.from_clients(pairs, {"a": rows}, plate="rows", dtype=torch.float64)
        options = {"f": lambda draw, rows: draw["y"].sum(-1), "replicated": True}
        if i:
            with pytest.raises(DataError, match="leaves out parts of rows of 'y'"):
                pf.estimand(idata, fed, **options)
        else:
            found = pf.estimand(idata, fed, **options).posterior
            assert int(found["rows"]) == 7 and (found["estimand"].sel(of="observed") == (120 - 13) / 7).all()


def test_a_client_called_overall_is_refused(case):
    fed, idata, *_ = case
    found = pf.estimand(idata, fed, by={"predicted": ENDS})
    renamed = group_of(found, "posterior").assign_coords(client=["north", "overall"])
    with pytest.raises(DataError, match="a client is called 'overall'"):
        pf.metrics.calibration_table(make_inference_data({"posterior": renamed}, {}))


def test_the_figure_has_the_clients_and_the_diagonal(case):
    pytest.importorskip("matplotlib").use("Agg")
    fed, idata, *_ = case
    table = pf.metrics.calibration_table(pf.estimand(idata, fed, by={"predicted": ENDS}))
    panel = pf.plots.plot_calibration(table)
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["north", "south", "overall"]
    with pytest.raises(SettingError, match="lacks"):
        pf.plots.plot_calibration(table.drop(columns="observed"))
