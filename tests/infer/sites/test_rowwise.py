"""Expected Newton sites from linear predictors: against many points, the model's own Hessians, and other models."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from helpers.structureless import forget_structure

import pyro_fed as pf
from pyro_fed.density.compiling.predictors import CHECK_ROWS, from_parts, predictors
from pyro_fed.density.compiling.tracing import free_strides, to_graph
from pyro_fed.density.derivatives import derivatives, nodes, rowwise
from pyro_fed.density.derivatives.derivatives import Derivatives
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.sites.gaussian_sites import spread_points
from pyro_fed.ops.gaussian import FullGaussian

ROWS, FEATURES = 60, 3


def weights(x):
    return pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))


def logistic(x, y):
    w = weights(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def robust(x, y):
    w = weights(x)
    s = pyro.sample("s", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(4.0, x @ w, s), obs=y)


def intercepts(x, g, y):
    w = weights(x)
    a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((x @ w + a[g]).exp()), obs=y)


def two_predictors(x, y):
    w, v = weights(x), pyro.sample("v", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, (x @ v).exp()), obs=y)


def softmax(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, x.shape[1]]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w.T), obs=y)


def offset(x, y):
    """The numbers a row depends on have a constant in them, and a factor of the row."""
    w = weights(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(2.0 + x[:, 0] * (x @ w), 1.0), obs=y)


def scaled_weights(x, y):
    """Nonlinear in z: a product of two latents."""
    t, w = pyro.sample("t", dist.HalfNormal(1.0)), weights(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ (t * w)), obs=y)


def bent(x, y):
    """Linear nearly everywhere: the weights are clamped."""
    w = weights(x)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w.clamp(-0.1, 0.1)), obs=y)


def hidden(x, y):
    """A network's layer."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 2]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ w).tanh().sum(1), 1.0), obs=y)


def federation(model, dtype=torch.float64, clients=3):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64)
    u = x.sum(1) / 2
    y = (torch.rand(ROWS, generator=g, dtype=torch.float64) < torch.sigmoid(u)).double()
    number = torch.arange(ROWS)
    args = {intercepts: (x, number % 4, (u.exp()).round()), softmax: (x, number % 3)}.get(model, (x, y))
    args = tuple(part.to(dtype) if part.is_floating_point() else part for part in args)
    parts = pf.partition.Explicit([list(range(5)), list(range(5, 30)), list(range(30, ROWS))][:clients])
    return pf.Federation(
        model, args, plate="data", partition=parts if clients == 3 else None, num_clients=clients, dtype=dtype
    )


def shrunk(x, y):
    """A prior of half-Cauchy scales, whose density is written into a tensor of its own: no row depends on them."""
    scale = pyro.sample("scale", dist.HalfCauchy(x.new_ones(x.shape[1])).to_event(1))
    w = pyro.sample("w", dist.Normal(0.0, scale).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def zero_inflated(x, y):
    """The density takes u, -u and y - u, which are one number."""
    w, v = weights(x), pyro.sample("v", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    r = pyro.sample("r", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.ZeroInflatedNegativeBinomial(r, logits=x @ w, gate_logits=x @ v), obs=y)


STRUCTURED = {
    logistic: (1, 0),
    robust: (1, 1),
    intercepts: (1, 0),
    two_predictors: (2, 0),
    softmax: (3, 0),
    offset: (1, 0),
    shrunk: (1, 0),
    zero_inflated: (2, 1),
}


@pytest.mark.parametrize("model", STRUCTURED, ids=lambda model: model.__name__)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_linear_predictors_are_found(model, dtype):
    problem = federation(model, dtype).problem
    found = predictors(problem, 20)
    assert (found.width, len(found.direct)) == STRUCTURED[model]
    z = torch.linspace(-0.5, 0.5, problem.dim, dtype=dtype)
    rows = tuple(leaf[:20] for leaf in problem.rows)
    value, score, hessian = from_parts(found, z, rows, torch.ones(20, dtype=dtype))

    def total(point):
        return problem.pointwise_log_lik(point, rows).sum()

    near = {"rtol": 1e-9, "atol": 1e-9} if dtype is torch.float64 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(value, total(z), **near)
    torch.testing.assert_close(score, torch.func.grad(total)(z), **near)
    torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.grad(total))(z), **near)


