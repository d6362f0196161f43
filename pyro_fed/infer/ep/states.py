"""The states of expectation propagation with names and types: what its server and its clients keep between rounds.

Between rounds a state is a flat dictionary of tensors, see `sites.records`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, is_finite
from pyro_fed.ops.gaussian import Gaussian

#: Entry of a client's state for the change that it has sent, until it knows the part that was taken.
CHANGE = "delta_"


@dataclass(frozen=True)
class Server:
    """The server's state.

    Args:
        q: the approximation, q = t_0 Π_k t_k.
        prior: t_0.
        prior_change: Δ_0 of this round.
        prior_value: E_q[log p_0].
        skips_prior: whether rounds do not compute Δ_0, because t_0 is the same at every q, and E_q[log p_0].
        num_clients: K, an integer.
        fractions: s_k of the last round's clients, (C,).
        added: the addition of acceleration to q besides the changes; each site has an equal share of it.
        reset: 1 if the last round went back: sites are discarded, and `added` replaces them.
        cut: 1 if the last step was shortened.
        memory: the step rule's state, and further entries of derived algorithms.
    """

    q: Annotated[Gaussian, ""]
    prior: Gaussian
    prior_change: Annotated[Gaussian, "prior_delta_"]
    prior_value: Tensor
    skips_prior: Annotated[Tensor, "prior_known"]
    num_clients: Tensor
    fractions: Tensor
    added: Gaussian
    reset: Tensor
    cut: Tensor
    memory: State

    def lower_bound(self, messages: State) -> Tensor | None:
        """Σ_k E_q[log p_k] + E_q[log p_0] + H(q), the evidence's lower bound at q, (); NaN if a part is not finite.

        It is None if the clients did not send their log-likelihoods, or these must not be used.
        """
        if "value" not in messages:
            return None
        sound = messages["usable"].all() & is_finite(self.prior_change)
        value = self.prior_value + messages["value"].sum() + self.q.entropy()
        return torch.where(sound, value, torch.nan)

    def feedback(self, clients: int) -> State:
        """What the round's clients receive, (C, ...): s_k, whether sites are discarded, their share of `added`."""
        shares = as_state(self.added.power(1.0 / clients), "share_")
        each = {name: part.expand(clients, *part.shape) for name, part in shares.items()}
        return {"fraction": self.fractions, "reset": self.reset.expand(clients), **each}

    def figures(self) -> dict[str, float]:
        """The smallest fraction taken, sites skipped, whether the step was cut, and the share of clients at work."""
        return {
            "fraction": float(self.fractions.min()),
            "skipped": float((self.fractions == 0).sum()),
            "cut": float(self.cut),
            "share": len(self.fractions) / int(self.num_clients),
        }


def first_server(q: Gaussian, prior: Gaussian, num_clients: int, memory: State) -> Server:
    """The server before the first round, at q with t_0 `prior`; K is `num_clients`, and `memory` the step rule's."""
    one, flat = torch.ones((), dtype=torch.float64, device=q.eta.device), flat_like(q)
    zero = torch.zeros_like(one)
    return Server(
        q=q,
        prior=prior,
        prior_change=flat,
        prior_value=zero,
        skips_prior=torch.tensor(False),
        num_clients=torch.tensor(num_clients),
        fractions=one.expand(num_clients).clone(),
        added=flat,
        reset=zero,
        cut=zero,
        memory=memory,
    )
