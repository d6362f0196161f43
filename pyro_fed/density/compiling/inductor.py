"""Inductor's code for a traced step, and a check that it agrees with the step on the same arguments.

Rounding is relative to the terms of a sum, not to a small sum of large terms, such as a score at the mode. Random
relative changes of the arguments show the size of the terms. The code is also compared at the changed arguments, since
it may be right by chance if rows are equal.

    |code - step|  ≤  √ε max |step|  +  ε^¼ max |step there - step here|,     there: arguments x (1 ± ε^¼)

ε is the coarsest rounding of all operations, not of the result: sums over rows of float32 are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from pyro_fed.density.compiling.tracing import Step, copy_strided, free_strides

#: Inductor's options: sizes are not checked on each call, since they are part of the step's key; values that read
#: several tensors, such as the rows of a minibatch, are computed once and stored, not recomputed for each sum.
INDUCTOR = {"size_asserts": False, "realize_reads_threshold": 2, "realize_acc_reads_threshold": 5}
#: Operations that write into a copy of their first argument; Inductor writes into the argument itself if it is not used
#: again.
WRITERS = frozenset(
    (
        *(torch.ops.aten.index_add, torch.ops.aten.index_copy, torch.ops.aten.index_fill, torch.ops.aten.index_put),
        *(torch.ops.aten._unsafe_index_put, torch.ops.aten.select_scatter, torch.ops.aten.slice_scatter),
        *(torch.ops.aten.diagonal_scatter, torch.ops.aten.as_strided_scatter),
    )
)


def does_the_same(code: Callable[..., Sequence[Tensor]], step: Step, leaves: Sequence[Tensor]) -> bool:
    """Whether code agrees with a traced step at some arguments, and at perturbed arguments."""
    unit = coarsest(step.graph) if step.graph is not None else 0.0
    generator, by = torch.Generator().manual_seed(0), unit**0.25
    perturbed_leaves = [perturbed_copy(leaf, by, generator) for leaf in leaves]
    result, perturbed_result = step.run(*leaves), _result_or_none(step.run, perturbed_leaves)
    part = unit**0.5
    if perturbed_result is None:  # such as a matrix without a Cholesky factor
        return agree(code(*leaves), result, part)
    tolerances = [by * _largest_difference(one, other) for one, other in zip(result, perturbed_result, strict=True)]
    perturbed_code_result = _result_or_none(code, perturbed_leaves)
    return (
        perturbed_code_result is not None
        and agree(code(*leaves), result, part, tolerances)
        and agree(perturbed_code_result, perturbed_result, part, tolerances)
    )


def coarsest(graph: fx.Graph) -> float:
    """The largest rounding unit of the values that a traced graph computes from its inputs; 0 without rounding."""
    unit, varying = 0.0, set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            dtype = getattr(node.meta.get("tensor_meta"), "dtype", None)
            if dtype is not None and dtype.is_floating_point:
                unit = max(unit, torch.finfo(dtype).eps)
    return unit


def perturbed_copy(leaf: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """A copy of a tensor of any strides, with a relative change of each number; integers do not change."""
    if not leaf.is_floating_point():
        return leaf

    def change(numbers: Tensor) -> Tensor:
        up = torch.randint(0, 2, numbers.shape, generator=generator, dtype=numbers.dtype).to(numbers.device)
        return up.mul_(2.0 * by).add_(1.0 - by).mul_(numbers)

    return copy_strided(leaf, change)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], part: float, more: Sequence[float] = ()) -> bool:
    """Whether results agree: up to a `part` of each tensor's largest number, plus `more`; integers exactly."""
    for one, other, extra in zip(found, expected, more or [0.0] * len(expected), strict=True):
        is_finite = other.isfinite()
        if not bool((one.isfinite() == is_finite).all()):
            return False
        allowed = part * _largest_magnitude(other) + extra if other.is_floating_point() else 0.0
        if _largest_difference(one, other) > allowed:
            return False
    return True


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference between finite numbers."""
    both_finite = one.isfinite() & other.isfinite()
    return _largest_magnitude(one[both_finite].double() - other[both_finite].double())


def _largest_magnitude(value: Tensor) -> float:
    """The largest absolute value of the finite numbers."""
    finite = value[value.isfinite()].abs()
    return float(finite.amax()) if finite.numel() else 0.0


def _result_or_none(run: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The result of the code; None if it fails, such as in linear algebra."""
    try:
        return run(*leaves)
    except RuntimeError:
        return None


def inductor(graph: torch.fx.GraphModule, leaves: list[Tensor]) -> Callable[..., Any]:
    """Inductor's code for a traced graph, which may be changed; equal graphs share code in its cache on disk."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    free_strides(graph.graph)
    spread_out(graph)
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without a shape environment Inductor does not use its cache
    with tracing(TracingContext(mode)):
        inputs: list[Any] = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        code: Callable[..., Any] = torch._inductor.compile(graph, inputs, options=INDUCTOR)
        return code


def spread_out(graph: torch.fx.GraphModule) -> None:
    """Copy the arguments of `WRITERS`, in place: Inductor does not recognise that they may be expanded rows."""
    # Under vmap, zeros into which a gradient is added are expanded, and the gradients of all particles were added to
    # one row (torch 2.13, https://github.com/pytorch/pytorch/issues/183986 and 188084). Inductor removes needless
    # copies.
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in WRITERS:
            with graph.graph.inserting_before(node):
                copy = graph.graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
            node.args = (copy, *node.args[1:])
    graph.recompile()
