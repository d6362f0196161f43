"""Densities, scores and curvatures that are no numbers at an edge: refused with site, rows and line, or right."""

import math
import pickle
import re
import warnings
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import special, stats

import pyro_fed as pf
from pyro_fed.density import starts
from pyro_fed.density.checks.not_finite import nan_density_notes

QUIET = {"seed": 0, "progress": False}


def federated(model, *args, clients=3, **options):
    return pf.Federation(model, args, plate="data", num_clients=clients, seed=0, **options)


def moments(log_density, *axes):
    """Means and SDs by quadrature on a grid."""
    grids = np.meshgrid(*axes, indexing="ij")
    with np.errstate(all="ignore"):
        log_density = log_density(*grids)
    weight = np.exp(log_density - np.nanmax(np.where(np.isfinite(log_density), log_density, np.nan)))
    weight = np.where(np.isfinite(weight), weight, 0.0) / np.nansum(np.where(np.isfinite(weight), weight, 0.0))
    means = [float((weight * grid).sum()) for grid in grids]
    sds = [float((weight * (grid - mean) ** 2).sum() ** 0.5) for grid, mean in zip(grids, means, strict=True)]
    return means, sds


def assert_right(idata, names, expected, within=0.2):
    """Means within so many SDs, and SDs within that share: of 1,000 draws three to six standard errors."""
    for name, mean, sd in zip(names, *expected, strict=True):
        values = idata["posterior"][name].values
        assert abs(values.mean() - mean) < within * sd, (name, values.mean(), mean, sd)
        assert abs(values.std() / sd - 1) < within, (name, values.std(), sd)


# -- no derivative at any point ------------------------------------------------------------------------------------
EXPOSURE = torch.tensor([3.0, 0.0, 5.0, 2.0, 0.0, 4.0, 1.0, 6.0]).double()
COUNTS = torch.tensor([1.0, 0.0, 4.0, 0.0, 0.0, 2.0, 1.0, 3.0]).double()


def hazard(exposure, count, guard=0.0):
    rate = pyro.sample("rate", dist.Gamma(exposure.new_tensor(1.0), 1.0))
    with pyro.plate("data", len(count)):
        pyro.sample("y", dist.Poisson((rate * exposure).clamp_min(guard)), obs=count)


def test_a_rate_of_zero_is_refused_with_its_clients_and_the_cure_is_right():
    said = (
        r"clients [\d, and]+ \(first: client \d, row 1\): site 'y': the gradient .* along 'rate' .* in 2 of the 8 rows"
    )
    with pytest.raises(pf.errors.ModelError, match=said + r".* by xlogy at `pyro.sample\(\"y\".*clamp_min"):
        federated(hazard, EXPOSURE, COUNTS)
    idata = pf.fit(federated(hazard, EXPOSURE, COUNTS, 1e-30), **QUIET)
    shape, rate = 1 + float(COUNTS.sum()), 1 + float(EXPOSURE.sum())
    assert_right(idata, ["rate"], ([shape / rate], [shape**0.5 / rate]))


def dose_response(dose, y):
    slope = pyro.sample("slope", dist.Normal(dose.new_tensor(0.0), 2.0))
    hill = pyro.sample("hill", dist.LogNormal(dose.new_tensor(1.0), 0.5))
    with pyro.plate("data", len(y)):
        power = dose**hill
        pyro.sample("y", dist.Normal(slope * power / (0.3**hill + power), 0.1), obs=y)


DOSE = torch.tensor([0.0, 0.125, 0.25, 0.5, 1.0, 2.0]).double()


