"""SFVI: its gradients and its runs are those of Pyro's SVI on the pooled data, for guides of every kind."""

import dataclasses
import json
import math

import hierarchies
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from pyro.nn import PyroModule, PyroParam

import pyro_fed as pf
from pyro_fed.guides.program import flat
from pyro_fed.infer.variational import guide_ascent, sfvi

F64 = torch.float64
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "compile": "off"}
positive = dist.constraints.positive
#: Runs of a few steps, which have not converged and say so.
of_few_steps = pytest.mark.filterwarnings("ignore:not converged after")


def number(value):
    return torch.tensor(value, dtype=F64)


def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    s = pyro.sample("s", dist.Gamma(number(2.0), number(2.0)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, s), obs=y)


def dependent(x, y):
    """w given s, s by a family that is no exponential one in two parameters."""
    a = pyro.param("a", number(4.0), constraint=positive)
    s = pyro.sample("s", dist.InverseGamma(a, pyro.param("b", number(3.0), constraint=positive)))
    slope = pyro.param("slope", torch.zeros(2, dtype=F64))
    pyro.sample("w", dist.Normal(slope * s, pyro.param("sd", number(0.3), constraint=positive)).to_event(1))


def half_normal(x, y):
    pyro.sample("s", dist.HalfNormal(pyro.param("scale", number(1.0), constraint=positive)))
    factor = pyro.param("factor", torch.full((2, 1), 0.1, dtype=F64))
    diagonal = pyro.param("diagonal", torch.full((2,), 0.1, dtype=F64), constraint=positive)
    pyro.sample("w", dist.LowRankMultivariateNormal(pyro.param("loc", torch.zeros(2, dtype=F64)), factor, diagonal))


def gamma(x, y):
    a = pyro.param("a", number(4.0), constraint=positive)
    pyro.sample("s", dist.Gamma(a, pyro.param("b", number(3.0), constraint=positive)))
    pyro.sample("w", dist.Delta(pyro.param("loc", torch.zeros(2, dtype=F64)), event_dim=1))


class Module(PyroModule):
    """A network that maps s to the mean of w."""

    def __init__(self):
        super().__init__()
        self.net = PyroModule[torch.nn.Linear](1, 2).double()
        self.sd = PyroParam(number(0.3), positive)

    def forward(self, x, y):
        s = pyro.sample("s", dist.LogNormal(number(0.0), number(0.5)))
        pyro.sample("w", dist.Normal(self.net(s.reshape(1)), self.sd).to_event(1))


GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(23, 2, generator=GENERATOR, dtype=F64)
Y = X @ torch.tensor([1.0, -0.5], dtype=F64) + 0.7 * torch.randn(23, generator=GENERATOR, dtype=F64)
GUIDES = [AutoNormal, AutoMultivariateNormal, AutoLowRankMultivariateNormal, AutoIAFNormal, AutoDelta]
WRITTEN = [dependent, half_normal, gamma]


class OneByOne(sfvi.SFVI):
    """Its draws are made one after the other, as Pyro's."""

    def program(self, problem):
        return dataclasses.replace(super().program(problem), mappable=False)


@pytest.fixture(scope="module")
def federation():
    parts = pf.partition.Explicit([list(range(3)), list(range(3, 10)), list(range(10, 23))])
    return pf.Federation(model, (X, Y), plate="data", partition=parts, dtype=F64)


