"""The models' densities against scipy, and their exact posteriors against quadrature."""

import numpy as np
import pyro
import pytest
import torch
from late import late
from shipped_models import FLAT, imported
from torch.fx.experimental.proxy_tensor import make_fx

integrate, special, stats = late("scipy.integrate"), late("scipy.special"), late("scipy.stats")

MODELS = imported(FLAT)


@pytest.fixture(autouse=True)
def _validate():
    with pyro.validation_enabled(True):
        yield


def double(args):
    return tuple(a.double() if a.is_floating_point() else a for a in args)


def prior_draw(name, args, seed=0):
    """Values of the latent sites in float64, drawn from the model's prior."""
    pyro.set_rng_seed(seed)
    trace = pyro.poutine.trace(MODELS[name].model).get_trace(*args)
    return {site: trace.nodes[site]["value"] for site in trace.stochastic_nodes if site != MODELS[name].PLATE}


def log_joint(name, args, latents, **kwargs):
    model = pyro.condition(MODELS[name].model, latents)
    return pyro.poutine.trace(model).get_trace(*args, **kwargs).log_prob_sum()


@pytest.mark.parametrize("name", FLAT)
def test_the_gradient_is_the_same_one_by_one_vectorised_and_traced(name):
    """vmap(grad), and make_fx of it, against a loop over particles."""
    train, _ = MODELS[name].load_data()
    args = double(a[:20] for a in train)
    particles = [prior_draw(name, args, seed) for seed in range(3)]
    stacked = {site: torch.stack([p[site] for p in particles]) for site in particles[0]}
    with pyro.validation_enabled(False):
        gradient = torch.func.grad(lambda latents: log_joint(name, args, latents))
        looped = [gradient(p) for p in particles]
        vectorised = torch.func.vmap(gradient)
        traced = make_fx(vectorised)(stacked)
        for result in (vectorised(stacked), traced(stacked)):
            for site, value in result.items():
                torch.testing.assert_close(value, torch.stack([g[site] for g in looped]))


def test_gaussian_mean_density():
    train, _ = MODELS["gaussian_mean"].load_data()
    sd, y = double(train)
    latents = {"theta": torch.tensor(0.7, dtype=torch.float64)}
    expected = stats.norm(0, 10).logpdf(0.7) + stats.norm(0.7, sd).logpdf(y).sum()
    assert float(log_joint("gaussian_mean", (sd, y), latents)) == pytest.approx(expected, rel=1e-12)


def test_linear_regression_density():
    train, _ = MODELS["linear_regression"].load_data()
    x, y = double(train)
    w = prior_draw("linear_regression", (x, y))["w"]
    expected = stats.norm(0, 1).logpdf(w).sum() + stats.norm(x @ w, 0.7).logpdf(y).sum()
    assert float(log_joint("linear_regression", (x, y), {"w": w})) == pytest.approx(expected, rel=1e-12)


def test_logistic_regression_density():
    train, _ = MODELS["logistic_regression"].load_data()
    x, y = double(train)
    xi = torch.tensor(2.5, dtype=torch.float64)
    w = torch.linspace(-1, 1, x.shape[1], dtype=torch.float64)
    expected = stats.gamma(1, scale=100).logpdf(2.5) + stats.norm(0, 2.5**-0.5).logpdf(w).sum()
    expected += stats.bernoulli(1 / (1 + np.exp(-(x @ w).numpy()))).logpmf(y).sum()
    value = log_joint("logistic_regression", (x, y), {"xi": xi, "w": w})
    assert float(value) == pytest.approx(expected, rel=1e-10)


def network(x, p):
    return np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]


def test_bnn_regression_density():
    train, _ = MODELS["bnn_regression"].load_data()
    x, y = double(train)
    latents = prior_draw("bnn_regression", (x, y))
    p = {site: value.numpy() for site, value in latents.items()}
    assert [p[s].shape for s in ("gamma", "w1", "b1", "w2", "b2")] == [(), (10, 50), (50,), (50,), ()]
    expected = stats.gamma(1, scale=10).logpdf(p["gamma"])
    expected += sum(stats.norm(0, np.e**-0.5).logpdf(p[s]).sum() for s in ("w1", "b1", "w2", "b2"))
    expected += stats.norm(network(x.numpy(), p), p["gamma"] ** -0.5).logpdf(y).sum()
    assert float(log_joint("bnn_regression", (x, y), latents)) == pytest.approx(expected, rel=1e-10)


