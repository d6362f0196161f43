"""Models as textbooks, Pyro's tutorials and papers have them, each compact."""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from form import Form
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.reparam import LocScaleReparam
from pyro.nn import PyroModule, PyroSample
from torch import nn

RNG = np.random.default_rng(0)
N, P, J = 24, 3, 4
X = torch.tensor(RNG.normal(size=(N, P)))
G = torch.arange(N) % J
T = torch.tensor(RNG.uniform(0.5, 3.0, N))
ETA = X @ torch.tensor([0.5, -0.3, 0.2], dtype=torch.float64)
Y = ETA + torch.tensor(0.5 * RNG.normal(size=N))
B = (Y > 0).double()
C = torch.tensor(RNG.poisson(np.exp(ETA.numpy()))).double()
K = torch.tensor(RNG.integers(0, 3, N))


def weights(name="w", size=P, scale=1.0):
    return pyro.sample(name, dist.Normal(0.0, scale).expand([size]).to_event(1))


# -- regressions ------------------------------------------------------------------------------------------------
def linear(x, y):
    a = pyro.sample("a", dist.Normal(0.0, 10.0))
    w = weights()
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(a + x @ w, s), obs=y)


def linear_column_target(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([P, 1]).to_event(2))
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


def logistic(x, y):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def poisson_exposure(x, t, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(t * (x @ w).exp()), obs=y)


def poisson_log_rate(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(torch.exp(x @ w)), obs=y)


def negative_binomial(x, y):
    w = weights()
    phi = pyro.sample("phi", dist.Gamma(2.0, 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.NegativeBinomial(phi, logits=x @ w - phi.log()), obs=y)


def gamma_poisson(x, y):
    w = weights()
    phi = pyro.sample("phi", dist.Exponential(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.GammaPoisson(1 / phi, (-(x @ w)).exp() / phi), obs=y)


def zero_inflated(x, y):
    w, gate = weights(), pyro.sample("gate", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.ZeroInflatedPoisson((x @ w).exp(), gate=gate), obs=y)


def zero_inflated_nb(x, y):
    w, gate = weights(), weights("gate")
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.ZeroInflatedNegativeBinomial(2.0, logits=x @ w, gate_logits=x @ gate), obs=y)


def hurdle(x, y):
    w, p = weights(), pyro.sample("p", dist.Beta(1.0, 1.0))
    rate = (x @ w).exp()
    with pyro.plate("data", len(y)):
        pyro.sample("zero", dist.Bernoulli(p), obs=(y == 0).to(x.dtype))
        truncated = dist.Poisson(rate).log_prob(y) - torch.log1p(-torch.exp(-rate))
        pyro.factor("positive", torch.where(y > 0, truncated, torch.zeros_like(truncated)))


def robust(x, y):
    w, nu = weights(), pyro.sample("nu", dist.Gamma(2.0, 0.1))
    s = pyro.sample("s", dist.HalfCauchy(2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(nu, x @ w, s), obs=y)


def heteroscedastic(x, y):
    w, v = weights(), weights("v")
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, F.softplus(x @ v)), obs=y)


def beta_regression(x, y):
    w, kappa = weights(), pyro.sample("kappa", dist.LogNormal(1.0, 1.0))
    mu = torch.sigmoid(x @ w)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Beta(mu * kappa, (1 - mu) * kappa), obs=y)


def gamma_regression(x, y):
    w, shape = weights(), pyro.sample("shape", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Gamma(shape, shape * (-(x @ w)).exp()), obs=y)


def softmax_regression(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([P, 3]).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def ordinal(x, y):
    w = weights()
    cuts = pyro.sample(
        "cuts",
        dist.TransformedDistribution(
            dist.Normal(torch.zeros(2), 1.0).to_event(1), [dist.transforms.OrderedTransform()]
        ),
    )
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.OrderedLogistic(x @ w, cuts), obs=y)


def binomial(n, y):
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Binomial(n, p), obs=y)


def beta_binomial(n, y):
    a, b = pyro.sample("a", dist.Gamma(1.0, 1.0)), pyro.sample("b", dist.Gamma(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.BetaBinomial(a, b, n), obs=y)


def multinomial(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Multinomial(10, p), obs=y)


def dirichlet_multinomial(y):
    a = pyro.sample("a", dist.Gamma(2.0, 1.0).expand([3]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.DirichletMultinomial(a, 10), obs=y)


def multivariate(y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0).expand([P]).to_event(1))
    corr = pyro.sample("corr", dist.LKJCholesky(P, 2.0))
    mean = weights("mean")
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MultivariateNormal(mean, scale_tril=scale.unsqueeze(-1) * corr), obs=y)


