"""The estimators of the paper's Eq. (4)-(7) against the gradient of the pooled posterior."""

from itertools import pairwise

import pyro
import pytest
import torch
from gaussian_case import federation as gaussian_federation
from gaussian_case import shards
from torch.func import grad

import pyro_fed as pf
from models import logistic_regression
from pyro_fed.density.derivatives import likelihood_scores
from pyro_fed.density.rows.batches import ClientData, Minibatch
from pyro_fed.infer.langevin.visits import ClientState
from pyro_fed.infer.sites.records import entries_as

F = (0.1, 0.2, 0.4, 0.3)


@pytest.fixture(autouse=True)
def _no_validation():
    with pyro.validation_enabled(False):
        yield


@pytest.fixture(scope="module")
def fed():
    (x, y), _ = logistic_regression.load_data()
    sizes = (0, 3, 11, 30, 50)
    clients = [(x[a:b, :5].double(), y[a:b].double()) for a, b in pairwise(sizes)]
    return pf.Federation.from_clients(logistic_regression.model, clients, plate="data")


def surrogates(dim, diagonal, seed=0):
    """Random symmetric, indefinite precisions: unbiasedness needs nothing better."""
    generator = torch.Generator().manual_seed(seed)
    precision = torch.randn(len(F), dim, dim, generator=generator, dtype=torch.float64)
    precision = 20 * torch.eye(dim, dtype=torch.float64) + precision + precision.transpose(-1, -2)
    eta = torch.randn(len(F), dim, generator=generator, dtype=torch.float64)
    return pf.infer.Given(precision.diagonal(dim1=-2, dim2=-1) if diagonal else precision, eta)


def clients(fed, algorithm, anchor=None):
    """Each client with its estimate of the score, which may have a control variate at a point, and its rows."""
    _, local = algorithm.init(fed.problem, fed.num_clients, torch.Generator().manual_seed(0), None)
    data = fed.client_data()
    for k in range(fed.num_clients):
        client = entries_as(ClientState, {name: value[k] for name, value in local.items()})
        rows = ClientData(data.rows, data.row_index[k], data.num_rows[k])
        at = None
        if client.anchor_score is not None:
            at = client.anchor if anchor is None else anchor
            client = client._replace(anchor_score=likelihood_scores(fed.problem, at[None], rows.full_batch())[0])
        yield client, client.score(at), rows


def score(problem, z, gradient, batch):
    return gradient.estimate(problem, z, batch)[0]


def full_gradient(fed, z):
    batch = fed.pooled_data()
    pooled = ClientData(batch.rows, batch.row_index[0], batch.num_rows[0]).full_batch()
    return grad(lambda z: fed.problem.log_joint(z, pooled))(z)


STEP = pf.infer.step.Fixed(size=0.1)
PLAIN = {"surrogates": None, "step": pf.infer.step.Fixed(size=1e-4, precondition=False)}
CASES = [
    {"conducive": pf.infer.Conducive(alpha=1.0, trust=None), "control_variate": False},
    {"conducive": pf.infer.Conducive(alpha=0.3, trust=None), "control_variate": True},
    {"conducive": pf.infer.Conducive(alpha=2.0, trust=0.5), "control_variate": True},
]


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("settings", CASES)
@pytest.mark.parametrize("batch_size", [None, 1])
def test_the_mean_over_clients_and_batches_is_the_full_gradient(fed, settings, diagonal, batch_size):
    """Σ_s f_s E_batch[score_s] = ∇ log p(θ | x) to 1e-10, whatever f, α, q and the trust radius are."""
    dim = fed.problem.dim
    given = surrogates(dim, diagonal)
    algorithm = pf.FSGLD(probabilities=F, surrogates=given, step=STEP, batch_size=batch_size, **settings)
    z = torch.linspace(-1.5, 2, dim, dtype=torch.float64)
    total = torch.zeros(dim, dtype=torch.float64)
    for share, (_, gradient, rows) in zip(F, clients(fed, algorithm), strict=True):
        n = int(rows.num_rows)
        batches = [rows.full_batch()]
        if batch_size == 1:
            batches = [rows.take(Minibatch(torch.tensor([i]), torch.tensor([float(n)]))) for i in range(n)]
        total += share * sum(score(fed.problem, z, gradient, b) for b in batches) / len(batches)
    expected = full_gradient(fed, z)
    assert float((total - expected).abs().max()) < 1e-10 * max(1.0, float(expected.abs().max()))


def test_dsgld_is_equation_4(fed):
    """Without surrogates: prior plus N_s / (f_s m) times the batch, term by term."""
    algorithm = pf.infer.DSGLD(probabilities=F, **PLAIN, control_variate=False)
    z = torch.linspace(-1, 1, fed.problem.dim, dtype=torch.float64)
    problem = fed.problem
    for share, (_, gradient, rows) in zip(F, clients(fed, algorithm), strict=True):
        n = int(rows.num_rows)
        weight = torch.full((2,), n / 2, dtype=torch.float64)
        batch = rows.take(Minibatch(torch.tensor([0, 2]), weight))
        each = [grad(lambda t, i=i, b=batch: problem.pointwise_log_lik(t, b.rows)[i])(z) for i in range(2)]
        expected = grad(problem.log_prior)(z) + n / (share * 2) * sum(each)
        torch.testing.assert_close(score(problem, z, gradient, batch), expected, rtol=1e-12, atol=1e-12)