@pytest.mark.parametrize("guide", [*GUIDES, *WRITTEN, "module"])
@pytest.mark.parametrize("bound", ["elbo", "iwae"])
def test_the_clients_gradients_add_up_to_pyros_on_the_pooled_data(guide, bound, federation):
    """At parameters away from the start, and the same random numbers."""
    made = Module() if guide == "module" else guide
    algorithm = OneByOne(guide=made, num_particles=3, bound=bound, surrogates=None)
    problem, data = federation.problem, federation.client_data()
    program = algorithm.program(problem)
    shared, _ = algorithm.init(problem, 3, torch.Generator().manual_seed(1), None)
    shared["params"] = params = program.start + 0.1
    shared = algorithm.prepare(problem, shared)
    messages, _, _ = algorithm.local_step(problem, algorithm.download(shared, torch.arange(3)), {}, data, ())
    weights = data.num_rows.double() / data.num_rows.sum()
    sums = shared["num_rows"] * algorithm.combine(shared, messages, weights)["delta"].reshape(3, -1)
    scores, *values = sums.split(problem.dim, -1)
    assert len(values) == (bound == "iwae")
    seed = int(shared["seed"])
    found = program.gradient(params, 3, seed, lambda draws: guide_ascent.elbo(problem, scores, draws, *values))
    with program.at(params, seed, program.own_start), torch.enable_grad():
        pyros = Trace_ELBO(num_particles=3) if bound == "elbo" else RenyiELBO(alpha=0, num_particles=3)
        for leaf in program.leaves:
            leaf.grad = None
        pyros.loss_and_grads(model, program.guide, X, Y)
        pooled = flat(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in program.leaves)
    assert found.abs().max() > 0.1
    torch.testing.assert_close(found, -pooled, rtol=1e-10, atol=1e-10)


class Seeded(OneByOne):
    """Its run's seed is known."""

    def init(self, problem, num_clients, generator, start):
        shared, local = super().init(problem, num_clients, generator, start)
        return {**shared, "seed": torch.tensor(11)}, local


@of_few_steps
@pytest.mark.parametrize("guide", [AutoMultivariateNormal, AutoIAFNormal, dependent])
def test_at_the_same_random_numbers_a_run_ends_where_pyros_svi_on_the_pooled_data_ends(guide, federation):
    """With Adam and rates by torch's own, and the mean of the parameters over the second half of the steps."""
    algorithm = Seeded(guide=guide, num_steps=9, num_particles=2, step_size=0.1, surrogates=None, num_guide_draws=50)
    idata = pf.run(algorithm, federation, num_draws=50, **QUIET)
    program = algorithm.program(federation.problem)
    share = {"lr_lambda": lambda step: 0.1 ** max(0.0, 2 * step / 9 - 1)}
    settings = {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1, "betas": (0.9, 0.99)}, **share}
    optim = pyro.optim.PyroLRScheduler(torch.optim.lr_scheduler.LambdaLR, settings)
    reached = []
    with program.at(program.start, 0, program.own_start), torch.enable_grad():
        svi = SVI(model, program.guide, optim, Trace_ELBO(num_particles=2))
        for step in range(9):
            torch.manual_seed(11 + step)
            svi.step(X, Y)
            optim.step()
            reached.append(flat(program.leaves))
    mean = torch.stack(reached[4:]).mean(0)
    assert (mean - reached[-1]).abs().max() > 0.01
    expected = federation.problem.constrain(program.points(mean, 50, 10))
    for name, draws in expected.items():
        found = torch.as_tensor(idata["posterior"][name].values[0])
        torch.testing.assert_close(found, draws[: len(found)], rtol=1e-8, atol=1e-8)


def lines(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.parametrize("guide", [AutoLowRankMultivariateNormal, AutoIAFNormal])
def test_steps_towards_exact_surrogates_are_those_of_rounds(guide):
    """Of Gaussian likelihoods: the guide, Adam's state and the rates after 5 steps are those after 5 rounds."""
    parts = [slice(0, 3), slice(3, 10), slice(10, 23)]
    partition = pf.partition.Explicit([list(range(23))[part] for part in parts])
    fed = pf.Federation(lines, (X, Y), plate="data", partition=partition, dtype=F64)
    given = pf.infer.Given(
        torch.stack([X[part].T @ X[part] for part in parts]), torch.stack([X[part].T @ Y[part] for part in parts])
    )
    problem, data = fed.problem, fed.client_data()
    by_rounds = sfvi.SFVI(guide=guide, num_steps=10, num_particles=3, step_size=0.1, surrogates=None)
    ahead = dataclasses.replace(by_rounds, surrogates=given)
    assert (by_rounds.default_rounds(3), ahead.default_rounds(3)) == (10, 5)
    expected, _ = by_rounds.init(problem, 3, torch.Generator().manual_seed(1), None)
    for _ in range(5):
        expected = by_rounds.prepare(problem, expected)
        download = by_rounds.download(expected, torch.arange(3))
        messages, _, _ = by_rounds.local_step(problem, download, {}, data, ())
        weights = data.num_rows.double() / data.num_rows.sum()
        expected = by_rounds.refine(problem, by_rounds.combine(expected, messages, weights))
    found, _ = ahead.init(problem, 3, torch.Generator().manual_seed(1), None)
    for name in set(found) - {"points", "delta"}:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9, equal_nan=True)


