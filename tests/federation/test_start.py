"""`start=`: a run on new rows begins at an interim result, its file or its checkpoint; hierarchical models too."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest

import pyro_fed as pf
from pyro_fed.errors import CheckpointError, SettingError

QUIET = {"progress": False, "audit": False, "log_likelihood": False, "compile": "off"}
TIGHT = pf.FedEP(tolerance=1e-9)


def with_prior(sd):
    def hospitals(whose, y, count):
        mu = pyro.sample("mu", dist.Normal(0.0, sd))
        tau = pyro.sample("tau", dist.LogNormal(0.0, 0.5))
        with pyro.plate("hospital", count):
            a = pyro.sample("a", dist.Normal(mu, tau))
        with pyro.plate("patient", len(y)):
            pyro.sample("y", dist.Normal(a[whose], 1.0), obs=y)

    return hospitals


def rows(groups, size, seed):
    rng, whose = np.random.default_rng(seed), np.repeat(np.arange(groups), size)
    return whose, rng.normal(size=len(whose)) + rng.normal(size=groups)[whose], groups


def of(clients, sd=2.0):
    return pf.Federation.from_clients(with_prior(sd), clients, plate="hospital", rows={"patient": "whose"})


INTERIM = {"north": rows(3, 4, 1), "east": rows(2, 5, 2), "south": rows(4, 3, 3)}
#: North has twice as many patients, east further hospitals; south has left, and west is new.
LATER = {"north": rows(3, 8, 1), "east": rows(4, 5, 2), "west": rows(2, 6, 9)}


@pytest.fixture(scope="module")
def interim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interim")
    found = pf.run(TIGHT, of(INTERIM), checkpoint=folder / "state", **QUIET)
    found.to_netcdf(str(folder / "interim.nc"))
    return found, folder / "interim.nc", folder / "state"


@pytest.fixture(scope="module")
def fresh():
    return pf.run(TIGHT, of(LATER), **QUIET)


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["result", "its file", "checkpoint"])
def test_the_answer_on_new_rows_is_that_of_a_fresh_run(interim, fresh, kind):
    """Of hierarchical models, whose groups have more rows, and clients more groups."""
    found = pf.run(TIGHT, of(LATER), start=interim[kind], **QUIET)
    for name in ("mu", "tau"):
        np.testing.assert_allclose(found.posterior[name], fresh.posterior[name], atol=1e-7)
    assert "a" in found.posterior and found.posterior["a"].shape == fresh.posterior["a"].shape
    assert set(found.federation["phase"].values) == {"FedEP"}


def test_the_same_rows_take_a_round_or_two(interim):
    """The sites are those of the fixed point, so that the first round moves nothing."""
    found = pf.run(TIGHT, of(INTERIM), start=interim[1], **QUIET)
    assert found.federation.sizes["round"] <= 2
    np.testing.assert_allclose(found.posterior["mu"], interim[0].posterior["mu"], atol=1e-7)


def test_a_resumed_run_needs_the_same_start(interim, tmp_path):
    """The sites of the result are in the fingerprint, whether it is given or its file."""
    options = {"checkpoint": tmp_path, **QUIET}
    whole = pf.run(TIGHT, of(LATER), start=interim[0], **options)
    sorted(tmp_path.glob("round-*"))[-1].unlink()
    again = pf.run(TIGHT, of(LATER), start=interim[1], resume=True, **options)
    assert np.array_equal(whole.posterior["mu"], again.posterior["mu"])
    with pytest.raises(CheckpointError, match="its start is"):
        pf.run(TIGHT, of(LATER), start=whole, resume=True, **options)


def test_another_prior_is_no_start(interim):
    with pytest.raises(CheckpointError, match="its model is another, the log prior of site 'mu'"):
        pf.run(TIGHT, of(LATER, sd=3.0), start=interim[0], **QUIET)


POWERS = {"level": 0, "slope": 1, "bend": 2}


def flat(names):
    def curve(x, y):
        flats = {name: pyro.sample(name, dist.ImproperUniform(dist.constraints.real, (), ())) for name in names}
        with pyro.plate("row", len(y)):
            pyro.sample("y", dist.Normal(sum(flats[name] * x ** POWERS[name] for name in names), 1.0), obs=y)

    return curve


@pytest.mark.parametrize("before", [("slope", "level"), ("level", "slope", "bend")], ids=["exchanged", "one more"])
def test_flat_priors_do_not_hide_other_sites(before):
    """Their densities are equal wherever they are compared, and a client's site is of parameters by their places."""
    rng = np.random.default_rng(1)
    args = rng.normal(size=30), rng.normal(size=30) + 3
    first, then = (
        pf.Federation(flat(names), args, plate="row", num_clients=2) for names in (before, ("level", "slope"))
    )
    found = pf.run(pf.FedEP(), first, **QUIET)
    with pytest.raises(CheckpointError, match=r"its sites were .*, in this order, and are \['level', 'slope'\] now"):
        pf.run(pf.FedEP(), then, start=found, **QUIET)


def test_what_is_no_start(interim, tmp_path):
    averaged = pf.run(pf.FedAvg(), of(INTERIM), num_rounds=1, **QUIET)
    with pytest.raises(CheckpointError, match=r"result of FedAvg cannot be the start: it has no sites"):
        pf.run(TIGHT, of(LATER), start=averaged, **QUIET)
    with pytest.raises(SettingError, match="FedAvg has no sites that could be put in"):
        pf.run(pf.FedAvg(), of(LATER), start=interim[0], **QUIET)
    with pytest.raises(SettingError, match=r"covariances of the kind 'full', .* set covariance='full'"):
        pf.run(pf.FedEP(covariance="diag"), of(LATER), start=interim[0], **QUIET)
    other = tmp_path / "other.nc"
    other.write_text("text")
    with pytest.raises(CheckpointError, match=r"other\.nc cannot be read as a result"):
        pf.run(TIGHT, of(LATER), start=other, **QUIET)


def test_the_prior_in_the_file_has_nothing_of_the_rows(interim, fresh):
    """What says of which model it is are densities of the prior: those of other rows are the same."""
    assert fresh.sites.attrs["prior"] == interim[0].sites.attrs["prior"]