@pytest.mark.parametrize("model", [scaled_weights, bent], ids=lambda model: model.__name__)
def test_what_is_not_linear_has_no_structure(model):
    """Products of latents and clamped weights: every entry of z goes through something that is not linear."""
    assert predictors(federation(model).problem, CHECK_ROWS) is None


def test_a_layer_of_a_network_is_linear_before_its_nonlinearity():
    assert predictors(federation(hidden).problem, CHECK_ROWS).width == 2


def test_a_structure_that_is_not_the_models_is_refused(monkeypatch):
    """The trace is not trusted: a wrong reading of it, here of an exponential as linear, is found by its Hessian."""
    from pyro_fed.density.compiling import predictors as module

    monkeypatch.setattr(module, "LINEAR", module.LINEAR | {"exp"})
    assert predictors(federation(intercepts).problem, CHECK_ROWS) is None


def test_parts_take_values_of_other_strides():
    """An ordinal model's trace has views, of values that are laid out otherwise where they are mapped."""
    graph = to_graph(lambda x: 2 * x.view(6), (torch.zeros(2, 3),))
    columns = torch.arange(6.0).reshape(3, 2).T
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        graph(columns)
    free_strides(graph.graph)
    graph.recompile()
    torch.testing.assert_close(graph(columns), 2 * columns.flatten())


NARROW, WIDE = 1e-3, 0.7


def gaussian(dim, scale):
    g = torch.Generator().manual_seed(1)
    root = scale * (torch.randn(dim, dim, generator=g, dtype=torch.float64).tril() + 2 * torch.eye(dim).double())
    centre = torch.linspace(-0.3, 0.3, dim, dtype=torch.float64)
    return FullGaussian.from_moments(centre.expand(3, -1), (root @ root.T).expand(3, -1, -1))