def test_the_drift_is_the_distance_of_the_guides_at_the_halves_of_the_average():
    """Of parameters that rise by the same in each step: the mean by 0.01, the logarithm of the SD by 0.002."""

    def normals(x, y):
        loc = pyro.param("loc", torch.zeros(2, dtype=F64))
        sd = pyro.param("sd", torch.ones(2, dtype=F64), constraint=positive)
        pyro.sample("w", dist.Normal(loc, sd).to_event(1))

    fed = pf.Federation(lines, (X, Y), plate="data", num_clients=3, dtype=F64)
    algorithm = sfvi.SFVI(guide=normals, num_steps=100, surrogates=None)
    fit, _ = algorithm.first_states(fed.problem, 3, torch.Generator().manual_seed(1))
    steps = torch.tensor([0.01, 0.01, 0.002, 0.002], dtype=F64)
    average, drifts = guide_ascent.Average.at(fit.params), []
    for step in range(1, 121):
        now = fit._replace(params=step * steps, step=torch.tensor(step))
        average = algorithm.averaged(fed.problem, average, now)
        drifts.append(average.drift)
    assert not torch.stack(drifts[:99]).isfinite().any()
    torch.testing.assert_close(average.average, (51 + 120) / 2 * steps)
    for end, middles in ((100, (63, 88)), (120, (63, 98))):
        sds = [math.exp(0.002 * middle) for middle in middles]
        expected = 0.01 * (middles[1] - middles[0]) / math.sqrt((sds[0] ** 2 + sds[1] ** 2) / 2)
        noise = float(drifts[end - 1][0]) / expected - 1
        assert abs(noise) < 0.1  # of 400 draws' own means, whose SDs differ, and of their SDs
        torch.testing.assert_close(float(drifts[end - 1][1]), 0.002 * (middles[1] - middles[0]))


def test_a_guide_that_still_moves_is_named():
    fed = pf.Federation(lines, (X, Y), plate="data", num_clients=3, dtype=F64)
    algorithm = pf.infer.SFVI(num_steps=40, step_size=0.02, surrogates=None)
    with pytest.warns(UserWarning, match=r"not converged after 40 steps: .* by \d.* SDs in a mean"):
        idata = pf.run(algorithm, fed, **QUIET)
    (found,) = json.loads(idata.attrs["findings"])
    assert (found["code"], found["topic"]) == ("guide_still_moves", "convergence")
    assert found["figures"]["sds"] == float(idata["federation"]["mean_drift"][-1]) > 0.25


@pytest.mark.parametrize("guide", [AutoMultivariateNormal, AutoIAFNormal])
def test_draws_at_once_are_those_one_by_one(guide, federation):
    """Of guides with a single distribution."""
    program = sfvi.SFVI(guide=guide).program(federation.problem)
    assert program.mappable
    found = []
    for one in (program, dataclasses.replace(program, mappable=False)):
        with one.draws(program.start + 0.1, 5, 7) as draws:
            value = (draws.z.square().sum(-1) * draws.log_density).sum()
            found.append(
                (
                    draws.z,
                    draws.log_density,
                    flat(torch.autograd.grad(value, draws.leaves, allow_unused=True, materialize_grads=True)),
                )
            )
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-12)


def test_the_parameters_of_an_instance_have_one_order(federation):
    """A guide is read anew for each form of a problem, as with another compiler; it is set up the first time."""
    algorithm = sfvi.SFVI(guide=AutoLowRankMultivariateNormal(model, rank=1))
    first, second = (
        algorithm.program(problem) for problem in (federation.problem, dataclasses.replace(federation.problem))
    )
    assert first is not second
    torch.testing.assert_close(first.start, second.start, rtol=0, atol=0)


