"""What the server of DSVGD and its relatives keeps between rounds, with names and types."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from pyro_fed.algorithm.states import State


@dataclass(frozen=True)
class Server:
    """The particles, the product of all sites, and what is known of both.

    Args:
        white: the particles z, (N, D).
        averaged: their mean positions of late, (N, D).
        residuals: Σ_j r_j at the particles, (N, D).
        history: AdaGrad's state, (N, D).
        steps: of AdaGrad.
        mean: m of the coordinates z, (D,).
        factor: A of the coordinates.
        precision: Σ_j Λ_j.
        eta: Σ_j η_j.
        ksd: discrepancy of the particles from the last client's target, see `at_rest`.
        noise: that of as many exact draws.
        mean_off: by how much the scores say that a mean is off.
        sd_off: the same of SDs.
        modes: how many the survey has found.
        apart: 1 where particles started apart, and have no sites.
        passed: passes over the clients so far.
        pass_length: what one client's turn is of a pass.
        pace: share of a step that is taken, see `pace`.
        near: 1 where particles started under the Gaussian nearest to a posterior of one mode.
        census: 1 where they started as weighted points of the posterior.
        pass_ksd: sum of this pass's discrepancies.
        lowest_ksd: the lowest such sum of a pass.
        account: what clients whose messages are bounded have said of their residuals, and what was taken of it.
    """

    white: Tensor
    averaged: Tensor
    residuals: Tensor
    history: Tensor
    steps: Tensor
    mean: Tensor
    factor: Tensor
    precision: Tensor
    eta: Tensor
    ksd: Tensor
    noise: Tensor
    mean_off: Tensor
    sd_off: Tensor
    modes: Tensor
    apart: Tensor
    passed: Tensor
    pass_length: Tensor
    pace: Tensor
    near: Tensor
    census: Tensor
    pass_ksd: Tensor
    lowest_ksd: Tensor
    account: State

    @classmethod
    def of(cls, shared: State) -> Server:
        """Read the server's state."""
        names = [field.name for field in fields(cls) if field.name not in ("passed", "account")]
        account = {name: value for name, value in shared.items() if name not in (*names, "pass")}
        return cls(**{name: shared[name] for name in names}, passed=shared["pass"], account=account)

    def adopting(self, entries: State) -> Server:
        """With some of its parts as they have been sent, or computed, under their names."""
        values: dict[str, Any] = dict(entries)
        return replace(self, **values)

    def state(self) -> State:
        """Write it."""
        entries = {name: value for name, value in vars(self).items() if name not in ("passed", "account")}
        return {**entries, "pass": self.passed, **self.account}