def horseshoe(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    lam = pyro.sample("lam", dist.HalfCauchy(1.0).expand([P]).to_event(1))
    w = pyro.sample("w", dist.Normal(0.0, tau * lam).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def polynomial(x, y):
    w = weights(size=4)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.stack([x[:, 0] ** i for i in range(4)], -1) @ w, 1.0), obs=y)


def per_coefficient(x, y):
    mean = 0.0
    for i in range(x.shape[1]):
        mean = mean + pyro.sample(f"b{i}", dist.Normal(0.0, 1.0)) * x[:, i]
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def feature_plate(x, y):
    with pyro.plate("features", x.shape[1]):
        w = pyro.sample("w", dist.Laplace(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def two_outcomes(x, y, b):
    w, v = weights(), weights("v")
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        pyro.sample("b", dist.Bernoulli(logits=x @ v), obs=b)


def probit(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        p = (0.5 * (1 + torch.erf(x @ w / 2**0.5))).clamp(1e-5, 1 - 1e-5)
        pyro.sample("y", dist.Bernoulli(probs=p), obs=y)


def deterministic_inside(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        mu = pyro.deterministic("mu", x @ w)
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def asymmetric_laplace(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.AsymmetricLaplace(x @ w, 1.0, 0.7), obs=y)


def von_mises(y):
    m, k = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("k", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.VonMises(m, k), obs=y)


# -- survival ---------------------------------------------------------------------------------------------------
def weibull_censored(x, t, event):
    w, k = weights(), pyro.sample("k", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(t)):
        d = dist.Weibull((x @ w).exp(), k)
        hazard = torch.where(event > 0, d.log_prob(t), -((t / d.scale) ** k))
        pyro.factor("lik", hazard)


def weibull_mask(x, t, event):
    w, k = weights(), pyro.sample("k", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(t)):
        scale = (x @ w).exp()
        with poutine.mask(mask=event.bool()):
            pyro.sample("t", dist.Weibull(scale, k), obs=t)
        with poutine.mask(mask=~event.bool()):
            pyro.factor("censored", -((t / scale) ** k))


def censored_coin(x, t, event):
    w = weights()
    with pyro.plate("data", len(t)):
        survival = torch.exp(-t * (x @ w).exp())
        with poutine.mask(mask=event == 1):
            pyro.sample("t", dist.Exponential((x @ w).exp()), obs=t)
        with poutine.mask(mask=event == 0):
            pyro.sample("c", dist.Bernoulli(survival), obs=torch.ones_like(t))


def log_normal_censored(x, t, event):
    w, s = weights(), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(t)):
        d = dist.Normal(x @ w, s)
        pyro.factor("lik", torch.where(event > 0, d.log_prob(t.log()), (1 - d.cdf(t.log())).clamp(min=1e-9).log()))


# -- hierarchies ------------------------------------------------------------------------------------------------
def varying_intercepts(g, x, y):
    m, s = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("groups", J):
        a = pyro.sample("a", dist.Normal(m, s))
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g] + x @ w, 1.0), obs=y)


def varying_slopes_lkj(g, x, y):
    scale = pyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    corr = pyro.sample("corr", dist.LKJCholesky(2, 2.0))
    with pyro.plate("groups", J):
        ab = pyro.sample("ab", dist.MultivariateNormal(torch.zeros(2), scale_tril=scale.unsqueeze(-1) * corr))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(ab[g, 0] + ab[g, 1] * x[:, 0], 1.0), obs=y)


def non_centred(g, x, y):
    m, s = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([J]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((m + s * z)[g], 1.0), obs=y)


def loc_scale(g, x, y):
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with poutine.reparam(config={"a": LocScaleReparam(0.0)}), pyro.plate("groups", J):
        a = pyro.sample("a", dist.Normal(0.0, s))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def eight_schools(y, sigma):
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 5.0)), pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_tutorial(sigma, y):
    eta = pyro.sample("eta", dist.Normal(torch.zeros(8), torch.ones(8)))
    mu = pyro.sample("mu", dist.Normal(torch.zeros(1), 10 * torch.ones(1)))
    tau = pyro.sample("tau", dist.HalfCauchy(scale=25 * torch.ones(1)))
    pyro.sample("obs", dist.Normal(mu + tau * eta, sigma), obs=y)