@pytest.mark.parametrize("model", [robust, two_predictors, zero_inflated], ids=lambda model: model.__name__)
def test_pairs_of_nodes_are_enough_where_rows_are_nearly_parabolas(model, monkeypatch):
    """Narrow: the numbers of the finer rule, which is not asked; wide: the finer rule, to the bit."""
    fed = federation(model)
    problem, data = fed.problem, fed.client_data()
    narrow, wide = gaussian(problem.dim, NARROW), gaussian(problem.dim, WIDE)
    finer = [rowwise.expected_sums(problem, q.mean(), q.root(), data) for q in (narrow, wide)]
    asked, of_clients = [], rowwise._of_clients
    monkeypatch.setattr(rowwise, "_of_clients", lambda *args: asked.append(args[1]) or of_clients(*args))
    monkeypatch.setattr(rowwise, "may_be_straight", lambda *_: True)
    few = rowwise.expected_sums(problem, narrow.mean(), narrow.root(), data)
    assert asked == [1, nodes.PAIRS]
    for a, b in zip(few, finer[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6 * float(b.abs().max()))
    found = rowwise.expected_sums(problem, wide.mean(), wide.root(), data)
    assert asked[2:4] == [1, nodes.PAIRS] and len(asked) == 5
    assert all(torch.equal(a, b) for a, b in zip(found, finer[1], strict=True))


def test_few_rows_are_asked_first_whether_rows_of_several_numbers_are_straight(monkeypatch):
    """A softmax of six: narrow, all rows are asked too, to the bit; wide, some say enough."""

    def six(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([6, x.shape[1]]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ w.T), obs=y)

    g = torch.Generator().manual_seed(0)
    x = torch.randn(90, 24, generator=g, dtype=torch.float64)
    y = torch.randint(6, (90,), generator=g)
    fed = pf.Federation(six, (x, y), plate="data", num_clients=3)
    problem, data = fed.problem, fed.client_data()
    monkeypatch.setattr(rowwise, "MANY_ROWS_A_PARAMETER", 0)
    monkeypatch.setattr(rowwise, "may_be_straight", lambda *_: True)
    assert predictors(problem, CHECK_ROWS) is None
    centre, eye = torch.linspace(-0.3, 0.3, problem.dim).double(), torch.eye(problem.dim).double()
    narrow, wide = (
        FullGaussian.from_moments(centre.expand(3, -1), scale**2 * eye.expand(3, -1, -1)) for scale in (NARROW, WIDE)
    )
    whole = rowwise.expected_sums(problem, narrow.mean(), narrow.root(), data)
    assert whole is not None and rowwise.expected_sums(problem, wide.mean(), wide.root(), data) is None
    monkeypatch.setattr(rowwise, "TRIED_ROWS", 30)
    asked, of_clients = [], rowwise._of_clients

    def asking(*args):
        asked.append(int(args[-1].num_rows.sum()))
        return of_clients(*args)

    monkeypatch.setattr(rowwise, "_of_clients", asking)
    found = rowwise.expected_sums(problem, narrow.mean(), narrow.root(), data)
    assert asked == [30, 30, 90, 90] and all(torch.equal(a, b) for a, b in zip(found, whole, strict=True))
    assert rowwise.expected_sums(problem, wide.mean(), wide.root(), data) is None and asked[4:] == [30, 30]


def test_rows_are_thinned_evenly():
    """Of clients of different sizes, whose row numbers are padded."""
    rows = (torch.arange(7.0),)
    data = ClientData(rows, torch.tensor([[0, 1, 2, 3, 4], [5, 6, 6, 6, 6]]), torch.tensor([5, 2]))
    batch = rowwise.thin_rows(data, 2).full_batch()
    assert [batch.rows[0][i][batch.weight[i] > 0].tolist() for i in (0, 1)] == [[0.0, 2.0, 4.0], [5.0]]
    assert rowwise.thin_rows(data, 2).num_rows.tolist() == [3, 1]


def test_pairs_of_points_are_enough_where_rows_are_nearly_parabolas(monkeypatch):
    """The same without linear predictors: a product of latents."""
    forget_structure(monkeypatch)
    fed = federation(scaled_weights)
    problem, batch = fed.problem, fed.client_data().full_batch()
    narrow, wide = (spread_points(gaussian(problem.dim, scale), 128) for scale in (NARROW, WIDE))
    work = Derivatives("full", "hessian")
    exact = [work.of_likelihood(problem, points, batch) for points in (narrow, wide)]
    monkeypatch.setattr(derivatives, "MANY_ROWS_A_PARAMETER", 0)
    shares_of_half = 128 * ROWS * problem.dim**2 - 1
    monkeypatch.setattr(derivatives, "MAX_CURVATURE_NUMBERS", shares_of_half)
    asked = []
    in_shares = Derivatives._in_shares
    monkeypatch.setattr(Derivatives, "_in_shares", lambda *args: asked.append(len(args[2])) or in_shares(*args))
    few = work.of_likelihood(problem, narrow, batch)
    assert asked == [2 * problem.dim]
    for a, b in zip(few, exact[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))
    all_points = work.of_likelihood(problem, wide, batch)
    assert asked == [2 * problem.dim, 2 * problem.dim, 128]
    for a, b in zip(all_points, exact[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0.2, atol=0.2 * float(b.abs().max()))


@pytest.mark.parametrize("model", STRUCTURED, ids=lambda model: model.__name__)
def test_derivatives_at_a_point_are_the_models(model, monkeypatch):
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 64)  # several pieces, clients apart
    fed = federation(model)
    data, problem = fed.client_data(), fed.problem
    mean = torch.linspace(-0.4, 0.4, problem.dim, dtype=torch.float64).expand(3, -1) * torch.tensor(
        [[1.0], [0.5], [-1.0]]
    )
    found = rowwise.expected_sums(problem, mean, None, data)
    exact = Derivatives("full", "hessian").of_likelihood(problem, mean[None], data.full_batch())
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("model", STRUCTURED, ids=lambda model: model.__name__)
def test_expectations_are_those_of_many_points(model, monkeypatch):
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 4096)
    forget_structure(monkeypatch)
    fed = federation(model)
    problem, data = fed.problem, fed.client_data()
    dim = problem.dim
    g = torch.Generator().manual_seed(1)
    root = 0.04 * torch.randn(dim, dim, generator=g, dtype=torch.float64).tril() + 0.04 * torch.eye(dim).double()
    centre = torch.linspace(-0.3, 0.3, dim, dtype=torch.float64)
    q = FullGaussian.from_moments(centre.expand(3, -1), (root @ root.T).expand(3, -1, -1))
    found = rowwise.expected_sums(problem, q.mean(), q.root(), data)
    many = Derivatives("full", "hessian").of_likelihood(problem, spread_points(q, 8192), data.full_batch())
    for a, b in zip(found, many, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-3, atol=3e-3 * float(b.abs().max()))


