"""Predictions for new rows of known groups, of new ones, and of both, against the closed form of a conjugate hierarchy.

    mu ~ N(0, 4),  a_h ~ N(mu, 0.64),  y_i ~ N(a_{h_i}, 0.36)

The posterior of (mu, a) is Gaussian, so that y* of a known hospital is N(E a_h, Var a_h + 0.36), and of a new one
N(E mu, Var mu + 0.64 + 0.36). Moments of 20,000 draws; five standard errors.
"""

import functools

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf

NAMES = ["Aachen", "Celle", "Dresden"]
SPREAD, NOISE, PRIOR_SD, COUNT = 0.8, 0.6, 2.0, 20_000
SIZES = (3, 8, 20)
OWNER = torch.arange(3).repeat_interleave(torch.tensor(SIZES))
Y = torch.tensor([-1.0, 0.5, 2.5], dtype=torch.float64)[OWNER] + torch.linspace(-0.5, 0.5, 31, dtype=torch.float64)


def model(hospital_idx, num_hospitals, y=None):
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), PRIOR_SD))
    with pyro.plate("hospital", num_hospitals):
        a = pyro.sample("a", dist.Normal(mu, SPREAD))
    with pyro.plate("patient", len(hospital_idx)):
        pyro.sample("y", dist.Normal(a[hospital_idx], NOISE), obs=y)


def federation(coords=True, owner=OWNER, y=Y, size=3, num_clients=3, names=NAMES):
    return pf.Federation(
        model,
        (owner, size, y),
        plate="hospital",
        rows={"patient": "hospital_idx"},
        num_clients=num_clients,
        coords={"hospital": names} if coords else None,
    )


@functools.cache
def fitted(collect=True, coords=True):
    fed = federation(coords)
    options = {"num_draws": COUNT, "progress": False, "audit": False, "log_likelihood": False}
    return fed, pf.run(pf.FedEP(), fed, **options, collect_local=collect)


def exact():
    """Mean and covariance of (mu, a)."""
    counts = torch.tensor(SIZES, dtype=torch.float64)
    precision = torch.diag(torch.cat([torch.tensor([PRIOR_SD**-2 + 3 / SPREAD**2]), SPREAD**-2 + counts / NOISE**2]))
    precision[0, 1:] = precision[1:, 0] = -(SPREAD**-2)
    sums = torch.zeros(3, dtype=torch.float64).index_add(0, OWNER, Y)
    cover = torch.linalg.inv(precision.double())
    return (cover @ torch.cat([sums.new_zeros(1), sums / NOISE**2])).numpy(), cover.numpy()


def check(drawn, groups):
    """Each patient's moments; `groups` are numbers of known hospitals, -1 for a new one."""
    mean, cover = exact()
    y = drawn["posterior_predictive"]["y"].values[0]
    for i, group in enumerate(groups):
        expected = mean[group + 1]
        variance = cover[group + 1, group + 1] + NOISE**2 + (SPREAD**2 if group < 0 else 0.0)
        assert abs(y[:, i].mean() - expected) < 5 * (variance / COUNT) ** 0.5
        assert abs(y[:, i].var() / variance - 1) < 5 * (2 / COUNT) ** 0.5


PATIENTS = torch.tensor([2, 0, 2, 1])


@pytest.mark.parametrize("given", [None, "known", NAMES])
def test_patients_of_known_hospitals_have_their_hospitals_own_effect(given):
    fed, idata = fitted()
    for whose in (fed, model):
        check(pf.predict(idata, whose, (PATIENTS, 3, None), groups=given), [2, 0, 2, 1])


def test_unnamed_hospitals_are_known_by_their_numbers():
    fed, idata = fitted(coords=False)
    check(pf.predict(idata, fed, (PATIENTS, 3, None)), [2, 0, 2, 1])
    check(pf.predict(idata, fed, (torch.tensor([0]), 1, None), groups=[2]), [2])


def test_patients_of_new_hospitals_have_effects_from_the_population():
    fed, idata = fitted()
    check(pf.predict(idata, fed, (PATIENTS, 3, None), groups="new"), [-1] * 4)


def test_labels_say_which_hospital_is_which():
    fed, idata = fitted()
    drawn = pf.predict(idata, fed, (torch.tensor([0, 1, 1]), 2, None), groups=["Dresden", None])
    check(drawn, [2, -1, -1])
    y = drawn["posterior_predictive"]["y"].values[0]
    assert np.corrcoef(y[:, 1], y[:, 2])[0, 1] > 0.5  # the same new hospital: the same effect, in every draw