def counts(y):
    rate = pyro.sample("rate", dist.Gamma(number(2.0), number(0.5)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def inverse_gamma_variance(y):
    v = pyro.sample("v", dist.InverseGamma(number(3.0), number(2.0)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(number(0.0), v.sqrt()), obs=y)


def gamma_rate(y):
    a, mean = (pyro.param(name, number(3.0), constraint=positive) for name in ("a", "mean"))
    pyro.sample("rate", dist.Gamma(a, a / mean))


def inverse_gamma(y):
    a, mean = (pyro.param(name, number(3.0), constraint=positive) for name in ("a", "mean"))
    pyro.sample("v", dist.InverseGamma(a, a * mean))


COUNTS = torch.randint(0, 9, (40,), generator=GENERATOR).to(F64)
NOISE = 1.3 * torch.randn(40, generator=GENERATOR, dtype=F64)


@pytest.mark.parametrize(
    ("model", "guide", "data", "posterior"),
    [
        (counts, gamma_rate, COUNTS, dist.Gamma(2 + COUNTS.sum(), number(40.5))),
        (inverse_gamma_variance, inverse_gamma, NOISE, dist.InverseGamma(number(23.0), 2 + NOISE.square().sum() / 2)),
    ],
)
def test_a_guide_that_contains_the_posterior_finds_it(model, guide, data, posterior):
    """Mean and SD; the steps' random numbers leave 0.03 SD, and 4,000 draws add 0.016 and 0.012 SDs of chance."""
    fed = pf.Federation(model, (data,), plate="data", num_clients=4, dtype=F64)
    idata = pf.run(
        pf.infer.SFVI(guide=guide, num_steps=300, step_size=0.1, surrogates=None), fed, num_draws=4000, **QUIET
    )
    draws = torch.as_tensor(next(iter(idata["posterior"].data_vars.values())).values[0])
    sd = posterior.variance.sqrt()
    assert abs(float((draws.mean() - posterior.mean) / sd)) < 0.1
    assert abs(float(draws.std() / sd) - 1) < 0.2


def test_the_users_guide_and_param_store_are_as_before(federation):
    guide = Module()
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    pyro.get_param_store().clear()
    pyro.param("mine", number(1.0))
    pf.run(pf.infer.SFVI(guide=guide, num_steps=3), federation, **QUIET)
    assert list(pyro.get_param_store().keys()) == ["mine"]
    pyro.get_param_store().clear()
    for name, value in guide.state_dict().items():
        assert torch.equal(value, before[name]), name


@of_few_steps
def test_clients_with_equal_rows_find_the_same_by_several_local_steps():
    """A tenth of the rounds. The steps' random numbers leave 0.04 SD of either."""
    parts = pf.partition.Explicit([list(range(23)), list(range(23, 46))])
    fed = pf.Federation(model, (torch.cat([X, X]), torch.cat([Y, Y])), plate="data", partition=parts, dtype=F64)
    one, many = (
        pf.run(pf.infer.SFVI(num_steps=200, step_size=0.1, local_steps=m), fed, num_draws=4000, **QUIET)
        for m in (1, 10)
    )
    assert one.attrs["num_rounds"] - many.attrs["num_rounds"] == 90
    for name in ("w", "s"):
        draws = [torch.as_tensor(idata["posterior"][name].values[0]) for idata in (one, many)]
        assert float(((draws[0].mean(0) - draws[1].mean(0)) / draws[0].std(0)).abs().max()) < 0.3
        assert float((draws[1].std(0) / draws[0].std(0) - 1).abs().max()) < 0.3


def test_a_map_guide_gives_a_point(federation):
    idata = pf.run(pf.infer.SFVI(guide=AutoDelta, num_steps=200, step_size=0.1), federation, **QUIET)
    assert idata.attrs["draws_are"] == "point"
    point = {name: torch.as_tensor(idata["posterior"][name].values[0, 0]).requires_grad_() for name in ("w", "s")}
    log_joint = poutine.trace(poutine.condition(model, data=point)).get_trace(X, Y).log_prob_sum()
    for slope in torch.autograd.grad(log_joint, list(point.values())):
        assert float(slope.abs().max()) < 0.3


@of_few_steps
def test_one_faulty_client_is_held_within_the_cohort():
    """Its rows are 30 further up, which moves s from 0.7 to 6 where all count."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(300, 2, generator=generator, dtype=F64)
    y = x @ torch.tensor([1.0, -0.5], dtype=F64) + 0.7 * torch.randn(300, generator=generator, dtype=F64)
    y[:30] += 30
    parts = pf.partition.Explicit([range(30 * k, 30 * k + 30) for k in range(10)])
    fed = pf.Federation(model, (x, y), plate="data", partition=parts, dtype=F64)
    algorithm = pf.infer.SFVI(guide=AutoNormal, num_steps=60, step_size=0.15)
    with pytest.warns(UserWarning, match="client"):
        idata = pf.run(algorithm, fed, combination=pf.combination.Bounded(), **QUIET)
    assert 0.6 < float(idata["posterior"]["s"].mean()) < 0.9


def normal_scale(x, y):
    pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    pyro.sample("s", dist.Normal(number(3.0), number(0.1)))


def poisson_scale(x, y):
    pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))
    pyro.sample("s", dist.Poisson(number(3.0)))


def without_scale(x, y):
    pyro.sample("w", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))


def of_the_rows(x, y):
    pyro.sample("w", dist.Normal(y.mean() * torch.ones(2, dtype=F64), 1.0).to_event(1))
    pyro.sample("s", dist.Gamma(number(3.0), number(1.0)))


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (of_the_rows, r"its draws of \['w', 's'\] change with the rows that it is given"),
        (normal_scale, r"site 's' \(Normal\) draws values outside the model's support .*its own support is Real"),
        (poisson_scale, r"site 's' \(Poisson\) cannot be reparametrised"),
        (without_scale, r"lacks the sites \['s'\]"),
    ],
)
def test_guides_that_cannot_be_fitted_are_refused(guide, message, federation):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.run(pf.infer.SFVI(guide=guide), federation, **QUIET)


def test_a_family_of_another_support_is_refused_by_fedep_whatever_it_draws(federation):
    """30 SDs from zero: no draw would show it."""
    with pytest.raises(pf.errors.SettingError, match=r"site 's' \(Normal\) draws values outside the model's support"):
        pf.run(pf.FedEP(guide=normal_scale), federation, **QUIET)


@pytest.mark.parametrize(
    ("guide", "cure"),
    [
        (AutoLowRankMultivariateNormal, r"use SFVI\(guide=AutoLowRankMultivariateNormal\)"),
        (AutoLowRankMultivariateNormal(model, rank=1), r"use SFVI\(guide=AutoLowRankMultivariateNormal\)"),
        (AutoIAFNormal, r"use SFVI\(guide=AutoIAFNormal\)"),
        (AutoLaplaceApproximation, r"use FedLaplace\(\)"),
        (AutoDelta, "a point, the MAP estimate"),
    ],
)
def test_fedep_names_what_fits_a_guide_that_is_no_exponential_family(guide, cure):
    with pytest.raises(pf.errors.SettingError, match=cure):
        pf.FedEP(guide=guide)


@pytest.mark.parametrize("guide", [dependent, half_normal])
def test_fedep_names_what_fits_a_written_guide_that_is_no_exponential_family(guide, federation):
    with pytest.raises(pf.errors.SettingError, match=r"SFVI\(guide=\.\.\.\), which takes any guide"):
        pf.run(pf.FedEP(guide=guide), federation, **QUIET)


def test_the_laplace_guide_is_refused_by_name():
    with pytest.raises(pf.errors.SettingError, match=r"SFVI: guide AutoLaplaceApproximation is fitted by FedLaplace"):
        pf.infer.SFVI(guide=AutoLaplaceApproximation)


def encoder(sd, y=None):
    """q(mu) q(effect_k | y_k, mu), the latter by parameters of the client's own: the posterior is of this form."""
    scale = pyro.param("scale", number(0.5), constraint=positive)
    mu = pyro.sample("mu", dist.Normal(pyro.param("loc", number(0.0)), scale))
    shift, slope, spread = (pyro.param(name, number(0.0)) for name in ("shift", "slope", "spread"))
    gain = torch.sigmoid(shift + slope * sd.log())
    with pyro.plate(hierarchies.PLATE, len(sd)):
        pyro.sample("effect", dist.Normal(gain * y + (1 - gain) * mu, spread.exp() * gain.sqrt() * sd))


def test_with_the_exact_conditional_a_clients_scores_are_those_of_its_marginal_likelihood():
    """Whatever the draws: log p(y, u | mu) - log q(u | y, mu) is then log p(y | mu)."""
    fed = hierarchies.CASES["means"].federation()
    problem, data = fed.problem, fed.client_data()
    algorithm = sfvi.SFVI(guide=encoder, num_particles=4, surrogates=None)
    program = algorithm.program(problem)
    assert (len(program.start), len(program.own_start), program.amortised) == (2, 3, True)
    exact = torch.tensor([2 * math.log(hierarchies.SPREAD), -2.0, 0.0], dtype=F64)
    shared, local = algorithm.init(problem, 3, torch.Generator().manual_seed(1), None)
    shared = algorithm.prepare(problem, shared)
    download = algorithm.download(shared, torch.arange(3))
    messages, after, _ = algorithm.local_step(
        problem, download, {**local, "params": exact.expand(3, -1)}, data, torch.tensor([[5, 6, 7]])
    )
    assert set(messages) == {"delta"}
    assert not torch.equal(after["params"][0], after["params"][1])
    found = messages["delta"] * data.num_rows.unsqueeze(-1)
    for k in range(3):
        rows = data.row_index[k, : data.num_rows[k]]
        for s, z in enumerate(shared["points"]):
            z = z.clone().requires_grad_()
            value = hierarchies.means_log_lik(z, hierarchies.SD[rows], hierarchies.Y[rows]).sum()
            torch.testing.assert_close(found[k, s], torch.autograd.grad(value, z)[0][0], rtol=1e-10, atol=1e-10)


def test_an_amortised_guide_of_the_clients_latents_finds_the_exact_posterior():
    """The steps' random numbers leave 0.04 SD."""
    fed = hierarchies.CASES["means"].federation()
    idata = pf.run(pf.infer.SFVI(guide=encoder, num_steps=200, step_size=0.1), fed, num_draws=4000, **QUIET)
    mean, cover = hierarchies.means_posterior(hierarchies.SD, hierarchies.Y)
    draws, sd = torch.as_tensor(idata["posterior"]["mu"].values[0]), cover[0, 0].sqrt()
    assert abs(float((draws.mean() - mean[0]) / sd)) < 0.2
    assert abs(float(draws.std() / sd) - 1) < 0.2


def by_row(sd, y=None):
    """With parameters for each of the pooled rows."""
    mu = pyro.sample("mu", dist.Normal(pyro.param("loc", number(0.0)), number(0.5)))
    shift = pyro.param("shift", torch.zeros(hierarchies.J, dtype=F64))
    with pyro.plate(hierarchies.PLATE, len(sd)):
        pyro.sample("effect", dist.Normal(shift + mu, number(1.0)))


def test_parameters_of_each_row_are_left_aside_with_a_warning():
    with pytest.warns(UserWarning, match=r"guide by_row: its sites \['effect'\], inside plate 'group', are not used"):
        program = sfvi.SFVI(guide=by_row).program(hierarchies.CASES["means"].federation().problem)
    assert not program.amortised


@pytest.mark.parametrize("setting", [{"local_steps": 2}, {"bound": "iwae"}])
def test_what_other_clients_know_moves_no_amortised_guide(setting):
    with pytest.raises(pf.errors.SettingError, match=r"moves parameters of global sites alone"):
        pf.run(pf.infer.SFVI(guide=encoder, **setting), hierarchies.CASES["means"].federation(), **QUIET)


def test_draws_are_not_weighted_within_local_steps():
    with pytest.raises(pf.errors.SettingError, match=r"not known within local_steps=2"):
        pf.infer.SFVI(bound="iwae", local_steps=2)
