"""How often an agent's rows count in the beliefs: once on any graph, or as published; all in a round, or in batches.

See `p2p_vi` for the weightings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.conventions.setting_checks import check_at_least, check_choice
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian


@dataclass(frozen=True, kw_only=True)
class CountedRows(PeerGaussian):
    """Beliefs to which each row contributes a known number of times."""

    weighting: Literal["exact", "paper"] = "exact"  # "exact" or "paper"
    batch_size: int | None = None  # rows a round, each used once, in order; None takes all rows in every round

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "weighting", ("exact", "paper"))
        check_at_least(self, 1, "batch_size", allow_none=True)

    @property
    def keeps_site(self) -> bool:
        """Whether an agent replaces its site instead of adding to its belief."""
        return self.weighting == "exact" and self.batch_size is None

    def weight(self, v: Tensor) -> Tensor:
        """1 / v_i, or 1 as published: (C,)."""
        return 1.0 / v if self.weighting == "exact" else torch.ones_like(v)

    @property
    def needs_centrality(self) -> bool:
        """Whether the answer depends on the centrality: that of the exact weighting does."""
        return self.weighting == "exact"

    def rows_of_round(self, data: ClientData, next_row: Tensor) -> tuple[ClientData, Tensor]:
        """This round's rows, and the row (C,) where the next round begins."""
        if self.batch_size is None:
            return data, next_row
        position = next_row[:, None] + torch.arange(self.batch_size, device=next_row.device)
        index = data.row_index.gather(1, position.clamp_max(data.row_index.shape[1] - 1))
        last = torch.minimum(position[:, -1] + 1, data.num_rows)
        return data._replace(row_index=index, num_rows=last - next_row), last
