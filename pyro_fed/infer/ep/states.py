"""The states of expectation propagation with names and types: what its server and its clients keep between rounds.

Between rounds a state is a flat dictionary of tensors, which travels and is written to disk. `of` reads and `state`
writes it: a Gaussian is two entries, `{prefix}precision` and `{prefix}eta`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_like, gaussian
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

    q: Gaussian
    prior: Gaussian
    prior_change: Gaussian
    prior_value: Tensor
    skips_prior: Tensor
    num_clients: Tensor
    fractions: Tensor
    added: Gaussian
    reset: Tensor
    cut: Tensor
    memory: State

    @classmethod
    def of(cls, shared: State) -> Server:
        """The server's state from tensors by name."""
        server = cls(
            q=gaussian(shared),
            prior=gaussian(shared, "prior_"),
            prior_change=gaussian(shared, "prior_delta_"),
            prior_value=shared["prior_value"],
            skips_prior=shared["prior_known"],
            num_clients=shared["num_clients"],
            fractions=shared["fractions"],
            added=gaussian(shared, "added_"),
            reset=shared["reset"],
            cut=shared["cut"],
            memory={},
        )
        own = server.state().keys()
        return replace(server, memory={name: value for name, value in shared.items() if name not in own})

    def state(self) -> State:
        """The state as tensors by name."""
        return {
            **as_state(self.q),
            **as_state(self.prior, "prior_"),
            **as_state(self.prior_change, "prior_delta_"),
            "prior_value": self.prior_value,
            "prior_known": self.skips_prior,
            "num_clients": self.num_clients,
            "fractions": self.fractions,
            **as_state(self.added, "added_"),
            "reset": self.reset,
            "cut": self.cut,
            **self.memory,
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
