"""A function's operations written down: the graph of `make_fx`, computed by torch's bindings in Python."""

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling import tracing
from pyro_fed.density.compiling.predictors import tidy_graph
from pyro_fed.density.compiling.recording import record
from pyro_fed.ops.memory import CACHE_NUMBERS

X = torch.linspace(-1.0, 2.0, 12, dtype=torch.float64).reshape(4, 3)


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.by = torch.nn.Parameter(torch.ones(3, dtype=torch.float64) * 1.5)


SCALE = Scale()


def energy(z, x):
    """What steps consist of: constants, a parameter, parts of tensors, several results of one operation."""
    weight = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    weight[0] = 3.0
    values, _ = (x * SCALE.by @ (z * weight)).clamp(min=-0.7).max(0, keepdim=True)
    chol, info = torch.linalg.cholesky_ex(torch.eye(3, dtype=torch.float64) + torch.outer(z, z))
    first, rest = z[:1], z[1:].expand(2, 2)
    two = torch.stack([chol.diagonal().log().sum(), values.exp().logsumexp(0)])
    return two.sum() + (first - rest).pow(2).mean() + torch.where(info > 0, 1.0, first.sum() * torch.tensor(2.0).item())


def step(z, *rows):
    return list(vmap(lambda one: (grad(energy)(one, rows[0]), energy(one, rows[0])))(z))


def test_the_graph_is_that_of_make_fx():
    expected, recorded = make_fx(step)(X, X + 1), tracing.to_graph(step, [X.clone(), X + 1])

    def operations(graph):
        return [(node.op, str(node.target)) for node in graph.graph.nodes if node.op == "call_function"]

    assert operations(recorded) == operations(expected)
    for found, right in zip(recorded(X * 2, X - 1), step(X * 2, X - 1), strict=True):
        assert torch.equal(found, right)


def beside_writes(z, x):
    """What is computed twice, what of it is written over, whole or by a view; and views of views that show the same."""
    term = (1 - x) * z
    kept = x.exp() + x.exp()
    total = term.add_(x.neg().exp_())
    total.view(-1)[:1].mul_(2.0)
    again = (1 - x) * z
    seen = kept.view(12).view(4, 3).expand(4, 3).permute(0, 1).reshape(2, 6).view(4, 3)
    parts = seen.split(2)
    return [total + again, parts[0] - kept[:2], (1 - x) * z - x.exp(), x.t().t()[0:4] + term]


def test_what_is_computed_twice_is_computed_once_unless_it_is_written_over():
    leaves = [X.clone(), X + 1]
    plain = tracing.to_graph(beside_writes, leaves)
    step = tracing.trace(beside_writes, torch.utils._pytree.tree_structure((0, 0)), leaves)
    for z, x in ((X, X + 1), (X * 2, X - 1)):
        for found, right in zip(step.run(z.clone(), x.clone()), beside_writes(z.clone(), x.clone()), strict=True):
            assert torch.equal(found, right)
    code = step.run.code
    assert code.count("torch.exp(") == 1 < plain.code.count("aten.exp.default")
    assert code.count("torch.rsub(") + code.count("torch.sub(") < plain.code.count("sub.")
    assert code.count(".view(") < plain.code.count("aten.view.default")
    assert "permute" not in code and ".expand(" not in code


def test_writes_that_nobody_sees_are_left_out_with_all_that_they_keep():
    """A write into memory that is looked at stays, through whatever view; one into an input is the caller's."""

    def function(x, seen):
        unused = x.exp() + 1.0
        unused[0] = 3.0
        masked = x.log()
        masked.masked_fill_(x < 0.5, -1.0)
        ends = masked[1:]
        masked[1] = 7.0
        seen.add_(1.0)
        return ends * 2.0

    leaves = [torch.tensor([0.2, 0.6, 0.9]), torch.zeros(2)]
    recorder = record(function, [leaf.clone() for leaf in leaves])
    tracing.drop_dead(recorder.graph)
    called = [str(node.target) for node in recorder.graph.nodes if node.op == "call_function"]
    assert not any("exp" in name for name in called)
    assert any("masked_fill_" in name for name in called) and any("add_." in name for name in called)
    graph = torch.fx.GraphModule(recorder.root, recorder.graph)
    given = leaves[1].clone()
    torch.testing.assert_close(graph(leaves[0], given), function(leaves[0], leaves[1].clone()))
    assert given.tolist() == [1.0, 1.0]


