"""FedEP, FedSEP and P2PVI with hand-written guides against exact conjugate posteriors, whatever the partition."""

import dataclasses

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import pyro_fed as pf
from pyro_fed.infer.ep.guided import GuideSites

F64 = torch.float64
QUIET = {"progress": False, "num_draws": 100, "log_likelihood": False, "compile": "off"}


def parameters(algorithm, fed, **options):
    """The final natural parameters, and the draws' InferenceData."""
    seen, algorithm = {}, algorithm.delegate()

    class Recorded(type(algorithm)):
        def monitor(self, before, after):
            seen["natural"] = after["natural"]
            return super().monitor(before, after)

    settings = {name: getattr(algorithm, name) for name in (f.name for f in dataclasses.fields(algorithm))}
    idata = pf.run(Recorded(**settings), fed, **QUIET, **options)
    return seen["natural"], idata


def gamma_poisson(y):
    rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0, dtype=F64), torch.tensor(0.5, dtype=F64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def gamma_guide(y):
    a = pyro.param("a", torch.tensor(3.0, dtype=F64), constraint=dist.constraints.positive)
    pyro.sample("rate", dist.Gamma(a, torch.tensor(1.0, dtype=F64)))


def beta_bernoulli(y):
    p = pyro.sample("p", dist.Beta(torch.tensor(1.5, dtype=F64), torch.tensor(2.0, dtype=F64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(p), obs=y)


def beta_guide(y):
    pyro.sample("p", dist.Beta(torch.tensor(2.0, dtype=F64), torch.tensor(2.0, dtype=F64)))


def dirichlet_categorical(y):
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3, dtype=F64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Categorical(p), obs=y)


def dirichlet_guide(y):
    pyro.sample("p", dist.Dirichlet(2 * torch.ones(3, dtype=F64)))


def normal_normal(y):
    m = pyro.sample("m", dist.Normal(torch.zeros(2, dtype=F64), 3.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(m, 2.0).to_event(1), obs=y)


def normal_guide(y):
    pyro.sample("m", dist.Normal(torch.zeros(2, dtype=F64), 1.0).to_event(1))


def joint_guide(y):
    pyro.sample("m", dist.MultivariateNormal(torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)))


def log_normal_scale(y):
    s = pyro.sample("s", dist.LogNormal(torch.tensor(0.5, dtype=F64), 1.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.LogNormal(s.log(), 2.0), obs=y)


def log_normal_guide(y):
    pyro.sample("s", dist.LogNormal(torch.tensor(0.0, dtype=F64), 1.0))


GENERATOR = torch.Generator().manual_seed(0)
COUNTS = torch.randint(0, 9, (40,), generator=GENERATOR).to(F64)
FLIPS = torch.randint(0, 2, (40,), generator=GENERATOR).to(F64)
LABELS = torch.randint(0, 3, (40,), generator=GENERATOR)
POINTS = torch.randn(40, 2, generator=GENERATOR, dtype=F64)
SIZES = (0.3 + POINTS[:, 0]).exp()
PRECISION = torch.tensor(1 / 9 + 40 / 4, dtype=F64)
ETA = POINTS.sum(0) / 4
CASES = {
    "gamma": (gamma_poisson, gamma_guide, COUNTS, [1 + COUNTS.sum(), -40.5]),
    "beta": (beta_bernoulli, beta_guide, FLIPS, [0.5 + FLIPS.sum(), 1 + (1 - FLIPS).sum()]),
    "dirichlet": (dirichlet_categorical, dirichlet_guide, LABELS, torch.bincount(LABELS).tolist()),
    "normal": (normal_normal, normal_guide, POINTS, [ETA[0], -PRECISION / 2, ETA[1], -PRECISION / 2]),
    "joint normal": (normal_normal, joint_guide, POINTS, [*ETA, PRECISION, 0.0, PRECISION]),
    "log-normal": (
        log_normal_scale,
        log_normal_guide,
        SIZES,
        [0.5 / 2.25 + SIZES.log().sum() / 4, -0.5 * (1 / 2.25 + 10)],
    ),
}


@pytest.mark.parametrize("algorithm", [pf.FedEP, pf.infer.FedSEP])
@pytest.mark.parametrize("num_clients", [1, 7])
@pytest.mark.parametrize("name", CASES)
def test_conjugate_posteriors_are_exact_for_any_partition(name, num_clients, algorithm):
    """The audit, which is silent, sees the same q of any partition: it is asked once."""
    model, guide, data, expected = CASES[name]
    parts = [range(k, 40, num_clients) for k in range(num_clients)]
    fed = pf.Federation(model, (data,), plate="data", partition=pf.partition.Explicit(parts), dtype=F64)
    natural, idata = parameters(
        algorithm(guide=guide, num_points=8), fed, num_rounds=5, audit=num_clients > 1 and algorithm is pf.FedEP
    )
    torch.testing.assert_close(natural, torch.tensor([float(v) for v in expected], dtype=F64), rtol=1e-6, atol=1e-6)
    assert idata["posterior"].sizes["draw"] == 100


@pytest.mark.parametrize("graph", [pf.graph.ring(7), pf.graph.star(7)], ids=["ring", "star"])
@pytest.mark.parametrize("name", CASES)
def test_on_a_graph_every_agent_has_the_conjugate_posterior(name, graph):
    """The star's agents have unequal centralities. Two rounds, the second of which moves nothing."""
    model, guide, data, expected = CASES[name]
    partition = pf.partition.Explicit([range(k, 40, 7) for k in range(7)])
    fed = pf.Federation(model, (data,), plate="data", partition=partition, dtype=F64)
    natural, idata = parameters(pf.P2PVI(guide=guide, num_points=8), fed, graph=graph, audit=False)
    expected = torch.tensor([float(v) for v in expected], dtype=F64).expand(7, -1)
    torch.testing.assert_close(natural, expected, rtol=1e-6, atol=1e-6)
    assert (idata.attrs["num_rounds"], idata["posterior"].sizes["chain"]) == (2, 7)


@pytest.mark.parametrize(
    ("graph", "options"),
    [(pf.graph.ring(5), {"schedule": pf.schedule.UniformRandom(3)}), (pf.graph.rotating_stars(4, 2), {})],
    ids=["schedule", "turns"],
)
def test_agents_that_sleep_are_refused(graph, options):
    fed = pf.Federation(gamma_poisson, (COUNTS,), plate="data", num_clients=5, dtype=F64)
    with pytest.raises(pf.errors.GraphError, match="P2PVI: a hand-written guide needs a fixed graph"):
        pf.run(pf.P2PVI(guide=gamma_guide), fed, graph=graph, **QUIET, **options)


def test_consensus_steps_as_published_end_at_the_same_posterior():
    model, guide, data, expected = CASES["gamma"]
    fed = pf.Federation(model, (data,), plate="data", num_clients=5, dtype=F64)
    algorithm = pf.P2PVI(guide=guide, num_points=8, gossip_steps=2)
    natural, _ = parameters(algorithm, fed, graph=pf.graph.ring(5), audit=False)
    expected = torch.tensor([float(v) for v in expected], dtype=F64).expand(5, -1)
    torch.testing.assert_close(natural, expected, rtol=1e-4, atol=1e-4)


def gamma_lognormal(y):
    rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0, dtype=F64), torch.tensor(0.5, dtype=F64)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.LogNormal(rate.log(), 1.0), obs=y)


@pytest.mark.parametrize("algorithm", [pf.FedEP, pf.P2PVI])
def test_a_point_where_a_clients_scores_are_not_finite_is_left(algorithm, monkeypatch):
    """The guide's own start, or where a step leads. The bound of agents could not be mixed, and the run ended."""
    parts = pf.partition.Explicit([range(3), range(3, 10), range(10, 40)])
    fed = pf.Federation(gamma_lognormal, (1 + COUNTS,), plate="data", partition=parts, dtype=F64)
    places, likelihoods, ends = [], GuideSites.likelihoods, []

    def lost_at(number):
        def at_times_lost(self, problem, points, data):
            scores, values = likelihoods(self, problem, points, data)
            place = round(float(points[:, 0].mean()), 9)
            places.extend([place] if place not in places else [])
            here = (data.num_rows == 7) & (places.index(place) == number)
            return torch.where(here[:, None, None], torch.inf, scores), torch.where(here, -torch.inf, values)

        return at_times_lost

    graph = {"graph": pf.graph.complete(3)} if algorithm is pf.P2PVI else {}
    for number in (None, 0, 1):
        places.clear()
        monkeypatch.setattr(GuideSites, "likelihoods", lost_at(number))
        fitted = algorithm(guide=gamma_guide, num_points=8, tolerance=1e-7)
        natural, idata = parameters(fitted, fed, audit=False, **graph)
        assert idata.posterior.attrs["converged"] and len(places) > 2
        ends.append(natural)
    torch.testing.assert_close(ends[1:], [ends[0]] * 2, rtol=1e-5, atol=1e-5)


def test_partial_participation_ends_at_the_same_posterior():
    model, guide, data, expected = CASES["gamma"]
    fed = pf.Federation(model, (data,), plate="data", num_clients=6)
    natural, _ = parameters(pf.FedEP(guide=guide, num_points=8), fed, num_rounds=12, schedule=pf.schedule.RoundRobin(2))
    torch.testing.assert_close(natural, torch.tensor([float(v) for v in expected], dtype=F64), rtol=1e-6, atol=1e-6)


def test_a_gamma_guide_of_a_model_that_is_not_conjugate_comes_near_a_long_grid():
    """Poisson with a half-Cauchy prior: the best Gamma is within a hundredth of the posterior's mean."""

    def model(y):
        rate = pyro.sample("rate", dist.HalfCauchy(torch.tensor(1.0, dtype=F64)))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    fed = pf.Federation(model, (COUNTS,), plate="data", num_clients=4)
    natural, _ = parameters(pf.FedEP(guide=gamma_guide), fed, num_rounds=20)
    grid = torch.linspace(0.01, 12, 20_000, dtype=F64)
    weight = (COUNTS.sum() * grid.log() - 40 * grid - grid.square().log1p()).softmax(0)
    torch.testing.assert_close((natural[0] + 1) / -natural[1], (weight * grid).sum(), rtol=0.01, atol=0)


def laplace_guide(y):
    pyro.sample("m", dist.Laplace(torch.zeros(2, dtype=F64), 1.0).to_event(1))


def misnamed_guide(y):
    pyro.sample("other", dist.Normal(torch.tensor(0.0, dtype=F64), 1.0))


def normal_rate(y):
    pyro.sample("rate", dist.Normal(torch.tensor(0.0, dtype=F64), 5.0))


@pytest.mark.parametrize(
    ("model", "guide", "data", "message"),
    [
        (normal_normal, laplace_guide, POINTS, "site 'm' is a Laplace.*AutoMultivariateNormal"),
        (normal_normal, misnamed_guide, POINTS, r"lacks the sites \['m'\] and has \['other'\] besides"),
        (gamma_poisson, normal_rate, COUNTS, "'rate'.*outside the model's support"),
    ],
)
def test_guides_that_cannot_be_federated_name_the_site(model, guide, data, message):
    fed = pf.Federation(model, (data,), plate="data", num_clients=2)
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.run(pf.FedEP(guide=guide), fed, **QUIET)


def test_settings_that_a_hand_written_guide_does_not_take_are_refused():
    optimisers = pf.infer.Optimisers(server="sgd")
    for settings in ({"client": "mcmc"}, {"covariance": "diag"}, {"start": "prior"}, {"optimisers": optimisers}):
        name = next(iter(settings))
        with pytest.raises(pf.errors.SettingError, match=f"FedEP: {name}=.* has no effect: a hand-written guide"):
            pf.FedEP(guide=gamma_guide, damping=0.5, **settings)
    with pytest.raises(pf.errors.SettingError, match=r"P2PVI: update=.* has no effect: a hand-written guide"):
        pf.P2PVI(guide=gamma_guide, update="svi")
    with pytest.raises(pf.errors.SettingError, match="only FedEP, FedSEP, PVI and P2PVI federate a hand-written guide"):
        pf.infer.BCM(guide=gamma_guide)


def test_an_automatic_guide_of_agents_says_their_covariance():
    assert pf.P2PVI(guide=AutoNormal).covariance == "diag"
    with pytest.raises(pf.errors.SettingError, match="covariance='full' is not that of the guide, 'diag'"):
        pf.P2PVI(guide=AutoNormal, covariance="full")


def correlated_lines(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(5, dtype=F64), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def scaled_lines(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(5, dtype=F64), 1.0).to_event(1))
    s = pyro.sample("s", dist.Gamma(torch.tensor(2.0, dtype=F64), torch.tensor(2.0, dtype=F64)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, s), obs=y)


def normals(x, y):
    pyro.sample("w", dist.Normal(torch.zeros(5, dtype=F64), 1.0).to_event(1))


def normals_and_gamma(x, y):
    normals(x, y)
    pyro.sample("s", dist.Gamma(torch.tensor(20.0, dtype=F64), torch.tensor(20.0, dtype=F64)))


@pytest.mark.parametrize("algorithm", [pf.FedEP, pf.infer.FedSEP, pf.P2PVI])
@pytest.mark.parametrize(("model", "guide"), [(correlated_lines, normals), (scaled_lines, normals_and_gamma)])
def test_an_own_mean_field_guide_of_correlated_parameters_is_as_robust_as_an_automatic_one(model, guide, algorithm):
    """Correlations of 0.9: undamped steps overstep by four times their length, to 1e11 in fifty rounds."""
    generator = torch.Generator().manual_seed(0)
    common, own = (torch.randn(200, size, generator=generator, dtype=F64) for size in (1, 5))
    x = 0.9**0.5 * common + 0.1**0.5 * own
    y = x @ torch.linspace(-1, 1, 5, dtype=F64) + torch.randn(200, generator=generator, dtype=F64)
    fed = pf.Federation(model, (x, y), plate="data", num_clients=5, dtype=F64)
    graph = {"graph": pf.graph.ring(5)} if algorithm is pf.P2PVI else {}
    written, automatic = (
        pf.run(one, fed, audit=False, **options, **QUIET | {"num_draws": 4000})
        for one, options in ((algorithm(guide=guide), graph), (pf.FedEP(guide=AutoNormal), {}))
    )
    assert written.attrs["num_rounds"] <= 40
    draws = [torch.as_tensor(idata["posterior"]["w"].values[0]) for idata in (written, automatic)]
    sd = draws[1].std(0)
    assert float(((draws[0].mean(0) - draws[1].mean(0)) / sd).abs().max()) < 5 * (2 / 4000) ** 0.5
    assert float((draws[0].std(0) / sd - 1).abs().max()) < 0.15
