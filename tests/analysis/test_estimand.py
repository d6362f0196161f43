"""Averages over rows at clients: equal, draw by draw, to the same average over the pooled table."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.results.to_arviz import make_inference_data

ROWS, DRAWS = 40, 6
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "age": RNG.normal(size=ROWS),
        "sex": RNG.choice(["female", "male"], ROWS),
        "treated": RNG.integers(0, 2, ROWS),
        "y": RNG.integers(0, 2, ROWS).astype(float),
    }
)


def trial(data):
    a, b, c, d = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in "abcd")
    with pyro.plate("rows", len(data["y"])):
        logits = a + b * data["age"] + c * data["treated"] + d * (data["sex"] == "male")
        pyro.sample("y", dist.Bernoulli(logits=logits), obs=data["y"])


def result(seed=1, **more):
    """Draws that no run has made."""
    rng = np.random.default_rng(seed)
    draws = {name: (["chain", "draw"], rng.normal(size=(2, DRAWS // 2))) for name in "abcd"}
    return make_inference_data({"posterior": xr.Dataset(draws | more)}, {"local_sites": ""})


def federation(clients=4, partition=None):
    return pf.Federation(trial, (FRAME,), plate="rows", num_clients=clients, partition=partition, dtype=torch.float64)


def risk(idata, treated, mask=None):
    """Each draw's average over the pooled rows, by the formula."""
    one = {name: idata.posterior[name].values[..., None] for name in "abcd"}
    given = FRAME["treated"].to_numpy() if treated is None else np.full(ROWS, treated)
    logits = (
        one["a"]
        + one["b"] * FRAME["age"].to_numpy()
        + one["c"] * given
        + one["d"] * (FRAME["sex"] == "male").to_numpy()
    )
    values = 1 / (1 + np.exp(-logits))
    return values[..., slice(None) if mask is None else mask].mean(-1)


@pytest.mark.parametrize("clients", [1, 4, ROWS])
def test_the_average_of_all_rows_does_not_depend_on_where_they_are(clients):
    idata = result()
    found = pf.estimand(idata, federation(clients)).posterior
    np.testing.assert_allclose(found["estimand"].values, risk(idata, None), rtol=1e-12)
    assert found["estimand"].dims == ("chain", "draw") and int(found["rows"]) == ROWS


def test_standardisation_sets_the_treatment_of_every_row():
    idata = result()
    found = pf.estimand(idata, federation(), do={"data['treated']": [0, 1]}).posterior["estimand"]
    for treated in (0, 1):
        np.testing.assert_allclose(found.sel({"data['treated']": treated}).values, risk(idata, treated), rtol=1e-12)
    one = pf.estimand(idata, federation(), do={"data['treated']": 1}).posterior["estimand"]
    np.testing.assert_array_equal(one.values, found.sel({"data['treated']": 1}).values)


def test_groups_are_those_of_the_rows_own_labels():
    """Also where a setting gives all rows one label."""
    idata, male = result(), (FRAME["sex"] == "male").to_numpy()
    found = pf.estimand(idata, federation(), by="data['sex']").posterior
    for label, mask in (("male", male), ("female", ~male)):
        np.testing.assert_allclose(
            found["estimand"].sel({"data['sex']": label}).values, risk(idata, None, mask), rtol=1e-12
        )
        assert int(found["rows"].sel({"data['sex']": label})) == mask.sum()
    as_men = pf.estimand(idata, federation(), do={"data['sex']": "male"}, by="data['sex']").posterior["estimand"]
    logits = idata.posterior["a"].values[..., None] + idata.posterior["d"].values[..., None]
    logits = logits + idata.posterior["b"].values[..., None] * FRAME["age"].to_numpy()
    logits = logits + idata.posterior["c"].values[..., None] * FRAME["treated"].to_numpy()
    expected = (1 / (1 + np.exp(-logits)))[..., ~male].mean(-1)
    np.testing.assert_allclose(as_men.sel({"data['sex']": "female"}).values, expected, rtol=1e-12)


