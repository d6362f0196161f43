"""Discrete latents inside the plate are summed out and drawn afterwards, against sums written by hand."""

import itertools
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import config_enumerate

import pyro_fed as pf
from pyro_fed.density.latents.draws import assign

GENERATOR = torch.Generator().manual_seed(3)


Y = 3 * torch.randn(29, generator=GENERATOR, dtype=torch.float64)


TABLE = torch.randn(29, 4, generator=GENERATOR, dtype=torch.float64)


DRAWS = 4000


EVENTS = torch.randint(0, 2, (29, 5), generator=GENERATOR).double()


def weights_and_means():
    weights = pyro.sample("weights", dist.Dirichlet(torch.ones(3)))
    return weights, pyro.sample("loc", dist.Normal(torch.zeros(3), 5.0).to_event(1))


def mixture(y):
    weights, loc = weights_and_means()
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Categorical(weights), infer={"enumerate": "parallel"})
        pyro.deterministic("mean", loc[k])
        pyro.sample("y", dist.Normal(loc[k], 1.0), obs=y)


def mixture_by_hand(y):
    weights, loc = weights_and_means()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc, 1.0)), obs=y)


def per_row(y, terms):
    """The model's sites of each row, and its log-likelihood as a factor."""
    with pyro.plate("data", len(y)):
        pyro.factor("y", terms.logsumexp(0))


@config_enumerate
def chained(y):
    """Two sites, the second depending on the first, and an observation of each."""
    weights, loc = weights_and_means()
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Categorical(weights))
        flip = pyro.sample("flip", dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9]).double()[k]))
        pyro.sample("y", dist.Normal(loc[k] + 2 * flip, 1.0), obs=y)
        pyro.sample("z", dist.Normal(-flip, 2.0), obs=y.cos())


def chained_by_hand(y):
    weights, loc = weights_and_means()
    terms = [
        weights[k].log()
        + dist.Bernoulli(torch.tensor([0.2, 0.5, 0.9]).double()[k]).log_prob(torch.tensor(f).double())
        + dist.Normal(loc[k] + 2 * f, 1.0).log_prob(y)
        + dist.Normal(-f, 2.0).log_prob(y.cos())
        for k, f in itertools.product(range(3), (0.0, 1.0))
    ]
    per_row(y, torch.stack(terms))


@config_enumerate
def nested(y, table):
    """A site of the row, and one of each entry of the row's table, in a plate within."""
    weights, loc = weights_and_means()
    with pyro.plate("data", len(y), dim=-1):
        k = pyro.sample("k", dist.Categorical(weights))
        with pyro.plate("entries", table.shape[1], dim=-2):
            odd = pyro.sample("odd", dist.Bernoulli(0.3))
            pyro.sample("table", dist.Normal(loc[k] + odd, 1.0), obs=table.mT)


def nested_by_hand(y, table):
    weights, loc = weights_and_means()
    odd = torch.tensor([0.7, 0.3]).double().log()[:, None, None, None]
    mean = loc[None, :, None, None] + torch.tensor([0.0, 1.0])[:, None, None, None]
    entries = (odd + dist.Normal(mean, 1.0).log_prob(table)).logsumexp(0).sum(-1)
    per_row(y, weights.log()[:, None] + entries)


@config_enumerate
def markov(events):
    """A hidden Markov chain in every row."""
    stay = pyro.sample("stay", dist.Beta(2.0, 2.0))
    emit = pyro.sample("emit", dist.Beta(torch.ones(2), 2.0).to_event(1))
    with pyro.plate("data", len(events)):
        state = events.new_zeros(len(events)).long()
        for t in pyro.markov(range(events.shape[1])):
            state = pyro.sample(f"s{t}", dist.Bernoulli(torch.where(state == 0, 1 - stay, stay))).long()
            pyro.sample(f"e{t}", dist.Bernoulli(emit[state]), obs=events[:, t])


def markov_by_hand(events):
    stay = pyro.sample("stay", dist.Beta(2.0, 2.0))
    emit = pyro.sample("emit", dist.Beta(torch.ones(2), 2.0).to_event(1))
    terms = []
    for path in itertools.product((0, 1), repeat=events.shape[1]):
        total, before = 0.0, 0
        for t, now in enumerate(path):
            up = stay if before else 1 - stay
            total = total + (up if now else 1 - up).log() + dist.Bernoulli(emit[now]).log_prob(events[:, t])
            before = now
        terms.append(total)
    with pyro.plate("data", len(events)):
        pyro.factor("y", torch.stack(terms).logsumexp(0))


def onehot(y):
    weights, loc = weights_and_means()
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.OneHotCategorical(weights), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal((k * loc).sum(-1), 1.0), obs=y)


CASES = [
    ("mixture", mixture, mixture_by_hand, (Y,), "y"),
    ("onehot", onehot, mixture_by_hand, (Y,), "y"),
    ("chained", chained, chained_by_hand, (Y,), "y_z"),
    ("nested", nested, nested_by_hand, (Y, TABLE), "table"),
    ("markov", markov, markov_by_hand, (EVENTS,), "e0_e1_e2_e3_e4"),
]


