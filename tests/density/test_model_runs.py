"""How often a model is run to make a federation of it: a run may be dear, and each has to be earned."""

import functools
from dataclasses import FrozenInstanceError

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.density import build

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
Y = X @ torch.tensor([1.0, -1.0])
GROUP = torch.arange(40) % 8


def linear(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def groups(x, y, group):
    mu = pyro.sample("mu", dist.Normal(0, 1))
    w = pyro.sample("w", dist.Normal(mu, 1).expand([2]).to_event(1))
    with pyro.plate("group", 8):
        pyro.sample("size", dist.Normal(mu, 1.0), obs=torch.zeros(8))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pyro.infer.config_enumerate
def mixture(y):
    mu = pyro.sample("mu", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.5)).long()
        pyro.sample("y", dist.Normal(mu[k], 1.0), obs=y)


def imputing(x, y):
    w = pyro.sample("w", dist.Normal(0, 1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * x[:, 0], 1.0), obs=y, obs_mask=y > 0)


def branching(x, y):
    w = pyro.sample("w", dist.Normal(0, 1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(w * x[:, 0] if float(w) > 0 else w, 1.0), obs=y)


def narrow(x, y):
    """Valid at zero, and not near it: the first run's point is refused by Pyro's validation."""
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, torch.where(w.abs().sum() > 0, -1.0, 1.0)).mask(False), obs=y)
        pyro.factor("fit", -((x @ w - y) ** 2))


def counted(model):
    @functools.wraps(model)
    def run(*args):
        run.times += 1
        return model(*args)

    run.times = 0
    return run


@pytest.mark.parametrize(
    ("model", "args", "times"),
    [
        (linear, (X.double(), Y.double()), 3),  # all rows, validated; all rows and pairs of them, mapped, in float64
        (linear, (X, Y), 4),  # and two rows in float32, mapped
        (groups, (X, Y, GROUP), 4),  # other plates, no latents inside the partitioned one
        (mixture, (Y,), 5),  # discrete latents are summed out; a line that casts, which may make steps
        (imputing, (X, Y), 6),  # and with another value for the imputed entries; what is imputed is chosen by a mask
        # and one by one, as `vmap` fails: all rows, with curvatures and without, and 6 pairs at 2
        # points, and 4, and along a line, as it may jump
        (branching, (X, Y), 96),
        # the first run at zero instead; the factor at prior draws; a line that compares, and the density along it
        (narrow, (X, Y), 8),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_runs_of_the_model_to_make_a_federation(model, args, times):
    model = counted(model)
    pf.Federation(model, args, plate="data", num_clients=4)
    assert model.times == times


def test_a_federation_of_data_that_lie_apart():
    """One run more: the first client's alone says which arguments are split by rows."""
    model = counted(linear)
    pf.Federation.from_clients(model, [(X[:10], Y[:10]), (X[10:], Y[10:])], plate="data")
    assert model.times == 5


def test_build_without_a_run_made_before_is_the_same():
    fed = pf.Federation(linear, (X, Y), plate="data", num_clients=4)
    problem = build(linear, fed.problem.arguments, "data", 40, torch.float32)
    z = torch.tensor([[0.3, -0.2], [1.0, 2.0]])
    assert problem.layout == fed.problem.layout
    assert torch.equal(problem.log_prior(z), fed.problem.log_prior(z))
    assert torch.equal(problem.pointwise_log_lik(z), fed.problem.pointwise_log_lik(z))


def test_a_problem_does_not_change():
    problem = pf.Federation(linear, (X, Y), plate="data", num_clients=4).problem
    with pytest.raises(FrozenInstanceError):
        problem.num_rows = 3
    with pytest.raises(FrozenInstanceError):
        problem.bound.num_rows = 3


def first_row(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + y[0], 1.0), obs=y)


def largest_row(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w / x.abs().max(), 1.0), obs=y)


def number_of_rows(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0 + len(y) / 10), obs=y)


def row_before(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + y.roll(1), 1.0), obs=y)


def rows_so_far(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + y.cumsum(0), 1.0), obs=y)


def place_among_rows(x, y):
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w + torch.arange(len(y)), 1.0), obs=y)


INSIDE = [first_row, largest_row, number_of_rows, row_before, rows_so_far, place_among_rows]


@pytest.mark.parametrize("model", INSIDE, ids=lambda m: m.__name__)
@pytest.mark.parametrize("rows", [2, 3, 5, 40])
def test_each_way_to_look_at_other_rows_is_refused(model, rows):
    with pytest.raises(
        pf.errors.ModelError, match="observed site 'y' in plate 'data' does not factorise over rows: row"
    ):
        pf.Federation(model, (X[:rows], Y[:rows]), plate="data", shard=("x", "y"), num_clients=2, dtype=torch.float64)


def prior_by_rows(x, y):
    w = pyro.sample("w", dist.Normal(0, 1.0 + len(y)).expand([2]).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def weight_by_rows(x, y):
    """At w = 0 it is the same for any number of rows."""
    w = pyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    pyro.factor("more", w.sum() * len(y))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


@pytest.mark.parametrize("model", [prior_by_rows, weight_by_rows], ids=lambda m: m.__name__)
@pytest.mark.parametrize("rows", [2, 40])
def test_what_is_outside_the_plate_and_counts_rows_is_refused(model, rows):
    with pytest.raises(pf.errors.ModelError, match=r"outside plate 'data'.* changes with the rows of data"):
        pf.Federation(model, (X[:rows], Y[:rows]), plate="data", shard=("x", "y"), num_clients=2, dtype=torch.float64)
