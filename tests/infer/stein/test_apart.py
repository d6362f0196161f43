"""Where the Gaussian phase of DSVGD ends at no maximum, the particles start apart."""

import warnings
from dataclasses import fields

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from models import bnn_regression
from pyro_fed.density.traits_search import ModelTraits
from pyro_fed.errors import SettingError
from pyro_fed.infer.sites.records import as_entries
from pyro_fed.infer.stein import states
from pyro_fed.infer.stein.states import Server
from pyro_fed.infer.stein.survey import gaussian_points, lowest_curvature
from pyro_fed.ops.points import MOST_SOBOL_DIMS

ROWS = 200
QUIET = {"progress": False, "log_likelihood": False, "audit": False}


def located(x):
    """40 correlated parameters: the posterior is Gaussian."""
    z = pyro.sample("z", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(z.cumsum(0), 1.0).to_event(1), obs=x)


def run(algorithm, fed, rounds):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)  # two rounds are few, and a saddle is not a mode
        return pf.run(algorithm, fed, num_rounds=rounds, **QUIET)


def network(hidden=6):
    """Of 79 parameters: larger ones begin around FedEP's Gaussian by default."""
    return pf.Federation(bnn_regression.model, network_data(), {"hidden": hidden}, plate="data", num_clients=2)


def network_data():
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = (torch.tensor(part[:ROWS], dtype=torch.float32) for part in (x, y))
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


@pytest.mark.parametrize("shape", [(6, 12), (12, 6)])
def test_curvature_on_the_span_of_the_points(shape):
    """Scores of a quadratic give its curvature: exactly where the points span the space, bounded below elsewhere."""
    points = gaussian_points(*shape, seed=0)
    curvature = torch.ones(shape[1], dtype=torch.float64)
    curvature[2] = -30.0
    found = lowest_curvature(0.1 * points, -0.1 * points * curvature)
    assert -30.0 - 1e-9 < found < -1.0
    if shape[0] > shape[1]:
        assert found == pytest.approx(-30.0)
    assert lowest_curvature(points, -points) == pytest.approx(1.0)


def test_points_in_more_dimensions_than_sobols_sequence_has():
    """Mean zero, and covariance one on the space of five dimensions that six points span."""
    points = gaussian_points(6, MOST_SOBOL_DIMS + 1, seed=0)
    assert float(points.mean(0).abs().max()) < 1e-12
    sizes = torch.linalg.svdvals(points)
    torch.testing.assert_close(sizes[:5], torch.full((5,), 6**0.5, dtype=torch.float64))
    assert float(sizes[5]) < 1e-9


def test_a_gaussian_posterior_keeps_its_surrogates():
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    idata = run(pf.DSVGD(num_particles=20), pf.Federation(located, (x,), plate="data", num_clients=2), 2)
    assert float(idata.federation["apart"].values[-1]) == 0.0


@pytest.fixture
def unseen(monkeypatch):
    """Layers are not seen, as those of a model that cannot be mapped, so that Newton's method begins at zeros."""
    monkeypatch.setattr(ModelTraits, "layers", False)


@pytest.mark.parametrize("algorithm", [pf.DSVGD, pf.infer.SVGD])
def test_a_network_is_found_out(algorithm, unseen):
    """At weights zero a ReLU network is stationary; the fit must beat the constant that it is there, of MSE one."""
    fed = network()
    idata = run(algorithm(num_particles=10, batch_size=50, start="checked"), fed, 8)
    assert float(idata.federation["apart"].values[-1]) == 1.0 and "converged" not in idata.attrs
    post = {name: torch.as_tensor(idata.posterior[name].values[0]).float() for name in ("w1", "b1", "w2", "b2")}
    x, y = network_data()
    hidden = torch.relu(x @ post["w1"] + post["b1"][:, None])
    mean = ((hidden @ post["w2"][..., None])[..., 0] + post["b2"][:, None]).mean(0)
    assert float((y - mean).square().mean()) < 0.7


def test_the_parallel_form_has_no_start_apart(unseen):
    with pytest.raises(SettingError, match="take DSVGD"):
        pf.infer.ParallelDSVGD(start="apart")
    with pytest.raises(SettingError, match=r"ended at a saddle .* take DSVGD"):
        run(pf.infer.ParallelDSVGD(num_particles=10, start="checked"), network(), 2)


@pytest.mark.parametrize(("clients", "rounds"), [(1, 1), (2, 1), (3, 2), (2, 5), (1, 4)])
def test_particles_that_started_apart_are_returned_at_their_mean_of_late(clients, rounds, monkeypatch):
    """Over a pass or more: first by their plain mean, then by weights that fall by a constant factor a round."""
    monkeypatch.setattr(states, "AVERAGED_ROUNDS", rounds)
    algorithm = pf.DSVGD(num_particles=4)
    where = torch.randn(7, 4, 2, generator=torch.Generator().manual_seed(0))
    unit = {"mean": torch.zeros(2), "factor": torch.ones(2), "pass_length": torch.tensor(1.0 / clients)}
    parts = dict.fromkeys((field.name for field in fields(Server)), torch.tensor(0.0)) | unit
    particles = {"white": torch.zeros(4, 2), "averaged": torch.zeros(4, 2), "account": {}}
    shared = as_entries(Server(**parts | particles))
    weights, window = torch.zeros(0), max(clients, rounds)
    for white in where:
        shared = algorithm.combine(shared, {"white": white[None]}, torch.ones(1))
        filled = len(weights) >= window
        weights = torch.cat([weights * (1 - 1 / window) if filled else weights, torch.ones(1)])
    expected = torch.einsum("r,rnd->nd", weights / weights.sum(), where)
    for apart, positions in ((1.0, expected), (0.0, where[-1])):
        drawn = algorithm.sample(shared | {"apart": torch.tensor(apart)}, 4, torch.Generator())[0]
        torch.testing.assert_close(drawn, positions)
