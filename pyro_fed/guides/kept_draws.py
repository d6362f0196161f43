"""Draws of a fitted guide, made while it is available and stored, because a state has no functions of Pyro's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_at_least

#: Number of draws that are stored by default: as many as the audit uses.
DEFAULT_KEPT_DRAWS = 4000


@dataclass(frozen=True, kw_only=True)
class KeptDraws:
    """An algorithm whose state has the guide's draws, `draws` (S, D).

    Args:
        num_guide_draws: S; None keeps as many as the run is asked for, and `DEFAULT_KEPT_DRAWS` at least.
    """

    num_guide_draws: int | None = None

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_guide_draws", allow_none=True)

    def for_draws(self, num_draws: int) -> Self:
        """The algorithm with this number of draws, unless the settings give one."""
        if self.num_guide_draws is not None:
            return self
        return replace(self, num_guide_draws=max(num_draws, DEFAULT_KEPT_DRAWS))

    @property
    def kept_draw_count(self) -> int:
        """S, the number of draws that are stored."""
        return DEFAULT_KEPT_DRAWS if self.num_guide_draws is None else self.num_guide_draws

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The guide's draws, each once: (1, S, D), or the first `num_draws` of them."""
        return shared["draws"][None, :num_draws]