def test_by_client_and_by_whole_numbers():
    idata, fed = result(), federation(3)
    found = pf.estimand(idata, fed, by="client").posterior
    assert found["client"].values.tolist() == list(fed.client_names)
    parts = [risk(idata, None, rows.numpy()) for rows in fed.client_rows]
    np.testing.assert_allclose(found["estimand"].values, np.stack(parts, -1), rtol=1e-12)
    arms = pf.estimand(idata, fed, by="data['treated']").posterior["estimand"]
    np.testing.assert_allclose(
        arms.sel({"data['treated']": 1}).values, risk(idata, None, (FRAME["treated"] == 1).to_numpy()), rtol=1e-12
    )


def test_a_function_of_draw_and_rows():
    idata = result()

    def effect(draw, rows):
        return draw["b"] * rows["data['age']"] * (rows["data['sex']"] == "male")

    found = pf.estimand(idata, federation(), effect).posterior["estimand"]
    mean = (FRAME["age"] * (FRAME["sex"] == "male")).mean()
    np.testing.assert_allclose(found.values, idata.posterior["b"].values * mean, rtol=1e-12)


def test_a_function_that_vmap_cannot_run_gives_the_same():
    def looped(draw, rows):
        age = rows["data['age']"]
        return age.new_full((len(age),), float(draw["b"]))

    idata = result()
    found = pf.estimand(idata, federation(), looped).posterior["estimand"]
    np.testing.assert_allclose(found.values, idata.posterior["b"].values, rtol=1e-12)


def test_small_groups_of_a_client_are_left_out_and_said():
    by_sex = pf.partition.Explicit(
        [
            FRAME.index[FRAME["sex"] == "female"][:-2].tolist(),
            [*FRAME.index[FRAME["sex"] == "female"][-2:], *FRAME.index[FRAME["sex"] == "male"]],
        ]
    )
    fed, idata = federation(2, by_sex), result()
    with pytest.warns(UserWarning, match=r"too few rows.*: 1 data\['sex'\]=male, 1 data\['sex'\]=female"):
        found = pf.estimand(idata, fed, by="data['sex']", fewest=3).posterior
    women = (FRAME["sex"] == "female").to_numpy().copy()
    women[FRAME.index[FRAME["sex"] == "female"][-2:]] = False
    assert found["data['sex']"].values.tolist() == ["female"]  # else two women would follow from all rows and the men
    assert int(found["rows"].sel({"data['sex']": "female"})) == women.sum()
    np.testing.assert_allclose(
        found["estimand"].sel({"data['sex']": "female"}).values, risk(idata, None, women), rtol=1e-12
    )


def test_groups_may_be_named():
    """In the order in which they are named, and without the rows of others."""
    idata, every = result(), pf.estimand(result(), federation(), by="data['sex']").posterior["estimand"]
    found = pf.estimand(idata, federation(), by={"data['sex']": ["male"]}).posterior["estimand"]
    np.testing.assert_array_equal(found.values, every.sel({"data['sex']": ["male"]}).values)


def levels(ward, x, y):
    centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
    with pyro.plate("wards", 4):
        level = pyro.sample("level", dist.Normal(centre, 0.5))
    with pyro.plate("patients", len(y)):
        pyro.sample("y", dist.Normal(level[ward] + x, 1.0), obs=y)


