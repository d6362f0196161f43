"""The server's state of DSVGD and its relatives between rounds, with names and types."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.ops.stein import effective_number, spread


@dataclass(frozen=True)
class Server:
    """The particles, the product of all sites, and their diagnostics.

    Args:
        white: the particles z, (N, D).
        averaged: their recent mean positions, (N, D).
        residuals: Σ_j r_j at the particles, (N, D).
        history: AdaGrad's state, (N, D).
        steps: of AdaGrad.
        mean: m of the coordinates z, (D,).
        factor: A of the coordinates.
        precision: Σ_j Λ_j.
        eta: Σ_j η_j.
        ksd: discrepancy of the particles from the last client's target, see `at_rest`.
        noise: that of as many exact draws.
        mean_off: largest error of a mean by the scores, in SDs.
        sd_off: the same for SDs.
        modes: number of modes that the survey has found.
        apart: 1 if particles started apart, and have no sites.
        passed: passes over the clients so far.
        pass_length: share of a pass that one client's turn makes.
        pace: factor of a step, see `pace`.
        near: 1 if particles started under the Gaussian nearest to a posterior of one mode.
        census: 1 if they started as weighted points of the posterior.
        pass_ksd: sum of this pass's discrepancies.
        lowest_ksd: the lowest such sum of a pass.
        account: residuals that clients with bounded messages have sent, and their accepted parts.
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
    passed: Annotated[Tensor, "pass"]
    pass_length: Tensor
    pace: Tensor
    near: Tensor
    census: Tensor
    pass_ksd: Tensor
    lowest_ksd: Tensor
    account: State

    def figures(self, before: Server) -> dict[str, float]:
        """The figures of a round that began at the state `before`."""
        return {
            "ksd": float(self.ksd),
            "ksd_of_draws": float(self.noise),
            "mean_off": float(self.mean_off),
            "sd_off": float(self.sd_off),
            "spread": float(spread(self.white).mean()),
            "effective_particles": float(effective_number(self.white)),
            "change": float((self.white - before.white).square().mean().sqrt()),
            "pass": float(before.passed),
            "modes": float(self.modes),
            "apart": float(self.apart),
            "near": float(self.near),
            "steps": float(self.steps),
        }

    def adopting(self, entries: State) -> Server:
        """The state with some entries replaced by those with the same names."""
        values: dict[str, Any] = dict(entries)
        return replace(self, **values)