def test_bnn_classification_density():
    train, _ = MODELS["bnn_classification"].load_data()
    x, y = double(train)
    latents = prior_draw("bnn_classification", (x, y))
    p = {site: value.numpy() for site, value in latents.items()}
    assert [p[s].shape for s in ("w1", "b1", "w2", "b2")] == [(64, 50), (50,), (50, 10), (10,)]
    logits = network(x.numpy(), p)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = sum(stats.norm(0, np.e**-0.5).logpdf(p[s]).sum() for s in ("w1", "b1", "w2", "b2"))
    expected += log_probs[np.arange(len(y)), y.numpy()].sum()
    assert float(log_joint("bnn_classification", (x, y), latents)) == pytest.approx(expected, rel=1e-10)


def test_mlp_classification_density():
    train, _ = MODELS["mlp_classification"].load_data()
    x, y = double(train)
    latents = prior_draw("mlp_classification", (x, y))
    p = {site: value.numpy() for site, value in latents.items()}
    activity = x.numpy()
    for i in (1, 2, 3):
        activity = np.maximum(activity @ p[f"w{i}"] + p[f"b{i}"], 0)
    logits = activity @ p["w4"] + p["b4"]
    log_probs = special.log_softmax(logits, axis=1)
    expected = sum(stats.norm(0, 1).logpdf(value).sum() for value in p.values())
    expected += log_probs[np.arange(len(y)), y.numpy()].sum()
    assert float(log_joint("mlp_classification", (x, y), latents)) == pytest.approx(expected, rel=1e-10)


def test_metric_learning_density():
    """Source's likelihood with labels 1 and -1: 1 / (1 + exp(y (d - mu)))."""
    train, _ = MODELS["metric_learning"].load_data()
    projections, y = double(a[:200] for a in train)
    gamma = torch.linspace(-0.5, 1, projections.shape[1], dtype=torch.float64)
    mu = torch.tensor(0.7, dtype=torch.float64)
    distance = (projections * gamma).sum(1).numpy()
    sign = 2 * y.numpy() - 1
    expected = stats.norm(0, 1).logpdf(gamma).sum() + stats.norm(0, 1).logpdf(0.7)
    expected -= np.log1p(np.exp(sign * (distance - 0.7))).sum()
    value = log_joint("metric_learning", (projections, y), {"gamma": gamma, "mu": mu})
    assert float(value) == pytest.approx(expected, rel=1e-10)


PRIORS = {"uniform": lambda: stats.uniform(-6, 12), "gaussian": lambda: stats.norm(0, 1)}


def mixture_1d_density(theta, prior):
    """The target of the source's Section 7, by scipy; its SDs are the roots of the variances."""
    mixture = stats.norm(-3, 1).pdf(theta) + stats.norm(3, 2**0.5).pdf(theta)
    return PRIORS[prior]().pdf(theta) * stats.norm(1, 2).pdf(theta) * mixture


@pytest.mark.parametrize("prior", PRIORS)
def test_gaussian_mixture_1d_density(prior):
    module = MODELS["gaussian_mixture_1d"]
    args = double(module.load_data()[0])
    for theta in torch.linspace(-5.9, 5.9, 7, dtype=torch.float64):
        expected = np.log(mixture_1d_density(float(theta), prior))
        assert float(module.log_density(theta, prior)) == pytest.approx(expected, rel=1e-12)
        joint = log_joint("gaussian_mixture_1d", args, {"theta": theta}, prior=prior)
        assert float(joint) == pytest.approx(expected, rel=1e-12)


def test_gaussian_mixture_1d_has_the_prior_s_support_and_two_modes():
    density = MODELS["gaussian_mixture_1d"].log_density
    assert torch.isneginf(density(torch.tensor([-6.1, 6.1]))).all()
    assert torch.isfinite(density(torch.tensor([-6.1, 6.1]), "gaussian")).all()
    values = density(torch.linspace(-6, 6, 1001)).exp()
    modes = ((values[1:-1] > values[:-2]) & (values[1:-1] > values[2:])).sum()
    assert modes == 2


