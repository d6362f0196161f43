"""Values that a model computes once from all rows."""

import pyro
import pyro.distributions as dist
import torch
from short_runs import quiet

import pyro_fed as pf
from pyro_fed.runtime.executors.remote import share_of

G = torch.arange(12) % 4
Y = torch.linspace(-1, 1, 12, dtype=torch.float64)


def model(g, y):
    groups = pf.shared("groups", lambda: int(g.max()) + 1)
    mean = pf.shared("mean", lambda: y.mean())
    tau = pyro.sample("tau", dist.HalfCauchy(1 / pf.shared("n", len(y)) ** 0.5))
    with pyro.plate("groups", groups):
        a = pyro.sample("a", dist.Normal(mean, tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def written_out(g, y):
    tau = pyro.sample("tau", dist.HalfCauchy(1 / 12**0.5))
    with pyro.plate("groups", 4):
        a = pyro.sample("a", dist.Normal(Y.mean(), tau))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def densities(fed):
    z = torch.linspace(-0.5, 0.5, fed.problem.dim, dtype=torch.float64)
    return torch.stack([fed.problem.log_prior(z), fed.problem.log_lik(z)])


def test_they_are_those_of_all_rows_wherever_the_model_runs():
    partition = pf.partition.ByGroup(G)  # client 0 has group 0 alone
    fed = pf.Federation(model, (G, Y), plate="data", partition=partition)
    torch.testing.assert_close(
        densities(fed), densities(pf.Federation(written_out, (G, Y), plate="data", num_clients=2))
    )
    apart = pf.Federation.from_clients(model, [(G[:3], Y[:3]), (G[3:], Y[3:])], plate="data")
    torch.testing.assert_close(densities(apart), densities(fed))
    idata = quiet(pf.FedEP(), fed, num_draws=20)
    assert idata["posterior"]["a"].shape[-1] == 4
    predicted = pf.predict(idata, fed, (G[:2], Y[:2]))
    assert predicted["posterior_predictive"]["y"].shape[-1] == 2


def test_without_a_federation_they_are_the_values_themselves():
    assert pf.shared("n", 3) == 3 and pf.shared("n", lambda: 4) == 4
    torch.testing.assert_close(pf.shared("t", Y), Y)


def test_new_data_have_new_ones():
    fed = pf.Federation(model, (G, Y), plate="data", num_clients=2)
    again = pf.Federation(model, (G, Y + 1), plate="data", num_clients=2)
    torch.testing.assert_close(densities(fed.with_args((G, Y + 1))), densities(again))


def test_workers_have_the_same():
    """A worker is sent what `share_of` gives, and builds its problem from that."""
    fed = pf.Federation(model, (G, Y), plate="data", partition=pf.partition.ByGroup(G))
    share = share_of(fed.problem, fed.client_data(), [0], torch.tensor([0]))
    problem, data = share.build(model)
    z = torch.linspace(-0.5, 0.5, problem.dim, dtype=torch.float64)
    assert torch.equal(problem.log_prior(z), fed.problem.log_prior(z))
    own = data._replace(row_index=data.row_index[0], num_rows=data.num_rows[0]).full_batch()
    whole = fed.client_data([0]).full_batch()
    whole = type(whole)(tuple(leaf[0] for leaf in whole.rows), whole.weight[0])
    assert torch.equal(problem.log_lik(z, own), fed.problem.log_lik(z, whole))
