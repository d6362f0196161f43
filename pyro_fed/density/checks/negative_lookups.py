"""Groups that a model looks up by negative numbers: `level[group]` at -1 is silently the last group's.

pandas codes missing values as -1, and `level[group - 1]` is -1 for a group with number 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_fed.density.checks.blame import Line, current_line, line_text
from pyro_fed.density.rows.labelled import plain
from pyro_fed.errors import warn_user

#: Dtypes of an index that may be negative.
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


class NegativeLookups(TorchFunctionMode):
    """Records where the model's own lines look up by tensors that have negative numbers among them.

    Attributes:
        found: by line: the smallest of them, their number, the number of all, and the first one's place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Line, tuple[int, int, int, int]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            for index in args[1] if isinstance(args[1], tuple) else (args[1],):
                if isinstance(index, Tensor) and index.dtype in WHOLE and index.dim():
                    self._note(index)
        return func(*args, **(kwargs or {}))

    def _note(self, index: Tensor) -> None:
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
                f", the first of them {first}. torch counts these from the end, so that they are taken for the last "
                "ones. pandas codes what is missing as -1: drop these rows, or give them a group of their own"
            )
