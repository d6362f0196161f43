"""Auto: FedEP alone where it is enough, more where it is not, and what it says of it."""

import math
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import unequal_lines
from late import late
from short_runs import QUIET, values

import pyro_fed as pf

az, integrate, stats = late("arviz"), late("scipy.integrate"), late("scipy.stats")


def test_an_easy_posterior_is_fedep_alone():
    found = pf.fit(unequal_lines(), **QUIET)
    alone = pf.run(pf.FedEP(), unequal_lines(), **QUIET)
    np.testing.assert_array_equal(values(found), values(alone))
    steps = pf.steps(found)
    assert list(steps["algorithm"]) == ["FedEP"] and list(steps["chosen"]) == [True]
    assert list(steps["rounds"]) == [alone.federation.sizes["round"]]
    assert found.attrs["doubts"] == ""


def test_steps_of_one_algorithm_are_none():
    alone = pf.run(pf.FedEP(), unequal_lines(), **QUIET)
    with pytest.raises(pf.SettingError, match="it is that of FedEP alone"):
        pf.steps(alone)


FEW = torch.tensor([0.1, 1.3], dtype=torch.float64)


def few(y):
    """Two rows say little of a scale: its posterior has a long tail."""
    s = pyro.sample("s", dist.HalfCauchy(y.new_tensor(1.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, s), obs=y)


def few_exact():
    """Mean and SD of log s by quadrature."""
    squares = float(FEW.square().sum())

    def weight(u):
        return math.exp(u - len(FEW) * u - squares * math.exp(-2 * u) / 2) * stats.halfcauchy.pdf(math.exp(u))

    total, first, second = (integrate.quad(lambda u, p=p: u**p * weight(u), -4, 12)[0] for p in range(3))
    return first / total, math.sqrt(second / total - (first / total) ** 2)


@pytest.mark.parametrize("executor", ["vectorised", "sequential"])
def test_a_heavy_tail_is_weighed(executor):
    fed = pf.Federation(few, (FEW,), plate="data", num_clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = pf.fit(fed, executor=executor, **QUIET)
    assert len(pf.steps(found)) > 1
    mean, sd = few_exact()
    drawn = np.log(found.posterior["s"].values)
    assert abs(drawn.mean() - mean) < 0.1 * sd
    assert 0.9 < drawn.std() / sd < 1.1


def test_executors_give_the_same_answer():
    fed = pf.Federation(few, (FEW,), plate="data", num_clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        both = [pf.fit(fed, executor=name, max_rounds=30, **QUIET) for name in ("vectorised", "sequential")]
    np.testing.assert_allclose(values(both[0]), values(both[1]), rtol=1e-9)
    for name in ("algorithm", "rounds", "bytes", "chosen"):
        assert list(pf.steps(both[0])[name]) == list(pf.steps(both[1])[name])


def test_on_a_graph_it_takes_what_needs_no_server():
    fed = unequal_lines()
    found = pf.fit(fed, graph=pf.graph.ring(3), **QUIET)
    assert list(pf.steps(found)["algorithm"]) == ["P2PVI"]
    assert found.posterior.sizes["chain"] == 3


def test_the_result_can_be_written_and_read(tmp_path):
    pf.fit(unequal_lines(), **QUIET).to_netcdf(str(tmp_path / "found.nc"))
    read = az.from_netcdf(str(tmp_path / "found.nc"))
    assert list(pf.steps(read)["algorithm"]) == ["FedEP"]
