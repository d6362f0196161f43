"""Draws from the prior and its predictions, as ArviZ's groups."""

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

N, S = 12, 4000
X = torch.linspace(-1.0, 1.0, N, dtype=torch.float64)
SEX = ["male", "female"] * (N // 2)


def model(x, sex, y):
    a = pyro.sample("a", dist.Normal(2.0, 0.5))
    b = pyro.sample("b", dist.Normal(torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 3.0])).to_event(1))
    pyro.deterministic("twice", 2 * a)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(a + b[0] * x + b[1] * (sex == "male"), 0.1), obs=y)


def test_moments_are_those_of_the_prior_and_its_predictions():
    """5.5 standard errors of 4,000 draws; an SD's relative one is 1 / sqrt(2 S): false alarms of 1e-6 in all."""
    y = torch.zeros(N, dtype=torch.float64)
    fed = pf.Federation(model, (X, SEX, y), plate="rows", num_clients=3, dims={"b": ["effect"]})
    found = pf.prior_predict(fed, num_draws=S, seed=1)
    prior, drawn = found["prior"], found["prior_predictive"]["y"]
    assert dict(prior["b"].sizes) == {"chain": 1, "draw": S, "effect": 2} and dict(drawn.sizes)["rows"] == N
    assert set(prior.data_vars) == {"a", "b", "twice"}
    np.testing.assert_allclose(prior["twice"], 2 * prior["a"])
    np.testing.assert_array_equal(found["observed_data"]["y"], y)
    for name, mean, sd in (("a", 2.0, 0.5), ("twice", 4.0, 1.0)):
        assert abs(float(prior[name].mean()) - mean) < 5.5 * sd / S**0.5
        assert float(prior[name].std()) == pytest.approx(sd, rel=5.5 / (2 * S) ** 0.5)
    sd = np.sqrt(0.25 + X.numpy() ** 2 + 9.0 * (np.array(SEX) == "male") + 0.01)
    assert (np.abs(drawn.mean(["chain", "draw"]).values - 2.0) < 5.5 * sd / S**0.5).all()
    np.testing.assert_allclose(drawn.std(["chain", "draw"]), sd, rtol=5.5 / (2 * S) ** 0.5)
    a, b = prior["a"].values[..., None], prior["b"].values
    rest = drawn.values - a - b[..., :1] * X.numpy() - b[..., 1:] * (np.array(SEX) == "male")
    assert np.abs(rest).max() < 0.7  # 7 SDs of the noise: each prediction is of its own draw's parameters
    again = pf.prior_predict(fed, num_draws=S, seed=1)
    np.testing.assert_array_equal(again["prior_predictive"]["y"], drawn)
    assert not np.array_equal(pf.prior_predict(fed, num_draws=S, seed=2)["prior"]["a"], prior["a"])


def test_names_and_coordinates_are_those_of_a_result():
    frame = pd.DataFrame({"hospital": ["Basel", "Chur", "Jena"] * 8, "y": [0, 1] * 12})

    def hospitals(df, count):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("hospitals", count):
            level = pyro.sample("level", dist.Normal(mean, 1.0))
        with pyro.plate("patients", len(df)):
            pyro.sample("y", dist.Bernoulli(logits=level[df.hospital]), obs=df.y)

    split = {"plate": "hospitals", "rows": {"patients": "hospital"}, "num_clients": 3}
    fed = pf.Federation(hospitals, (frame, 3), **split)
    found = pf.prior_predict(fed, num_draws=50)
    posterior = pf.run(pf.FedLaplace(), fed, audit=False, progress=False)["posterior"]
    assert set(found["prior"].data_vars) == set(posterior.data_vars)
    for name in posterior.data_vars:
        assert found["prior"][name].dims == posterior[name].dims
    assert found["prior"]["hospitals"].values.tolist() == ["Basel", "Chur", "Jena"]
    assert set(np.unique(found["prior_predictive"]["y"])) == {0, 1}


def with_factor(y):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.factor("tilt", -a.abs())
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def improper(y):
    a = pyro.sample("a", dist.ImproperUniform(dist.constraints.real, (), ()))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


@pytest.mark.parametrize(
    ("prior", "words"), [(with_factor, "the sites tilt are pyro.factor"), (improper, "cannot be drawn")]
)
def test_what_cannot_be_drawn_from_is_named(prior, words):
    fed = pf.Federation(prior, (X,), plate="rows", num_clients=2)
    with pytest.raises(pf.errors.DataError, match=words):
        pf.prior_predict(fed)


def test_less_than_one_draw():
    fed = pf.Federation(model, (X, SEX, X), plate="rows", num_clients=3)
    with pytest.raises(pf.errors.SettingError, match="num_draws must be at least 1, received 0"):
        pf.prior_predict(fed, num_draws=0)
