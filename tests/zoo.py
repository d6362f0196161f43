"""One model a feature of Pyro, each with a plain reference model of the same density.

A `reference` is the model itself unless Pyro needs another form of it to evaluate the pooled density: a plate
that subsamples, a reparameterised site, imputed entries.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam, TransformReparam
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.distributions import constraints, transforms

N = 13
_RNG = np.random.default_rng(7)
X = torch.as_tensor(_RNG.normal(size=(N, 3)))
Y = torch.as_tensor(_RNG.normal(size=N))
POSITIVE = Y.exp()
BINARY = (Y > 0).double()
COUNTS = torch.as_tensor(_RNG.integers(0, 6, size=N)).double()
CLASSES = torch.as_tensor(_RNG.integers(0, 3, size=N))
GROUP = torch.as_tensor(_RNG.integers(0, 4, size=N))
SEEN = Y > -0.5


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and how the pooled density is found without this package."""

    name: str
    model: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    shard: Any = None
    warns: str | None = None
    reported: tuple[str, ...] = ()


def normal(loc, scale, n):
    return dist.Normal(torch.full((n,), float(loc)), float(scale)).to_event(1)


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


def make_subsampled(size):
    def subsampled(x, y):
        w = pyro.sample("w", normal(0, 1, 3))
        with pyro.plate("data", len(x), subsample_size=size) as i:
            pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])

    return subsampled


def sized(x, y, n):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", n):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def given_rows(x, y, n, subsample=True):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", n, subsample=torch.arange(4) if subsample else None) as i:
        pyro.sample("y", dist.Normal(x[i] @ w, 1.0), obs=y[i])


def closure():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", N) as i:
        pyro.sample("y", dist.Normal(mu, 1.0), obs=Y[i])


def closure_subsampled(subsample=True):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("data", N, subsample_size=4 if subsample else None):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=pyro.subsample(Y, event_dim=0))


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


def masked(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.mask(mask=seen):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def masked_off(x, y):
    w = pyro.sample("w", normal(0, 1, 3))
    with poutine.mask(mask=False):
        pyro.sample("flat", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def scaled(x, y, weights):
    with poutine.scale(scale=0.5):
        w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.scale(scale=weights):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def imputed(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=seen)


def imputed_reference(x, y, seen):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)), poutine.mask(mask=seen):
        pyro.sample("y_observed", dist.Normal(x @ w, 1.0), obs=y)


def imputed_counts(y, seen):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y, obs_mask=seen)


def imputed_counts_reference(y, seen):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)), poutine.mask(mask=seen):
        pyro.sample("y_observed", dist.Poisson(rate), obs=y)


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


def schools(y, group):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def schools_noncentred(y, group):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        z = pyro.sample("theta_decentered", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((mu + tau * z)[group], 1.0), obs=y)


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
    lam = pyro.sample("lam", dist.HalfCauchy(torch.ones(3)).to_event(1))
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


def nested(y, group):
    with pyro.plate("regions", 2, dim=-2):
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 4, dim=-1):
            theta = pyro.sample("theta", dist.Normal(mu, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta.sum(0)[group], 1.0), obs=y)


def dependent(y):
    theta = pyro.sample("theta", dist.HalfNormal(2.0))
    low = pyro.sample("low", dist.Uniform(-theta, theta))
    high = pyro.sample("high", dist.Uniform(low, low + 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(low + high, 1.0), obs=y)


def images(x, z):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        mean = torch.einsum("nij,j->ni", x, w)
        pyro.sample("z", dist.Normal(mean, 1.0).to_event(1), obs=z)


def crossed(z):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("columns", 3, dim=-2), pyro.plate("data", z.shape[-1], dim=-1):
        pyro.sample("z", dist.Normal(mu, 1.0), obs=z)


def rows_on_dim_2(z):
    mu = pyro.sample("mu", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(z), dim=-2), pyro.plate("columns", 3, dim=-1):
        pyro.sample("z", dist.Normal(mu, 1.0), obs=z)


def keywords(x, *, y, prior_sd=1.0):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), prior_sd).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def tables(data, options):
    w = pyro.sample("w", normal(0, options[0], 3))
    with pyro.plate("data", len(data["x"])):
        pyro.sample("y", dist.Normal(data["x"] @ w, options[1]), obs=data["y"])


def star(*columns):
    w = pyro.sample("w", normal(0, 1, len(columns) - 1))
    with pyro.plate("data", len(columns[-1])):
        pyro.sample("y", dist.Normal(sum(c * w[i] for i, c in enumerate(columns[:-1])), 1.0), obs=columns[-1])


