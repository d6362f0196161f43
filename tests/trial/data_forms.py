"""Data as people have them, and how they hand them over."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
import xarray as xr
from form import Form
from model_forms import RNG, B, C, G, J, N, P, X, Y, weights
from pyro import poutine

import pyro_fed as pf

# -- models -----------------------------------------------------------------------------------------------------


def linear(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def logistic(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def logistic_probs(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(torch.sigmoid(x @ w)), obs=y)


def poisson(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y)


def binomial(n, y):
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Binomial(n, p), obs=y)


def negative_binomial(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.NegativeBinomial(2.0, logits=x @ w), obs=y)


def geometric(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Geometric(logits=x @ w), obs=y)


def normal_level(y):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m, 1.0), obs=y)


def several_bits(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([P, 2]).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w).to_event(1), obs=y)


def one_dict(data):
    w = weights()
    with pyro.plate("data", len(data["y"])):
        pyro.sample("y", dist.Normal(data["x"] @ w, 1.0), obs=data["y"])


def attributes(data):
    w = weights()
    with pyro.plate("data", len(data.y)):
        pyro.sample("y", dist.Normal(data.x @ w, 1.0), obs=data.y)


def frame_values(df):
    a, b = pyro.sample("a", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    x = torch.tensor(df["x"].values)
    y = torch.tensor(df["y"].values)
    with pyro.plate("data", len(df)):
        pyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def frame_float(df):
    a, b = pyro.sample("a", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    x, y = torch.from_numpy(df.x.to_numpy()), torch.as_tensor(df.y.values)
    with pyro.plate("data", df.shape[0]):
        pyro.sample("y", dist.Normal(a + b * x, 1.0), obs=y)


def frame_matrix(df):
    w = weights("w", 2)
    x = torch.tensor(df[["x", "z"]].values)
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=torch.tensor(df["y"].values))


def frame_direct(df):
    a, b = pyro.sample("a", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(df["y"])):
        pyro.sample("y", dist.Normal(a + b * df["x"], 1.0), obs=df["y"])


def frame_codes(df):
    a = weights("a", J)
    g = torch.tensor(df["group"].cat.codes.values, dtype=torch.long)
    with pyro.plate("data", len(df)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=torch.tensor(df["y"].values))


def by_group(g, y):
    with pyro.plate("groups", J):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def numpy_inside(x, y):
    x, y = torch.tensor(x), torch.tensor(y)
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def numpy_from(x, y):
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def series_values(x, y):
    a, b = pyro.sample("a", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a + b * torch.tensor(x.values), 1.0), obs=torch.tensor(y.values))


# -- missing values ---------------------------------------------------------------------------------------------
def obs_mask(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=~torch.isnan(y))


def obs_mask_poisson(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson((x @ w).exp()), obs=y, obs_mask=~y.isnan())


def poutine_mask(x, y):
    w = weights()
    with pyro.plate("data", len(y)), poutine.mask(mask=~torch.isnan(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def mask_method(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0).mask(~torch.isnan(y)), obs=y)


def first_columns(x, y):
    linear(x[:, :-1], y)


def nan_masked_normal(x, y):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.NanMaskedNormal(x @ w, 1.0), obs=y)


def nan_masked_columns(y):
    m = weights()
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.NanMaskedMultivariateNormal(m, torch.eye(y.shape[1]) + s), obs=y)


def where_isnan(x, y):
    w = weights()
    known = ~torch.isnan(y)
    with pyro.plate("data", len(y)), poutine.mask(mask=known):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=torch.where(known, y, torch.zeros_like(y)))


def nan_to_num_flag(x, y):
    w, v = weights(), weights("v")
    missing = x.isnan().to(x.dtype)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x.nan_to_num(0.0) @ w + missing @ v, 1.0), obs=y)


def masked_series(y):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        known = ~torch.isnan(y)
        pyro.sample("y", dist.Normal(m, 1.0).expand(y.shape).mask(known).to_event(1), obs=y)


def known_series(y):
    known = ~torch.isnan(y)
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(m, 1.0).expand([int(known.sum())]).to_event(1), obs=y[known])


def given_mask(x, y, known):
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=known)


def imputed_downstream(age, y):
    m, b = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        full = pyro.sample("age", dist.Normal(m, 1.0), obs=age, obs_mask=~age.isnan())
        pyro.sample("y", dist.Normal(b * full, 1.0), obs=y)


def imputed_by_latent(age, y):
    m, b = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    known = ~age.isnan()
    with pyro.plate("data", len(y)):
        drawn = pyro.sample("drawn", dist.Normal(m, 1.0))
        with poutine.mask(mask=known):
            pyro.sample("age", dist.Normal(m, 1.0), obs=torch.where(known, age, torch.zeros_like(age)))
        full = torch.where(known, age, drawn)
        pyro.sample("y", dist.Normal(b * full, 1.0), obs=y)


def imputed_tutorial(age, y):
    m, b = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("b", dist.Normal(0.0, 1.0))
    missing = torch.isnan(age)
    with pyro.plate("data", len(y)):
        drawn = pyro.sample("drawn", dist.Normal(m, 1.0).mask(missing))
        full = torch.where(missing, drawn, age)
        pyro.sample("age", dist.Normal(m, 1.0).mask(~missing), obs=full.detach().nan_to_num())
        pyro.sample("y", dist.Normal(b * full, 1.0), obs=y)


def unhandled_comparison(x, y):
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(b * (x > 0).to(y.dtype), 1.0), obs=y)


def interval(lower, upper):
    m = pyro.sample("m", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(lower)):
        d = dist.Normal(m, 1.0)
        pyro.factor("lik", (d.cdf(upper) - d.cdf(lower)).log())


# -- rows elsewhere ---------------------------------------------------------------------------------------------
def subjects_second(y):
    m = weights("m", 4)
    with pyro.plate("data", y.shape[1]):
        pyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y.T)


def time_by_subject(counts, x):
    b, r = pyro.sample("b", dist.Normal(0.0, 1.0)), weights("r", 4)
    times = pyro.plate("time", 4, dim=-2)
    with times, pyro.plate("data", counts.shape[1], dim=-1):
        pyro.sample("y", dist.Poisson((b * x + r[:, None]).exp()), obs=counts)


def workflow(counts):
    b = pyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    time, patients = pyro.plate("time", 4, dim=-2), pyro.plate("data", counts.shape[1], dim=-1)
    with time, patients:
        pyro.sample("y", dist.Poisson(b.exp()).to_event(1), obs=counts)


# -- several plates of data ---------------------------------------------------------------------------------------
def censored(t, c):
    rate = pyro.sample("rate", dist.Gamma(2.0, 1.0))
    with pyro.plate("observed", len(t)):
        pyro.sample("t", dist.Exponential(rate), obs=t)
    with pyro.plate("censored", len(c)):
        pyro.factor("c", -rate * c)


def censored_regression(x, t, z, c):
    w, k = weights(), pyro.sample("k", dist.Gamma(2.0, 1.0))
    with pyro.plate("observed", len(t)):
        pyro.sample("t", dist.Weibull((x @ w).exp(), k), obs=t)
    with pyro.plate("censored", len(c)):
        survival = torch.exp(-((c / (z @ w).exp()) ** k))
        pyro.sample("c", dist.Bernoulli(survival), obs=torch.ones_like(c))


def three_plates(a, b, c):
    m, s = pyro.sample("m", dist.Normal(0.0, 1.0)), pyro.sample("s", dist.HalfNormal(1.0))
    for name, part, scale in (("north", a, 1.0), ("east", b, 2.0), ("south", c, 0.5)):
        with pyro.plate(name, len(part)):
            pyro.sample(f"y_{name}", dist.Normal(m, s * scale), obs=part)


def documents(words):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(5)))
    with pyro.plate("documents", words.shape[1], dim=-1), pyro.plate("words", words.shape[0], dim=-2):
        pyro.sample("w", dist.Categorical(p), obs=words)


# -- no plate, or no arguments --------------------------------------------------------------------------------------
def coins(data):
    f = pyro.sample("f", dist.Beta(10.0, 10.0))
    for i in range(len(data)):
        pyro.sample(f"obs_{i}", dist.Bernoulli(f), obs=data[i])


def coins_with_plate(data):
    f = pyro.sample("f", dist.Beta(10.0, 10.0))
    with pyro.plate("data", len(data)):
        pyro.sample("obs", dist.Bernoulli(f), obs=data)


def no_plate(x, y):
    w = weights()
    pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def no_plate_event(x, y):
    w = weights()
    pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


def other_plate(x, y):
    w = weights()
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def generative(x):
    w = weights()
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 1.0))


def generative_conditioned(x, y):
    return poutine.condition(generative, data={"y": y})(x)


def global_target(x):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=Y)


def globals_only():
    w = weights()
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(X @ w, 1.0), obs=Y)


def closed_over(x, y):
    def model():
        w = weights()
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


class HoldsRows:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __call__(self):
        w = weights()
        with pyro.plate("data", len(self.y)):
            pyro.sample("y", dist.Normal(self.x @ w, 1.0), obs=self.y)


# -- sizes from data --------------------------------------------------------------------------------------------
def groups_from_max(g, y):
    with pyro.plate("groups", int(g.max()) + 1):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def groups_from_unique(g, y):
    a = weights("a", len(torch.unique(g)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def groups_shared(g, y):
    groups = pf.shared("groups", lambda: int(g.max()) + 1)
    with pyro.plate("groups", groups):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def groups_argument(g, y, num_groups):
    with pyro.plate("groups", num_groups):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def regularised_horseshoe(x, y):
    n, d = x.shape
    tau = pyro.sample("tau", dist.HalfCauchy(2 / (d - 2) / n**0.5))
    w = pyro.sample("w", dist.Normal(0.0, tau).expand([d]).to_event(1))
    with pyro.plate("data", n):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def regularised_horseshoe_shared(x, y):
    n, d = pf.shared("n", len(x)), x.shape[1]
    tau = pyro.sample("tau", dist.HalfCauchy(2 / (d - 2) / n**0.5))
    w = pyro.sample("w", dist.Normal(0.0, tau).expand([d]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def expand_rows(y):
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p.expand([len(y)])), obs=y)


def zeros_rows(x, y):
    w = weights()
    mean = torch.zeros(len(y))
    for i in range(P):
        mean = mean + w[i] * x[:, i]
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, torch.ones(len(y))), obs=y)


def latent_rows_outside(y):
    s = pyro.sample("s", dist.HalfNormal(1.0))
    z = pyro.sample("z", dist.Normal(torch.zeros(len(y)), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(s * z, 1.0), obs=y)


def latent_rows_inside(y):
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(s * z, 1.0), obs=y)


def expand_constant(y):
    p = pyro.sample("p", dist.Beta(1.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p.expand([N])), obs=y)


def zeros_constant(x, y):
    w = weights()
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(torch.zeros(N) + x @ w, 1.0), obs=y)


def standardised(x, y):
    x = (x - x.mean(0)) / x.std(0)
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def standardised_shared(x, y):
    mean, sd = pf.shared("moments", lambda: (x.mean(0), x.std(0)))
    w = weights()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((x - mean) / sd @ w, 1.0), obs=y)


# -- the data ---------------------------------------------------------------------------------------------------
class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Study:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "a study"


class Namespace:
    def __init__(self, **values):
        self.__dict__.update(values)


XN, YN = X.numpy(), Y.numpy()
NAMES = np.array(["ash", "birch", "cedar", "fir"])
FRAME = pd.DataFrame({"x": XN[:, 0], "z": XN[:, 1], "y": YN})
GROUPED = FRAME.assign(group=pd.Categorical(NAMES[G.numpy()]))
MISSING = torch.tensor(RNG.random(N) < 0.25)
KNOWN = ~MISSING
Y_NAN = torch.where(MISSING, torch.nan, Y)
C_NAN = torch.where(MISSING, torch.nan, C)
X_NAN = torch.where(MISSING[:, None] & torch.tensor([True, False, False]), torch.nan, X)
SERIES = torch.tensor(RNG.normal(size=(N, 4)))
SERIES_NAN = torch.where(torch.tensor(RNG.random((N, 4))) < 0.3, torch.nan, SERIES)
MASKED = np.ma.masked_array(np.where(MISSING, 999.0, YN), mask=MISSING.numpy())
MASKED_INT = np.ma.masked_array(np.where(MISSING, 999, C.numpy()).astype(int), mask=MISSING.numpy())
UNMASKED = np.ma.masked_array(YN, mask=np.zeros(N, bool))
GRID = torch.tensor(RNG.poisson(2.0, (4, N))).double()
WORDS = torch.tensor(RNG.integers(0, 5, (7, N)))
T2 = torch.tensor(RNG.exponential(size=10))
C2 = torch.tensor(RNG.exponential(size=7))


def keep(x, y):
    """What Pyro alone gets: the rows that are known."""
    return x[KNOWN], y[KNOWN]


def _form(name, model, *args, **more):
    return Form(name, model, args, **more)


def _axis(**axes):
    return {"options": {"shard": axes}}


DATA = [
    # integer and bool labels
    _form("int64 labels, Bernoulli logits", logistic, X, B.long(), pyro=(None, (X, B))),
    _form("int32 labels, Bernoulli logits", logistic, X, B.int(), pyro=(None, (X, B))),
    _form("uint8 labels, Bernoulli logits", logistic, X, B.to(torch.uint8), pyro=(None, (X, B))),
    _form("bool labels, Bernoulli logits", logistic, X, B.bool(), pyro=(None, (X, B))),
    _form("int64 labels, Bernoulli probs", logistic_probs, X, B.long(), pyro=(None, (X, B))),
    _form("bool labels, Bernoulli probs", logistic_probs, X, B.bool(), pyro=(None, (X, B))),
    _form("NumPy int labels", logistic, XN, B.numpy().astype(int), pyro=(None, (X, B))),
    _form("int counts, Poisson", poisson, X, C.long(), pyro=(None, (X, C))),
    _form("int counts, Binomial", binomial, 30, C.long(), pyro=(None, (30, C))),
    _form("int counts and trials", binomial, torch.full((N,), 30), C.long(), pyro=(None, (torch.full((N,), 30), C))),
    _form("int counts, NegativeBinomial", negative_binomial, X, C.long(), pyro=(None, (X, C))),
    _form("int counts, Geometric", geometric, X, C.long(), pyro=(None, (X, C))),
    _form("int data, Normal", normal_level, C.long(), pyro=(None, (C,))),
    _form(
        "matrix of bool answers",
        several_bits,
        X,
        B.bool()[:, None].expand(-1, 2),
        pyro=(None, (X, B[:, None].expand(-1, 2))),
    ),
    _form(
        "int covariates",
        linear,
        torch.arange(3 * N).reshape(N, 3) % 5,
        Y,
        refused=r"`.*x @ w.*` \(data_forms\.py:\d+\).*'x' is int64.*x\.double\(\)|\.float\(\)",
        cured=_form("float covariates", linear, (torch.arange(3 * N).reshape(N, 3) % 5).double(), Y),
    ),
    _form(
        "labels 1 and 2",
        logistic,
        X,
        B.long() + 1,
        refused=r"observed site 'y'.*outside the support of Bernoulli.*argument 'y': expected 0 and 1",
        cured=_form("labels 0 and 1", logistic, X, B.long(), pyro=(None, (X, B))),
    ),
    _form(
        "labels -1 and 1",
        logistic,
        X,
        2 * B - 1,
        refused=r"observed site 'y'.*outside the support of Bernoulli.*argument 'y': expected 0 and 1",
        cured=_form("labels 0 and 1", logistic, X, B),
    ),
    # arrays, frames, containers
    _form("NumPy arrays", linear, XN, YN),
    _form("NumPy arrays, float32", linear, XN.astype("float32").astype(float), YN),
    _form("NumPy arrays, torch.tensor in the model", numpy_inside, XN, YN, pyro=(linear, (X, Y))),
    _form("NumPy arrays, torch.from_numpy in the model", numpy_from, XN, YN, pyro=(linear, (X, Y))),
    Form("a list for args", linear, [X, Y], pyro=(None, (X, Y))),
    _form("a list of numbers", coins_with_plate, [1.0, 0.0] * 6, pyro=(None, (torch.tensor([1.0, 0.0] * 6),))),
    _form("a list of ints", coins_with_plate, [1, 0] * 6, pyro=(None, (torch.tensor([1.0, 0.0] * 6),))),
    _form("lists of numbers", by_group, G.tolist(), Y.tolist(), pyro=(None, (G, Y))),
    _form("a dict", one_dict, {"x": X, "y": Y}),
    _form("a NamedTuple", attributes, Pair(X, Y)),
    _form("a dataclass", attributes, Study(X, Y), pyro=(linear, (X, Y))),
    _form("a namespace", attributes, Namespace(x=X, y=Y), pyro=(linear, (X, Y))),
    _form("a frame, .values", frame_values, FRAME, pyro=(frame_values, (FRAME,))),
    _form("a frame, attributes and to_numpy", frame_float, FRAME),
    _form("a frame, several columns", frame_matrix, FRAME),
    _form("a frame, columns as tensors", frame_direct, FRAME, pyro=(frame_values, (FRAME,))),
    _form("a frame with categories", frame_codes, GROUPED),
    _form(
        "a frame of columns x and y",
        linear,
        FRAME[["x", "z", "y"]],
        FRAME["y"],
        pyro=(None, (torch.tensor(FRAME[["x", "z", "y"]].values), Y)),
    ),
    _form("Series", by_group, pd.Series(G.numpy()), pd.Series(YN), pyro=(None, (G, Y))),
    _form("Series, .values in the model", series_values, FRAME["x"], FRAME["y"]),
    _form(
        "Series with its own index",
        by_group,
        pd.Series(G.numpy(), index=range(7, 7 + N)),
        pd.Series(YN),
        pyro=(None, (G, Y)),
    ),
    _form("a categorical Series", by_group, GROUPED["group"], FRAME["y"], pyro=(None, (G, Y))),
    _form("strings in a Series", by_group, pd.Series(NAMES[G.numpy()]), FRAME["y"], pyro=(None, (G, Y))),
    _form("strings in an array", by_group, NAMES[G.numpy()], Y, pyro=(None, (G, Y))),
    _form("nullable integers", poisson, X, pd.Series(C.numpy().astype(int), dtype="Int64"), pyro=(None, (X, C))),
    _form("nullable booleans", logistic, X, pd.Series(B.numpy() > 0, dtype="boolean"), pyro=(None, (X, B))),
    _form(
        "xarray", linear, xr.DataArray(XN, dims=("row", "column")), xr.DataArray(YN, dims="row"), pyro=(None, (X, Y))
    ),
    _form(
        "an xarray Dataset",
        attributes,
        xr.Dataset({"x": (("row", "column"), XN), "y": ("row", YN)}),
        pyro=(linear, (X, Y)),
    ),
    _form("read-only arrays", linear, np.broadcast_to(XN, XN.shape), YN),
    # masked and missing
    _form(
        "a masked array",
        linear,
        XN,
        MASKED,
        refused=r"argument 'y'\[\d+\] is masked.*obs_mask",
        cured=_form("a masked array, obs_mask", obs_mask, XN, MASKED, pyro=(linear, keep(X, Y))),
    ),
    _form("a masked array without a mask", linear, XN, UNMASKED, pyro=(None, (X, Y))),
    _form("a masked array of counts", obs_mask_poisson, XN, MASKED_INT, pyro=(poisson, keep(X, C))),
    _form("NaN, obs_mask", obs_mask, X, Y_NAN, pyro=(linear, keep(X, Y))),
    _form("NaN, obs_mask, Poisson", obs_mask_poisson, X, C_NAN, pyro=(poisson, keep(X, C))),
    _form("NaN, poutine.mask", poutine_mask, X, Y_NAN, pyro=(linear, keep(X, Y))),
    _form("NaN, .mask()", mask_method, X, Y_NAN, pyro=(linear, keep(X, Y))),
    _form("NaN, isnan and where", where_isnan, X, Y_NAN, pyro=(linear, keep(X, Y))),
    _form("NaN, NanMaskedNormal", nan_masked_normal, X, Y_NAN, pyro=(linear, keep(X, Y))),
    _form("NaN, NanMaskedMultivariateNormal", nan_masked_columns, X_NAN),
    _form("NaN in a column that is not read", first_columns, torch.cat([X, Y_NAN[:, None]], 1), Y),
    _form("NaN in x, nan_to_num and a flag", nan_to_num_flag, X_NAN, Y),
    _form("NaN in series", masked_series, SERIES_NAN, pyro=(known_series, None)),
    _form("NaN with a mask given", given_mask, X, Y_NAN, KNOWN, pyro=(linear, keep(X, Y))),
    _form("NaN with a NumPy mask given", given_mask, XN, Y_NAN.numpy(), KNOWN.numpy(), pyro=(linear, keep(X, Y))),
    _form(
        "NaN that the model does not handle",
        linear,
        X,
        Y_NAN,
        refused=r"argument 'y'\[\d+\] is NaN.*obs_mask",
        cured=_form("handled", obs_mask, X, Y_NAN, pyro=(linear, keep(X, Y))),
    ),
    _form(
        "NaN in a comparison",
        unhandled_comparison,
        X_NAN[:, 0],
        Y,
        refused=r"argument 'x'\[\d+\] is NaN.*isnan",
        cured=_form("dropped", unhandled_comparison, X[KNOWN][:, 0], Y[KNOWN]),
    ),
    _form(
        "obs_mask used downstream",
        imputed_downstream,
        X_NAN[:, 0],
        Y,
        refused=r"'y'.*latent.*torch\.where",
        cured=_form("a latent and where", imputed_by_latent, X_NAN[:, 0], Y),
    ),
    _form(
        "infinite bounds of intervals",
        interval,
        torch.full((N,), -torch.inf).double(),
        Y,
        refused=r"'lik'.*second derivative.*erf.*keep the operation away from its edge",
        cured=_form("bounds far away", interval, torch.full((N,), -100.0).double(), Y),
    ),
    # rows elsewhere
    _form("rows on dimension 1", subjects_second, GRID, **_axis(y=1)),
    _form("time x subject", time_by_subject, GRID, X[:, 0], **_axis(counts=1, x=0)),
    _form("time x subject x group", workflow, torch.stack([GRID, GRID], -1), **_axis(counts=1)),
    _form(
        "time x subject, unsaid",
        time_by_subject,
        GRID,
        X[:, 0],
        refused=r"Argument 'counts'.*\(4, 24\).*shard=\{.*'counts': 1",
        cured=_form("said", time_by_subject, GRID, X[:, 0], **_axis(counts=1, x=0)),
    ),
    # several plates of data
    _form("observed and censored", censored, T2, C2, options={"plate": ("observed", "censored")}),
    _form(
        "observed and censored, regression",
        censored_regression,
        *(X[:10], T2, X[10:17], C2),
        options={"plate": ("observed", "censored")},
    ),
    _form("three plates", three_plates, T2, C2, Y, options={"plate": ("north", "east", "south")}),
    _form(
        "two plates of one length",
        censored,
        T2[:7],
        C2,
        options={"plate": ("observed", "censored"), "shard": {"observed": "t", "censored": "c"}},
    ),
    _form(
        "one of two plates",
        censored,
        T2,
        C2,
        options={"plate": "observed"},
        warns=r"'c'.*plate 'censored'.*every client",
    ),
    _form(
        "two plates, data apart",
        censored,
        options={"plate": ("observed", "censored"), "clients": [(T2[:4], C2[:5]), (T2[4:], C2[5:])]},
        pyro=(None, (T2, C2)),
    ),
    _form("words x documents", documents, WORDS, options={"plate": "documents", "shard": {"words": 1}}),
    # no plate, no arguments
    _form(
        "no plate: coins",
        coins,
        B,
        refused=r"no plate.*`pyro\.sample\(f\"obs_\{i\}\".*data_forms\.py:\d+.*with pyro\.plate\('data'",
        cured=_form("coins", coins_with_plate, B),
    ),
    _form(
        "no plate: a vector",
        no_plate,
        X,
        Y,
        refused=r"no plate.*`pyro\.sample\(\"y\".*data_forms\.py:\d+.*with pyro\.plate\('data', len\(y\)\)",
        cured=_form("a vector", linear, X, Y),
    ),
    _form(
        "no plate: to_event",
        no_plate_event,
        X,
        Y,
        refused=r"no plate.*`pyro\.sample\(\"y\".*data_forms\.py:\d+.*with pyro\.plate\('data', len\(y\)\)",
        cured=_form("a vector", linear, X, Y),
    ),
    _form(
        "another plate's name",
        other_plate,
        X,
        Y,
        refused=r"no plate 'data'.*plate='rows'",
        cured=_form("named", other_plate, X, Y, options={"plate": "rows"}),
    ),
    _form("pyro.condition", pyro.condition(generative, data={"y": Y}), X, pyro=(linear, (X, Y))),
    _form("poutine.condition in the model", generative_conditioned, X, Y, pyro=(linear, (X, Y))),
    _form("partial", functools.partial(linear, X), Y, pyro=(linear, (X, Y))),
    _form("partial with keywords", functools.partial(linear, x=X, y=Y), pyro=(linear, (X, Y))),
    _form(
        "a global target",
        global_target,
        X,
        refused=r"global 'Y'.*argument.*pf\.Federation\(.*\(x, Y\)",
        cured=_form("an argument", linear, X, Y),
    ),
    _form(
        "globals alone",
        globals_only,
        refused=r"globals? .*'X'.*'Y'.*argument.*pf\.Federation\(.*\(X, Y\)",
        cured=_form("arguments", linear, X, Y),
    ),
    _form(
        "a closure",
        closed_over(X, Y),
        refused=r"'x'.*'y'.*argument.*pf\.Federation\(.*\(x, y\)",
        cured=_form("arguments", linear, X, Y),
    ),
    _form(
        "a lambda",
        lambda: linear(X, Y),
        refused=r"'X'.*'Y'.*argument.*pf\.Federation\(",
        cured=_form("arguments", linear, X, Y),
    ),
    _form(
        "an object that holds rows",
        HoldsRows(X, Y),
        refused=r"'self\.x'.*'self\.y'.*argument",
        cured=_form("arguments", linear, X, Y),
    ),
    # sizes from data
    _form(
        "int(g.max()) + 1",
        groups_from_max,
        G,
        Y,
        refused=r"data_forms\.py:\d+.*pf\.shared",
        cured=_form("pf.shared", groups_shared, G, Y),
    ),
    _form(
        "len(unique(g))",
        groups_from_unique,
        G,
        Y,
        refused=r"data_forms\.py:\d+.*pf\.shared|argument",
        cured=_form("an int argument", groups_argument, G, Y, J),
    ),
    _form(
        "N in a prior",
        regularised_horseshoe,
        X,
        Y,
        refused=r"prior of site 'tau'.*data_forms\.py:\d+.*pf\.shared",
        cured=_form("pf.shared", regularised_horseshoe_shared, X, Y),
    ),
    _form("p.expand([len(y)])", expand_rows, B),
    _form("torch.zeros(len(y))", zeros_rows, X, Y),
    _form(
        "p.expand([N])",
        expand_constant,
        B,
        refused=r"data_forms\.py:\d+.*len\(",
        cured=_form("len(y)", expand_rows, B),
    ),
    _form(
        "torch.zeros(N)",
        zeros_constant,
        X,
        Y,
        refused=r"data_forms\.py:\d+.*len\(",
        cured=_form("len(y)", zeros_rows, X, Y),
    ),
    _form(
        "a latent for each row outside the plate",
        latent_rows_outside,
        Y,
        refused=r"'z'.*data_forms\.py:\d+.*plate",
        cured=_form("inside", latent_rows_inside, Y),
    ),
    _form(
        "standardised in the model",
        standardised,
        X,
        Y,
        refused=r"'y'.*data_forms\.py:\d+",
        cured=_form("pf.shared", standardised_shared, X, Y),
    ),
]
