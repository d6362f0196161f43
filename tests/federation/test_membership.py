"""Clients that join and leave: the answer is that of a fresh run on the clients that are there."""

import warnings

import numpy as np
import pytest
import torch
from algorithms import line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.errors import CheckpointError, DataError, SettingError

QUIET = {"progress": False, "audit": False}
TIGHT = {"tolerance": 1e-9, "start": "prior"}


def run(algorithm, fed, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, fed, **QUIET, **options)


def draws(idata):
    return idata.posterior["w"].values


def named(*names):
    """Clients of a logistic-like regression by name; not Gaussian, so that sites depend on each other."""
    x, y = line_data(rows=30)
    parts = {"a": slice(0, 6), "b": slice(6, 14), "c": slice(14, 30)}
    return pf.Federation.from_clients(
        poisson, {n: (x[parts[n]], y[parts[n]].abs().round()) for n in names}, plate="data"
    )


def poisson(x, y):
    """Counts with a log link."""
    import pyro
    import pyro.distributions as dist

    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y)


ALGORITHMS = [pf.FedEP(**TIGHT), pf.FedEP(tolerance=1e-9), pf.infer.PVI(**TIGHT), pf.FedEP(**TIGHT, covariance="diag")]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["FedEP", "FedEP, warm", "PVI", "FedEP, diagonal"])
def test_a_client_that_leaves_is_unlearned(tmp_path, algorithm):
    run(algorithm, named("a", "b", "c"), checkpoint=tmp_path)
    rest = run(algorithm, named("a", "b", "c").without("b"), start=tmp_path)
    fresh = run(algorithm, named("a", "c"))
    np.testing.assert_allclose(draws(rest), draws(fresh), atol=1e-6)
    assert rest.federation["client"].values.tolist() == ["a", "c"]
    assert set(rest.federation["phase"].values) == {type(algorithm).__name__}  # nothing is started again


def test_a_client_that_joins_is_learned(tmp_path):
    algorithm = ALGORITHMS[0]
    run(algorithm, named("c", "a"), checkpoint=tmp_path)
    found = run(algorithm, named("a", "b", "c"), start=tmp_path)
    np.testing.assert_allclose(draws(found), draws(run(algorithm, named("a", "b", "c"))), atol=1e-6)


def test_taking_up_the_sites_saves_rounds(tmp_path):
    algorithm = ALGORITHMS[0]
    run(algorithm, named("a", "b", "c"), checkpoint=tmp_path)
    again = run(algorithm, named("b", "c", "a"), start=tmp_path)
    assert again.federation.sizes["round"] <= 2  # only the order is new


def test_a_run_with_a_start_can_be_resumed(tmp_path):
    algorithm = ALGORITHMS[0]
    run(algorithm, named("a", "b", "c"), checkpoint=tmp_path / "first")
    options = {"start": tmp_path / "first", "checkpoint": tmp_path / "second"}
    whole = run(algorithm, named("a", "c"), **options)
    sorted((tmp_path / "second").glob("round-*"))[-1].unlink()
    rest = run(algorithm, named("a", "c"), **options, resume=True)
    assert np.array_equal(draws(whole), draws(rest))


@pytest.mark.parametrize("algorithm", [pf.infer.FedSEP(**TIGHT), pf.papers.UDSVGD(num_particles=5, local_steps=2)])
def test_without_sites_nothing_can_be_taken_out(tmp_path, algorithm):
    run(algorithm, named("a", "b", "c"), checkpoint=tmp_path, num_rounds=3)
    with pytest.raises(SettingError, match=f"{type(algorithm).__name__} has no sites .* run it afresh"):
        run(algorithm, named("a", "c"), start=tmp_path)


def test_another_run_is_no_start(tmp_path):
    run(ALGORITHMS[0], named("a", "b"), checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"its algorithm is .FedEP\(.*, this run's is .PVI\("):
        run(ALGORITHMS[2], named("a", "b"), start=tmp_path)
    with pytest.raises(CheckpointError, match=r"its model is .poisson .*, this run's is .line"):
        run(ALGORITHMS[0], unequal_lines(), start=tmp_path)
    with pytest.raises(CheckpointError, match="can be read: there is none"):
        run(ALGORITHMS[0], named("a"), start=tmp_path / "nowhere")


def test_the_federation_of_the_others():
    fed = named("a", "b", "c").without("a")
    assert fed.client_names == ["b", "c"]
    other = named("b", "c")
    for k in range(2):
        for mine, theirs in zip(fed.client_args(k)[0], other.client_args(k)[0], strict=True):
            assert torch.equal(mine, theirs)
    with pytest.raises(DataError, match=r"no clients \['z'\]"):
        fed.without("z")
    with pytest.raises(DataError, match="no client would be left"):
        fed.without("b", "c")
    assert unequal_lines().without("1").client_names == ["0", "2"]
    assert unequal_lines().problem.model is line


@pytest.mark.parametrize("name", ["../", "a/b", "x" * 10**7, ""])
def test_client_names_are_plain(name):
    """Row 48; letters of any alphabet do."""
    x, y = line_data(rows=6)
    with pytest.raises(pf.errors.ProtocolError, match="a client id"):
        pf.Federation.from_clients(line, {name: (x, y)}, plate="data")
