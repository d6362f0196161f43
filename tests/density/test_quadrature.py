"""Latents inside the plate: their integrals, against closed forms."""

from dataclasses import replace

import hierarchies
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.func import grad, hessian

import pyro_fed as pf
from pyro_fed.density.latents import modes
from pyro_fed.density.latents.quadrature import Quadrature, gauss_hermite, sobol
from pyro_fed.density.observations import observation
from pyro_fed.runtime import integral_checks as collecting
from pyro_fed.runtime.integral_checks import integration_error

CASES = pytest.mark.parametrize("name", hierarchies.CASES)


def points(dim):
    generator = torch.Generator().manual_seed(1)
    around = torch.tensor([1.0, 0.0] + [0.0] * 18, dtype=torch.float64)  # a Gamma density of a small shape is extreme
    return around[:dim] + 0.3 * torch.randn(5, dim, generator=generator, dtype=torch.float64)


@CASES
def test_the_log_likelihood_of_a_row_is_its_integral(name):
    case, problem = hierarchies.CASES[name], hierarchies.federation(name).problem
    for theta in points(problem.dim):
        exact = case.log_lik(theta, *case.args)
        torch.testing.assert_close(problem.pointwise_log_lik(theta), exact, rtol=0, atol=case.tolerance)
        assert float(problem.log_lik(theta)) == pytest.approx(float(exact.sum()), abs=10 * case.tolerance)


@CASES
def test_its_derivatives_are_those_of_the_integral(name):
    case, problem = hierarchies.CASES[name], hierarchies.federation(name).problem

    def exact(theta):
        return case.log_lik(theta, *case.args).sum()

    for theta in points(problem.dim):
        for derivative in (grad, hessian):
            found, expected = derivative(problem.log_lik)(theta), derivative(exact)(theta)
            torch.testing.assert_close(found, expected, rtol=1000 * case.tolerance, atol=1000 * case.tolerance)


@CASES
def test_the_flat_vector_holds_the_latents_outside_the_plate_alone(name):
    problem = hierarchies.federation(name).problem
    inside = {"means": 1, "scaled": 1, "lines": 2, "rates": 1}[name]
    assert problem.local_dim == inside
    assert not set(problem.sites) & set(problem.layout.local)
    values = problem.constrain(points(problem.dim))
    assert set(values) == set(problem.sites) | ({"log_tau"} if name == "scaled" else set())


@CASES
def test_the_joint_form_is_the_models_own_density(name):
    case, fed = hierarchies.CASES[name], hierarchies.federation(name)
    problem = fed.joint.problem
    assert problem.dim == fed.problem.dim + hierarchies.J * fed.problem.local_dim
    z = points(problem.dim)[0]
    values = problem.constrain(z)
    trace = poutine.trace(poutine.condition(case.model, values)).get_trace(*case.args)
    positive = [site for site in problem.sites if site in ("tau", "shape", "scale", "rate")]
    jacobian = sum(values[site].log().sum() for site in positive)
    found = problem.log_prior(z) + problem.log_lik(z)
    torch.testing.assert_close(found, trace.log_prob_sum() + jacobian)
    torch.testing.assert_close(problem.unconstrain(values), z)


def test_a_joint_vector_puts_every_rows_latents_in_their_place():
    fed = hierarchies.federation("lines")
    local = points(2 * hierarchies.J).reshape(5, hierarchies.J, 2)
    joint = fed.joint.problem
    values = joint.constrain(joint.join(points(2), local))
    torch.testing.assert_close(values["w"], points(2))
    torch.testing.assert_close(values["beta"].squeeze(-2), local)


@pytest.mark.parametrize(("order", "dim"), [(3, 1), (11, 1), (5, 3)])
def test_a_gauss_hermite_rule_has_a_normals_moments(order, dim):
    nodes, log_weights = gauss_hermite(order, dim)
    weights = log_weights.exp()
    assert len(nodes) == order**dim
    for power, moment in ((0, 1.0), (1, 0.0), (2, 1.0), (4, 3.0)):
        found = torch.einsum("s,sd->d", weights, nodes**power)
        torch.testing.assert_close(found, torch.full((dim,), moment, dtype=torch.float64), rtol=0, atol=1e-12)


def test_many_dimensions_take_sobol_points():
    nodes, log_weights = Quadrature().nodes(6)
    assert nodes.shape == (256, 6)
    assert float(log_weights.exp().sum()) == pytest.approx(1.0)
    torch.testing.assert_close(nodes.T @ nodes / 256, torch.eye(6, dtype=torch.float64))


def test_a_model_that_takes_sobol_points_is_mapped():
    """They are made once, wherever they are asked for first: within `vmap`, which refuses random numbers."""

    def model(y):
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("groups", len(y)):
            b = pyro.sample("b", dist.Normal(torch.zeros(6), scale).to_event(1))
            pyro.sample("y", dist.Normal(b, 1.0).to_event(1), obs=y)

    sobol.cache_clear()
    assert not pf.Federation(model, (torch.randn(4, 6),), plate="groups", num_clients=2).problem.looped