def test_hospitals_of_which_nothing_is_said_are_new_and_a_warning_says_so():
    fed, idata = fitted()
    with pytest.warns(UserWarning, match=r"'hospital' has 1 elements in the new data and had 3 .* groups=\['Aachen'"):
        check(pf.predict(idata, fed, (torch.tensor([0]), 1, None)), [-1])


def test_a_client_predicts_its_own_hospital_from_draws_of_what_is_common():
    _, idata = fitted(collect=False)
    assert "a" not in idata["posterior"]
    mine = OWNER == 2
    own = federation(
        owner=torch.zeros(int(mine.sum()), dtype=torch.int64), y=Y[mine], size=1, num_clients=1, names=["Dresden"]
    )
    new = torch.zeros(1, dtype=torch.int64)
    check(pf.predict(idata, own, (new, 1, None)), [2])
    check(pf.predict(idata, own), [2] * int(mine.sum()))
    with pytest.raises(pf.errors.DataError, match=r"no values of \['a'\].*collect_local=True, or pass the federation"):
        pf.predict(idata, model, (new, 1, None), groups=["Dresden"])


@pytest.mark.parametrize(
    ("groups", "error", "words"),
    [
        (
            ["Dresten"],
            pf.errors.DataError,
            r"names Dresten, which .* did not have .* did you mean 'Dresden'\? A new group is",
        ),
        (["Celle", "Dresden"], pf.errors.DataError, "has 2 labels, but plate 'hospital' has 1 elements"),
        ("known", pf.errors.DataError, "expected 3, received 1"),
        ("own", pf.errors.SettingError, "groups must be 'known', 'new', or a label"),
    ],
)
def test_groups_that_mean_nothing(groups, error, words):
    fed, idata = fitted()
    with pytest.raises(error, match=words):
        pf.predict(idata, fed, (torch.tensor([0]), 1, None), groups=groups)


def test_groups_without_new_data_or_without_groups():
    fed, idata = fitted()
    with pytest.raises(pf.errors.SettingError, match="groups='known' without new data"):
        pf.predict(idata, fed, groups="known")

    def flat(x, y=None):
        w = pyro.sample("w", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    other = pf.Federation(flat, (Y, Y), plate="data", num_clients=2)
    result = pf.run(pf.FedEP(), other, progress=False, audit=False)
    with pytest.raises(pf.errors.SettingError, match="no latent of this model is inside the partitioned plate"):
        pf.predict(result, other, (Y, None), groups="known")


def counts(n, deaths=None):
    """Groups that are rows themselves."""
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 1.5))
    with pyro.plate("hospital", len(n)):
        a = pyro.sample("a", dist.Normal(mu, SPREAD))
        pyro.sample("deaths", dist.Binomial(n, logits=a), obs=deaths)


def test_named_groups_that_are_rows_are_taken_for_the_fitted_ones_with_a_warning_and_unnamed_ones_are_new():
    n, deaths = torch.tensor([200.0, 300.0, 250.0]), torch.tensor([10.0, 150.0, 200.0])
    new = torch.full((3,), 1000.0)
    spread = {}
    for named in (True, False):
        coords = {"hospital": NAMES} if named else None
        fed = pf.Federation(counts, (n, deaths), plate="hospital", num_clients=3, coords=coords)
        options = {"progress": False, "audit": False, "log_likelihood": False, "num_draws": 300}
        idata = pf.run(pf.FedEP(start="prior"), fed, **options)
        if named:
            with pytest.warns(UserWarning, match=r"taken for the fitted ones, Aachen, Celle, Dresden"):
                drawn = pf.predict(idata, fed, (new,))["posterior_predictive"]["deaths"]
            assert drawn["hospital"].values.tolist() == NAMES
            np.testing.assert_allclose(drawn.mean(["chain", "draw"]), 1000 * deaths / n, atol=40)  # shrunk a little
        else:
            drawn = pf.predict(idata, fed, (new,))["posterior_predictive"]["deaths"]
        spread[named] = drawn.std(["chain", "draw"]).values
    assert (spread[False] > 3 * spread[True]).all()  # the population's spread, and an effect's own