def test_the_conducive_gradient_is_equation_6(fed):
    """g_s = ∇ log q - ∇ log q_s / f_s from the surrogates' own scores."""
    given = surrogates(fed.problem.dim, diagonal=False)
    conducive = pf.infer.Conducive(alpha=0.7, trust=None)
    algorithm = pf.FSGLD(probabilities=F, surrogates=given, step=STEP, conducive=conducive, control_variate=False)
    plain = pf.infer.DSGLD(probabilities=F, surrogates=given, control_variate=False)
    z = torch.linspace(0, 3, fed.problem.dim, dtype=torch.float64)
    sites = given.sites()
    both = zip(F, clients(fed, algorithm), clients(fed, plain), strict=True)
    for k, (share, (_, with_pull, rows), (_, without, _)) in enumerate(both):
        g = sites.score(z).sum(0) - sites.score(z)[k] / share
        batch = rows.full_batch()
        difference = score(fed.problem, z, with_pull, batch) - score(fed.problem, z, without, batch)
        torch.testing.assert_close(difference, 0.7 * g, rtol=1e-10, atol=1e-10)


def test_the_bound_holds_beyond_the_trust_radius_alone(fed):
    """Inside, g_s is exact; outside, its force stops growing."""
    given = surrogates(fed.problem.dim, diagonal=False)
    settings = {"probabilities": F, "surrogates": given, "step": STEP, "control_variate": False}
    both = (pf.FSGLD(**settings, conducive=pf.infer.Conducive(trust=trust)) for trust in (2.0, None))
    bounded, linear = (next(clients(fed, one))[0].conducive for one in both)
    direction = torch.ones(fed.problem.dim, dtype=torch.float64)
    differences, forces = [], []
    for reach in (1e-3, 1e3, 1e4):
        z = bounded.anchor + reach * direction
        differences.append(float((bounded.at(z) - linear.at(z)).abs().max()))
        forces.append(float(bounded.at(z).norm()))
    assert differences[0] == 0.0 and differences[1] > 0
    assert forces[2] == pytest.approx(forces[1], rel=1e-2)


@pytest.mark.parametrize("batch_size", [None, 7])
def test_the_control_variate_is_exact_at_its_anchor(fed, batch_size):
    """At θ* every minibatch gives the gradient of all rows."""
    given = surrogates(fed.problem.dim, diagonal=False)
    algorithm = pf.FSGLD(surrogates=given, step=STEP, batch_size=batch_size or 5)
    for client, gradient, rows in clients(fed, algorithm):
        n = int(rows.num_rows)
        picks = Minibatch(torch.tensor([0, n - 1]), torch.full((2,), n / 2, dtype=torch.float64))
        some = score(fed.problem, client.anchor, gradient, rows.take(picks))
        every = score(fed.problem, client.anchor, gradient, rows.full_batch())
        torch.testing.assert_close(some, every, rtol=1e-9, atol=1e-9)


def test_a_control_variate_where_the_visit_began_has_no_noise_there(fed):
    """SVRG-LD: any minibatch gives the client's whole score at the chain's position when the visit began."""
    algorithm = pf.infer.DSGLD(probabilities=F, **PLAIN, control_variate="visit")
    z = torch.linspace(-1, 1, fed.problem.dim, dtype=torch.float64)
    for share, (_, gradient, rows) in zip(F, clients(fed, algorithm, z), strict=True):
        batch = rows.take(Minibatch(torch.tensor([1]), torch.tensor([float(rows.num_rows)])))
        prior = grad(fed.problem.log_prior)(z)
        likelihood = grad(lambda t, r=rows: fed.problem.log_lik(t, r.full_batch()))(z)
        torch.testing.assert_close(score(fed.problem, z, gradient, batch), prior + likelihood / share)


def test_a_visit_computes_its_own_anchor():
    """With a quadratic likelihood the corrected minibatch is exact everywhere: as all rows at once."""
    fed = gaussian_federation(shards())
    step = pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False)
    plain = {"surrogates": None, "target_ess": None, "num_chains": 1}
    settings = {**plain, "step": step, "local_steps": 20, "burn_in": 0, "thin": 5}
    found = []
    for more in ({"batch_size": 10, "control_variate": "visit"}, {"batch_size": None, "control_variate": False}):
        options = {"num_rounds": 3, "progress": False, "audit": False, "log_likelihood": False}
        with pytest.warns(UserWarning, match="effective draws"):
            idata = pf.run(pf.infer.SGLD(**settings, **more), fed, seed=0, **options)
        found.append(torch.as_tensor(idata.posterior["mu"].values))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)