@pytest.mark.parametrize("algorithm", ["fit", pf.FedEP(), pf.P2PVI()], ids=["fit", "FedEP", "P2PVI"])
def test_a_power_of_a_covariate_of_zero_is_right_where_one_client_has_it(algorithm):
    """The second derivative of 0 ** hill is zero, and NaN by reverse over reverse mode."""
    y = DOSE / (0.3 + DOSE)
    fed = federated(dose_response, DOSE, y, clients=6)
    run = pf.fit if algorithm == "fit" else partial(pf.run, algorithm, audit=False)
    graph = {"graph": pf.graph.ring(6)} if isinstance(algorithm, pf.P2PVI) else {}
    posterior = run(fed, **graph, **QUIET)["posterior"]
    d, v = DOSE.numpy(), y.numpy()

    def log_density(slope, log_hill):
        hill = np.exp(log_hill)
        power = d[:, None, None] ** hill
        off = (slope * power / (0.3**hill + power) - v[:, None, None]) / 0.1
        return -(slope**2) / 8 - (log_hill - 1) ** 2 / 0.5 - (off**2).sum(0) / 2

    means, sds = moments(log_density, np.linspace(0.2, 2.0, 401), np.linspace(-2.0, 3.0, 401))
    for values, mean, sd in zip((posterior["slope"].values, np.log(posterior["hill"].values)), means, sds, strict=True):
        assert abs(values.mean() - mean) < 0.25 * sd and abs(values.std() / sd - 1) < 0.25


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning")  # torch's own, as it pickles
def test_a_federation_that_takes_forward_mode_can_be_pickled():
    fed = federated(dose_response, DOSE, DOSE / (0.3 + DOSE))
    assert fed.problem.forward_mode and pickle.loads(pickle.dumps(fed)).problem.forward_mode


def scaled_dose(dose, y):
    """The derivative of (dose c) ** 1.5 in c is zero at a dose of zero, and its formula has no second derivative."""
    slope = pyro.sample("slope", dist.Normal(dose.new_tensor(0.0), 2.0))
    scale = pyro.sample("scale", dist.LogNormal(dose.new_tensor(0.0), 0.5))
    with pyro.plate("data", len(y)):
        power = (dose * scale) ** 1.5
        pyro.sample("y", dist.Normal(slope * power / (1 + power), 0.1), obs=y)


NO_CURVATURE = (
    r"client \d, row 0: site 'y': the second derivative .* along 'scale' .* in 1 of the 6 rows"
    r".* by pow at `power = \(dose \* scale\) \*\* 1.5`"
)


def test_rows_without_a_second_derivative_are_refused_by_what_takes_it_where_one_client_has_them():
    with pytest.warns(UserWarning, match=NO_CURVATURE):
        fed = federated(scaled_dose, DOSE, DOSE / (0.3 + DOSE), clients=6)
    named = NO_CURVATURE.replace("client", "[Cc]lient")
    for algorithm in (pf.FedEP(), pf.FedLaplace(), pf.FedEP(curvature="hessian")):
        with pytest.raises(pf.errors.ModelError, match=f"takes second derivatives. {named}"):
            pf.run(algorithm, fed, **QUIET)
    with pytest.raises(pf.errors.ModelError, match=named):
        pf.fit(fed, **QUIET)


def test_gradients_alone_are_right_where_curvatures_are_not_finite():
    y = DOSE / (0.3 + DOSE)
    with pytest.warns(UserWarning, match=NO_CURVATURE):
        fed = federated(scaled_dose, DOSE, y, clients=6)
    idata = pf.run(pf.NUTS(num_chains=1, warmup_steps=300), fed, num_draws=1500, audit=False, compile="trace", **QUIET)
    d, v = DOSE.numpy(), y.numpy()

    def log_density(slope, log_scale):
        power = (d[:, None, None] * np.exp(log_scale)) ** 1.5
        off = (slope * power / (1 + power) - v[:, None, None]) / 0.1
        return -(slope**2) / 8 - log_scale**2 / 0.5 - (off**2).sum(0) / 2

    means, sds = moments(log_density, np.linspace(0.2, 2.0, 401), np.linspace(-2.0, 3.0, 401))
    for values, mean, sd in zip(
        (idata["posterior"]["slope"].values, np.log(idata["posterior"]["scale"].values)), means, sds, strict=True
    ):
        assert abs(values.mean() - mean) < 0.25 * sd and abs(values.std() / sd - 1) < 0.25


def test_no_value_of_a_row_is_in_the_message():
    with pytest.raises(pf.errors.ModelError) as caught:
        federated(hazard, EXPOSURE * 0.7713, COUNTS)
    assert "0.7713" not in str(caught.value) and "3.8565" not in str(caught.value)