def crossed(person, item, y):
    with pyro.plate("persons", 6):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("items", 4):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=a[person] - b[item]), obs=y)


def irt_2pl(y):
    a = pyro.sample("a", dist.LogNormal(0.0, 0.3).expand([4]).to_event(1))
    b = weights("b", 4)
    with pyro.plate("persons", len(y)):
        theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Bernoulli(logits=a * (theta.unsqueeze(-1) - b)).to_event(1), obs=y)


def irt_plates(y):
    with pyro.plate("items", 4, dim=-1):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("persons", y.shape[0], dim=-2):
        theta = pyro.sample("theta", dist.Normal(0.0, 1.0))
        with pyro.plate("answers", 4, dim=-1):
            pyro.sample("y", dist.Bernoulli(logits=theta - b), obs=y)


def nested_rows(g, y):
    m, s = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("groups", J):
        a = pyro.sample("a", dist.Normal(m, s))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def ordinal_by_group(g, x, y):
    w, s = weights(), pyro.sample("s", dist.HalfNormal(1.0))
    ordered = [dist.transforms.OrderedTransform()]
    cuts = pyro.sample("cuts", dist.TransformedDistribution(dist.Normal(torch.zeros(2), 1.0).to_event(1), ordered))
    with pyro.plate("groups", J):
        a = pyro.sample("a", dist.Normal(0.0, s))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.OrderedLogistic(a[g] + x @ w, cuts), obs=y)


# -- mixtures and discrete latents ------------------------------------------------------------------------------
def mixture_marginal(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
    m = weights("m", 2, 3.0)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(p), dist.Normal(m, 1.0)), obs=y)


