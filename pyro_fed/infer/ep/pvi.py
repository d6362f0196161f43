"""Partitioned variational inference.

Source: Kassab & Simeone, Algorithm 2, after Bui et al. (2018).

    q_k ← arg min_q KL(q ‖ p_k q_-k),    t_k ← t_k q_k / q,    q ← q_k

One client a round in turn ("sequential", as in the paper), or all at once ("synchronous", with backtracking). The
local free energy is minimised by expected Newton steps, natural gradients of step one (`clients.newton`), or by Adam
(`client="svi"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyro_fed.algorithm.schedule import All, RoundRobin, Schedule
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.fedep import FedEP


@dataclass(frozen=True, kw_only=True)
class PVI(FedEP):
    """Variational inference on each client's tilted density.

    Args:
        order: "sequential" or "synchronous"; a schedule given to `run` goes before it.
        local_steps: Newton steps a round.

    Other settings: as for `EPSettings`; the client is "newton" or "svi". With a guide that is a function, what is made
    is a `GuidedPVI`.

    References:
        Bui et al. (2018), Partitioned variational inference. Ashman et al. (2022).
    """

    order: Literal["sequential", "synchronous"] = "sequential"
    local_steps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "order", ("sequential", "synchronous"))
        if self.client not in ("newton", "svi"):
            raise SettingError(
                f"PVI: client must be 'newton' or 'svi', which minimise KL(q || tilted), received {self.client!r}; "
                "use FedEP for the others"
            )

    def default_schedule(self) -> Schedule:
        """One client in turn, or all."""
        return RoundRobin() if self.order == "sequential" else All()

    def default_rounds(self, num_clients: int) -> int:
        """Ten passes over the clients."""
        return 10 * num_clients if self.order == "sequential" else 20
