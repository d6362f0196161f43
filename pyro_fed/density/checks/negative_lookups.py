"""Groups that a model looks up by negative numbers: `level[group]` at -1 is the last group's, without a word.

pandas codes what is missing as -1, and `level[group - 1]` meets a group that is numbered 0.
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

#: What may be negative in an index.
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8)


class NegativeLookups(TorchFunctionMode):
    """Notes where the model's own lines look up by tensors that have negative numbers among them.

    Attributes:
        found: the smallest of them, how many there are, of how many, and the first one's place, by line.
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
        """Say what was found."""
        for line, (least, count, size, first) in self.found.items():
            warn_user(
                f"the model looks up by negative numbers at {line_text(line)}: {least} among {count} of {size} entries"
                f", the first of them {first}. torch counts these from the end, so that they are taken for the last "
                "ones. pandas codes what is missing as -1: drop these rows, or give them a group of their own"
            )
