"""Rows whose scores jump: which models have them, and sites of their scores against posteriors by quadrature."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.ops.points import standardised_sobol


def weight(x):
    return pyro.sample("w", dist.Normal(0.0, 3.0).expand([x.shape[1]]).to_event(1))


def median(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w, 1.0), obs=y)


def quantile(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        away = y - x @ w
        pyro.factor("check", -torch.maximum(0.7 * away, -0.3 * away))


def median_of_a_sum(x, y):
    w, v = weight(x), pyro.sample("v", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w + v, 1.0), obs=y)


def robust(x, y):
    w, s = weight(x), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(2.0, x @ w, s), obs=y)


def grades(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        cuts = torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)
        pyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y.round().clamp(0, 3))


def coins(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=(y > 0).to(x))


def counts(x, y):
    w = weight(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y.abs().round())


def two(x, y):
    w, v = weight(x), pyro.sample("v", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        parts = dist.Normal(torch.stack([x @ w, x @ v], -1), 0.5)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.3, 0.7]).to(x)), parts), obs=y)


def saturating(x, y):
    """A curve whose errors are Laplace's, in parameters that are in no line with it."""
    top, half, s = (pyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in ("top", "half", "s"))
    with pyro.plate("data", len(x)):
        dose = x[:, 0].exp()
        pyro.sample("y", dist.Laplace(top * dose / (half + dose), s), obs=y.abs())