def test_groups_with_effects_of_their_own_use_those():
    ward = torch.arange(4).repeat(5)
    x, y = torch.randn(2, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fed = pf.Federation(
        levels, (ward, x, y), plate="wards", rows={"patients": "ward"}, num_clients=2, dtype=torch.float64
    )
    rng = np.random.default_rng(3)
    draws = {
        "centre": (["chain", "draw"], rng.normal(size=(1, 5))),
        "level": (["chain", "draw", "wards"], rng.normal(size=(1, 5, 4))),
    }
    idata = make_inference_data({"posterior": xr.Dataset(draws)}, {"local_sites": "level"})
    found = pf.estimand(idata, fed, by="ward").posterior["estimand"]
    expected = draws["level"][1] + x.reshape(5, 4).mean(0).numpy()
    np.testing.assert_allclose(found.values, expected, rtol=1e-6)
    mixed = pf.Federation(
        levels,
        (ward, x, y),
        plate="wards",
        rows={"patients": "ward"},
        partition=pf.partition.Explicit([[2, 0], [3, 1]]),
        dtype=torch.float64,
    )
    for one in (fed, mixed):
        same = pf.estimand(idata, one, lambda draw, rows: draw["level"][rows["ward"]] + rows["x"], by="ward")
        np.testing.assert_allclose(same.posterior["estimand"].values, expected, rtol=1e-6)


def test_a_clients_part_has_its_own_groups_effects():
    """As `own_effects` draws them there: the sums of two clients are those of their own federations."""
    from pyro_fed.algorithm.states import prefixed
    from pyro_fed.analysis.predicting.row_sums import DRAWS, Question, RowSums

    ward, rng = torch.arange(2).repeat(5), np.random.default_rng(4)
    x, y = torch.randn(2, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def two(ward, x, y):
        centre = pyro.sample("centre", dist.Normal(0.0, 1.0))
        with pyro.plate("wards", 2):
            level = pyro.sample("level", dist.Normal(centre, 0.5))
        with pyro.plate("patients", len(y)):
            pyro.sample("y", dist.Normal(level[ward] + x, 1.0), obs=y)

    own = pf.Federation(two, (ward, x, y), plate="wards", rows={"patients": "ward"}, num_clients=1, dtype=torch.float64)
    centre = rng.normal(size=(1, 5))
    idata = make_inference_data(
        {"posterior": xr.Dataset({"centre": (["chain", "draw"], centre)})}, {"local_sites": "level"}
    )
    question = Question.of(own.problem, by={"ward": [1, 0]})
    sent = prefixed(DRAWS, {"centre": torch.as_tensor(centre)})
    message, *_ = RowSums(name="mean", question=question).local_step(own.problem, sent, {}, own.client_data(), ())
    expected = pf.estimand(idata, own, by={"ward": [1, 0]}).posterior
    average = message["sums"][0, :, 0] / message["rows"][0]
    np.testing.assert_allclose(average.numpy(), expected["estimand"].values[0], rtol=1e-12)
    assert message["rows"][0].tolist() == [5, 5]


def test_expected_observations_are_those_of_the_model():
    idata, fed = result(), federation()
    found = pf.posterior_epred(idata, fed).posterior_predictive["y"]
    np.testing.assert_allclose(found.values.mean(-1), risk(idata, None), rtol=1e-12)
    assert len(np.unique(pf.predict(idata, fed).posterior_predictive["y"].values)) == 2


def heavy(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Cauchy(a, 1.0), obs=y)


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"do": {"treatd": 1}}, pf.errors.SettingError, "treatd"),
        ({"do": {"data['sex']": "man"}}, pf.errors.SettingError, "which is not one of"),
        ({"do": {"data['treated']": []}}, pf.errors.SettingError, "no value"),
        ({"by": "clinet"}, pf.errors.SettingError, "clinet"),
        ({"by": "data['age']"}, pf.errors.SettingError, "labels or whole numbers"),
        ({"site": "z"}, pf.errors.SettingError, "does not observe"),
        ({"fewest": 0}, pf.errors.SettingError, "at least 1"),
        ({"fewest": 1000}, pf.errors.DataError, "no client"),
        ({"by": {"data['sex']": []}}, pf.errors.SettingError, "with its groups"),
        ({"f": lambda draw, rows: draw["b"]}, pf.errors.DataError, "one number for each row"),
        ({"f": lambda draw, rows: rows["data['age']"] / 0}, pf.errors.DataError, "not finite"),
        ({"f": lambda draw, rows: rows["data['height']"]}, pf.errors.DataError, "height"),
    ],
)
@pytest.mark.filterwarnings("ignore:estimand")
def test_what_cannot_be_averaged_is_refused(arguments, kind, said):
    with pytest.raises(kind, match=said):
        pf.estimand(result(), federation(), **arguments)


def test_a_distribution_without_a_mean_is_refused():
    fed = pf.Federation(heavy, (torch.zeros(10),), plate="rows", num_clients=2)
    with pytest.raises(pf.errors.DataError, match="not finite"):
        pf.estimand(result(), fed)


def counted(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Poisson((w + x).exp()), obs=y)