@pytest.mark.parametrize(("max_nodes", "exact_curvature"), [(256, True), (128, False)])
def test_five_latents_a_row_take_a_product_rule_that_has_the_curvature_too(max_nodes, exact_curvature):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 8, 5, generator=generator, dtype=torch.float64)
    y = 2 * torch.randn(6, 8, generator=generator, dtype=torch.float64)

    def model(x, y):
        tau = pyro.sample("tau", dist.LogNormal(hierarchies.number(0), 1.0))
        with pyro.plate("group", len(x)):
            beta = pyro.sample("beta", dist.Normal(torch.zeros(5), tau).to_event(1))
            mean = (x @ beta.unsqueeze(-1)).squeeze(-1)
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    def exact(theta):
        cover = (2 * theta[0]).exp() * x @ x.mT + torch.eye(8, dtype=x.dtype)
        return dist.MultivariateNormal(x.new_zeros(8), cover).log_prob(y).sum()

    rule = Quadrature(max_nodes=max_nodes)
    problem = pf.Federation(model, (x, y), plate="group", num_clients=2, quadrature=rule).problem
    theta = torch.tensor([-1.0], dtype=torch.float64)
    torch.testing.assert_close(problem.log_lik(theta), exact(theta))
    torch.testing.assert_close(grad(problem.log_lik)(theta), grad(exact)(theta))
    found, expected = hessian(problem.log_lik)(theta), hessian(exact)(theta)
    assert torch.allclose(found, expected, rtol=1e-8) == exact_curvature
    assert torch.allclose(found, expected, rtol=0.3)


def test_newton_steps_are_counted_where_none_are_given():
    gaussian = hierarchies.federation("means").problem.quadrature
    assert gaussian.mode_steps == 1  # to the mode of a Gaussian
    assert hierarchies.federation("rates").problem.quadrature.mode_steps > 3
    few = hierarchies.CASES["rates"].federation(mode_steps=1)
    assert few.problem.quadrature.mode_steps == 1


@pytest.mark.parametrize("name", ["means", "scaled", "lines"])
def test_gaussian_latents_take_one_look_for_their_modes_and_two_nodes_a_dimension_for_scores(name, monkeypatch):
    case, problem = hierarchies.CASES[name], hierarchies.federation(name).problem
    rule, looks = problem.quadrature.of_scores, []
    monkeypatch.setattr(modes, "look", lambda *args, at=modes.look: looks.append(1) or at(*args))
    scores = replace(problem, quadrature=rule)
    assert rule.num_nodes(problem.local_dim) == 2**problem.local_dim
    for theta in points(problem.dim):
        looks.clear()
        torch.testing.assert_close(scores.log_parts(theta, problem.all_rows)[1], case.log_lik(theta, *case.args))
        assert len(looks) == 1
        exact = grad(lambda z: case.log_lik(z, *case.args).sum())(theta)
        torch.testing.assert_close(grad(lambda z: scores.log_parts(z, problem.all_rows)[1].sum())(theta), exact)
    assert hierarchies.federation("rates").problem.quadrature.of_scores.order > 3


@pytest.mark.parametrize(("name", "order"), [("means", 3), ("scaled", 3), ("lines", 3), ("rates", 21)])
def test_gaussian_effects_take_three_nodes_and_others_many(name, order):
    case = hierarchies.CASES[name]
    found = pf.Federation(case.model, case.args, plate="group", num_clients=3).problem
    assert found.quadrature.order == order
    assert found.num_nodes == order**found.local_dim
    assert case.federation(order=5).problem.quadrature.order == 5


def test_one_latent_takes_the_nodes_that_a_groups_log_likelihood_needs():
    """Against 61 nodes at θ that were not looked at as the rule was chosen: groups of one row need more than of 50."""
    generator = torch.Generator().manual_seed(0)

    def model(y):
        mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), 1.0))
        tau = pyro.sample("tau", dist.LogNormal(hierarchies.number(0), 0.5))
        with pyro.plate("group", len(y)):
            effect = pyro.sample("effect", dist.Normal(mu, tau))
            pyro.sample("y", dist.Bernoulli(logits=effect.unsqueeze(-1)).expand(y.shape).to_event(1), obs=y)

    orders = []
    for count in (1, 50):
        y = torch.bernoulli(torch.full((8, count), 0.3).double(), generator=generator)
        found, exact = (
            pf.Federation(model, (y,), plate="group", num_clients=2, quadrature=pf.Quadrature(**settings)).problem
            for settings in ({}, {"order": 61, "max_order": 61})
        )
        for theta in points(2) - torch.tensor([1.0, 0.0]).double():
            off = found.pointwise_log_lik(theta) - exact.pointwise_log_lik(theta)
            assert float(off.abs().max()) < 2 * Quadrature().node_tolerance
        orders.append(found.quadrature.order)
    assert orders[1] < orders[0] <= Quadrature().max_order