def named_as_plate(data):
    mu = pyro.sample("mu", normal(0, 1, 3))
    with pyro.plate("data", len(data)):
        pyro.sample("y", dist.Normal(mu, 1.0).to_event(1), obs=data)


def several(x, y, k):
    w = pyro.sample("w", normal(0, 1, 3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        pyro.sample("k", dist.Poisson((x @ w).exp()), obs=k)


def observed_outside(y, centre):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    pyro.sample("centre", dist.Normal(mu, 0.1), obs=centre)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def twice(x, y, k):
    w = pyro.sample("w", normal(0, 1, 3))
    data = pyro.plate("data", len(x))
    with data:
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
    with data:
        pyro.sample("k", dist.Poisson((x @ w).exp()), obs=k)


def sequential_groups(y, group):
    theta = torch.stack([pyro.sample(f"theta_{g}", dist.Normal(0.0, 1.0)) for g in pyro.plate("groups", 4)])
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


REPARAM = poutine.reparam(schools, config={"theta": LocScaleReparam(0.0)})
TRANSFORM = poutine.reparam(lognormal, config={"a": TransformReparam()})
PANDAS = pd.DataFrame(X.numpy(), columns=list("abc"))

CASES = [
    Case("linear", linear, (X, Y)),
    Case("improper", improper, (X, Y)),
    Case("subsample_size", make_subsampled(5), (X, Y), reference=make_subsampled(None)),
    Case("int_size", sized, (X, Y, N)),
    Case("given_rows", given_rows, (X, Y, N), reference=lambda x, y, n: given_rows(x, y, n, False)),
    Case("closure", closure, ()),
    Case("closure_subsampled", closure_subsampled, (), reference=lambda: closure_subsampled(False)),
    Case("pyro_module", Net(), (X, Y)),
    Case("factor", factors, (X, Y)),
    Case("mask", masked, (X, Y, SEEN)),
    Case("mask_off", masked_off, (X, Y)),
    Case("scale", scaled, (X, Y, POSITIVE)),
    Case("obs_mask", imputed, (X, Y, SEEN), reference=imputed_reference),
    Case("obs_mask_counts", imputed_counts, (COUNTS, SEEN), reference=imputed_counts_reference),
    Case("deterministic", deterministic, (X, Y), reported=("norm", "mu", "centred")),
    Case("param", with_param, (X, Y), warns="pyro.param"),
    Case("groups", schools, (Y, GROUP)),
    Case("loc_scale_reparam", REPARAM, (Y, GROUP), reference=schools_noncentred, reported=("theta",)),
    Case("transform_reparam", TRANSFORM, (Y,), reference=lognormal_base, reported=("a",)),
    Case("mixture", mixture, (Y,)),
    Case("horseshoe", horseshoe, (X, Y)),
    Case("student", student, (X, Y)),
    Case("binomial", binomial, (X, COUNTS.clamp(max=5))),
    Case("categorical", categorical, (X, CLASSES)),
    Case("ordinal", ordinal, (X, CLASSES)),
    Case("written", written, (X, Y)),
    Case("dirichlet", simplex, (CLASSES,), reference=None),
    Case("lkj", correlated, (X,)),
    Case("nested", nested, (Y, GROUP)),
    Case("dependent", dependent, (Y,)),
    Case("rows_of_matrices", images, (torch.stack([X, X.flip(0)], 1), X[:, :2])),
    Case("rows_on_dim_2", rows_on_dim_2, (X,)),
    Case("keywords", keywords, (X,), kwargs={"y": Y, "prior_sd": torch.tensor([1.0, 2.0, 3.0]).double()}),
    Case("containers", tables, ({"x": X, "y": Y}, [2.0, 0.5])),
    Case("star", star, (X[:, 0], X[:, 1], Y)),
    Case("numpy", linear, (X.numpy(), Y.numpy())),
    Case("pandas", linear, (PANDAS, pd.Series(Y.numpy()))),
    Case("mixed_dtypes", linear, (X.float(), Y)),
    Case("integers", categorical, (X, CLASSES.int())),
    Case("argument_named_as_plate", named_as_plate, (X,)),
    Case("several_observed", several, (X, Y, COUNTS)),
    Case("observed_outside", observed_outside, (Y, torch.tensor(0.2).double())),
    Case("plate_twice", twice, (X, Y, COUNTS)),
    Case("sequential_groups", sequential_groups, (Y, GROUP)),
]
