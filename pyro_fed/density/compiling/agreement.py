"""Whether compiled code does what its step does: both are run on the same arguments, and differ by rounding alone.

Rounding is a part of what a step makes, and where that is the small rest of a large sum, as a score is at the mode, a
part of its terms. How large these are shows where the arguments are moved: by a part of each of its numbers, up or
down at random. The code is compared there too, for it may be right by chance where rows are equal.

    |code - step|  ≤  √ε max |step|  +  ε^¼ max |step there - step here|,     there: arguments x (1 ± ε^¼)

ε is the coarsest rounding on the way, not that of the result: sums over rows of float32 are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from pyro_fed.density.compiling.tracing import Step, copy_strided

#: Powers of the unit of rounding: by which part of the largest number code and step may differ, and by which part of
#: themselves the arguments are moved.
ALLOWED_POWER, MOVED_POWER = 0.5, 0.25


def does_the_same(code: Callable[..., Sequence[Tensor]], step: Step, leaves: Sequence[Tensor]) -> bool:
    """Whether code gives a step's numbers at some arguments, and at others near them.

    Args:
        code: takes what the step takes.
        step: traced.
        leaves: its arguments.
    """
    unit = coarsest(step.graph) if step.graph is not None else 0.0
    generator, by = torch.Generator().manual_seed(0), unit**MOVED_POWER
    near = [perturbed_copy(leaf, by, generator) for leaf in leaves]
    here, there = step.run(*leaves), _result_or_none(step.run, near)
    part = unit**ALLOWED_POWER
    if there is None:  # a matrix of which one asks for a root, say, has none there
        return agree(code(*leaves), here, part)
    turns = [
        unit ** (ALLOWED_POWER - MOVED_POWER) * _largest_difference(one, other)
        for one, other in zip(here, there, strict=True)
    ]
    again = _result_or_none(code, near)
    return again is not None and agree(code(*leaves), here, part, turns) and agree(again, there, part, turns)


def coarsest(graph: fx.Graph) -> float:
    """The largest unit of rounding among the numbers that a graph makes of its inputs; 0 where none is rounded.

    Args:
        graph: traced.
    """
    unit, varying = 0.0, set[fx.Node]()
    for node in graph.nodes:
        if node.op == "placeholder" or not varying.isdisjoint(node.all_input_nodes):
            varying.add(node)
            dtype = getattr(node.meta.get("tensor_meta"), "dtype", None)
            if dtype is not None and dtype.is_floating_point:
                unit = max(unit, torch.finfo(dtype).eps)
    return unit


def perturbed_copy(leaf: Tensor, by: float, generator: torch.Generator) -> Tensor:
    """A copy with each number larger or smaller by a part of itself; what is no floating point number stays.

    So do rows of data that `copy_strided` does not copy.

    Args:
        leaf: any tensor, of any strides.
        by: the part.
        generator: says which are larger.
    """
    if not leaf.is_floating_point():
        return leaf

    def change(numbers: Tensor) -> Tensor:
        up = torch.randint(0, 2, numbers.shape, generator=generator, dtype=numbers.dtype).to(numbers.device)
        return up.mul_(2.0 * by).add_(1.0 - by).mul_(numbers)

    return copy_strided(leaf, change)


def agree(found: Sequence[Tensor], expected: Sequence[Tensor], part: float, more: Sequence[float] = ()) -> bool:
    """Whether two results of one step differ by no more than rounding.

    Args:
        found: tensors.
        expected: as many, of the same shapes.
        part: of each one's largest number by which its numbers may differ; those that are not rounded may not.
        more: by how much those of each may differ besides.
    """
    for one, other, besides in zip(found, expected, more or [0.0] * len(expected), strict=True):
        known = other.isfinite()
        if not bool((one.isfinite() == known).all()):
            return False
        allowed = part * _largest_magnitude(other) + besides if other.is_floating_point() else 0.0
        if _largest_difference(one, other) > allowed:
            return False
    return True


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, of numbers that are both finite."""
    both = one.isfinite() & other.isfinite()
    return _largest_magnitude(one[both].double() - other[both].double())


def _largest_magnitude(value: Tensor) -> float:
    """The largest absolute value of those that are finite."""
    finite = value[value.isfinite()].abs()
    return float(finite.amax()) if finite.numel() else 0.0


def _result_or_none(run: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """What it gives; None where it gives up, as linear algebra does."""
    try:
        return run(*leaves)
    except RuntimeError:
        return None