def test_what_no_operation_takes_is_not_kept():
    """A step is kept as long as the process: what it looked at on the way is not, as all rows of a federation."""
    rows, taken = torch.arange(40.0), torch.arange(4.0)

    def function(z):
        _ = rows.sum() * SCALE.by.sum() * z
        return z * taken

    found = tracing.trace(function, torch.utils._pytree.tree_structure((0,)), [torch.ones(4)])
    for module in (found.root, found.run):
        held = [*vars(module).values(), *module.buffers()]
        held = [value for value in held if isinstance(value, torch.Tensor)]
        assert [value.shape for value in held] == [taken.shape] and not list(module.parameters())
    assert torch.equal(found.run(taken)[0], taken * taken)


def test_bindings_give_the_same():
    graph = tracing.to_graph(step, [X.clone(), X + 1])
    tracing.call_bindings(graph.graph)
    graph.recompile()
    assert "torch.exp(" in graph.code and "torch.ops.aten.exp" not in graph.code
    for found, right in zip(graph(X * 2, X - 1), step(X * 2, X - 1), strict=True):
        assert torch.equal(found, right)


def of_shapes(z, x):
    """Constants of the prior and of shapes; one that is written over, one that is returned, one that is drawn."""
    scale = torch.full((3,), 2.0, dtype=z.dtype)
    constant = (scale.log() + torch.zeros_like(z)).sum(1) - scale.pow(2).sum()
    counts = torch.ones(4, dtype=z.dtype)
    counts[0] += 1.0
    ends = scale.exp()
    return [(z / scale).sum(1) + constant, counts * z[:, 0], ends[:2], x + 0.0 * torch.rand(4, 1, dtype=z.dtype)]


def test_what_depends_on_no_input_is_computed_once_and_not_where_it_is_written_over_or_returned():
    leaves = [X.clone(), X + 1]
    traced = tracing.trace(of_shapes, pytree.tree_structure((0, 0)), leaves)
    for z, x in ((X, X + 1), (X * 2, X - 1), (X, X + 1)):
        found = traced.run(z.clone(), x.clone())
        for one, right, whole in zip(
            found, of_shapes(z, x), traced.unfolded_graph()(z.clone(), x.clone()), strict=True
        ):
            assert torch.equal(one, right) and torch.equal(whole, right)
            one.fill_(torch.nan)  # the caller's own
    code = traced.run.code
    assert ".log(" in traced.unfolded_graph().code or "aten.log" in traced.unfolded_graph().code
    assert "log" not in code.replace("_folded", "") and "zeros_like" not in code
    assert "rand" in code and "exp" in code.replace("expand", "")


def test_constants_that_take_much_memory_are_made_anew():
    def large(z):
        return [z + torch.ones(CACHE_NUMBERS + 1, dtype=z.dtype).cumsum(0).sum()]

    traced = tracing.trace(large, pytree.tree_structure((0,)), [X.clone()])
    kept = [buffer.untyped_storage().nbytes() for buffer in traced.run.buffers()]
    assert kept and max(kept) <= 8 * CACHE_NUMBERS
    assert torch.equal(traced.run(X)[0], large(X)[0])


def test_a_product_that_is_written_over_is_not_the_same_as_another():
    """`matmul` makes a view of a product that does not say so."""

    def function(z, x):
        first, second = (x @ z.unsqueeze(-1) for _ in range(2))
        first.add_(1.0)
        return [first * 2.0, second * 3.0]

    leaves = [X.reshape(1, 4, 3).expand(2, 4, 3).clone(), X.reshape(4, 1, 3).clone()]
    traced = tracing.trace(function, pytree.tree_structure((0, 0)), leaves)
    for one, right in zip(traced.run(*leaves), function(*leaves), strict=True):
        assert torch.equal(one, right)


def test_views_of_views_that_show_the_same_are_left_out():
    def function(z):
        turned = z.t().unsqueeze(0).transpose(1, 2).squeeze(0)
        return [turned.exp() + z[1:].view(9)[0:9].sum(), z.t().unsqueeze(1).squeeze(1).log1p()]

    traced = tracing.trace(function, pytree.tree_structure((0,)), [X.clone()])
    assert "squeeze" not in traced.run.code and "transpose" not in traced.run.code
    for one, right in zip(traced.run(X), function(X), strict=True):
        assert torch.equal(one, right)