@pytest.mark.parametrize("block", [64, 262_144], ids=["pieces", "at once"])
@pytest.mark.parametrize("model", STRUCTURED, ids=lambda model: model.__name__)
def test_means_over_points_are_those_of_their_hessians(model, block, monkeypatch):
    """The same numbers, with clients of 5 to 30 rows padded, and weights that are not one."""
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", block)
    fed = federation(model)
    batch, problem = fed.client_data().full_batch(), fed.problem
    g = torch.Generator().manual_seed(2)
    points = 0.3 * torch.randn(6, 3, problem.dim, generator=g, dtype=torch.float64)
    batch = batch._replace(weight=batch.weight * torch.rand(batch.weight.shape, generator=g, dtype=torch.float64))
    found = Derivatives("full", "hessian").of_likelihood(problem, points, batch)
    assert rowwise.at_points(problem, points, batch) is not None
    forget_structure(monkeypatch)
    for a, b in zip(found, Derivatives("full", "hessian").of_likelihood(problem, points, batch), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_models_without_structure_have_their_hessians_at_points():
    fed = federation(scaled_weights)
    points = torch.zeros(2, 3, fed.problem.dim, dtype=torch.float64)
    batch = fed.client_data().full_batch()
    assert rowwise.at_points(fed.problem, points, batch) is None
    assert bool(Derivatives("full", "hessian").of_likelihood(fed.problem, points, batch).finite().all())


@pytest.mark.filterwarnings("ignore:clients")
def test_a_client_without_rows_adds_nothing():
    fed = federation(logistic)
    data = fed.client_data()
    empty = ClientData(data.rows, data.row_index, torch.tensor([0, 25, 30]))
    found = rowwise.expected_sums(fed.problem, torch.zeros(3, FEATURES, dtype=torch.float64), None, empty)
    assert all(not bool(part[0].any()) for part in found)
    assert all(bool(part[1].any()) for part in found)


def means(model, **options):
    idata = pf.run(pf.FedEP(), federation(model), progress=False, log_likelihood=False, audit=False, **options)
    draws = [value.values.reshape(1000, -1) for value in idata.posterior.data_vars.values()]
    return [part.mean(0) for part in draws], [part.std(0) for part in draws]


@pytest.mark.parametrize("model", [logistic, robust, intercepts], ids=lambda model: model.__name__)
def test_fedep_is_where_it_is_without_the_structure(model, monkeypatch):
    """Within what 128 points err by."""
    mean, sd = means(model)
    forget_structure(monkeypatch)
    other, spread = means(model)
    for place in range(len(mean)):
        assert float(abs((mean[place] - other[place]) / spread[place]).max()) < 0.02
        assert float(abs(sd[place] / spread[place] - 1).max()) < 0.02


def test_executors_agree():
    one, other = means(logistic), means(logistic, executor="sequential")
    torch.testing.assert_close(torch.tensor(one[0][0]), torch.tensor(other[0][0]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("units", [2, 5], ids=["few units", "many units"])
@pytest.mark.parametrize("most", [1, 10**12], ids=["rows share the points", "all points"])
def test_a_networks_curvature_is_that_of_its_units_and_what_is_behind_them(units, most, monkeypatch):
    """By wide predictors, in several pieces, as by mapped Hessians; at a single point too, as Laplace takes it."""

    def network(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(8, units, dtype=x.dtype), 1.0).to_event(2))
        v = pyro.sample("v", dist.Normal(torch.zeros(units, 3, dtype=x.dtype), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=(x @ w).tanh() @ v), obs=y)

    g = torch.Generator().manual_seed(0)
    x = torch.randn(90, 8, generator=g, dtype=torch.float64)
    parts = pf.partition.Explicit([list(range(7)), list(range(7, 90))])
    fed = pf.Federation(network, (x, torch.arange(90) % 3), plate="data", partition=parts)
    problem, batch = fed.problem, fed.client_data().full_batch()
    assert predictors(problem, CHECK_ROWS) is None
    found = predictors(problem, CHECK_ROWS, wide=True)
    assert (found.width, len(found.direct)) == (units, 3 * units)
    monkeypatch.setattr(derivatives, "MAX_CURVATURE_NUMBERS", most)
    monkeypatch.setattr(derivatives, "NETWORK_NUMBERS", 1)
    monkeypatch.setattr("pyro_fed.ops.memory.CACHE_NUMBERS", 2000)
    points = 0.4 * torch.randn(32, 2, problem.dim, generator=g, dtype=torch.float64)
    how = Derivatives("full", "hessian")
    for at in (torch.cat([points, -points]), points[:1]):
        ours = how.of_likelihood(problem, at, batch)
        with monkeypatch.context() as patched:
            patched.setattr(derivatives, "shared_curvature", lambda *given: None)
            mapped = how.of_likelihood(problem, at, batch)
        assert how.shares(problem, len(at), batch) == (8 if most == 1 and len(at) > 1 else 1)
        torch.testing.assert_close(ours.curvature, mapped.curvature, rtol=1e-9, atol=1e-9)


def classes(x, y):
    """Five predictors a row, more than a finer rule than pairs of nodes is for."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, x.shape[1]]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x @ w.T), obs=y)


def test_rows_of_several_numbers_are_expected_by_pairs_where_these_do(monkeypatch):
    """Many rows and a narrow q; where it is wide, or rows are few, the structure is not taken."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(8000, FEATURES, generator=g, dtype=torch.float64)
    fed = pf.Federation(classes, (x, torch.randint(5, (8000,), generator=g)), plate="data", num_clients=3)
    problem, data = fed.problem, fed.client_data()
    mean = torch.linspace(-0.3, 0.3, problem.dim, dtype=torch.float64).expand(3, -1)
    for sd, taken in ((0.01, True), (2.0, False)):
        q = FullGaussian.from_moments(mean, (sd**2 * torch.eye(problem.dim, dtype=torch.float64)).expand(3, -1, -1))
        found = rowwise.expected_sums(problem, q.mean(), q.root(), data)
        assert (found is not None) == taken
        if found is not None:
            many = Derivatives("full", "hessian").of_likelihood(problem, spread_points(q, 128), data.full_batch())
            for a, b in zip(found, many, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    at_mean = rowwise.expected_sums(problem, mean, None, data)
    exact = Derivatives("full", "hessian").of_likelihood(problem, mean[None], data.full_batch())
    for a, b in zip(at_mean, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    few = pf.Federation(classes, (x[:200], torch.zeros(200).long()), plate="data", num_clients=3)
    assert rowwise.expected_sums(few.problem, mean, None, few.client_data()) is None