def test_few_rows_of_many_are_named_where_their_scores_are_not_finite():
    exposure = torch.full((5000,), 2.0).double()
    exposure[4321] = 0.0
    with pytest.raises(pf.errors.ModelError, match=r"client \d, row 4321: site 'y': the gradient"):
        federated(hazard, exposure, (exposure > 0).double())


def test_few_rows_of_many_are_told_of_where_their_curvatures_are_not_finite():
    """These are looked at once a run has failed, where the edge is no extreme of a column: a dose of a half."""
    dose = torch.linspace(-1.0, 1.0, 5000).double()
    dose[4321] = 0.5

    def model(dose, y):
        scale = pyro.sample("scale", dist.LogNormal(dose.new_tensor(0.0), 0.5))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(((dose - 0.5).abs() * scale) ** 1.5, 0.1), obs=y)

    notes = nan_density_notes(federated(model, dose, dose).problem)
    assert len(notes) == 1 and "second derivative" in notes[0] and "`pyro.sample" in notes[0]


def _normal(mean, y):
    pyro.sample("y", dist.Normal(mean, 0.2), obs=y)


def _factor(density):
    pyro.factor("y", density)


#: Statements of a model of a latent a > 0, a column x and y, the column's value at its edge, and what is said of it.
AT_EDGE = {
    "0 log 0": (lambda a, x, y: _factor(y * (a * x).log() - a * x), 0.0, r"in 3 of the 15 rows, .*'x' is 0 \(first: "),
    "negative exposure": (lambda a, x, y: pyro.sample("y", dist.Poisson(a * x), obs=y), -1.0, "'x' is negative"),
    "negative base": (lambda a, x, y: _normal(x**a, y), -1.0, "log density is not finite .*'x' is negative"),
    "log offset": (
        lambda a, x, y: pyro.sample("y", dist.NegativeBinomial(a, logits=x.log()), obs=y),
        0.0,
        "log density is not finite .*'x' is 0",
    ),
    "sqrt": (lambda a, x, y: _normal(torch.sqrt(a * x), y), 0.0, "gradient .* 'x' is 0.* by sqrt at"),
    "acos": (lambda a, x, y: _normal(torch.acos(1 - 0.1 * a * x), y), 0.0, "gradient .* 'x' is 0.* by acos at"),
    "sin(x) / x": (lambda a, x, y: _normal(torch.sin(a * x) / x, y), 0.0, r"loc .*in 3 of the 15 rows.*'x' is 0"),
}


@pytest.mark.parametrize("name", AT_EDGE)
def test_rows_at_an_edge_are_refused_with_the_client_the_column_and_the_operation(name):
    likelihood, edge, said = AT_EDGE[name]

    def model(x, y):
        a = pyro.sample("a", dist.LogNormal(x.new_tensor(0.0), 0.5))
        with pyro.plate("data", len(y)):
            likelihood(a, x, y)

    x = torch.linspace(0.4, 1.7, 15).double()
    x[12:] = edge
    y = torch.arange(15) % 3 * (x > 0).double()
    clients = {"north": (x[:6], y[:6]), "south": (x[6:12], y[6:12]), "placebo": (x[12:], y[12:])}
    with pytest.raises(pf.errors.ModelError, match=said) as caught:
        pf.Federation.from_clients(model, clients, plate="data")
    assert "client placebo, row 0" in str(caught.value) and "keep the operation away" in str(caught.value)


def test_groups_at_an_edge_are_refused_by_their_own_column():
    """The groups' numbers 0, 1, ... are no column of theirs, and codes of text are not called numbers."""

    def model(z, arm, group, y):
        a = pyro.sample("a", dist.LogNormal(z.new_tensor(0.0), 0.5))
        with pyro.plate("groups", len(z)):
            pyro.factor("of_groups", torch.log(a * z) + 0 * (arm == "active"))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(a * z[group], 1.0), obs=y)

    z, group = torch.tensor([2.0, 1.0, 0.0, 1.5]).double(), torch.arange(8) // 2
    arguments = (z, ["active", "none", "active", "none"], group, torch.ones(8).double())
    with pytest.raises(pf.errors.ModelError, match="those in which 'z' is 0"):
        pf.Federation(model, arguments, plate="groups", rows={"rows": "group"}, num_clients=2)


