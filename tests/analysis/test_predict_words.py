"""Predictions of new rows by their labels: the same codes as when the model was fitted, or a sentence with the cure."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late

import pyro_fed as pf

LEVELS = {"Basel": -20.0, "Chur": 0.0, "Jena": 20.0}
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"hospital": RNG.permutation(list(LEVELS) * 8), "x": RNG.normal(size=24)})
FRAME["y"] = FRAME["hospital"].map(LEVELS) + FRAME["x"]
SHORT = {"num_rounds": 2, "audit": False, "progress": False, "compile": "off", "num_draws": 50}

pytestmark = pytest.mark.filterwarnings("ignore:not converged")
to_arviz = late("pyro_fed.results.to_arviz")
data_groups = late("pyro_fed.results.data_groups")


def model(df):
    level = pyro.sample("level", dist.Normal(torch.zeros(3), 30.0).to_event(1))
    with pyro.plate("patients", len(df)):
        pyro.sample("y", dist.Normal(level[df.hospital] + df.x, 1.0), obs=df.y)


def columns(hospital, x, y, count):
    with pyro.plate("hospitals", count):
        level = pyro.sample("level", dist.Normal(0.0, 30.0))
    with pyro.plate("patients", len(x)):
        pyro.sample("y", dist.Normal(level[hospital] + x, 1.0), obs=y)


@pytest.fixture(scope="module")
def fitted():
    fed = pf.Federation(model, (FRAME,), plate="patients", num_clients=2)
    return fed, pf.run(pf.FedEP(), fed, **SHORT)


@pytest.fixture(scope="module")
def grouped():
    args = (FRAME["hospital"], FRAME["x"], FRAME["y"], 3)

    def with_mean(hospital, x, y, count):
        pyro.sample("unused", dist.Normal(0.0, 1.0))
        columns(hospital, x, y, count)

    fed = pf.Federation(with_mean, args, plate="hospitals", rows={"patients": "hospital"}, num_clients=3)
    return fed, pf.run(pf.FedEP(), fed, **SHORT)


def test_an_argument_of_another_shape_is_named():
    def regression(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("patients", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    x = torch.tensor(RNG.normal(size=(24, 3)))
    fed = pf.Federation(regression, (x, x.sum(1)), plate="patients", num_clients=2)
    idata = pf.run(pf.FedEP(), fed, **SHORT)
    with pytest.raises(
        pf.errors.DataError, match=r"argument 'x' has shape \(5, 2\), but had \(24, 3\) when the model was fit"
    ):
        pf.predict(idata, fed, (x[:5, :2], None))


NEW = pd.DataFrame({"hospital": ["Jena", "Chur"], "x": [0.0, 0.0], "y": [0.0, 0.0]})


def means(idata):
    return idata["posterior_predictive"]["y"].mean(["chain", "draw"]).values


@pytest.mark.parametrize("whole", [True, False], ids=["federation", "model"])
def test_labels_have_the_codes_of_the_fit(fitted, whole, tmp_path):
    """Alone, Chur and Jena would be 0 and 1: Basel and Chur."""
    fed, idata = fitted
    assert means(pf.predict(idata, fed if whole else model, (NEW,))) == pytest.approx([20.0, 0.0], abs=3)
    assert data_groups.labels_in(idata) == {"df['hospital']": tuple(LEVELS)}


def test_a_result_that_does_not_say_its_codes_wants_the_federation(fitted):
    _, idata = fitted
    bare = to_arviz.make_inference_data({"posterior": idata["posterior"]}, {})
    with pytest.raises(pf.errors.DataError, match=r"does not record its codes .* predict\(idata, fed, \.\.\.\)"):
        pf.predict(bare, model, (NEW,))


def test_what_is_predicted_may_be_a_column_of_none(fitted):
    fed, idata = fitted
    drawn = pf.predict(idata, fed, (NEW.assign(y=None),))
    assert means(drawn) == pytest.approx([20.0, 0.0], abs=3)
    assert "observed_data" not in drawn
    with pytest.raises(pf.errors.DataError, match=r"no column 'y': .* frame\.assign\(y=None\)"):
        pf.predict(idata, fed, (NEW.drop(columns="y"),))


@pytest.mark.parametrize(
    ("hospital", "count", "centre", "spread"),
    [
        (["Jena", "Basel"], 2, [20.0, -20.0], [1.0, 1.0]),  # as many groups as the new rows have
        (["Jena", "Basel"], 3, [20.0, -20.0], [1.0, 1.0]),  # as many as were fitted
        (["Jena", "Bern", "Chur"], 3, [20.0, 0.0, 0.0], [1.0, 30.0, 1.0]),  # a new one among them
        (["Bern", "Jena"], 4, [0.0, 20.0], [30.0, 1.0]),  # as many as were fitted, and the new one
        (["Aarau", "Bern"], 2, [0.0, 0.0], [30.0, 30.0]),
        (["Chur"], 1, [0.0], [1.0]),
        (pd.Categorical(["Jena", "Bern"], categories=["Chur", "Jena", "Bern"]), 2, [20.0, 0.0], [1.0, 30.0]),
        (np.array(["Bern", "Basel"]), 2, [0.0, -20.0], [30.0, 1.0]),
    ],
)
def test_known_and_new_groups_by_their_labels(grouped, hospital, count, centre, spread):
    """SDs of 50 draws: known 1.06, with that of the fitted level, new 30; false alarms below 1e-9 for each."""
    fed, idata = grouped
    drawn = pf.predict(idata, fed, (hospital, [0.0] * len(hospital), None, count))["posterior_predictive"]["y"]
    sd = np.array(spread)
    assert (np.abs(means_of(drawn) - centre) < 6.5 * sd / 50**0.5 + 1).all()
    assert (np.abs(np.log(drawn.std(["chain", "draw"]).values / sd)) < 0.8).all()


def means_of(drawn):
    return drawn.mean(["chain", "draw"]).values


def test_groups_by_words_for_all_of_them(grouped):
    fed, idata = grouped
    new = pf.predict(idata, fed, (["Jena"], [0.0], None, 1), groups="new")["posterior_predictive"]["y"]
    assert float(new.std()) > 10
    with pytest.raises(
        pf.errors.DataError, match=r"fewer elements than there are labels.*'hospital' of 2: give .* as many"
    ):
        pf.predict(idata, fed, (["Jena", "Bern"], [0.0, 0.0], None, 1))


def test_groups_that_had_numbers_alone_have_no_labels():
    args = (np.repeat(np.arange(3), 8), FRAME["x"], FRAME["y"], 3)

    def with_mean(hospital, x, y, count):
        pyro.sample("unused", dist.Normal(0.0, 1.0))
        columns(hospital, x, y, count)

    fed = pf.Federation(with_mean, args, plate="hospitals", rows={"patients": "hospital"}, num_clients=3)
    idata = pf.run(pf.FedEP(), fed, **SHORT)
    with pytest.raises(pf.errors.DataError, match=r"labels Jena, but the groups had numbers alone .* coords="):
        pf.predict(idata, fed, (["Jena"], [0.0], None, 1))


def test_a_label_without_latents_is_refused_with_the_model_that_has_them(fitted):
    fed, idata = fitted
    with pytest.raises(
        pf.errors.DataError,
        match=r"labels Bern, .* not among Basel, Chur, Jena\. Comparisons and lookups know the labels of the fit",
    ):
        pf.predict(idata, fed, (NEW.assign(hospital=["Jena", "Bern"]),))


def test_each_client_names_its_own_groups():
    def with_mean(df, count):
        pyro.sample("unused", dist.Normal(0.0, 1.0))
        columns(df["hospital"], df["x"], df["y"], count)

    split = {"plate": "hospitals", "rows": {"patients": ("df['hospital']", "df['x']", "df['y']")}}
    parts = [FRAME[FRAME["hospital"] != "Chur"], FRAME[FRAME["hospital"] == "Chur"]]
    clients = {"one": (parts[0], 2), "two": (parts[1], 1)}
    fed = pf.Federation.from_clients(with_mean, clients, **split)
    assert fed.coords["hospitals"] == ["Basel", "Jena", "Chur"]
    idata = pf.run(pf.FedEP(), fed, **SHORT)
    new = pd.DataFrame({"hospital": ["Chur", "Jena", "Bern"], "x": [0.0] * 3, "y": [0.0] * 3})
    drawn = pf.predict(idata, fed, (new, 3))["posterior_predictive"]["y"]
    assert means_of(drawn)[:2] == pytest.approx([0.0, 20.0], abs=3) and float(drawn[..., 2].std()) > 10
    with pytest.raises(pf.errors.DataError, match="clients one and two both have the group 'Basel'"):
        pf.Federation.from_clients(with_mean, {"one": (FRAME, 3), "two": (parts[0], 2)}, **split)


def test_a_size_of_what_is_none():
    def sized(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    posterior = to_arviz.make_inference_data({"posterior": four_draws()}, {})
    with pytest.raises(
        pf.errors.DataError, match=r"cannot do without y, which is None at .*len\(y\).* such as len\(x\)"
    ):
        pf.predict(posterior, sized, (torch.ones(3), None))


def test_a_factor_cannot_be_drawn_from():
    def weighted(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.factor("loss", -((y - w * x) ** 2))

    posterior = to_arviz.make_inference_data({"posterior": four_draws()}, {})
    with pytest.raises(pf.errors.DataError, match=r"likelihood is pyro\.factor\('loss', \.\.\.\)"):
        pf.predict(posterior, weighted, (torch.ones(3), torch.ones(3)))


def logistic(x, z, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=w * x[:, 1] + z), obs=y)


def linear(x, z, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, 1] + z, 1.0), obs=y)


@pytest.mark.parametrize("model", [logistic, linear])
def test_what_is_not_finite_is_named(model):
    """The first position of the argument that is at fault; what is observed is drawn anew, whatever stands there."""
    posterior = to_arviz.make_inference_data({"posterior": four_draws()}, {})
    x, z, nan = torch.zeros(5, 2), torch.zeros(5), torch.full((5,), float("nan"))
    x[3:, 1] = float("nan")
    with pytest.raises(pf.errors.DataError, match=r"predict: argument 'x'\[3, 1\] is NaN \(2 of 5 rows\).*impute"):
        pf.predict(posterior, model, (x, z, nan))
    x[3:, 1], z[2] = 0.0, float("inf") if model is linear else float("nan")  # infinite logits are a probability of one
    with pytest.raises(pf.errors.DataError, match=r"predict: argument 'z'\[2\] is (infinite|NaN) \(1 of 5 rows\)"):
        pf.predict(posterior, model, (x, z.numpy(), None))
    with pytest.raises(pf.errors.DataError, match=r"predict: argument 'z' is NaN, and"):
        pf.predict(posterior, model, (x, float("nan"), None))
    x[0, 0] = float("nan")  # which the model does not look at
    assert pf.predict(posterior, model, (x, torch.zeros(5), nan))["posterior_predictive"]["y"].notnull().all()


def test_missing_values_that_the_model_handles_are_predicted_from():
    def handled(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            there = ~torch.isnan(x)
            pyro.sample("y", dist.Normal(w + torch.where(there, x, 2.0), 0.01), obs=y)

    def left_out(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)), pyro.poutine.mask(mask=~torch.isnan(x)):
            pyro.sample("y", dist.Normal(w + x, 0.01), obs=y)

    posterior = to_arviz.make_inference_data({"posterior": four_draws()}, {})
    x = torch.tensor([1.0, float("nan"), 3.0])
    found = means(pf.predict(posterior, handled, (x, None)))
    np.testing.assert_allclose(found, [1.0, 2.0, 3.0], atol=0.05)
    found = means(pf.predict(posterior, left_out, (x, None)))
    np.testing.assert_allclose(found, [1.0, np.nan, 3.0], atol=0.05)


def test_no_new_rows_are_named():
    def one(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w + x, 1.0), obs=y)

    posterior = to_arviz.make_inference_data({"posterior": four_draws()}, {})
    with pytest.raises(pf.errors.DataError, match=r"predict: there are no rows in x; nothing can be predicted"):
        pf.predict(posterior, one, (torch.zeros(0), None))


def four_draws():
    import xarray as xr

    return xr.Dataset({"w": (["chain", "draw"], np.zeros((1, 4)))})
