"""Compiled code is held to its step's numbers, up to rounding, at the first arguments and near them."""

import pytest
import torch
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.inductor import does_the_same, perturbed_copy
from pyro_fed.density.compiling.tracing import trace


def traced(function, *leaves):
    return trace(function, pytree.tree_structure(leaves), list(leaves))


def centred(rows=400, dtype=torch.float64):
    x = torch.randn(rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (x - x.mean()).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_small_rest_of_a_large_sum_may_differ_by_the_rounding_of_its_terms(dtype):
    """Summed in another order the rest, of rounding alone, is another number; half a term too much is not rounding."""
    x = centred(dtype=dtype)
    step = traced(lambda x: [x.sum(), (x * x).sum()], x)
    assert step.run(x)[0].abs() < 1e-4
    assert does_the_same(lambda x: [x.sort().values.cumsum(0)[-1], (x * x).flip(0).sum()], step, [x])
    assert not does_the_same(lambda x: [x.sum() + 0.5 * x.max(), (x * x).sum()], step, [x])


def test_what_is_made_of_coarse_numbers_differs_by_their_rounding():
    """Rows of float32, their sum in float64, as those over pieces of rows are."""
    x = centred(dtype=torch.float32) + 1
    step = traced(lambda x: [(x * x).sum().double()], x)
    assert does_the_same(lambda x: [(x.double() ** 2).sum()], step, [x])
    assert not does_the_same(lambda x: [1.01 * (x.double() ** 2).sum()], step, [x])


def test_code_that_is_right_where_rows_are_equal_alone_is_found_out():
    x = torch.ones(3, 2, dtype=torch.float64)
    step = traced(lambda x: [2 * x], x)
    assert does_the_same(lambda x: [x + x], step, [x])
    assert not does_the_same(lambda x: [2 * x[:1].expand(3, 2)], step, [x])


def test_where_a_step_has_no_numbers_near_its_arguments_these_alone_are_asked():
    """A matrix of rank one has a Cholesky factor up to rounding, and none a little further."""
    matrix = torch.ones(3, 3, dtype=torch.float64) + 1e-9 * torch.eye(3, dtype=torch.float64)
    step = traced(lambda m: [torch.linalg.cholesky(m)], matrix)
    with pytest.raises(RuntimeError, match="cholesky"):
        step.run(perturbed_copy(matrix, 1e-4, torch.Generator().manual_seed(0)))
    assert does_the_same(lambda m: [torch.linalg.cholesky(m).clone()], step, [matrix])
    assert not does_the_same(lambda m: [torch.linalg.cholesky(m) * 1.01], step, [matrix])


def test_whole_numbers_are_equal_and_the_same_ones_are_finite():
    x = torch.tensor([1.0, 0.0, 2.0])
    step = traced(lambda x: [(x > 0).sum(), x.log()], x)
    assert does_the_same(lambda x: [(x > 0).sum(), x.log()], step, [x])
    assert not does_the_same(lambda x: [(x >= 0).sum(), x.log()], step, [x])
    assert not does_the_same(lambda x: [(x > 0).sum(), x.clamp_min(1e-9).log()], step, [x])


def test_moved_tensors_keep_their_strides_and_what_is_no_number():
    x = torch.arange(12.0).reshape(3, 4)[:, ::2]
    there = perturbed_copy(x, 0.1, torch.Generator().manual_seed(0))
    assert there.stride() == x.stride() and torch.equal(x, torch.arange(12.0).reshape(3, 4)[:, ::2])
    torch.testing.assert_close((there - x).abs(), 0.1 * x)
    count = torch.arange(3)
    assert perturbed_copy(count, 0.1, torch.Generator()) is count
