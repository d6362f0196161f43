"""Traced steps in fewer operations have the numbers of those that they replace."""

import pytest
import torch
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.tracing import trace

NAMES = ("slice_backward", "pow", "cat")


def compiled(function, *leaves):
    """The traced step of a function of tensors, and how often it has each operation."""
    step = trace(function, pytree.tree_structure(tuple(leaves)), list(leaves))
    named = [str(getattr(node.target, "__name__", node.target)) for node in step.run.graph.nodes]
    return step.run, {name: sum(name in one for one in named) for name in NAMES}


def parts(z):
    """Of which every second one is needed, in the order of no memory."""
    return (z[7:9].sin() * z[0:3].cos().sum()).sum() + (z[3:4] * z[5:7]).exp().sum() + 0.5 * z[2:5].square().sum()


@pytest.mark.parametrize("form", ["one", "mapped", "mapped twice"])
def test_a_gradient_of_parts_is_that_of_autograd(form):
    z = torch.linspace(-1, 1, 9, dtype=torch.float64)
    function = grad(parts)
    if form != "one":
        z, function = torch.stack([z, z.flip(0), z**2]), vmap(function)
    if form == "mapped twice":
        z, function = torch.stack([z, -z]), vmap(function)
    run, count = compiled(function, z)
    assert count["cat"] == 1  # z[2:5] overlaps others, and stays
    torch.testing.assert_close(run(z)[0], function(z), rtol=1e-15, atol=1e-15)
    other = z + 0.3
    torch.testing.assert_close(run(other)[0], function(other), rtol=1e-15, atol=1e-15)


def test_parts_between_which_there_is_nothing_have_zeros_there():
    def function(z):
        return grad(lambda z: z[1:3].sin().sum() + z[5:6].cos().sum())(z) + z**2

    z = torch.linspace(0.1, 2, 8, dtype=torch.float64)
    run, count = compiled(function, z)
    assert count["slice_backward"] == 0
    assert torch.equal(run(z)[0], function(z))
    assert torch.equal(run(-z)[0], function(-z))


def test_a_sum_that_is_needed_besides_is_kept():
    def function(z):
        first = grad(lambda z: z[:2].sin().sum())(z)
        second = grad(lambda z: z[2:].sin().sum())(z)
        both = first + second
        return both + z, both, first

    z = torch.linspace(0.1, 2, 5, dtype=torch.float64)
    for found, expected in zip(compiled(function, z)[0](z), function(z), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("classes", [3, 100])
def test_a_trace_of_a_network_has_the_bits_of_vmap(classes):
    """What has been run by vmap before, and what is traced at once, give the same draws."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(4, 20, classes, generator=generator)
    x, y = torch.randn(4, 32, 20, generator=generator), torch.randint(0, classes, (4, 32), generator=generator)

    def score(w, x, y):
        def log_lik(w):
            logits = (x @ w).tanh()
            return (logits - logits.logsumexp(-1, keepdim=True)).gather(-1, y[:, None]).sum()

        return grad(log_lik)(w)

    mapped = vmap(score)
    step = trace(mapped, pytree.tree_structure((w, x, y)), [w, x, y])
    assert torch.equal(step.run(w, x, y)[0], mapped(w, x, y))


def test_powers_and_zeros_that_change_nothing_are_left_out():
    def function(x):
        return ((x - torch.zeros(3, dtype=x.dtype)) ** 1).sin(), x.unsqueeze(0) - torch.zeros(2, 3, dtype=x.dtype)

    x = torch.tensor([0.5, -0.0, torch.nan], dtype=torch.float64)
    run, count = compiled(function, x)
    assert count["pow"] == 0
    for found, expected in zip(run(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_what_is_returned_is_no_input():
    def function(x):
        return x**1, x - torch.zeros(3, dtype=x.dtype)

    x = torch.arange(3.0)
    found = compiled(function, x)[0](x)
    assert all(torch.equal(one, x) and one.data_ptr() != x.data_ptr() for one in found)


def test_what_is_written_over_is_left():
    def function(x):
        power = x**1
        base = x * 2
        same = base - torch.zeros(3, dtype=x.dtype)
        base.add_(1.0)
        power.mul_(3.0)
        return power + x, same, base

    x = torch.arange(3.0)
    for found, expected in zip(compiled(function, x)[0](x), function(x), strict=True):
        assert torch.equal(found, expected)
