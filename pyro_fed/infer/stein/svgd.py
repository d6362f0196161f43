"""Accurate SVGD on the pooled data (Liu & Wang, 2016): `dsvgd` with a single client.

Whitened coordinates, the kernel, the decaying step, the start and the end are those of `dsvgd`, and so is the
fixed point; the form of the DSVGD paper's experiments is `svgd_paper`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.capabilities import Pooled
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.survey import PooledSurvey, Survey


@dataclass(frozen=True, kw_only=True)
class SVGD(DSVGD, Pooled):
    """Accurate SVGD on the pooled data: `DSVGD` with a single client, which holds all rows.

    Args: as for `DSVGD`; more `local_steps`, as a round is a pass.

    References:
        Liu & Wang (2016), Stein variational gradient descent.
    """

    local_steps: int = 50

    def default_rounds(self, num_clients: int) -> int:
        """`max_passes` rounds of `local_steps`."""
        return self.max_passes

    def survey(self) -> type[Survey]:
        """The same on the pooled data."""
        return PooledSurvey
