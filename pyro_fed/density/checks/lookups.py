"""Dimensions of latents that a model indexes by codes, as in `level[hospital]`, and negative codes.

A row with code k depends only on element k of such a dimension, and a category k only on element k, up to terms that
all categories share. Derivatives of one run show both, for any way of writing the model.

A negative code silently selects the last group: pandas codes missing values as -1, and `level[group - 1]` uses -1 for
group 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.bound import BoundModel, run_at_random
from pyro_fed.density.checks.source import CallWatcher, Line, current_line, line_text
from pyro_fed.density.rows.labelled import plain
from pyro_fed.density.running.trace_sites import Message, is_deterministic, sum_to_rows, without_event_dims
from pyro_fed.errors import warn_user

#: Functions that index: positions of the elements, of their dimension (None: the first) and of the index.
PICKING: dict[Any, tuple[int, int | None, int]] = {
    torch.index_select: (0, 1, 2),
    Tensor.index_select: (0, 1, 2),
    torch.nn.functional.embedding: (1, None, 0),
}
#: Functions that compare, such as one-hot codes with all numbers.
EQUAL = frozenset((torch.eq, Tensor.eq, Tensor.__eq__))


#: Dtypes of an index that may be negative.
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


class Lookups:
    """The model's latents, and the codes that index their axes."""

    def __init__(self, bound: BoundModel) -> None:
        self.execution, self.places = run_at_random(bound.doubled(), torch.Generator().manual_seed(0))
        self.sites: dict[str, Message] = {
            name: site for name, site in self.execution.trace.nodes.items() if site["type"] == "sample"
        }

    def axes(self, codes: Tensor, size: int) -> Iterator[tuple[str, int]]:
        """Latents with an axis of `size` elements that the codes (n,), from 0, index; each with this axis."""
        for name, site in self.sites.items():
            value = site["value"]
            if site["is_observed"] or not isinstance(value, Tensor) or not value.requires_grad:
                continue
            for axis in (axis for axis, length in enumerate(value.shape) if length == size):
                if self._by_rows(value, axis, codes, size) or self._by_categories(value, axis, codes, size):
                    yield name, axis

    def _by_rows(self, value: Tensor, axis: int, codes: Tensor, size: int) -> bool:
        """Whether rows with code k depend only on element k of this axis, by sums of rows for each bit of the codes."""
        number = torch.arange(size)
        for terms in self._terms(value, len(codes)):
            slopes_and_masks = []
            for bit in range(max(1, (size - 1).bit_length())):
                for side in (0, 1):
                    rows = (codes >> bit & 1) == side
                    with torch.enable_grad():
                        total = terms[rows].sum()
                    slope = _slope(total, value, axis)
                    slopes_and_masks.append((slope, (number >> bit & 1) == side))
            if any(bool(slope.any()) for slope, _ in slopes_and_masks):
                return all(bool((slope[~in_side] == 0).all()) for slope, in_side in slopes_and_masks)
        return False

    def _terms(self, value: Tensor, count: int) -> Iterator[Tensor]:
        """Log densities (n,) of the sites with n rows."""
        for site in self.sites.values():
            if site["value"] is value or is_deterministic(site):
                continue
            for frame in site["cond_indep_stack"]:
                if frame.dim is not None and frame.size == count:
                    with torch.enable_grad():
                        terms = sum_to_rows(site, frame.dim)
                    yield terms

    def _by_categories(self, value: Tensor, axis: int, codes: Tensor, size: int) -> bool:
        """Whether the codes are observed categories, and odds among categories except k do not depend on element k."""
        for site in self.sites.values():
            fn: Any = without_event_dims(site["fn"])
            if not (site["is_observed"] and isinstance(fn, Categorical) and fn.logits.shape[-1] == size > 2):
                continue
            observed = site["value"]
            if observed.shape != codes.shape or not torch.equal(observed.to(codes.dtype), codes):
                continue
            generator = torch.Generator().manual_seed(0)
            with torch.enable_grad():
                slopes = []
                for category in range(size):
                    weight = torch.rand(size, generator=generator, dtype=torch.float64)
                    weight[category] = 0.0
                    weight -= weight.sum() / (size - 1)  # odds: common terms drop out
                    weight[category] = 0.0
                    slopes.append(_slope((fn.logits * weight).sum(), value, axis))
            table = torch.stack(slopes)
            largest = table.max()
            return bool(largest > 0) and bool((table.diagonal() <= SAME_SHARE * largest).all())
        return False