def shrunk(x, y):
    """A median's regression whose weights are in units of their scale."""
    t, s = pyro.sample("t", dist.HalfCauchy(1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    w = weight(x)
    with pyro.plate("data", len(x)):
        away = y - x @ (w * t)
        pyro.factor("check", -s.log() - torch.maximum(0.8 * away, -0.2 * away) / s)


def margins(x, y):
    """A hinge at a product."""
    w, t = weight(x), pyro.sample("t", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.factor("loss", -(1 - y.sign() * (x @ (w * t))).clamp_min(0.0))


def bent_line(x, y):
    """A change point: its score jumps, by little of what it is."""
    at, slope, s = pyro.sample("at", dist.Normal(0.0, 1.0)), pyro.sample("slope", dist.Normal(0.0, 1.0)), 0.5
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(slope * torch.relu(x[:, 0] - at), s), obs=y)


def smooth_curve(x, y):
    top, half = pyro.sample("top", dist.LogNormal(0.0, 1.0)), pyro.sample("half", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        dose = x[:, 0].exp()
        pyro.sample("y", dist.StudentT(3.0, top * dose / (half + dose), 0.5), obs=y)


def clamped(x, y):
    """Probabilities that are kept inside of their range, and where they end."""
    slope, low = pyro.sample("slope", dist.Normal(0.0, 1.0)), pyro.sample("low", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(x)):
        p = (low + (1 - low) * torch.sigmoid(slope * x[:, 0])).clamp(1e-6, 1 - 1e-6)
        pyro.sample("y", dist.Bernoulli(p), obs=(y > 0).to(x))


def threshold(x, y):
    """A density that is as good as zero beyond an edge, which is no jump of a score."""
    at, rate = pyro.sample("at", dist.Normal(-5.0, 1.0)), pyro.sample("rate", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.factor("late", torch.where(y > at, rate.log() - rate * (y - at), torch.full_like(y, -1e30)))


def rows(count, features, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=g, dtype=torch.float64)
    y = x.sum(1) + torch.randn(count, generator=g, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def federation(model, count=200, features=1, dtype=torch.float64, clients=3):
    return pf.Federation(model, rows(count, features, dtype), plate="data", num_clients=clients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [median, quantile, median_of_a_sum, saturating, shrunk, margins])
def test_jumps_are_found(model, dtype):
    assert federation(model, 60, 3, dtype).problem.traits.non_smooth_scores


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("model", [robust, grades, coins, counts, two, bent_line, smooth_curve, clamped, threshold])
@pytest.mark.filterwarnings("ignore:the log density jumps along 'at'")  # itself, where its score does not
def test_smooth_rows_have_none(model, dtype):
    assert not federation(model, 60, 3, dtype).problem.traits.non_smooth_scores


def test_jumps_far_from_zero_and_of_other_sizes_are_found():
    x, y = rows(60, 3)
    for scale in (1e-2, 1e3):
        assert pf.Federation(median, (x, scale * y), plate="data", num_clients=3).problem.traits.non_smooth_scores


@pytest.mark.parametrize("model", [median, quantile])
@pytest.mark.parametrize("count", [200, 4000])
def test_posteriors_are_those_of_quadrature(model, count):
    """One weight, on a grid; the curvature of the rows is zero at almost every point of it."""
    fed = federation(model, count)
    idata = pf.run(pf.FedEP(), fed, progress=False, audit=False, log_likelihood=False)
    draws = torch.tensor(idata.posterior["w"].values).flatten()
    x, y = rows(count, 1)
    grid = torch.linspace(0.5, 1.5, 4001, dtype=torch.float64)
    away = y - grid.unsqueeze(1) * x[:, 0]
    loss = away.abs() if model is median else torch.maximum(0.7 * away, -0.3 * away)
    mass = torch.softmax(-loss.sum(1) - grid.square() / 18, 0)
    mean = mass @ grid
    sd = (mass @ (grid - mean).square()).sqrt()
    assert float((draws.mean() - mean).abs() / sd) < 0.05
    assert float(draws.std() / sd) == pytest.approx(1.0, abs=0.05)


def curve_data(count=60):
    x = torch.rand(count, 1, generator=torch.Generator().manual_seed(1)).double() * 4 - 2
    noise = dist.Laplace(0.0, 0.3).icdf(torch.rand(count, generator=torch.Generator().manual_seed(2)).double())
    return x, 2 * x[:, 0].exp() / (1 + x[:, 0].exp()) + noise


@pytest.fixture(scope="module")
def curve():
    """A saturating curve's posterior, unconstrained: the federation, means and SDs on a grid."""
    fed = pf.Federation(saturating, curve_data(), plate="data", num_clients=4, seed=0)
    problem = fed.problem
    axes = [torch.linspace(c - r, c + r, 61, dtype=torch.float64) for c, r in ((0.8, 0.8), (0.2, 1.9), (-1.1, 1.1))]
    at = torch.cartesian_prod(*axes)
    density = torch.cat(
        [problem.vmap(lambda z: problem.log_prior(z) + problem.log_lik(z))(part) for part in at.split(20_000)]
    )
    mass = torch.softmax(density, 0)
    edges = [float(mass.reshape(61, 61, 61).movedim(i, 0)[[0, -1]].sum()) for i in range(3)]
    assert max(edges) < 1e-5, edges
    mean = mass @ at
    return fed, mean, (mass @ (at - mean).square()).sqrt()


@pytest.mark.parametrize(
    "algorithm",
    [pf.FedEP(), pf.FedAIS(), pf.DSVGD(), pf.P2PVI()],
    ids=lambda algorithm: repr(algorithm),
)
def test_curves_with_laplace_errors(algorithm, curve):
    """Where no predictor is linear curvatures are those of scores: 4,000 draws leave 0.03 SDs; particles 100."""
    fed, mean, sd = curve
    options = {"graph": pf.graph.complete(4)} if isinstance(algorithm, pf.P2PVI) else {}
    idata = pf.run(algorithm, fed, progress=False, log_likelihood=False, num_draws=4000, **options)
    draws = torch.stack([torch.tensor(idata.posterior[name].values).flatten().log() for name in ("top", "half", "s")])
    assert not idata.attrs["doubts"]
    assert float(((draws.mean(1) - mean) / sd).abs().max()) < 0.2
    torch.testing.assert_close(draws.std(1) / sd, torch.ones(3).double(), rtol=0.15, atol=0)


def test_curvatures_by_scores_are_those_of_a_parabola():
    """Points with exact second moments leave no noise of a linear score, in full and of the diagonal."""

    def linear(x, y):
        w = weight(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    x, y = rows(40, 3)
    fed = pf.Federation(linear, (x, y), plate="data", num_clients=1)
    roots = {"full": torch.tensor([[2.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.2, 0.1]]).double()}
    roots["diag"] = roots["full"].diagonal().diag()
    for structure, root in roots.items():
        points = (standardised_sobol(128, 3).double() @ root.T + 0.7).unsqueeze(1)
        found = Derivatives(structure, "hessian")._by_scores(fed.problem, points, fed.client_data().full_batch())
        exact = x.T @ x / 0.25
        torch.testing.assert_close(found.curvature[0], exact if structure == "full" else exact.diagonal())
        assert float((found.score[0] - (x.T @ (y - x @ points.mean(0)[0])) / 0.25).abs().max()) < 1e-9


def test_laplace_approximations_say_that_there_is_none(curve):
    with pytest.raises(UserWarning) as caught:  # the first of what is said
        pf.run(pf.FedLaplace(), curve[0], num_rounds=20, progress=False, audit=False, log_likelihood=False)
    assert "scores jump" in caught.value.result.attrs["doubts"]


def test_particles_begin_where_scores_jump():
    """A hinge at a product of latents: no mode has a curvature. They begin at points of a search, or at the prior's."""
    fed, options = federation(margins, 60, 3), {"progress": False, "audit": False, "log_likelihood": False}
    found = [pf.run(pf.DSVGD(start=start), fed, **options) for start in ("modes", "prior")]
    assert not any(one.attrs["doubts"] for one in found)
    one, other = (idata.posterior["w"].values.reshape(-1, 3) for idata in found)
    assert np.abs((one.mean(0) - other.mean(0)) / other.std(0)).max() < 0.1  # two searches, one posterior
    assert np.abs(np.log(one.std(0) / other.std(0))).max() < 0.1