def test_gaussian_mixture_1d_refuses_an_unknown_prior():
    with pytest.raises(ValueError, match="prior is 'flat', expected 'uniform' or 'gaussian'"):
        MODELS["gaussian_mixture_1d"].model(torch.zeros(1), prior="flat")


def test_gaussian_mixture_2d_density_counts_the_prior_once():
    module = MODELS["gaussian_mixture_2d"]
    args = double(module.load_data()[0])
    gaussians = [stats.multivariate_normal(m, c) for m, c in zip(module.MEANS, module.COVARIANCES, strict=True)]
    for theta in ([0.0, 0.0], [-1.7, -1.8], [2.0, -0.5]):
        p0, p1, p2, p3 = (g.pdf(theta) for g in gaussians)
        expected = np.log(p0 * (p1 + p2) * p3)
        tensor = torch.tensor(theta, dtype=torch.float64)
        assert float(module.log_density(tensor)) == pytest.approx(expected, rel=1e-12)
        joint = log_joint("gaussian_mixture_2d", args, {"theta": tensor})
        assert float(joint) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "event"), [("gaussian_mixture_1d", ()), ("gaussian_mixture_2d", (2,))])
def test_the_mixtures_exact_density_takes_a_batch(name, event):
    module = MODELS[name]
    theta = torch.randn(3, 2, *event, generator=torch.Generator().manual_seed(0))
    value = module.log_density(theta)
    assert value.shape == (3, 2)
    torch.testing.assert_close(value[1, 1], module.log_density(theta[1, 1]))


def test_a_mixture_s_likelihood_is_a_factor_a_row():
    """Rows are factors: the same factor named twice counts twice."""
    theta = {"theta": torch.tensor(0.3, dtype=torch.float64)}

    def joint(*rows):
        return log_joint("gaussian_mixture_1d", (torch.tensor(rows, dtype=torch.float64),), theta)

    torch.testing.assert_close(joint(0, 1, 1) - joint(0, 1), joint(1) - joint(0) + joint(0, 0) - joint(0))


def test_gaussian_mean_posterior_by_quadrature():
    module = MODELS["gaussian_mean"]
    train, _ = module.load_data(num_train=8)
    mean, sd = (float(v) for v in module.exact_posterior(train))
    args = double(train)
    peak = float(log_joint("gaussian_mean", args, {"theta": torch.tensor(mean, dtype=torch.float64)}))

    def moment(power):
        def integrand(theta):
            value = log_joint("gaussian_mean", args, {"theta": torch.tensor(theta, dtype=torch.float64)})
            return theta**power * np.exp(float(value) - peak)

        return integrate.quad(integrand, mean - 10 * sd, mean + 10 * sd, epsabs=1e-12)[0]

    mass, first, second = (moment(power) for power in range(3))
    assert first / mass == pytest.approx(mean, abs=1e-9)
    assert second / mass - (first / mass) ** 2 == pytest.approx(sd**2, rel=1e-7)


def test_linear_regression_posterior_by_quadrature():
    """Two columns, a grid of 161 by 161 points over 8 SDs: the trapezoid rule is exact to rounding there."""
    module = MODELS["linear_regression"]
    train, _ = module.load_data()
    x, y = double((train[0][:30, [0, 3]], train[1][:30]))
    mean, covariance = (v.numpy() for v in module.exact_posterior((x, y)))
    axes = [m + np.linspace(-8, 8, 161) * s for m, s in zip(mean, np.sqrt(np.diag(covariance)), strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_density = stats.norm(0, 1).logpdf(grid).sum(axis=1)
    log_density += stats.norm(grid @ x.numpy().T, 0.7).logpdf(y.numpy()).sum(axis=1)
    weights = np.exp(log_density - log_density.max())
    np.testing.assert_allclose(np.average(grid, axis=0, weights=weights), mean, atol=1e-9)
    np.testing.assert_allclose(np.cov(grid.T, aweights=weights, ddof=0), covariance, rtol=1e-7)