def federation(model, args):
    return pf.Federation(model, args, plate="data", num_clients=3)


@pytest.mark.parametrize(("model", "by_hand", "args", "name"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_density_and_gradient_are_those_of_the_sum_by_hand(model, by_hand, args, name):
    mine, hand = (federation(m, args).problem for m in (model, by_hand))
    z = torch.randn(4, mine.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(mine.site_log_lik(z)[name], hand.pointwise_log_lik(z), rtol=1e-12, atol=1e-12)
    one = (args[0][:1], *(a[:1] for a in args[1:]))
    torch.testing.assert_close(mine.pointwise_log_lik(z, one), hand.pointwise_log_lik(z, one), rtol=1e-12, atol=1e-12)
    scores = [torch.func.vmap(torch.func.grad(lambda t, p=p: p.log_lik(t) + p.log_prior(t)))(z) for p in (mine, hand)]
    torch.testing.assert_close(*scores, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("model", "args"), [(c[1], c[3]) for c in CASES], ids=[c[0] for c in CASES])
def test_assignments_are_draws_of_their_exact_posterior(model, args):
    """Frequencies of every site's values against the ratio of two sums: the density with that value fixed, or not."""
    problem = pf.Federation(model, tuple(a[:3] for a in args), plate="data", num_clients=3).problem
    z = 0.3 * torch.randn(problem.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = assign(problem, z.expand(DRAWS, -1), torch.Generator().manual_seed(2))
    total = problem.pointwise_log_lik(z)
    for name, site in problem.layout.discrete.items():
        assert draws[name].shape[1:] == site.shape
        value = draws[name][0]
        weight = (sum(problem.log_terms(z, problem.rows, discrete={name: value})[1].values()) - total).exp()
        same = draws[name] == value
        same = same.all(-1) if site.event_dim else same
        frequency = same.reshape(DRAWS, -1, 3).all(1).double().mean(0)
        # 5 standard errors of DRAWS draws: one false alarm in 10⁶ a number.
        assert bool(((frequency - weight).abs() <= 5 * (weight * (1 - weight) / DRAWS).sqrt() + 1e-12).all())


@config_enumerate
def ordered(y):
    weights = torch.tensor([0.3, 0.2, 0.5])
    loc = torch.tensor([-20.0, 0.0, 20.0]) + pyro.sample("shift", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Categorical(weights))
        pyro.deterministic("mean", loc[k])
        pyro.sample("y", dist.Normal(loc[k], 1.0), obs=y)


def test_assignments_stand_in_the_posterior_under_the_plate_in_the_original_order():
    far = torch.tensor([-20.0, 20.0, 0.0, 20.0, -20.0, 0.0]).double().repeat(6)
    fed = federation(ordered, (far,))
    idata = pf.run(pf.FedEP(), fed, num_draws=50, progress=False, compile="off")
    posterior = idata["posterior"]
    kept = pf.run(pf.FedEP(), fed, num_draws=50, progress=False, compile="off", collect_local=False)
    assert not {"k", "mean"} & set(kept["posterior"].data_vars)
    again, new = pf.predict(idata, fed), pf.predict(idata, fed, (far[:4],))
    drawn = again["posterior_predictive"]["y"].values
    assert (np.abs(drawn - posterior["mean"].values) < 8).all()  # 8 SDs: the same component
    assert np.unique(np.round(new["posterior_predictive"]["y"].values / 20)).tolist() == [-1.0, 0.0, 1.0]
    assert posterior["k"].dims == ("chain", "draw", "data")
    assert posterior["k"].dtype == np.int64
    expected = np.tile([0, 2, 1, 2, 0, 1], 6)
    assert (posterior["k"].values == expected).all()
    means = 20.0 * (expected - 1) + posterior["shift"].values[0][:, None]
    np.testing.assert_allclose(posterior["mean"].values[0], means)
    assert idata["log_likelihood"]["y"].shape == (1, 50, 36)


def ordered_by_hand(y):
    weights = torch.tensor([0.3, 0.2, 0.5])
    loc = torch.tensor([-20.0, 0.0, 20.0]) + pyro.sample("shift", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc, 1.0)), obs=y)


@pytest.mark.parametrize("name", ["FedEP", "FSGLD", "DSVGD", "NUTS"])
def test_algorithms_agree_with_the_mixture_by_hand(name):
    """The same numbers, step by step: the densities are the same functions."""
    settings = {
        "NUTS": {"warmup_steps": 20, "num_samples": 20, "num_chains": 1},
        "FSGLD": {},
        "DSVGD": {"num_particles": 5, "local_steps": 4, "start": "gaussian"},  # a search asks how rows are written
        "FedEP": {},
    }
    quiet = {"progress": False, "log_likelihood": False, "compile": "trace"}
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # far from convergence
        for model in (ordered, ordered_by_hand):
            algorithm = getattr(pf.infer, name)(**settings[name])
            fed = federation(model, (Y,))
            results.append(pf.run(algorithm, fed, num_rounds=2, num_draws=20, **quiet))
    first, second = (one["posterior"]["shift"].values for one in results)
    np.testing.assert_allclose(first, second, rtol=1e-6)