def test_replicated_observations_are_compared_with_the_observed_ones():
    """Shares of zeros of a Poisson regression: P(0) = exp(-rate) at each draw, within 5 SDs of the mean of its 4,000
    (a false alarm in 10,000 runs); clients' replications are independent."""
    rng, clients = np.random.default_rng(0), {}
    for name, size in {"a": 40, "b": 25}.items():
        x = rng.normal(size=size)
        clients[name] = torch.as_tensor(x), torch.as_tensor(rng.poisson(np.exp(0.3 + x)).astype(float))
    fed = pf.Federation.from_clients(counted, clients, plate="rows", dtype=torch.float64)
    w = 0.3 + 0.1 * rng.normal(size=(1, 4000))
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], w)})}, {})

    def zeros(draw, rows):
        return (draw["y"] == 0).to(draw["y"])

    found = pf.estimand(idata, fed, zeros, by="client", replicated=True).posterior["estimand"]
    assert found.dims == ("chain", "draw", "of", "client") and found["of"].values.tolist() == ["replicated", "observed"]
    for name, (x, y) in clients.items():
        zero = np.exp(-np.exp(w[0][:, None] + x.numpy()))
        replicated = found.sel(of="replicated", client=name).values[0]
        spread = np.sqrt((zero * (1 - zero)).sum(1).mean() / len(x) ** 2 + zero.mean(1).var())
        assert abs(replicated.mean() - zero.mean()) < 5 * spread / np.sqrt(4000)
        assert replicated.std() == pytest.approx(spread, rel=0.06)
        np.testing.assert_allclose(found.sel(of="observed", client=name), (y == 0).double().mean().item())
    means = np.stack([np.exp(-np.exp(w[0][:, None] + x.numpy())).mean(1) for x, _ in clients.values()], -1)
    apart = found.sel(of="replicated").values[0] - means
    assert abs(np.corrcoef(apart.T)[0, 1]) < 5 / np.sqrt(4000)
    whole = pf.estimand(idata, fed, replicated=True).posterior["estimand"]
    y = torch.cat([one for _, one in clients.values()])
    np.testing.assert_allclose(whole.sel(of="observed"), y.mean().item())


def test_few_zeros_of_the_observations_are_withheld():
    x, y = torch.zeros(30), torch.tensor([0.0] * 2 + [1.0] * 28)
    fed = pf.Federation.from_clients(counted, {"a": (x, y), "b": (x, 1 + y)}, plate="rows", dtype=torch.float64)
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], np.zeros((1, 5)))})}, {})
    with pytest.warns(UserWarning, match="withheld.*: a$"):
        found = pf.estimand(idata, fed, lambda draw, rows: (draw["y"] == 0).double(), fewest=5, replicated=True)
    assert int(found.posterior["rows"]) == 30
    with pytest.raises(SettingError, match="leave do and predicted out"):
        pf.estimand(idata, fed, do={"x": [0.0]}, replicated=True)


@pytest.mark.parametrize("w", [[0.0, 0.5, 1.0, 2.0, 4.0], [1.0] * 5])
def test_shares_that_depend_on_the_draw_are_refused(w):
    """Their counts over draws that someone has chosen tell one row after another; equal draws, too, in several runs."""
    x, y = torch.linspace(0.01, 1, 30), torch.tensor([0.0, 1.0] * 15)
    fed = pf.Federation.from_clients(counted, {"a": (x, y)}, plate="rows", dtype=torch.float64)
    idata = make_inference_data({"posterior": xr.Dataset({"w": (["chain", "draw"], np.array([w]))})}, {})

    def few(draw, rows):
        return ((draw["y"] == 1) & (rows["x"] * draw["w"] < 0.3)).double()

    with pytest.raises(pf.errors.DataError, match="takes latents of the draw"):
        pf.estimand(idata, fed, few, fewest=5, replicated=True)
    assert int(pf.estimand(idata, fed, few, replicated=True).posterior["rows"]) == 30
    residuals = pf.estimand(idata, fed, lambda draw, rows: draw["y"] - draw["w"], fewest=5, replicated=True)
    np.testing.assert_allclose(residuals.posterior["estimand"].sel(of="observed")[0], 0.5 - np.array(w))
