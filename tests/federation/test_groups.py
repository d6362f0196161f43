"""Nested rows follow the groups of the partitioned plate to their clients: densities, reports, refusals."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density.compiling.compiler import pytree
from pyro_fed.density.rows.batches import Batch

J, N = 6, 25
GENERATOR = torch.Generator().manual_seed(5)
COUNTY = torch.tensor([2, 0, 0, 5, 1, 2, 2, 2, 0, 1, 5, 2, 2, 4, 4, 2, 0, 1, 2, 2, 5, 2, 1, 1, 2])  # nobody in 3
FLOOR = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
Y = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
URANIUM = torch.randn(J, generator=GENERATOR, dtype=torch.float64)
MISSING = torch.where(torch.arange(N) == 7, torch.nan, Y)


def houses(floor, county_idx, uranium, y, counties):
    """A group covariate, a latent a group, nested rows."""
    g = pyro.sample("g", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("county", counties):
        a = pyro.sample("a", dist.Normal(g[0] + g[1] * uranium, tau))
    with pyro.plate("obs", len(floor)):
        mean = pyro.deterministic("mean", a[county_idx] + g[2] * floor)
        pyro.sample("y", dist.Normal(mean, 0.7), obs=y)


def fixed_effects(floor, county_idx, uranium, y, counties):
    """No latent a group: nested rows alone, with a weight each."""
    g = pyro.sample("g", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("county", counties):
        level = g[0] + g[1] * uranium
    with pyro.plate("obs", N), pyro.poutine.scale(scale=floor.exp()):
        pyro.sample("y", dist.Normal(level[county_idx] + g[2] * floor, 0.7), obs=y)


ARGS = (FLOOR, COUNTY, URANIUM, Y, J)


def federation(model=houses, args=ARGS, **options):
    options = {"rows": {"obs": "county_idx"}, "num_clients": 3} | options
    return pf.Federation(model, args, plate="county", **options)


def points(problem, count=3):
    return 0.5 * torch.randn(count, problem.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def marginal(z):
    """Log marginal likelihood of each county of `houses`, a Gaussian: (J,)."""
    tau, level = z[3].exp(), z[0] + z[1] * URANIUM
    terms = []
    for j in range(J):
        mine = j == COUNTY
        size = int(mine.sum())
        covariance = 0.49 * torch.eye(size, dtype=torch.float64) + tau**2
        mean = level[j] + z[2] * FLOOR[mine]
        normal = torch.distributions.MultivariateNormal(mean, covariance) if size else None
        terms.append(normal.log_prob(Y[mine]) if normal else z.new_zeros(()))
    return torch.stack(terms)


def test_a_group_s_term_is_its_rows_marginal_likelihood():
    problem = federation().problem
    assert list(problem.layout.local) == ["a"]
    for z in points(problem):
        torch.testing.assert_close(problem.pointwise_log_lik(z), marginal(z), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(problem.pointwise_log_lik(z, problem.rows), marginal(z), rtol=1e-9, atol=1e-9)


def test_weighted_rows_without_latents_of_their_own():
    problem = federation(fixed_effects).problem
    for z in points(problem):
        mean = (z[0] + z[1] * URANIUM)[COUNTY] + z[2] * FLOOR
        rows = FLOOR.exp() * dist.Normal(mean, 0.7).log_prob(Y)
        expected = torch.zeros(J, dtype=torch.float64).index_add(0, COUNTY, rows)
        torch.testing.assert_close(problem.pointwise_log_lik(z), expected)
        torch.testing.assert_close(problem.site_log_lik(z)["y"], rows)
        assert problem.term_plates() == {"y": "obs"}


PARTITIONS = {
    "IID": (pf.partition.IID(), 3),
    "Dirichlet": (pf.partition.Dirichlet(0.5, by=[0, 1, 0, 1, 0, 1]), 3),
    "SortedBy": (pf.partition.SortedBy(URANIUM), 2),
    "QuantitySkew": (pf.partition.QuantitySkew(1.0), 4),
    "one each": (pf.partition.IID(), J),
}


@pytest.mark.filterwarnings("ignore:clients .* have no rows")
@pytest.mark.parametrize("name", PARTITIONS)
def test_clients_get_their_groups_with_their_rows(name):
    partition, clients = PARTITIONS[name]
    fed = federation(partition=partition, num_clients=clients)
    assert sorted(torch.cat(fed.client_rows).tolist()) == list(range(J))
    problem, batch = fed.problem, fed.client_data().full_batch()
    z = points(problem)[0]
    for k, groups in enumerate(fed.client_rows):
        one = pytree.tree_map(lambda leaf, k=k: leaf[k], batch)
        torch.testing.assert_close(problem.log_lik(z, one), marginal(z)[groups].sum(), rtol=1e-9, atol=1e-9)
        floor, county_idx, uranium, y, _ = fed.client_args(k)[0]
        mine = torch.isin(COUNTY, groups)
        assert torch.equal(uranium, URANIUM[groups])
        assert sorted(y.tolist())[: int(mine.sum())] == sorted(Y[mine].tolist()) or not mine.any()
        for value, group, house in zip(y, county_idx, floor, strict=True):
            if mine.any():
                at = int((value == Y).nonzero())
                assert COUNTY[at] == groups[group] and FLOOR[at] == house


def test_full_batches_are_packed_and_minibatches_are_blocks():
    fed = federation(partition=pf.partition.Explicit([[0, 1], [2], [3, 4, 5]]))
    nested = fed.client_data().full_batch().rows[-1]
    assert nested.where.shape == (3, int((COUNTY == 2).sum()))
    assert (nested.where >= 0).sum(-1).tolist() == [int((COUNTY < 2).sum()), 11, int((COUNTY > 2).sum())]
    assert fed.pooled_data().full_batch().rows[-1].where.shape == (1, N)
    assert fed.problem.rows[-1].where.shape == (J, 11)


@pytest.mark.filterwarnings("ignore:not converged")
@pytest.mark.parametrize("executor", ["vectorised", "sequential"])
def test_results_stand_in_the_original_order(executor):
    options = {"num_rounds": 1, "num_draws": 50, "compile": "off", "progress": False, "audit": False}
    idata = pf.run(pf.FedLaplace(), federation(), executor=executor, **options)
    posterior, likelihood = idata["posterior"], idata["log_likelihood"]["y"]
    assert posterior["a"].dims == ("chain", "draw", "county")
    assert posterior["mean"].dims == likelihood.dims == ("chain", "draw", "obs")
    a, g = posterior["a"].values[0], posterior["g"].values[0]
    mean = a[:, COUNTY.numpy()] + g[:, 2:] * FLOOR.numpy()
    np.testing.assert_allclose(posterior["mean"].values[0], mean, rtol=1e-9)
    expected = dist.Normal(torch.as_tensor(mean), 0.7).log_prob(Y)
    np.testing.assert_allclose(likelihood.values[0], expected, rtol=1e-9)
    np.testing.assert_array_equal(idata["observed_data"]["y"].values, Y)
    assert idata["constant_data"]["uranium"].dims == ("county",)
    assert idata["constant_data"]["floor"].dims == ("obs",)


def test_minibatches_of_groups_are_unbiased():
    """The mean over all minibatches of one group each is the whole."""
    problem = federation().problem
    z = points(problem)[0]
    parts = [
        problem.log_lik(z, Batch(tuple(leaf[j : j + 1] for leaf in problem.rows), z.new_ones(1))) for j in range(J)
    ]
    torch.testing.assert_close(torch.stack(parts), marginal(z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"rows": {"house": "county_idx"}},
            pf.errors.ModelError,
            r"'house', .*; the model's plates besides 'county': ",
        ),
        (
            {"rows": {"obs": "county"}},
            pf.errors.ModelError,
            r"names the arguments \['county'\], but the model's are \['floor'",
        ),
        ({"rows": {"obs": "floor"}}, pf.errors.DataError, r"expected whole numbers, \(25,\), received torch.float64"),
        (
            {"args": (FLOOR, COUNTY[1:], URANIUM, Y, J)},
            pf.errors.DataError,
            "'county_idx' has 24 rows, but .* has size 25",
        ),
        (
            {"args": (FLOOR, COUNTY + 1, URANIUM, Y, J)},
            pf.errors.DataError,
            "expected 0 to 5, received 1 to 6: subtract 1",
        ),
        (
            {"rows": None},
            pf.errors.ModelError,
            r"'y', in plate 'obs', depends on \['a'\].*rows=\{'obs': 'county_idx'\}",
        ),
        ({"args": (FLOOR, COUNTY, URANIUM, MISSING, J)}, pf.errors.DataError, r"'y'\[7\] is NaN"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(options, kind, message):
    model = houses
    with pytest.raises(kind, match=message):
        federation(model, options.pop("args", ARGS), **options)


def test_text_names_each_client_s_own_groups():
    clients = {
        name: (FLOOR[rows], [name] * 3, URANIUM[:1], Y[rows], 1)
        for name, rows in {"a": [0, 1, 2], "b": [3, 4, 5]}.items()
    }
    fed = pf.Federation.from_clients(houses, list(clients.values()), plate="county", rows={"obs": "county_idx"})
    assert fed.coords["county"] == ["a", "b"]


def matches(home, away, y):
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("team", 6):
        skill = pyro.sample("skill", dist.Normal(0.0, sigma))
    with pyro.plate("match", len(y)):
        pyro.sample("y", dist.Normal(skill[home] - skill[away], 1.0), obs=y)


def answers(pupil, item, y):
    sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
    with pyro.plate("item", 4):
        pyro.sample("hard", dist.Normal(0.0, sigma))
    with pyro.plate("pupil", 6):
        able = pyro.sample("able", dist.Normal(0.0, sigma))
    with pyro.plate("answer", len(y)):
        noise = pyro.sample("noise", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(able[pupil] + noise, 1.0), obs=y)


def test_a_plate_crossed_with_the_partitioned_one_is_refused_with_a_drawing():
    away = (COUNTY + 1) % 6
    with pytest.raises(pf.errors.ModelError, match="may belong to one element of 'team' alone") as caught:
        pf.Federation(matches, (COUNTY, away, Y), plate="team", rows={"match": "home"}, num_clients=2)
    drawing = """
plate 'team' (6), split over the clients
├─ skill ← sigma
└─ plate 'match' (25), whose rows follow 'team'
   └─ y ← skill""".strip()
    assert drawing in "\n".join(line[3:] for line in str(caught.value).splitlines())


def test_latents_of_nested_rows_are_refused():
    with pytest.raises(pf.errors.ModelError, match="'noise' is inside plate 'answer', whose rows follow plate 'pupil'"):
        pf.Federation(answers, (COUNTY, COUNTY % 4, Y), plate="pupil", rows={"answer": "pupil"}, num_clients=2)