def num_elements(bound: BoundModel, columns: Sequence[Tensor]) -> list[int]:
    """The largest number of elements that each column of codes, from 0, indexes in the model; 0 if it indexes none."""
    picking = _Picking(columns)
    with picking:
        execution, _ = run_at_random(bound, torch.Generator().manual_seed(0))
    for site in execution.trace.nodes.values():
        if site["type"] == "sample" and site["is_observed"] and isinstance(site["value"], Tensor):
            fn: Any = without_event_dims(site["fn"])
            if isinstance(fn, Categorical):
                picking.note_index(site["value"], fn.logits.shape[-1])
    return picking.found


class _Picking(CallWatcher):
    """Records the number of elements that columns of codes index."""

    def __init__(self, columns: Sequence[Tensor]) -> None:
        super().__init__()
        self.columns = columns
        self.found = [0] * len(columns)

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        if function is Tensor.__getitem__:
            for index, size in _indices(*args):
                self.note_index(index, size)
        elif function in EQUAL and len(args) == 2:
            for one, other in (args, args[::-1]):
                if _is_one_hot(one, other):
                    self.note_index(one, len(other))
        elif function in PICKING and len(args) > max(PICKING[function][0], PICKING[function][2]):
            of, dim, by = PICKING[function]
            self.note_index(args[by], args[of].shape[0 if dim is None else args[dim]])

    def note_index(self, index: Any, size: int) -> None:
        """Record the number of indexed elements if the index is one of the columns."""
        if not isinstance(index, Tensor):
            return
        index = plain(index)
        for number, codes in enumerate(self.columns):
            is_larger_column = self.found[number] < size and index.numel() == codes.numel() and len(codes)
            if is_larger_column and bool((index.detach().flatten() == codes.flatten()).all()):
                self.found[number] = size


def _is_one_hot(codes: Any, numbers: Any) -> bool:
    """Whether codes (..., 1) are compared with all numbers from 0, (M,)."""
    if not (isinstance(codes, Tensor) and isinstance(numbers, Tensor) and codes.shape[-1:] == (1,)):
        return False
    return numbers.dim() == 1 and bool((numbers == torch.arange(len(numbers), device=numbers.device)).all())


def _indices(value: Tensor, index: Any) -> Iterator[tuple[Tensor, int]]:
    """Integer tensors within an index, with the sizes of the dimensions that they index."""
    parts = list(index) if isinstance(index, tuple) else [index]
    axis = 0
    for place, part in enumerate(parts):
        if part is None:
            continue
        if part is Ellipsis:
            axis = value.dim() - sum(_width(one) for one in parts[place + 1 :])
            continue
        if isinstance(part, Tensor) and part.dtype not in (torch.bool, torch.uint8) and axis < value.dim():
            yield part, value.shape[axis]
        axis += _width(part)


def _width(part: Any) -> int:
    """Number of dimensions that a part of an index covers."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) else 1


def _slope(total: Tensor, value: Tensor, axis: int) -> Tensor:
    """Absolute derivatives of a number, summed over all axes but one; NaN counts as a dependence."""
    if not total.requires_grad:
        return torch.zeros(value.shape[axis])
    (gradient,) = torch.autograd.grad(total, value, allow_unused=True, retain_graph=True)
    if gradient is None:
        return torch.zeros(value.shape[axis])
    return gradient.nan_to_num(torch.inf).abs().movedim(axis, 0).reshape(value.shape[axis], -1).sum(1)


class NegativeLookups(CallWatcher):
    """Records lines with negative indices: the smallest, their number, the number of all, and the first's place."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Line, tuple[int, int, int, int]] = {}

    def note(self, function: Any, args: Sequence[Any], value: Any) -> None:
        if function is Tensor.__getitem__:
            for index in args[1] if isinstance(args[1], tuple) else (args[1],):
                if isinstance(index, Tensor) and index.dtype in WHOLE and index.dim():
                    self._note_negatives(index)

    def _note_negatives(self, index: Tensor) -> None:
        below = (plain(index) < 0).flatten()
        if not bool(below.any()):
            return
        line = current_line()
        if line is not None:
            self.found[line] = int(plain(index).min()), int(below.sum()), len(below), int(below.nonzero()[0])

    def warn(self) -> None:
        """Warn of the negative lookups found."""
        for line, (least, count, size, first) in self.found.items():
            warn_user(
                f"the model looks up by negative numbers at {line_text(line)}: {least} among {count} of {size} entries"
                f", the first of them {first}. torch counts negative indices from the end, so that they select the "
                "last elements. pandas codes missing values as -1: drop these rows, or give them their own group"
            )
