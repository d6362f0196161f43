"""Models of every kind of site: supports, likelihoods, modules, reparameterisations, computed values."""

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import constraints, transforms
from zoo_data import normal


def linear(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


def improper(x, y):
    w = pyro.sample("w", dist.ImproperUniform(constraints.real_vector, (), (3,)))
    s = pyro.sample("s", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, s), obs=y)


class Net(PyroModule):
    def __init__(self):
        super().__init__()
        self.layer = PyroModule[nn.Linear](3, 1)
        self.layer.weight = PyroSample(dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))
        self.layer.bias = PyroSample(dist.Normal(0.0, 2.0).expand([1]).to_event(1))

    def forward(self, x, y=None):
        mean = self.layer(x).squeeze(-1)
        sigma = pyro.sample("sigma", dist.Gamma(2.0, 2.0))
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def factors(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    pyro.factor("ridge", -w.abs().sum())
    with pyro.plate("data", len(x)):
        pyro.factor("fit", -(y - x @ w).abs())


def ordinal(x, c):
    w = pyro.sample("w", normal(0, 1, 3))
    ordered = dist.TransformedDistribution(normal(0, 1, 2), [dist.transforms.OrderedTransform()])
    cuts = pyro.sample("cuts", ordered)
    with pyro.plate("data", len(x)):
        pyro.sample("c", dist.OrderedLogistic(x @ w, cuts), obs=c)


def written(x, y):
    """Makes tensors, then writes into them: a walk of the weights, and the rows' means."""
    steps = pyro.sample("steps", normal(0, 1, 3))
    w, mean = torch.zeros(3), x.new_empty(len(x))
    for i in range(3):
        w[i] = steps[i] + (0.8 * w[i - 1] if i else 0.0)
    mean[:] = x @ w
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def deterministic(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    pyro.deterministic("norm", w.norm())
    mu = pyro.deterministic("mu", x @ w)
    with pyro.plate("data", len(x)):
        pyro.deterministic("centred", mu - w.sum())
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def with_param(x, y):
    scale = pyro.param("scale", torch.tensor(0.7, dtype=torch.double), constraint=constraints.positive)
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, scale), obs=y)


def lognormal(y):
    base = dist.Normal(0.3, 2.0)
    a = pyro.sample("a", dist.TransformedDistribution(base, [transforms.ExpTransform()]))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def lognormal_base(y):
    a = pyro.sample("a_base", dist.Normal(0.3, 2.0)).exp()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=y)


def mixture(y):
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(2)))
    with pyro.plate("components", 2):
        loc = pyro.sample("loc", dist.Normal(0.0, 3.0))
    with pyro.plate("data", len(y)):
        parts = dist.Normal(loc, 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def horseshoe(x, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    lam = pyro.sample("lam", dist.HalfCauchy(torch.ones(x.shape[1])).to_event(1))
    w = pyro.sample("w", dist.Normal(0.0, tau * lam).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def student(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    df = pyro.sample("df", dist.Gamma(2.0, 0.1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(df, x @ w, 1.0), obs=y)


def binomial(x, k):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("k", dist.Binomial(5, logits=x @ w), obs=k)


def categorical(x, c):
    w = pyro.sample("w", dist.Normal(torch.zeros(3, 3), 1.0).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("c", dist.Categorical(logits=x @ w), obs=c)


def simplex(c):
    p = pyro.sample("p", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
    with pyro.plate("data", len(c)):
        pyro.sample("c", dist.Categorical(p), obs=c)


def correlated(x):
    lower = pyro.sample("L", dist.LKJCholesky(3, 1.5))
    sd = pyro.sample("sd", dist.HalfNormal(torch.ones(3)).to_event(1))
    with pyro.plate("data", len(x)):
        factor = sd.unsqueeze(-1) * lower
        pyro.sample("x", dist.MultivariateNormal(torch.zeros(3), scale_tril=factor), obs=x)


def dependent(y):
    theta = pyro.sample("theta", dist.HalfNormal(2.0))
    low = pyro.sample("low", dist.Uniform(-theta, theta))
    high = pyro.sample("high", dist.Uniform(low, low + 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(low + high, 1.0), obs=y)