@pytest.mark.parametrize("quartic", [0.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_slight_bend_of_one_latent_of_two_is_seen(quartic, dtype):
    def model(y):
        mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), 1.0))
        with pyro.plate("group", len(y)):
            steep = pyro.sample("steep", dist.Normal(mu, 1e-3))
            wide = pyro.sample("wide", dist.Normal(mu, 1.0))
            pyro.factor("bend", -quartic * wide**4)
            pyro.sample("y", dist.Normal(steep + wide, 1.0), obs=y)

    y = hierarchies.Y.to(dtype) + torch.arange(hierarchies.J) ** 2  # log densities as large as -2,000
    fed = pf.Federation(model, (y,), plate="group", num_clients=2, dtype=dtype)
    assert (fed.problem.quadrature.order > 3) == (quartic > 0)


@pytest.mark.parametrize(("mean", "count"), [(0.0, 4), (3.0, 40)], ids=["skewed", "nearly Gaussian"])
def test_several_latents_take_the_nodes_that_score_and_curvature_need(mean, count):
    """Against 31 nodes a dimension, at θ that were not looked at when the rule was chosen."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, count, generator=generator, dtype=torch.float64)
    y = torch.poisson((mean + 0.5 * torch.randn(8, 1, generator=generator).double() + 0.3 * x).exp())

    def model(x, y):
        level = pyro.sample("level", dist.Normal(torch.full((2,), mean), 1.0).to_event(1))
        tau = pyro.sample("tau", dist.LogNormal(torch.full((2,), -0.5), 0.5).to_event(1))
        with pyro.plate("group", len(x)):
            own = pyro.sample("own", dist.Normal(level, tau).to_event(1))
            pyro.sample("y", dist.Poisson((own[..., :1] + own[..., 1:] * x).exp()).to_event(1), obs=y)

    def problem(**rule):
        made = pf.Federation(
            model, (x, y), plate="group", num_clients=2, dtype=torch.float64, quadrature=pf.Quadrature(**rule)
        )
        return made.problem

    found, exact = problem(), problem(order=31, max_nodes=1024, mode_steps=12)
    assert found.num_nodes <= 13**2 < Quadrature().num_nodes(2)
    for theta in points(4) + torch.tensor([mean, 0.0, -0.5, -0.5]).double():
        curvature = -hessian(exact.log_lik)(theta) + torch.eye(4).double()
        off = hessian(found.log_lik)(theta) - hessian(exact.log_lik)(theta)
        scale = curvature.diagonal().abs().sqrt()
        tolerance = 3 * Quadrature().node_tolerance
        assert float((off / scale / scale[:, None]).abs().max()) < tolerance
        score = grad(found.log_lik)(theta) - grad(exact.log_lik)(theta)
        assert float((score / scale).abs().max()) < tolerance


def test_a_rule_that_is_too_coarse_is_reported(monkeypatch):
    """Laplace's approximation of Gamma rates, where the closed form says how wrong it is."""
    case = hierarchies.CASES["rates"]
    coarse = case.federation(order=1).problem
    theta = points(2)
    errors = torch.stack([(coarse.pointwise_log_lik(one) - case.log_lik(one, *case.args)).sum() for one in theta])
    expected = float(errors.std(correction=0))
    assert integration_error(coarse, theta) == pytest.approx(expected, rel=0.02)
    monkeypatch.setattr(collecting, "NEGLIGIBLE", 0.5 * expected)
    (note,) = collecting.integral_findings(coarse, theta)
    assert note.code == "integrals_are_inaccurate" and note.figures["error"] == pytest.approx(expected, rel=0.02)
    assert f"{expected:.1g}"[:4] in note.text
    assert "order=21" in note.text
    assert collecting.integral_findings(hierarchies.federation("rates").problem, theta) == []


def neighbours(sd, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("group", len(sd)):
        effect = pyro.sample("effect", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(effect + effect.roll(1) + effect.roll(-1), sd), obs=y)


def total(sd, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("group", len(sd)):
        effect = pyro.sample("effect", dist.Normal(mu, 1.0))
        pyro.sample("y", dist.Normal(effect, sd), obs=y)
    pyro.sample("total", dist.Normal(effect.sum(), 1.0), obs=torch.tensor(0.0))


def walk(sd, y):
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("group", len(sd)):
        step = pyro.sample("step", dist.Normal(mu, 1.0))
        pyro.sample("level", dist.Normal(step.cumsum(0), 1.0))
        pyro.sample("y", dist.Normal(step, sd), obs=y)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (neighbours, "observed site 'y' in plate 'group' does not factorise over rows.*its own latents"),
        (walk, "latent site 'level' in plate 'group' does not factorise over rows.*partition over an outer plate"),
        (total, "observed site 'total' is outside plate 'group', but its density changes"),
    ],
)
def test_rows_that_share_a_latent_are_refused(model, message):
    with pytest.raises(pf.errors.ModelError, match=message):
        pf.Federation(model, (hierarchies.SD, hierarchies.Y), plate="group", num_clients=2)


def test_predictions_row_by_row_point_to_predict():
    with pytest.raises(pf.errors.ModelError, match=r"latents of their own, sites \['effect'\].*pyro_fed.predict"):
        observation(hierarchies.federation("means").problem, torch.zeros(1), hierarchies.CASES["means"].args)
