"""The state of a Langevin sampler's client between visits, what it receives, and what it sends."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.infer.langevin.gradients import ConduciveGradient, TrustRegion


class ClientState(NamedTuple):
    """A client's state, of several clients (C, ...); None if a sampler does not use an entry.

    Attributes:
        inverse_f: 1/f_s.
        ready: whether the client has been visited.
        anchor: θ*, the mode of p(θ) Π q_s(θ), (D,).
        factor: A of the preconditioner A A', (D, D) or its diagonal (D,).
        anchor_score: gradient of all its rows' log-likelihood at θ*, (D,).
        longest_step: the longest derived step at this client.
        pull: α g_s(θ*), (D,).
        pull_slope: α (P - P_s/f_s), (D, D) or (D,).
        metric: the posterior's precision, by which the distance from θ* is measured, (D, D) or (D,).
        trust_radius: the distance at which g_s stops growing.
    """

    inverse_f: Tensor
    ready: Tensor
    anchor: Tensor
    factor: Tensor
    anchor_score: Tensor | None = None
    longest_step: Tensor | None = None
    pull: Tensor | None = None
    pull_slope: Tensor | None = None
    metric: Tensor | None = None
    trust_radius: Tensor | None = None

    def with_conducive(self, conducive: ConduciveGradient) -> ClientState:
        """The state with the conducive gradient."""
        region = conducive.region
        radius = {"metric": region.metric, "trust_radius": region.radius} if region else {}
        return self._replace(pull=conducive.value, pull_slope=conducive.slope, **radius)

    @property
    def conducive(self) -> ConduciveGradient | None:
        """α g_s; None without conducive gradients."""
        if self.pull is None or self.pull_slope is None:
            return None
        if self.metric is None or self.trust_radius is None:
            return ConduciveGradient(self.anchor, self.pull, self.pull_slope)
        return ConduciveGradient(self.anchor, self.pull, self.pull_slope, TrustRegion(self.metric, self.trust_radius))

    def limit_step(self, step_size: Tensor, at: Tensor | slice = slice(None)) -> Tensor:
        """h of visits, no longer than each client allows.

        `at` gives the client of each chain, of the shape of `step_size`; by default chain c is at client c.
        """
        return step_size if self.longest_step is None else torch.minimum(step_size, self.longest_step[at])


class Arrival(NamedTuple):
    """What a client receives for each chain that visits it, (C, ...).

    Attributes:
        position: where the chain is, (C, D).
        client: the client's number, (C,).
        steps: number of steps of the chain so far, (C,).
        step_size: h of its steps, before they fall or are shortened, (C,).
    """

    position: Tensor
    client: Tensor
    steps: Tensor
    step_size: Tensor


class Visit(NamedTuple):
    """What C visits send: the chains' positions, and every `stride`-th of their T steps; of R rounds (R, C, ...).

    Attributes:
        position: where the chain is, (C, D).
        client: the client's number, (C,).
        draws: positions that may be kept, (C, T / stride, D).
        gradient_norm: of the preconditioned scores, (C, T / stride).
        step_size: h, (C, T / stride).
    """

    position: Tensor
    client: Tensor
    draws: Tensor
    gradient_norm: Tensor
    step_size: Tensor