def test_the_model_s_own_error_is_left_as_it_is():
    def model(x, y):
        a = pyro.sample("a", dist.LogNormal(x.new_tensor(0.0), 0.5))
        with pyro.plate("data", len(y)):
            valid = y > 0
            if bool((x < 0).any()):
                raise ValueError(f"x is negative in a table of {len(valid)}")
            pyro.sample("y", dist.Normal(a * x, 1.0), obs=y)

    x, y = torch.linspace(1, 2, 16).double(), torch.arange(16).double() % 3
    fed = federated(model, x, y)
    with pytest.raises(pf.errors.ModelError, match="x is negative in a table") as caught:
        fed.with_args((-x, y))
    assert "This is so in" not in str(caught.value)


def test_rows_without_a_density_are_told_both_cures():
    def model(y):
        a = pyro.sample("a", dist.LogNormal(y.new_tensor(0.0), 0.5))
        with pyro.plate("data", len(y)):
            pyro.factor("rows", y.log() - a * y)

    y = torch.arange(15).double() % 5
    with pytest.raises(pf.errors.ModelError, match=r"'y' is 0.*these rows are possible.*clamp_min"):
        pf.Federation(model, (y,), plate="data", num_clients=3)


def test_a_client_without_trials_and_whole_numbers_for_exposures_are_right():
    """x**y log(1 - p) with no trials is no edge: its rows have a constant density."""

    def model(n, y):
        p = pyro.sample("p", dist.Beta(torch.tensor(1.0).double(), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Binomial(n, p), obs=y)

    n, y = torch.tensor([5, 3, 9, 4, 0, 0]), torch.tensor([2, 0, 5, 1, 0, 0]).double()
    clients = [(n[:2], y[:2]), (n[2:4], y[2:4]), (n[4:], y[4:])]
    idata = pf.run(pf.FedEP(), pf.Federation.from_clients(model, clients, plate="data"), **QUIET)
    found = stats.beta(9, 14)
    assert_right(idata, ["p"], ([found.mean()], [found.std()]))


# -- no number at a point ------------------------------------------------------------------------------------------
def growth(time, y):
    """The mean is 0 / 0 at c = 0, where the search for a mode would start."""
    c = pyro.sample("c", dist.Normal(time.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((torch.exp(c * time) - 1) / c, 0.5), obs=y)


def test_a_removable_singularity_is_no_start():
    time = torch.linspace(0.5, 2.0, 20).double()
    y = time + 0.4 * torch.sin(9 * time)
    fed = federated(growth, time, y)
    start = fed.problem.regular_start
    assert bool(start.all()) and bool(fed.problem.log_lik(start).isfinite())
    t, v = time.numpy(), y.numpy()

    def log_density(c):
        return -(c**2) / 2 - (((np.expm1(c[:, None] * t) / c[:, None] - v) / 0.5) ** 2).sum(1) / 2

    for algorithm in (pf.FedLaplace(), pf.FedEP()):
        idata = pf.run(algorithm, fed, **QUIET)
        assert_right(idata, ["c"], moments(log_density, np.linspace(-1.503, 1.5, 4000)))


def test_starts_are_looked_at_one_after_the_other_until_one_is_inside(monkeypatch):
    """Zero is an edge, and beside the points next to it: of a hundred draws of the prior one is looked at."""
    time = torch.linspace(0.5, 2.0, 20).double()
    problem, looked, look = federated(growth, time, time).problem, [], starts._is_regular
    monkeypatch.setattr(starts, "_is_regular", lambda *args: looked.append(args[1]) or look(*args))
    assert bool(starts.regular_start(problem).all())
    assert len(looked) == 5


def test_a_removable_singularity_of_rows_latents_is_no_start():
    """Slopes of rows are looked for from zero, where (exp(b t) - 1) / b is 0 / 0: as with the same, guarded."""

    def guarded(b):
        small = b.abs() < 1e-4
        safe = torch.where(small, torch.ones_like(b), b)
        return torch.where(small, 1 + b / 2, (torch.exp(safe) - 1) / safe)

    def model(y, guard):
        m = pyro.sample("m", dist.Normal(y.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(y)):
            b = pyro.sample("b", dist.Normal(m, 0.5))
            pyro.sample("y", dist.Normal(guarded(b) if guard else (torch.exp(b) - 1) / b, 0.3), obs=y)

    y = torch.linspace(0.6, 2.2, 12).double()
    problems = [federated(model, y, guard).problem for guard in (False, True)]
    z = torch.tensor([[0.3], [-0.2]]).double()
    torch.testing.assert_close(problems[0].log_lik(z), problems[1].log_lik(z), rtol=1e-4, atol=1e-4)


def test_two_rates_that_are_equal_where_a_search_starts_are_right():
    """Bateman's function is 0 / 0 on a line through the priors' medians; one client has all its rows at time 0."""

    def model(time, y):
        a, e = (pyro.sample(name, dist.LogNormal(time.new_tensor(0.0), 1.0)) for name in ("into", "out"))
        with pyro.plate("data", len(y)):
            mean = a / (a - e) * (torch.exp(-e * time) - torch.exp(-a * time))
            pyro.sample("y", dist.Normal(mean, 0.05), obs=y)

    t = np.concatenate([np.zeros(8), np.linspace(0.2, 6.0, 24)])
    y = 1.8 / 1.3 * (np.exp(-0.5 * t) - np.exp(-1.8 * t)) + 0.05 * np.sin(7 * np.arange(32))

    def log_density(a, e):
        with np.errstate(all="ignore"):
            mean = (a / (a - e))[..., None] * (np.exp(-e[..., None] * t) - np.exp(-a[..., None] * t))
        off = ((y - mean) ** 2).sum(-1) / 0.05**2
        return -(off + np.log(a) ** 2 + np.log(e) ** 2) / 2 - np.log(a * e)

    rows = [torch.from_numpy(column).double() for column in (t, y)]
    clients = [tuple(column[start : start + 8] for column in rows) for start in (0, 8, 16, 24)]
    idata = pf.run(pf.FedEP(), pf.Federation.from_clients(model, clients, plate="data"), **QUIET)
    assert_right(idata, ["into", "out"], moments(log_density, np.linspace(1.2, 2.7, 201), np.linspace(0.35, 0.7, 202)))


def test_a_shape_of_zero_and_the_end_of_a_support_are_right():
    """A generalized Pareto is 0 / 0 at shape 0, and ends at -scale / shape where the shape is negative."""
    y = stats.genpareto(-0.3).ppf((np.arange(60) + 0.5) / 60)

    def model(y):
        shape = pyro.sample("shape", dist.Normal(y.new_tensor(0.0), 0.5))
        scale = pyro.sample("scale", dist.LogNormal(y.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.factor("y", -scale.log() - (1 + 1 / shape) * torch.log1p(shape * y / scale))

    def log_density(shape, scale):
        inside = np.maximum(1 + shape[..., None] * y / scale[..., None], 0)
        with np.errstate(all="ignore"):
            rows = -np.log(scale)[..., None] - (1 + 1 / shape)[..., None] * np.log(inside)
        return rows.sum(-1) - 2 * shape**2 - np.log(scale) ** 2 / 2 - np.log(scale)

    expected = moments(log_density, np.linspace(-0.7, 0.4, 412), np.linspace(0.4, 2.0, 200))
    with pytest.warns(UserWarning, match=r"log density of pyro.factor is NaN at a draw of the prior \(shape = -"):
        fed = federated(model, torch.from_numpy(y))
    assert_right(pf.fit(fed, **QUIET), ["shape", "scale"], expected)


# -- a part of the space ------------------------------------------------------------------------------------------
TRIALS = torch.tensor([3.0, 5, 10, 15, 20, 100, 200, 300, 500, 1000]).double()
HITS = torch.tensor([2.0, 5, 7, 13, 12, 81, 173, 222, 424, 761]).double()


def by_mean_and_sd(trials, hits, checked=None):
    """No Beta has this mean and SD where sd² ≥ mean (1 - mean); torch computes a number there."""
    mean = pyro.sample("mean", dist.Beta(trials.new_tensor(1.0), 1.0))
    sd = pyro.sample("sd", dist.HalfCauchy(trials.new_tensor(1.0)))
    size = mean * (1 - mean) / sd**2 - 1
    with pyro.plate("data", len(hits)):
        p = dist.BetaBinomial(mean * size, (1 - mean) * size, trials, validate_args=checked)
        pyro.sample("y", p, obs=hits)


@pytest.mark.parametrize("checked", [None, False])
def test_a_bound_that_two_parameters_share_is_a_wall(checked):
    with pytest.warns(UserWarning, match=r"concentration\d of Beta.* is -.* at a draw of the prior \(mean = .*, sd = "):
        fed = federated(by_mean_and_sd, TRIALS, HITS, checked)
    mean, sd = np.linspace(0.002, 0.998, 300), np.linspace(0.002, 0.5, 300)

    def log_density(mean, sd):
        size = mean * (1 - mean) / sd**2 - 1
        a, b = mean * size, (1 - mean) * size
        pairs = zip(HITS.numpy(), TRIALS.numpy(), strict=True)
        found = sum(special.betaln(a + y, b + n - y) - special.betaln(a, b) for y, n in pairs) - np.log1p(sd**2)
        return np.where(size > 0, found, -np.inf)

    z = torch.tensor([[1.0, math.log(0.6)]]).double()  # mean 0.73, and no such SD
    assert float(fed.problem.log_lik(z)) == -math.inf
    assert_right(pf.fit(fed, **QUIET), ["mean", "sd"], moments(log_density, mean, sd))


def cumulative(x, y):
    """Cumulative logits with a slope of each category: two may cross, and a probability be negative."""
    cut = pyro.sample("cut", dist.Normal(x.new_tensor([-1.0, 1.0]), 0.5).to_event(1))
    slope = pyro.sample("slope", dist.Normal(x.new_zeros(2), 0.5).to_event(1))
    with pyro.plate("data", len(y)):
        above = torch.sigmoid(cut - slope * x[:, None])
        p = torch.stack([above[:, 0], above[:, 1] - above[:, 0], 1 - above[:, 1]], -1)
        pyro.sample("y", dist.Categorical(probs=p), obs=y)


def test_probabilities_that_may_be_negative_are_named_and_walls():
    x = torch.linspace(-2, 2, 60).double()
    y = torch.tensor([0, 1, 1, 2, 0, 1, 2, 1, 0, 2] * 6)
    with pytest.warns(UserWarning, match="'y': probs of Categorical .*a draw of the prior"):
        fed = federated(cumulative, x, y)
    z = torch.tensor([[0.0, 0.1, 3.0, -3.0]]).double()
    assert float(fed.problem.log_lik(z)) == -math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = pf.NUTS(num_chains=1, warmup_steps=300)
        nuts = pf.run(chain, fed, num_draws=1000, audit=False, compile="trace", **QUIET)["posterior"]
    found = pf.fit(fed, **QUIET)["posterior"]
    for name in ("cut", "slope"):
        mean, sd = (getattr(nuts[name], kind)(("chain", "draw")) for kind in ("mean", "std"))
        assert bool((abs(found[name].mean(("chain", "draw")) - mean) < 0.25 * sd).all())
        assert bool((abs(found[name].std(("chain", "draw")) / sd - 1) < 0.25).all())


@pytest.mark.filterwarnings("ignore:1,000 draws determine the SD of 'spread'")  # a kurtosis of 9.3: rightly said
def test_counts_without_overdispersion_are_right():
    """1 / sqrt(concentration) goes to 0: the edge is where the counts are Poisson."""
    y = torch.from_numpy(np.random.default_rng(7).poisson(1000, 300)).double()

    def model(y):
        mean = pyro.sample("mean", dist.LogNormal(y.new_tensor(math.log(900.0)), 0.5))
        spread = pyro.sample("spread", dist.HalfNormal(y.new_tensor(1.0)))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.GammaPoisson(spread**-2, spread**-2 / mean), obs=y)

    v = y.numpy()

    def log_density(mean, spread):
        size = spread**-2
        found = stats.nbinom.logpmf(v[:, None, None], size, size / (size + mean)).sum(0)
        return found - spread**2 / 2 - np.log(mean) - (np.log(mean) - math.log(900)) ** 2 / 0.5

    expected = moments(log_density, np.linspace(985, 1015, 121), np.linspace(1e-4, 0.05, 150))
    fed = federated(model, y)
    assert_right(pf.fit(fed, **QUIET), ["mean", "spread"], expected)


def test_an_order_that_a_factor_asks_for_is_right():
    """log(b - a) is no number at zero, where Newton's method would begin, and on half of the space."""

    def model(y):
        a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("order", torch.log(a[1] - a[0]))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a.sum(), 0.3), obs=y)

    y = torch.linspace(0.5, 1.5, 12).double()
    with pytest.warns(UserWarning, match="site 'order': the log density of pyro.factor is NaN at a draw of the prior"):
        fed = federated(model, y)

    def log_density(a, b):
        return -(a**2 + b**2) / 2 + np.log(np.maximum(b - a, 0)) - 12 * (a + b - 1) ** 2 / 2 / 0.09

    (low, high), sds = moments(log_density, np.linspace(-5, 5, 801), np.linspace(-5, 5, 801))
    values = pf.fit(fed, **QUIET)["posterior"]["a"].values.reshape(-1, 2)
    assert np.all(abs(values.mean(0) - [low, high]) < 0.2 * np.array(sds))
    assert np.all(abs(values.std(0) / np.array(sds) - 1) < 0.2)
    assert "density of 'order' is not finite at" in nan_density_notes(fed.problem)[0]


def test_a_factor_that_overflows_in_single_precision_alone_is_no_wall():
    """inf / inf at slopes of fifteen in float32; the density is a number in float64 wherever the prior reaches."""

    def model(x, y):
        slope = pyro.sample("slope", dist.Normal(x.new_tensor(0.0), 10.0))
        with pyro.plate("data", len(y)):
            odds = torch.exp(slope * x)
            pyro.factor("row", torch.where(y > 0, odds / (1 + odds), 1 / (1 + odds)).log())

    x = torch.linspace(-8.0, 8.0, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fed = federated(model, x, (torch.arange(60) % 3 < 1 + (x > 0)).float())
    assert fed.problem.dtype == torch.float32 and not fed.problem.bound.walls


def test_rows_whose_factor_is_nan_beyond_a_latent_are_named_and_a_wall():
    """A Weibull distribution that begins at a latent, by hand: log(y - t) is NaN where t is above a row."""

    def model(y):
        t = pyro.sample("t", dist.HalfNormal(y.new_tensor(1.0)))
        k = pyro.sample("k", dist.LogNormal(y.new_tensor(0.4), 0.5))
        with pyro.plate("data", len(y)):
            pyro.factor("row", k.log() + (k - 1) * torch.log(y - t) - (y - t) ** k)

    y = 0.8 + torch.from_numpy(np.random.default_rng(28).weibull(1.5, 60))
    with pytest.warns(
        UserWarning, match=r"site 'row': the log density of pyro.factor is NaN at a draw .*\(t = .*, k = "
    ):
        fed = federated(model, y)
    assert float(fed.problem.log_lik(torch.tensor([[math.log(3.0), 0.0]]).double())) == -math.inf
    assert "'row' is zero on a part of the prior" in pf.explain(pf.Auto(), fed).outlook
    v = y.numpy()[:, None, None]

    def log_density(t, k):
        inside = np.maximum(v - t, 1e-300)
        found = (np.log(k) + (k - 1) * np.log(inside) - inside**k).sum(0)
        return np.where(t < v.min(), found, -np.inf) - t**2 / 2 - np.log(k) - (np.log(k) - 0.4) ** 2 / 0.5

    expected = moments(log_density, np.linspace(0.5, float(y.min()), 301), np.linspace(0.8, 2.6, 301))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FedEP, from which it starts, has no Gaussian that ends at a wall
        found = pf.run(pf.FedAIS(), fed, audit=False, **QUIET)
    assert_right(found, ["t", "k"], expected)


def test_a_hard_order_at_which_the_mode_lies_is_right():
    """The likelihood's mode has a > b: the search for a mode ends at the wall, beyond which the prior has no site."""

    def model(x, y):
        a, b = (pyro.sample(name, dist.Normal(x.new_tensor(0.0), 1.0)) for name in "ab")
        pyro.factor("order", torch.where(a < b, 0.0, -torch.inf).to(x))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a + b * x, 0.3), obs=y)

    x = torch.linspace(0.2, 2.0, 40).double()
    y = 0.65 + 0.5 * x + 0.3 * torch.sin(17 * x)

    def log_density(a, b):
        off = sum((float(v) - a - b * float(u)) ** 2 for u, v in zip(x, y, strict=True)) / 0.09
        return np.where(a < b, -(a**2 + b**2 + off) / 2, -np.inf)

    expected = moments(log_density, np.linspace(-0.2, 1.2, 401), np.linspace(0.0, 1.4, 401))
    assert_right(pf.fit(federated(model, x, y), **QUIET), ["a", "b"], expected, within=0.25)


def test_the_second_derivative_of_one_row_among_thousands_is_looked_at_when_the_federation_is_made():
    def model(x, y):
        a = pyro.sample("a", dist.Normal(x.new_tensor(0.0), 1.0))
        b = pyro.sample("b", dist.Normal(x.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a * (x.abs() * b.exp()) ** 1.5, 0.2), obs=y)

    x = torch.linspace(-1.0, 2.0, 6000).double()
    x[4711] = 0.0
    with pytest.warns(UserWarning, match=r"site 'y': the second derivative .* 'x' is 0.* by pow at .*torch\.where"):
        federated(model, x, x.abs())


def hinge(x, y, lowest=0.0, power=None):
    """Above a knot a power of the distance to it. Below, the base is 0, whose power has a second derivative of NaN."""
    scale = pyro.sample("scale", dist.LogNormal(x.new_tensor(0.0), 0.5)) if power else 1.0
    power = power or pyro.sample("power", dist.LogNormal(x.new_tensor(0.3), 0.5))
    knot = pyro.sample("knot", dist.Uniform(x.new_tensor(lowest), 1.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(((x - knot).clamp(min=0) * scale) ** power, 0.1), obs=y)


@pytest.mark.parametrize("power", [None, 1.4], ids=["power", "scale"])
def test_derivatives_that_are_not_finite_on_a_part_of_the_prior_are_named_with_the_skipped_clients_or_right(power):
    """They are finite where the knot is below all rows alone, in 15 % of the prior; one client has its rows there.

    With a power that is a latent forward mode has them where it is above 1, in 73 % of the prior.
    """
    x = torch.linspace(0.2, 2.0, 60).double()
    y = (x - 0.8).clamp(min=0) ** 1.4 + 0.1 * torch.from_numpy(np.random.default_rng(3).normal(size=60))
    where, share = ("'scale'", "[89]") if power else ("'power'", "[23]")
    named = rf"site 'y': the second derivative of the log density along {where} is not finite in \d+ of the 60 rows"
    named += (
        rf" examined, at {share}\d % of the points examined, although the density is, by pow at `pyro.sample\(\"y\""
    )
    with pytest.warns(UserWarning, match=rf"client.*0.*{named}.*may fail where this is so"):
        fed = federated(partial(hinge, power=power), x, y, clients=4, partition=pf.partition.SortedBy(by=x))
    if power:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its doubts
            doubts = pf.run(pf.FedEP(), fed, audit=False, **QUIET).attrs["doubts"]
        assert re.search(r"clients 0, 1, 2 \(3 of 4\) were not used.* as 0 \*\* k", doubts)
        return
    u, v = x.numpy(), y.numpy()

    def log_density(log_power, knot):
        mean = np.maximum(u[:, None, None] - knot, 0) ** np.exp(log_power)
        return -(((v[:, None, None] - mean) / 0.1) ** 2).sum(0) / 2 - (log_power - 0.3) ** 2 / 0.5

    means, sds = moments(log_density, np.linspace(-0.2, 0.8, 301), np.linspace(0.6, 1.0, 301))
    posterior = pf.fit(fed, **QUIET)["posterior"]
    found = np.log(posterior["power"].values), posterior["knot"].values
    for values, mean, sd in zip(found, means, sds, strict=True):
        assert abs(values.mean() - mean) < 0.2 * sd and abs(values.std() / sd - 1) < 0.2


def test_derivatives_that_are_not_finite_on_a_part_of_the_prior_are_named_where_a_run_has_failed():
    x = torch.linspace(0.2, 2.0, 60).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = federated(hinge, x, x, -1.0, 1.4).problem
    (note,) = nan_density_notes(problem)
    assert "'scale' is not finite" in note and "75 % of the points examined, although the density is" in note