def mixture_enumerated(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        m = pyro.sample("m", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Categorical(p), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(m[z], 1.0), obs=y)


def dawid_skene(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("annotators", 3, dim=-2), pyro.plate("classes", 2):
        q = pyro.sample("q", dist.Beta(2.0, 1.0))
    with pyro.plate("data", len(y)):
        c = pyro.sample("c", dist.Bernoulli(p[1]), infer={"enumerate": "parallel"})
        for j in range(3):
            pyro.sample(f"y{j}", dist.Bernoulli(torch.where(c > 0, q[j, 1], 1 - q[j, 0])), obs=y[:, j])


def occupancy(y):
    psi, p = pyro.sample("psi", dist.Beta(1.0, 1.0)), pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Bernoulli(psi), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Binomial(3, z * p), obs=y)


# -- series by subject ------------------------------------------------------------------------------------------
def autoregressive(y):
    phi, s = pyro.sample("phi", dist.Uniform(-1.0, 1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("subjects", len(y)):
        pyro.sample("y", dist.Normal(phi * y[:, :-1], s).to_event(1), obs=y[:, 1:])


def hidden_markov(y):
    start, move = torch.zeros(2), pyro.sample("move", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    m = weights("m", 2)
    with pyro.plate("subjects", len(y)):
        pyro.sample("y", dist.DiscreteHMM(start, move.log(), dist.Normal(m, 1.0)), obs=y)


def markov_loop(y):
    move = pyro.sample("move", dist.Dirichlet(torch.ones(2, 2)).to_event(1))
    m = weights("m", 2)
    with pyro.plate("subjects", len(y)):
        z = 0
        for t in pyro.markov(range(4)):
            z = pyro.sample(f"z{t}", dist.Categorical(move[z]), infer={"enumerate": "parallel"})
            pyro.sample(f"y{t}", dist.Normal(m[z], 1.0), obs=y[:, t])


def growth_curves(t, y):
    m = weights("m", 2)
    with pyro.plate("subjects", len(y)):
        ab = pyro.sample("ab", dist.Normal(m, 1.0).to_event(1))
        pyro.sample("y", dist.Normal(ab[..., :1] + ab[..., 1:] * t, 0.5).to_event(1), obs=y)


# -- measurement error, missing, capture --------------------------------------------------------------------------
def measurement_error(x, y):
    a, b = pyro.sample("a", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        truth = pyro.sample("truth", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(truth, 0.5), obs=x)
        pyro.sample("y", dist.Normal(a + b * truth, 1.0), obs=y)


def factor_analysis(y):
    load = weights("load", P)
    with pyro.plate("data", len(y)):
        f = pyro.sample("f", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(f.unsqueeze(-1) * load, 1.0).to_event(1), obs=y)


def cormack_jolly_seber(y):
    phi, rho = pyro.sample("phi", dist.Uniform(0.0, 1.0)), pyro.sample("rho", dist.Uniform(0.0, 1.0))
    with pyro.plate("animals", len(y)):
        z = torch.ones(len(y))
        for t in pyro.markov(range(3)):
            z = pyro.sample(f"z{t}", dist.Bernoulli(phi * z), infer={"enumerate": "parallel"})
            pyro.sample(f"y{t}", dist.Bernoulli(rho * z), obs=y[:, t])


# -- networks ---------------------------------------------------------------------------------------------------
class BayesianRegression(PyroModule):
    def __init__(self, inputs=P):
        super().__init__()
        self.linear = PyroModule[nn.Linear](inputs, 1)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, inputs]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


class Network(PyroModule):
    def __init__(self):
        super().__init__()
        self.first = PyroModule[nn.Linear](P, 4)
        self.first.weight = PyroSample(dist.Normal(0.0, 1.0).expand([4, P]).to_event(2))
        self.first.bias = PyroSample(dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        self.last = PyroModule[nn.Linear](4, 3)
        self.last.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3, 4]).to_event(2))
        self.last.bias = PyroSample(dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    def forward(self, x, y=None):
        logits = self.last(torch.relu(self.first(x)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def conv_net(x, y):
    kernel = pyro.sample("kernel", dist.Normal(0.0, 1.0).expand([2, 1, 3, 3]).to_event(4))
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([8, 3]).to_event(2))
    hidden = torch.relu(F.conv2d(x, kernel)).flatten(1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=hidden @ w), obs=y)


def rbf_features(x, y):
    centres = torch.linspace(-1, 1, 5, dtype=x.dtype)
    w, ell = weights(size=5), pyro.sample("ell", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(torch.exp(-((x[:, :1] - centres) ** 2) / ell) @ w, 0.5), obs=y)


# -- how plates and sites are written -----------------------------------------------------------------------------
def plate_index(x, y):
    w = weights()
    with pyro.plate("data", len(x)) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def plate_subsample(x, y):
    w = weights()
    with pyro.plate("data", len(x), subsample_size=8) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def plate_object(x, y):
    data = pyro.plate("data", x.size(0), dim=-1)
    w = weights()
    with data:
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def plate_size_tensor(x, y):
    w = weights()
    with pyro.plate("data", size=x.shape[0], dim=-1):
        pyro.sample("y", dist.Normal((x * w).sum(-1), torch.tensor(1.0)), obs=y)


def scaled(x, y):
    w = weights()
    with pyro.plate("data", len(x)), poutine.scale(scale=0.5):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def sequential(x, y):
    w = weights()
    for i in pyro.plate("data", len(x)):
        pyro.sample(f"y{i}", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def with_param(x, y):
    scale = pyro.param("scale", torch.tensor(1.0), constraint=constraints.positive)
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def improper(x, y):
    w = pyro.sample("w", dist.ImproperUniform(constraints.real_vector, (), (P,)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def optional_obs(x, y=None):
    w = weights()
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def dimension_2(y):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("times", y.shape[1], dim=-1), pyro.plate("data", y.shape[0], dim=-2):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)


ANSWERS = (torch.tensor(RNG.random((N, 4))) > 0.5).double()
SERIES = torch.tensor(RNG.normal(size=(N, 4)))
IMAGES = torch.tensor(RNG.normal(size=(N, 1, 4, 4)))
COUNTS = torch.tensor(RNG.multinomial(10, [0.2, 0.3, 0.5], N)).double()
TRIALS = torch.full((N,), 10.0, dtype=torch.float64)
SUCCESSES = torch.tensor(RNG.binomial(10, 0.4, N)).double()
UNIT = torch.tensor(RNG.uniform(0.1, 0.9, N))
EVENT = torch.tensor(RNG.integers(0, 2, N)).double()
SCHOOLS = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
SIGMA = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)
SUBJECTS = {"options": {"plate": "subjects"}}


def eight_schools_with_plate(sigma, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = pyro.sample("tau", dist.HalfCauchy(25.0))
    with pyro.plate("data", len(y)):
        eta = pyro.sample("eta", dist.Normal(0.0, 1.0))
        pyro.sample("obs", dist.Normal(mu + tau * eta, sigma), obs=y)


def _form(model, *args, name=None, **more):
    return Form(name or model.__name__.replace("_", " "), model, args, **more)


MODELS = [
    _form(linear, X, Y),
    _form(linear_column_target, X, Y[:, None]),
    _form(logistic, X, B),
    _form(poisson_exposure, X, T, C),
    _form(poisson_log_rate, X, C),
    _form(negative_binomial, X, C),
    _form(gamma_poisson, X, C),
    _form(zero_inflated, X, C),
    _form(zero_inflated_nb, X, C),
    _form(hurdle, X, C),
    _form(robust, X, Y),
    _form(heteroscedastic, X, Y),
    _form(beta_regression, X, UNIT),
    _form(gamma_regression, X, T),
    _form(softmax_regression, X, K),
    _form(ordinal, X, K),
    _form(binomial, TRIALS, SUCCESSES),
    _form(beta_binomial, TRIALS, SUCCESSES),
    _form(multinomial, COUNTS),
    _form(dirichlet_multinomial, COUNTS),
    _form(multivariate, X),
    _form(horseshoe, X, Y),
    _form(polynomial, X, Y),
    _form(per_coefficient, X, Y),
    _form(feature_plate, X, Y),
    _form(two_outcomes, X, Y, B),
    _form(probit, X, B),
    _form(deterministic_inside, X, Y),
    _form(asymmetric_laplace, X, Y),
    _form(von_mises, Y),
    _form(weibull_censored, X, T, EVENT),
    _form(weibull_mask, X, T, EVENT),
    _form(censored_coin, X, T, EVENT),
    _form(log_normal_censored, X, T, EVENT),
    _form(varying_intercepts, G, X, Y),
    _form(varying_slopes_lkj, G, X, Y),
    _form(non_centred, G, X, Y),
    _form(loc_scale, G, X, Y),
    _form(eight_schools, SCHOOLS, SIGMA, options={"plate": "schools"}),
    _form(
        eight_schools_tutorial,
        SIGMA,
        SCHOOLS,
        refused=r"no plate.*pyro\.sample\(\"obs\".*model_forms\.py:\d+.*pyro\.plate\('data', len\(y\)\)",
        cured=_form(eight_schools_with_plate, SIGMA, SCHOOLS),
    ),
    _form(crossed, G, G, B),
    _form(irt_2pl, ANSWERS, options={"plate": "persons"}),
    _form(irt_plates, ANSWERS, options={"plate": "persons"}),
    _form(nested_rows, G, Y, options={"plate": "groups", "rows": {"data": "g"}}),
    _form(ordinal_by_group, G, X, K, options={"plate": "groups", "rows": {"data": "g"}}),
    _form(mixture_marginal, Y),
    _form(mixture_enumerated, Y),
    _form(dawid_skene, ANSWERS[:, :3]),
    _form(occupancy, (ANSWERS[:, 0] + ANSWERS[:, 1])),
    _form(autoregressive, SERIES, **SUBJECTS),
    _form(hidden_markov, SERIES, **SUBJECTS),
    _form(markov_loop, SERIES, **SUBJECTS),
    _form(growth_curves, SERIES[0], SERIES, **SUBJECTS),
    _form(measurement_error, X[:, 0], Y),
    _form(factor_analysis, X),
    _form(cormack_jolly_seber, ANSWERS[:, :3], options={"plate": "animals"}),
    _form(BayesianRegression(), X, Y, name="PyroModule regression"),
    _form(Network(), X, K, name="PyroModule network"),
    _form(conv_net, IMAGES, K),
    _form(rbf_features, X, Y),
    _form(plate_index, X, Y),
    _form(plate_object, X, Y),
    _form(plate_size_tensor, X, Y),
    _form(plate_subsample, X, Y, pyro=(plate_index, None)),
    _form(scaled, X, Y),
    _form(sequential, X, Y, refused="sequential plate.*with pyro.plate", cured=_form(plate_index, X, Y)),
    _form(with_param, X, Y, warns="held constant"),
    _form(improper, X, Y),
    _form(optional_obs, X, Y),
    _form(dimension_2, SERIES),
]
