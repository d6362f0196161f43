"""Posteriors that are the same under relabellings and changes of sign: draws of one mode become draws of all.

The oracle is the symmetry itself: a posterior that does not change under a map gives x and its image the same mean and
SD, and the functions that the map leaves alone are those of the draws before.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density import symmetry


def federation(model, *columns):
    return pf.Federation(model, tuple(torch.as_tensor(one) for one in columns), plate="rows", num_clients=3)


def mixture(y, first=2.0):
    """Two components as separate scalar sites, whose share is reflected when they change places."""
    share = pyro.sample("share", dist.Beta(y.new_tensor(first), 2.0))
    low, high = (pyro.sample(name, dist.Normal(y.new_tensor(0.0), 5.0)) for name in ("low", "high"))
    with pyro.plate("rows", len(y)):
        first_term = share.log() + dist.Normal(low, 1.0).log_prob(y)
        pyro.factor("y", torch.logaddexp(first_term, torch.log1p(-share) + dist.Normal(high, 1.0).log_prob(y)))


def unequal(y):
    """The same with a prior that knows the first component."""
    mixture(y, 2.5)


def factor(y):
    """One factor with loadings, whose signs are free together."""
    loadings = pyro.sample("loadings", dist.Normal(y.new_zeros(3), 1.0).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(y.new_tensor(1.0)))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.LowRankMultivariateNormal(y.new_zeros(3), loadings[:, None], noise.expand(3) ** 2), obs=y)


def three(y):
    """Three components in one site, with shares on the simplex."""
    share = pyro.sample("share", dist.Dirichlet(y.new_ones(3)))
    place = pyro.sample("place", dist.Normal(y.new_zeros(3), 5.0).to_event(1))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(place, y.new_ones(3))), obs=y)


def two_groups(rows=80):
    rng = np.random.default_rng(0)
    return rng.normal(np.where(np.arange(rows) < 0.3 * rows, -3.0, 3.0), 1.0)


def factor_rows(rows=100):
    rng = np.random.default_rng(1)
    return rng.normal(size=(rows, 1)) * np.array([1.0, 0.7, -0.8]) + 0.5 * rng.normal(size=(rows, 3))


def density(problem):
    return lambda points: torch.stack([problem.log_prior(z) + problem.log_lik(z) for z in points])


def image(problem, z, change):
    """The unconstrained point of changed values."""
    return problem.unconstrain(change(problem.constrain(z, problem.fewest_rows)))


def swapped(values):
    return {"share": 1 - values["share"], "low": values["high"], "high": values["low"]}


def rotated(values):
    return {name: values[name].roll(1) for name in ("share", "place")}


CASES = [
    (mixture, two_groups(), swapped, 2),
    (factor, factor_rows(), lambda values: {"loadings": -values["loadings"], "noise": values["noise"]}, 2),
    (three, two_groups(), rotated, 3),
]


@pytest.mark.parametrize(("model", "rows", "change", "size"), CASES)
def test_a_map_is_found_from_two_points_and_holds_everywhere(model, rows, change, size):
    problem = federation(model, rows).problem
    points = problem.init(6, torch.Generator().manual_seed(0))
    found = symmetry.between(problem, points[0], image(problem, points[0], change))
    assert symmetry.holds(problem, found, points[1:], density(problem))
    assert len(symmetry.group_of([found])) == size
    assert torch.allclose(
        symmetry.entries(problem, image(problem, points[1], change)[None])[0],
        found(symmetry.entries(problem, points[1:2])[0]),
    )


@pytest.mark.parametrize(("model", "rows", "change", "size"), CASES)
def test_each_part_of_a_map_matters(model, rows, change, size):
    """Without its signs, its shifts or one of its moves it is no symmetry."""
    problem = federation(model, rows).problem
    points = problem.init(6, torch.Generator().manual_seed(0))
    found = symmetry.between(problem, points[0], image(problem, points[0], change))
    other = found.source.clone()
    other[[-1, -2]] = other[[-2, -1]]
    wrong = [symmetry.Symmetry(other, found.sign, found.shift)] if model is not factor else []
    if bool((found.sign < 0).any()):
        last = found.sign.clone()
        last[int((last < 0).nonzero()[-1])] = 1.0
        wrong.append(symmetry.Symmetry(found.source, last, found.shift))
    for one in wrong:
        assert not symmetry.holds(problem, one, points[1:], density(problem))


def test_a_map_of_the_modes_alone_is_none():
    """Of a prior that knows the first component: the likelihood is the same at both points, the posterior is not."""
    problem = federation(unequal, two_groups()).problem
    points = problem.init(6, torch.Generator().manual_seed(0))
    found = symmetry.between(problem, points[0], image(problem, points[0], swapped))
    assert found is not None
    assert not symmetry.holds(problem, found, points[1:], density(problem))


def test_points_that_are_no_images_have_no_map():
    problem = federation(mixture, two_groups()).problem
    one, other = problem.init(2, torch.Generator().manual_seed(0))
    assert symmetry.between(problem, one, other) is None


def test_products_make_a_group_that_is_closed():
    problem = federation(three, two_groups()).problem
    point = problem.init(1, torch.Generator().manual_seed(0))[0]
    swap = {name: [1, 0, 2] for name in ("share", "place")}
    maps = [
        symmetry.between(problem, point, image(problem, point, change))
        for change in (rotated, lambda values: {name: values[name][order] for name, order in swap.items()})
    ]
    group = symmetry.group_of(maps)
    keys = {one.key for one in group}
    assert len(keys) == len(group) == 6
    assert {one.after(other).key for one in group for other in group} == keys


def test_draws_are_spread_evenly_and_keep_their_density():
    problem = federation(three, two_groups()).problem
    draws = problem.init(60, torch.Generator().manual_seed(0)).reshape(2, 30, -1)
    one = symmetry.between(problem, draws[0, 0], image(problem, draws[0, 0], rotated))
    moved = symmetry.spread(problem, [one], draws, seed=0)
    before, after = (density(problem)(each.flatten(0, 1)) for each in (draws, moved))
    assert torch.allclose(before, after)
    assert int((moved == draws).all(-1).sum()) == 20  # the identity is a third of the group
    assert torch.equal(moved, symmetry.spread(problem, [one], draws, seed=0))
    assert torch.equal(draws, symmetry.spread(problem, [], draws, seed=0))


@pytest.mark.filterwarnings("ignore:the posterior is the same under")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_returns_all_labels_of_a_mixture(dtype):
    fed = federation(mixture, torch.as_tensor(two_groups()).to(dtype))
    idata = pf.run(pf.FedEP(), fed, progress=False)
    assert idata.attrs["doubts"] == ""
    assert "draws_at_all_images" in pf.findings(idata)["code"].tolist()
    low, high, share = (idata.posterior[name].values for name in ("low", "high", "share"))
    assert abs(low.mean() - high.mean()) < 0.02 * low.std()  # half of the draws, exactly, are in either order
    assert share.mean() == pytest.approx(0.5, abs=0.02)
    y = two_groups()
    lower, upper = np.minimum(low, high), np.maximum(low, high)
    assert lower.mean() == pytest.approx(y[y < 0].mean(), abs=0.2)
    assert upper.mean() == pytest.approx(y[y > 0].mean(), abs=0.2)
    assert np.corrcoef(low.ravel() > high.ravel(), share.ravel() > 0.5)[0, 1] > 0.9


def test_a_run_of_an_unsymmetric_posterior_says_what_it_misses():
    fed = federation(unequal, two_groups())
    with pytest.warns(UserWarning, match="another mode"):
        idata = pf.run(pf.FedEP(), fed, progress=False)
    codes = pf.findings(idata)["code"].tolist()
    assert "draws_at_all_images" not in codes and "mode_without_draws" in codes


def test_two_places_of_one_mode_show_no_symmetry():
    problem = federation(mixture, two_groups()).problem
    mode = problem.init(1, torch.Generator().manual_seed(0))[0].double()
    assert symmetry.between(problem, mode, mode + 1e-6) is None