def test_the_gradient_of_a_part_that_is_the_whole_is_no_copy():
    def function(z):
        return [grad(lambda one: one[0:4].exp().sum())(z), grad(lambda one: one[0:3].exp().sum())(z)]

    leaf = X[:, 0].clone()
    traced = tracing.trace(function, pytree.tree_structure((0,)), [leaf])
    assert traced.run.code.count("aten.slice_backward") == 1
    for one, right in zip(traced.run(leaf), function(leaf), strict=True):
        assert torch.equal(one, right)


@pytest.mark.parametrize("name", sorted(tracing.FUNCTIONS))
def test_a_binding_takes_the_arguments_of_its_operation(name):
    """Made of the same declaration, not a function in Python of the same name; keywords alone differ in no case."""
    assert getattr(torch, name) is getattr(torch._C._VariableFunctions, name)
    assert all(isinstance(getattr(torch.Tensor, name), type(torch.Tensor.view)) for name in tracing.METHODS.values())


@pytest.mark.parametrize("asks", [lambda z: z * z.sum().item(), lambda z: z if z[0, 0] > 0 else -z])
def test_a_number_asked_of_an_input_is_refused(asks):
    with pytest.raises(RuntimeError, match="the value of a tensor is read while the step is traced"):
        record(asks, [X.clone()])


@pytest.mark.parametrize(
    "part",
    [
        lambda whole: whole[:, 1:3],
        lambda whole: whole[:, 1:3].contiguous(),
        lambda whole: whole.transpose(1, 2)[:, 1:, :3].transpose(1, 2)[:, :2],
        lambda whole: whole[:, :1].expand(4, 2, 4),
        lambda whole: whole[:, 1:3].flip(0),
        lambda whole: whole[:0, 1:3],
    ],
)
def test_a_step_fits_the_strides_of_its_leaves(part):
    """A product over two axes is a view of the leaf or a copy of it, by its strides: `clone` would lose them."""
    whole = torch.arange(64.0, dtype=torch.float64).reshape(4, 4, 4)
    leaf = part(whole)

    def step(z):
        return (z[..., 1:].unsqueeze(-1).reshape(-1, z.shape[-1] - 1, 1) * 2.0).sum(1)

    traced = tracing.trace(step, pytree.tree_structure((leaf,)), [leaf])
    (found,) = traced.run(leaf)
    assert torch.equal(found, step(leaf))
    assert torch.equal(whole, torch.arange(64.0, dtype=torch.float64).reshape(4, 4, 4))


@pytest.mark.parametrize("most", [X.numel() - 1, X.numel()])
def test_rows_of_data_are_not_copied_for_a_trace(monkeypatch, most):
    monkeypatch.setattr("pyro_fed.ops.memory.RESULT_NUMBERS", most)
    taken = tracing.copy_strided(X)
    assert taken is not X, "inputs are told apart by identity"
    assert (taken.data_ptr() == X.data_ptr()) == (most < X.numel())
    assert torch.equal(taken, X)


def test_curvatures_through_logsigmoid_are_computed_without_a_word_of_torch(capfd):
    """Its backward takes a gradient of fewer points than its input has, and tells the terminal of each call."""

    def curvatures(z, x):
        return [vmap(torch.func.hessian(lambda one: -torch.nn.functional.logsigmoid(x @ one).sum()))(z)]

    run = tracing.to_graph(curvatures, [X.clone(), X + 1])
    (found,), z, x = run(X * 2, X - 1), X * 2, X - 1
    p = torch.sigmoid(z @ x.T)
    torch.testing.assert_close(found, torch.einsum("sn,nd,ne->sde", p * (1 - p), x, x))
    assert capfd.readouterr().err == ""


def test_a_graph_that_is_kept_has_no_constant_of_what_it_leaves_out():
    """A constant of the prior alone is not in the rows' graph, which lives as long as what is known of a model."""
    unused, used = torch.ones(3, 3, dtype=torch.float64), torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64)

    def of_rows(z, x):
        unused.exp().sum()
        return x @ (used * z)

    kept = tidy_graph(of_rows, (X[0].clone(), X.clone()))
    assert [value is used for value in vars(kept.root).values() if isinstance(value, torch.Tensor)] == [True]
    assert torch.equal(torch.fx.GraphModule(kept.root, kept.graph)(X[1], X), of_rows(X[1], X))
