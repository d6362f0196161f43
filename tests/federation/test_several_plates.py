"""Models with several plates of data: all of them are split, and a client holds its own rows alone."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from short_runs import quiet

import pyro_fed as pf

GENERATOR = torch.Generator().manual_seed(5)
T = torch.rand(9, generator=GENERATOR, dtype=torch.float64) + 0.2
C = torch.rand(6, generator=GENERATOR, dtype=torch.float64) + 0.5
BOTH = ("observed", "censored")


def survival(t, c):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("observed", len(t)):
        pyro.sample("t", dist.Exponential(rate), obs=t)
    with pyro.plate("censored", len(c)):
        pyro.factor("c", -rate * c)


def test_all_rows_are_dealt_and_a_client_sees_its_own():
    fed = pf.Federation(survival, (T, C), plate=BOTH, num_clients=4, seed=2)
    assert fed.num_rows == 15 and sum(len(rows) for rows in fed.client_rows) == 15
    held = [fed.client_args(k)[0] for k in range(4)]
    for number, whole in enumerate((T, C)):
        parts = torch.cat([args[number] for args in held])
        assert len(parts) == len(whole) and torch.equal(parts.sort().values, whole.sort().values)


def test_the_posterior_is_the_exact_gamma():
    fed = pf.Federation(survival, (T, C), plate=BOTH, num_clients=3)
    idata = pf.run(pf.FedEP(), fed, num_draws=2000, compile="off", progress=False, audit=False)
    exact = dist.Gamma(2.0 + len(T), 1.0 + T.sum() + C.sum())
    rate = idata["posterior"]["rate"].values
    # FedEP's Gaussian of log(rate), whose variance is that of a Gamma of shape 11 to 1 %; 2000 draws: 2 % of an SD.
    assert abs(rate.mean() - float(exact.mean)) < 0.1 * float(exact.stddev)
    assert set(idata["log_likelihood"].data_vars) == {"t", "c"}
    assert idata["log_likelihood"]["c"].dims == ("chain", "draw", "censored")
    assert idata["log_likelihood"]["t"].sizes["observed"] == 9


def test_executors_agree_and_minibatches_run():
    fed = pf.Federation(survival, (T, C), plate=BOTH, num_clients=3)
    one, other = quiet(pf.FedEP(), fed), quiet(pf.FedEP(), fed, executor="sequential")
    np.testing.assert_allclose(one["posterior"]["rate"], other["posterior"]["rate"])
    quiet(pf.FSGLD(batch_size=2), fed)


def test_clients_whose_data_lie_apart_and_one_without_censored_rows():
    clients = {"north": (T[:5], C[:0]), "south": (T[5:], C)}
    apart = pf.Federation.from_clients(survival, clients, plate=BOTH)
    whole = pf.Federation(survival, (T, C), plate=BOTH, num_clients=2)
    z = torch.tensor([0.3], dtype=torch.float64)
    torch.testing.assert_close(apart.problem.log_lik(z), whole.problem.log_lik(z))
    (t, c), _ = apart.client_args(0)
    assert torch.equal(t, T[:5]) and len(c) == 0
    quiet(pf.FedEP(), apart)


def test_other_data_in_the_same_plates_have_the_density_of_a_fresh_federation():
    fed = pf.Federation(survival, (T, C), plate=BOTH, num_clients=2)
    z = torch.tensor([0.3], dtype=torch.float64)
    again = pf.Federation(survival, (2 * T, 3 * C), plate=BOTH, num_clients=2)
    torch.testing.assert_close(fed.with_args((2 * T, 3 * C)).problem.log_lik(z), again.problem.log_lik(z))


def test_plates_of_one_size_want_names():
    with pytest.raises(pf.errors.ModelError, match=r"same size 6.*shard=\{'observed': \('x', 'y'\)"):
        pf.Federation(survival, (T[:6], C), plate=BOTH, num_clients=2)
    pf.Federation(survival, (T[:6], C), plate=BOTH, num_clients=2, shard={"observed": "t", "censored": ("c",)})
    with pytest.raises(pf.errors.DataError, match=r"argument 'c' has 6 rows, but plate 'observed' has size 9"):
        pf.Federation(survival, (T, C), plate=BOTH, num_clients=2, shard={"observed": "c", "censored": "t"})


def test_a_plate_that_is_left_whole_is_warned_of():
    message = r"argument 'c' of shape \(6,\) is as long as plate 'censored' \(6 rows, observed site 'c'\).*every client"
    with pytest.warns(UserWarning, match=message):
        pf.Federation(survival, (T, C), plate="observed", num_clients=2)


def test_a_plate_that_is_not_there_and_latents_inside():
    with pytest.raises(pf.errors.ModelError, match=r"no plate 'lost'; its plates are \['censored', 'observed'\]"):
        pf.Federation(survival, (T, C), plate=("observed", "lost"), num_clients=2)
    with pytest.raises(pf.errors.SettingError, match="rows= belongs to one plate"):
        pf.Federation(survival, (T, C), plate=BOTH, rows={"a": "b"}, num_clients=2)

    def model(t, c):
        with pyro.plate("observed", len(t)):
            pyro.sample("z", dist.Normal(0.0, 1.0))
        survival(t, c)

    with pytest.raises(pf.errors.ModelError, match=r"latent site 'z' is inside plate 'observed'"):
        pf.Federation(model, (T, C), plate=BOTH, num_clients=2)
