"""log_prior and log_lik against Pyro's own trace of the pooled model, feature by feature."""

from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.autograd.functional import jacobian
from torch.distributions import biject_to
from torch.func import grad
from zoo import CASES, case_named, federation, point
from zoo_data import GROUP, N, X, Y, normal
from zoo_sites import linear

import pyro_fed as pf
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.observations import observation
from pyro_fed.density.rows.batches import CLIENTS, Batch

ALL = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def pooled_log_joint(case, problem, z):
    """Pyro's log_prob_sum of the pooled, conditioned reference, and log |det| of each site's transform."""
    values = problem.constrain(z)
    latents = {name: values[name] for name in problem.sites}
    args, kwargs = problem.arguments.rebuild(problem.arguments.rows)
    torch.set_default_dtype(torch.float64)
    try:
        model = pyro.condition(case.reference or case.model, latents)
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        total = trace.log_prob_sum()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, site in problem.sites.items():
        transform = biject_to(trace.nodes[name]["fn"].support)
        start = z[site.start : site.start + site.size].reshape(site.unconstrained_shape)
        total = total + transform.log_abs_det_jacobian(start, transform(start)).sum()
    return total


def over_clients(fed, z):
    problem = fed.problem
    batches = [
        Batch(tuple(leaf[index] for leaf in problem.rows), torch.ones(len(index), dtype=z.dtype))
        for index in fed.client_rows
        if len(index)
    ]
    return problem.log_prior(z) + sum(problem.log_lik(z, batch) for batch in batches)


@ALL
@pytest.mark.parametrize("num_clients", [1, 2, 7, N])
def test_prior_and_clients_add_up_to_pyros_pooled_density(case, num_clients):
    fed = federation(case, num_clients)
    z = point(fed.problem)
    expected = float(pooled_log_joint(case, fed.problem, z).detach())
    assert np.isfinite(expected)
    assert float(over_clients(fed, z)) == pytest.approx(expected, rel=1e-10, abs=1e-10)


