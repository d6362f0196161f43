"""Score and curvature of integrated likelihoods by Fisher and Louis, against closed forms and fine rules."""

import hierarchies
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import grad, hessian
from torch.utils import _pytree as pytree

import pyro_fed as pf
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.derivatives.integrated import integrated

GROUPS, CLIENTS = 7, 3
SIZES = torch.tensor([4, 9, 1, 6, 12, 3, 5])
OWNER = torch.arange(GROUPS).repeat_interleave(SIZES)
GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(len(OWNER), 4, generator=GENERATOR, dtype=torch.float64)
RAW = torch.randn(len(OWNER), generator=GENERATOR, dtype=torch.float64)
ROWS = {"row": "owner"}
Y = {
    "intercepts": 0.5 * RAW + X[:, 0],
    "slopes": 0.5 * RAW + X[:, 0],
    "logits": (RAW > 0).double(),
    "frailties": (0.7 * RAW - 0.3 * X[:, 1]).exp(),
}


def intercepts(x, owner, groups, y=None):
    """A normal effect a group, its rows nested in it, and an unknown noise."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    tau = pyro.sample("tau", dist.LogNormal(hierarchies.number(0), 1.0))
    noise = pyro.sample("noise", dist.LogNormal(hierarchies.number(0), 1.0))
    with pyro.plate("group", groups):
        a = pyro.sample("a", dist.Normal(hierarchies.number(0), tau))
    with pyro.plate("row", len(x)):
        pyro.sample("y", dist.Normal(a[owner] + x @ beta, noise), obs=y)


def slopes(x, owner, groups, y=None):
    """An intercept and a slope a group, correlated."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(8), 1.0).to_event(1))
    tau = pyro.sample("tau", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("group", groups):
        root = tau.unsqueeze(-1) * x.new_tensor([[1.0, 0.0], [0.6, 0.8]])
        a = pyro.sample("a", dist.MultivariateNormal(x.new_zeros(2), scale_tril=root))
    with pyro.plate("row", len(x)):
        mean = a[owner][..., 0] + a[owner][..., 1] * x[:, 1] + torch.cat([x, x.square()], 1) @ beta
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def logits(x, owner, groups, y=None):
    """Hospitals' effects."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    tau = pyro.sample("tau", dist.LogNormal(hierarchies.number(0), 1.0))
    with pyro.plate("group", groups):
        a = pyro.sample("a", dist.Normal(hierarchies.number(0), tau))
    with pyro.plate("row", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=a[owner] + x @ beta), obs=y)


def frailties(x, owner, groups, y=None):
    """Survival by `factor`, with a Gamma frailty a group and a third of the times censored."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    shape = pyro.sample("shape", dist.LogNormal(hierarchies.number(0), 1.0))
    spread = pyro.sample("spread", dist.LogNormal(hierarchies.number(0), 1.0))
    with pyro.plate("group", groups):
        frailty = pyro.sample("frailty", dist.Gamma(spread, spread))
    with pyro.plate("row", len(x)):
        log_rate = frailty.log()[owner] + x @ beta
        observed = (torch.arange(len(x)) % 3 > 0).to(x) if y is None else (y * 1e3 % 3 > 1).to(x)
        hazard = shape.log() + (shape - 1) * y.log() + log_rate
        pyro.factor("survival", observed * hazard - y**shape * log_rate.exp())


MODELS = {one.__name__: one for one in (intercepts, slopes, logits, frailties)}


def marginal(name, theta):
    """Exact log marginal likelihoods of the groups, (groups,): multivariate normals, or 201 nodes of a fixed rule."""
    mean = X @ theta[:4]
    parts = []
    for group in range(GROUPS):
        own = group == OWNER
        y = Y[name][own]
        if name == "intercepts":
            cover = (2 * theta[4]).exp() + (2 * theta[5]).exp() * torch.eye(len(y)).double()
            parts.append(dist.MultivariateNormal(mean[own], cover).log_prob(y))
        elif name == "slopes":
            root = theta[8:10].exp().unsqueeze(-1) * torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
            design = torch.stack([torch.ones_like(y), X[own, 1]], 1)
            cover = design @ root @ root.T @ design.T + 0.25 * torch.eye(len(y)).double()
            mean_here = torch.cat([X[own], X[own].square()], 1) @ theta[:8]
            parts.append(dist.MultivariateNormal(mean_here, cover).log_prob(y))
        elif name == "logits":
            nodes, weights = (torch.from_numpy(one) for one in np.polynomial.hermite_e.hermegauss(201))
            each = dist.Bernoulli(logits=theta[4].exp() * nodes.unsqueeze(1) + mean[own]).log_prob(y).sum(1)
            parts.append(torch.logsumexp(each + (weights / weights.sum()).log(), 0))
        else:  # a Gamma frailty has a closed form
            shape, spread = theta[4].exp(), theta[5].exp()
            observed = (y * 1e3 % 3 > 1).double()
            count, hazard = observed.sum(), (y**shape * mean[own].exp()).sum()
            plain = (observed * (theta[4] + (shape - 1) * y.log() + mean[own])).sum()
            gammas = torch.lgamma(spread + count) - torch.lgamma(spread) + spread * theta[5]
            parts.append(plain + gammas - (spread + count) * (spread + hazard).log())
    return torch.stack(parts)


@pytest.fixture(scope="module")
def federations():
    return {
        name: pf.Federation(
            model, (X, OWNER, GROUPS, Y[name]), plate="group", rows=ROWS, num_clients=CLIENTS, dtype=torch.float64
        )
        for name, model in MODELS.items()
    }


TOLERANCES = {"intercepts": 1e-8, "slopes": 1e-8, "logits": 2e-3, "frailties": 2e-3}


@pytest.mark.parametrize("name", MODELS)
def test_value_score_and_curvature_are_those_of_the_exact_integral(name, federations):
    fed, tolerance = federations[name], TOLERANCES[name]
    problem, data = fed.problem, fed.client_data()
    batch = data.full_batch()
    assert integrated(problem, pytree.tree_map(lambda leaf: leaf[0], batch.rows)) is not None
    around = 0.4 * torch.randn(4, problem.dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points = around.unsqueeze(1).expand(-1, CLIENTS, -1).contiguous()
    found = Derivatives("full", "hessian").of_likelihood(problem, points, batch)
    for client in range(CLIENTS):
        own = data.row_index[client][: data.num_rows[client]]

        def exact(theta, own=own):
            return marginal(name, theta)[own].sum()

        value = torch.stack([exact(z) for z in around]).mean()
        score = torch.stack([grad(exact)(z) for z in around]).mean(0)
        curvature = -torch.stack([hessian(exact)(z) for z in around]).mean(0)
        assert float(found.value[client]) == pytest.approx(float(value), abs=tolerance)
        torch.testing.assert_close(found.score[client], score, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(found.curvature[client], curvature, rtol=10 * tolerance, atol=10 * tolerance)


def test_a_model_whose_predictors_are_as_many_as_its_parameters_has_none(federations):
    def model(y):
        mu = pyro.sample("mu", dist.Normal(hierarchies.number(0), 1.0))
        with pyro.plate("group", len(y)):
            a = pyro.sample("a", dist.Normal(mu, 1.0))
            pyro.sample("y", dist.Bernoulli(logits=a), obs=y)

    problem = pf.Federation(model, (Y["logits"],), plate="group", num_clients=2).problem
    assert integrated(problem, tuple(leaf[:4] for leaf in problem.rows)) is None
