"""What the server knows of each client's Gaussian site: the sum of what it has taken of the client's messages.

    q ∝ t_0 Π_k t_k,     t_k ← t_k Δ_k^f       a message Δ_k, taken to the fraction f

So each client can be divided out of q, whatever it has at home: this is how much of the answer is its doing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Sites
from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.states import State, select

#: Numbers in all clients' sites above which they are not kept.
MAX_NUMBERS = 1_000_000


def opened(algorithm: Algorithm, shared: State, local: State) -> State:
    """The sites that a phase begins with, `precision` and `eta`, (K, ...); empty where there are none to follow.

    Args:
        algorithm: what is run.
        shared: the server's state.
        local: the clients', (K, ...).
    """
    found = algorithm.sites(shared, local) if isinstance(algorithm, Sites) else None
    if found is None or sum(value.numel() for value in found.values()) > MAX_NUMBERS:
        return {}
    return {name: value.detach().double().clone() for name, value in found.items()}


def entered(algorithm: Algorithm, ledger: State, clients: Tensor, messages: State, told: State) -> State:
    """The sites after a round; empty where the messages do not tell.

    Args:
        algorithm: what is run.
        ledger: the sites before, (K, ...).
        clients: (C,) whose messages were combined.
        messages: theirs, (C, ...).
        told: what they are told about them, (C, ...).
    """
    if not ledger or not isinstance(algorithm, Sites):
        return {}
    new = algorithm.followed(select(ledger, clients), messages, told)
    if new is None:
        return {}
    after = {name: value.clone() for name, value in ledger.items()}
    for name, value in after.items():
        value[clients] = new[name].to(value)
    return after if all(bool(torch.isfinite(value).all()) for value in after.values()) else {}