PARTITIONS = [
    pf.partition.IID(),
    pf.partition.Dirichlet(0.3, by=GROUP),
    pf.partition.QuantitySkew(0.5),
    pf.partition.LabelShards(2, by=GROUP),
    pf.partition.MajorityShare(0.8, by=GROUP),
    pf.partition.SortedBy(by=Y),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("num_clients", [1, 2, 7, N])
@pytest.mark.filterwarnings("ignore:clients .* have no rows")
def test_every_partition_gives_the_pooled_density(partition, num_clients):
    case = CASES[0]
    pooled = federation(case)
    z = point(pooled.problem)
    try:
        fed = federation(case, num_clients, partition=partition)
    except ValueError as error:  # four labels can not make two for each of thirteen clients, say
        assert type(partition).__name__ in str(error)
        return
    assert sorted(int(i) for rows in fed.client_rows for i in rows) == list(range(N))
    torch.testing.assert_close(over_clients(fed, z), pooled_log_joint(case, pooled.problem, z), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fed.problem.log_prior(z), pooled.problem.log_prior(z), rtol=0, atol=0)


@pytest.mark.parametrize(
    "partition",
    [
        pf.partition.ByGroup(by=GROUP),
        pf.partition.Explicit([list(range(0, N, 2)), list(range(1, N, 2))]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_partitions_that_know_their_number_of_clients(partition):
    case = CASES[0]
    fed = federation(case, None, partition=partition)
    z = point(fed.problem)
    torch.testing.assert_close(over_clients(fed, z), pooled_log_joint(case, fed.problem, z), rtol=1e-10, atol=1e-10)


def test_the_prior_is_the_closed_form_and_is_counted_once():
    problem = federation(CASES[0], 7).problem
    z = point(problem)
    w, sigma = z[:3], z[3].exp()
    expected = dist.Normal(0, 1).log_prob(w).sum() + dist.HalfNormal(1.0).log_prob(sigma) + z[3]
    torch.testing.assert_close(problem.log_prior(z), expected, rtol=1e-12, atol=1e-12)
    nothing = Batch(problem.rows, torch.zeros(N, dtype=z.dtype))
    torch.testing.assert_close(problem.log_joint(z, nothing), expected, rtol=1e-12, atol=1e-12)


def client_terms(problem, z, data):
    """What a step computes: log joint of a padded batch and its score, one client, several particles."""
    batch = data.full_batch()
    values = problem.vmap(lambda one: problem.log_joint(one, batch))(z)
    return values, problem.vmap(grad(lambda one: problem.log_joint(one, batch)))(z)


@ALL
def test_vmap_and_trace_agree_with_one_at_a_time(case):
    """Particles and padded clients mapped at once, at levels off and trace, against the plain density."""
    fed = federation(case, 2, partition=pf.partition.Explicit([list(range(4)), list(range(4, N))]))
    problem = fed.problem
    data = fed.client_data()
    z = torch.stack([point(problem, seed) for seed in range(3)])
    particles = torch.stack([z, z + 0.1])
    for level in ("loop", "off", "trace"):
        compiled = replace(problem, compiler=Compiler(level))
        values, scores = compiled.mapped(client_terms, (0, CLIENTS))(particles, data)
        for k, index in enumerate(fed.client_rows):
            batch = Batch(tuple(leaf[index] for leaf in problem.rows), torch.ones(len(index), dtype=z.dtype))
            for n in range(3):
                one = particles[k, n]
                torch.testing.assert_close(values[k, n], problem.log_joint(one, batch), rtol=1e-9, atol=1e-9)
                exact = jacobian(lambda v, b=batch: problem.log_joint(v, b), one)
                torch.testing.assert_close(scores[k, n], exact, rtol=1e-8, atol=1e-8)


FINITE = [
    case
    for case in CASES
    if case.name
    in (
        "linear",
        "improper",
        "dependent",
        "dirichlet",
        "lkj",
        "horseshoe",
        "mixture",
        "student",
        "loc_scale_reparam",
    )
]


@pytest.mark.parametrize("case", FINITE, ids=[case.name for case in FINITE])
def test_scores_are_the_finite_differences_of_pyros_density(case):
    problem = federation(case).problem
    z = point(problem)
    score = grad(lambda one: problem.log_prior(one) + problem.log_lik(one))(z)
    step = 1e-5
    for i in range(problem.dim):
        shift = torch.zeros_like(z)
        shift[i] = step
        up, down = (pooled_log_joint(case, problem, z + sign * shift) for sign in (1, -1))
        assert float(score[i]) == pytest.approx(float((up - down) / (2 * step)), rel=1e-6, abs=1e-6)


@ALL
def test_constrained_values_go_back_and_forth(case):
    problem = federation(case).problem
    z = point(problem)
    values = problem.constrain(z)
    torch.testing.assert_close(problem.unconstrain(values), z, rtol=1e-8, atol=1e-8)
    assert tuple(name for name in values if name not in problem.sites) == case.reported
    assert sum(site.size for site in problem.sites.values()) == problem.dim
    many = problem.constrain(torch.stack([z, z]))
    for name, value in values.items():
        torch.testing.assert_close(many[name][1], value)


def test_params_are_constant_and_warned_about():
    case = case_named("param")
    with pytest.warns(UserWarning, match=r"pyro.param statements \['scale'\] are held constant"):
        problem = pf.Federation(case.model, case.args, plate="data", num_clients=1).problem
    assert list(problem.sites) == ["w"]
    z = point(problem)
    before = problem.log_lik(z)
    pyro.clear_param_store()
    pyro.param("scale", torch.tensor(5.0))
    torch.testing.assert_close(problem.log_lik(z), before)


def test_dims_take_the_names_of_plates():
    layouts = {case.name: federation(case).problem.layout for case in CASES}
    assert layouts["nested"].latents["theta"].dims == ("regions", "groups")
    assert layouts["nested"].latents["mu"].dims == ("regions", "mu_dim_1")
    assert layouts["groups"].latents["theta"].dims == ("groups",)
    assert layouts["linear"].latents["w"].dims == ("w_dim_0",)
    assert layouts["deterministic"].reported["centred"].dims == ("data",)
    assert layouts["rows_on_dim_2"].observed["z"].dims == ("data", "columns")
    assert layouts["factor"].factors == {"fit"}


def test_observation_of_new_rows():
    """Log densities, means and probabilities at new rows against the distributions themselves."""
    z = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
    new = X[:4] + 1
    by_name = {case.name: federation(case).problem for case in CASES}
    seen = observation(by_name["binomial"], z, (new, torch.ones(4)))
    torch.testing.assert_close(seen["mean"], 5 * torch.sigmoid(new @ z))
    seen = observation(by_name["categorical"], z.repeat(3), (new, torch.tensor([0, 1, 2, 0])))
    assert seen["probs"].shape == (4, 3)
    torch.testing.assert_close(seen["log_prob"], seen["probs"][range(4), [0, 1, 2, 0]].log())
    with pytest.raises(pf.errors.ModelError, match=r"one observed site inside plate 'data', found \['y', 'k'\]"):
        observation(by_name["several_observed"], z, (new, Y[:4], Y[:4]))
    with pytest.raises(pf.errors.DataError, match="rows of shape"):
        observation(by_name["binomial"], z, (new[:, :2], torch.ones(4)))


def test_the_dtype_of_the_models_constants_is_the_problems():
    def constants(y):
        mu = pyro.sample("mu", normal(0, 1, 2))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu.sum(), torch.tensor(1.0)), obs=y)

    for dtype in (torch.float32, torch.float64):
        problem = pf.Federation(constants, (Y,), plate="data", num_clients=2, dtype=dtype).problem
        assert problem.log_lik(point(problem)).dtype == dtype
        assert problem.init(2, torch.Generator()).dtype == dtype
    with pytest.raises(pf.errors.SettingError, match="float16"):
        pf.Federation(linear, (X, Y), plate="data", num_clients=2, dtype=torch.float16)


@pytest.mark.parametrize("event", [False, True])
def test_a_mixture_is_a_prior_on_the_support_of_its_parts(event):
    """Gammas, on the logarithm: the density of each z is that of exp z, times it; PyTorch has no transform for them."""
    shape, rate = torch.tensor([[2.0, 8.0], [3.0, 1.0]]).double(), torch.tensor([[2.0, 8.0], [1.0, 4.0]]).double()
    parts = dist.MixtureSameFamily(
        dist.Categorical(torch.tensor([0.3, 0.7]).double().expand(2, 2)), dist.Gamma(shape, rate)
    )

    def model(y):
        s = (
            pyro.sample("s", parts.to_event(1))
            if event
            else torch.stack([pyro.sample(f"s{i}", one) for i, one in each])
        )
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0, s.sum()), obs=y)

    halves = [
        dist.MixtureSameFamily(dist.Categorical(torch.tensor([0.3, 0.7]).double()), dist.Gamma(*own))
        for own in zip(shape, rate, strict=True)
    ]
    each = list(enumerate(halves))
    problem = pf.Federation(model, (Y[:10],), plate="data", num_clients=2).problem
    z = torch.tensor([[0.3, -1.0], [1.2, 0.4], [-2.0, 0.0]]).double()
    expected = torch.stack([half.log_prob(z[:, i].exp()) + z[:, i] for i, half in each]).sum(0)
    torch.testing.assert_close(problem.log_prior(z), expected)
