"""Inductor's code for a traced step, and whether it agrees with the step: both are run on the same arguments.

Rounding is relative to the terms of a sum, not to a small remainder of a large sum, as a score is at the mode. How
large the terms are shows when the arguments are moved, each number by a part of itself, up or down at random. The code
is compared there too, as it may be right by chance where rows are equal.

    |code - step|  ≤  √ε max |step|  +  ε^¼ max |step there - step here|,     there: arguments x (1 ± ε^¼)

ε is the coarsest rounding on the way, not that of the result: sums over rows of float32 are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from pyro_fed.density.compiling.tracing import Step, copy_strided, free_strides

#: Inductor's options: sizes are not checked on each call, for steps are found by them; what reads several tensors (the
#: rows of a minibatch, say) is computed once and kept, not again for each of the sums it goes into.
INDUCTOR = {"size_asserts": False, "realize_reads_threshold": 2, "realize_acc_reads_threshold": 5}
#: Operations that write into a copy of their first argument, of which Inductor writes into the argument itself where
#: nobody looks at it again.
WRITERS = frozenset(
    (
        *(torch.ops.aten.index_add, torch.ops.aten.index_copy, torch.ops.aten.index_fill, torch.ops.aten.index_put),
        *(torch.ops.aten._unsafe_index_put, torch.ops.aten.select_scatter, torch.ops.aten.slice_scatter),
        *(torch.ops.aten.diagonal_scatter, torch.ops.aten.as_strided_scatter),
    )
)


def does_the_same(code: Callable[..., Sequence[Tensor]], step: Step, leaves: Sequence[Tensor]) -> bool:
    """Whether code gives the numbers of a traced step at some arguments, and at others near them."""
    unit = coarsest(step.graph) if step.graph is not None else 0.0
    generator, by = torch.Generator().manual_seed(0), unit**0.25
    near = [perturbed_copy(leaf, by, generator) for leaf in leaves]
    here, there = step.run(*leaves), _result_or_none(step.run, near)
    part = unit**0.5
    if there is None:  # a matrix of which one asks for a root, say, has none there
        return agree(code(*leaves), here, part)
    turns = [by * _largest_difference(one, other) for one, other in zip(here, there, strict=True)]
    again = _result_or_none(code, near)
    return again is not None and agree(code(*leaves), here, part, turns) and agree(again, there, part, turns)


def coarsest(graph: fx.Graph) -> float:
    """The largest unit of rounding among the numbers that a traced graph makes of its inputs; 0 without rounding."""
    unit, varying = 0.0, set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            dtype = getattr(node.meta.get("tensor_meta"), "dtype", None)
            if dtype is not None and dtype.is_floating_point:
                unit = max(unit, torch.finfo(dtype).eps)
    return unit


def perturbed_copy(leaf: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """A copy of a tensor of any strides, each number changed by a part of itself; whole numbers stay."""
    if not leaf.is_floating_point():
        return leaf

    def change(numbers: Tensor) -> Tensor:
        up = torch.randint(0, 2, numbers.shape, generator=generator, dtype=numbers.dtype).to(numbers.device)
        return up.mul_(2.0 * by).add_(1.0 - by).mul_(numbers)

    return copy_strided(leaf, change)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], part: float, more: Sequence[float] = ()) -> bool:
    """Whether results agree: numbers up to a part of each tensor's largest and `more`, whole numbers exactly."""
    for one, other, besides in zip(found, expected, more or [0.0] * len(expected), strict=True):
        known = other.isfinite()
        if not bool((one.isfinite() == known).all()):
            return False
        allowed = part * _largest_magnitude(other) + besides if other.is_floating_point() else 0.0
        if _largest_difference(one, other) > allowed:
            return False
    return True


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference between numbers that are both finite."""
    both = one.isfinite() & other.isfinite()
    return _largest_magnitude(one[both].double() - other[both].double())


def _largest_magnitude(value: Tensor) -> float:
    """The largest absolute value of the finite numbers."""
    finite = value[value.isfinite()].abs()
    return float(finite.amax()) if finite.numel() else 0.0


def _result_or_none(run: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The result of the code; None if it fails, as linear algebra may."""
    try:
        return run(*leaves)
    except RuntimeError:
        return None


def inductor(graph: torch.fx.GraphModule, leaves: list[Tensor]) -> Callable[..., Any]:
    """Inductor's code for a traced graph, which may be changed; that of an equal graph comes from its cache on disk."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    free_strides(graph.graph)
    spread_out(graph)
    mode = FakeTensorMode(shape_env=ShapeEnv())  # without a shape environment Inductor passes its cache by
    with tracing(TracingContext(mode)):
        inputs: list[Any] = [mode.from_tensor(leaf, static_shapes=True) for leaf in leaves]
        code: Callable[..., Any] = torch._inductor.compile(graph, inputs, options=INDUCTOR)
        return code


def spread_out(graph: torch.fx.GraphModule) -> None:
    """Copy what `WRITERS` write into, in place: Inductor does not see that it may be one row in memory, expanded."""
    # When mapped, zeros into which a gradient is added are such rows, and the gradients of all particles went into one
    # (torch 2.13, https://github.com/pytorch/pytorch/issues/183986 and 188084). Inductor leaves out a needless copy.
    for node in graph.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "overloadpacket", None) in WRITERS:
            with graph.graph.inserting_before(node):
                copy = graph.graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
            node.args = (copy, *node.args[1:])
    graph.recompile()
