"""Contributions of the clients of consensus Monte Carlo: draws of their own posteriors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.infer.subposteriors import products


@dataclass(frozen=True)
class DrawContributions(Contributions):
    """Contributions to `ConsensusMC`."""

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Draws shifted and scaled so that their Gaussian is within the limits."""
        draws = sent.messages["draws"]
        p = products.moments(draws.double().flatten(1, 2))
        nothing = type(p).zeros((), p.dim, device=p.eta.device)
        found = limits.sites(nothing, p, p.mean().quantile(0.5, 0), sent.own_rows)
        moved = products.stretch_draws(draws.double(), p, found.sites).to(draws.dtype)
        cut = (found.limit_excess > 0).reshape(-1, *[1] * (draws.dim() - 1))
        return BoundedMessages(
            shared, {**sent.messages, "draws": torch.where(cut, moved, draws)}, {}, found.limit_excess
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """An empty dictionary: the product is that of the other clients, without these clients' shares of the prior."""
        return {}

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Shifts of the Gaussian product of the draws' moments if one client is left out."""
        p = products.moments(sent.messages["draws"].double().flatten(1, 2))
        whole = p.product_over(0)
        others = type(p)(whole.precision - p.precision, whole.eta - p.eta)
        spread = others.moments()[1].diagonal(dim1=-2, dim2=-1) if p.dense else others.moments()[1]
        return ((whole.mean() - others.mean()) * spread.rsqrt()).abs().amax(-1)
