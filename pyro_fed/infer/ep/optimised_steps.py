"""Steps of FedEP's q and sites by optimisers, in place of fractions of the changes.

    q ← q optim(Π_k Δ_k),    t_k ← t_k optim(Δ_k)                     Guo et al., Section 2.2.3

The learning rate is δ, the algorithm's `damping`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.infer.averaging.optim import OPTIM, Optimiser
from pyro_fed.infer.ep.site_updates import Limits
from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.gaussian import Gaussian


def server_step(
    optimiser: Optimiser, shared: State, q: Gaussian, delta: Gaussian, limits: Limits
) -> tuple[Gaussian, float, State]:
    """The server's step, backtracked.

    Args:
        optimiser: of the server.
        shared: the server's state.
        q: the server's Gaussian.
        delta: its change by all clients.
        limits: the learning rate, as damping, and settings of the backtracking.

    Returns:
        the new q, the fraction of the optimiser's step that it took (0 where none keeps q positive definite), and
        the optimiser's state under `optim.`.
    """
    step, after = optimiser.step(_params(q), _params(delta), within(shared, OPTIM), limits.damping)
    move = type(q)(step["precision"], step["eta"])
    taken = backtrack(q, move, min_fraction=limits.min_fraction, margin=limits.margin)
    return q.product(move.power(taken)), float(taken), prefixed(OPTIM, after)


def client_steps(optimiser: Optimiser, rate: float, local: State, delta: Gaussian) -> tuple[Gaussian, State]:
    """The steps of C clients' sites, each by its own optimiser, and the optimisers' states.

    Args:
        optimiser: of the clients.
        rate: its learning rate.
        local: the clients' states, (C, ...).
        delta: the changes of their sites, (C,).
    """
    steps, states = [], []
    for k in range(len(delta.eta)):
        own = {name: value[k] for name, value in within(local, OPTIM).items()}
        site = {name: local[name][k] for name in ("precision", "eta")}
        step, state = optimiser.step(site, {"precision": delta.precision[k], "eta": delta.eta[k]}, own, rate)
        steps.append(step)
        states.append(state)
    stacked = prefixed(OPTIM, {name: torch.stack([state[name] for state in states]) for name in states[0]})
    return type(delta)(*(torch.stack([step[name] for step in steps]) for name in ("precision", "eta"))), stacked


def _params(q: Gaussian) -> dict[str, Tensor]:
    return {"precision": q.precision, "eta": q.eta}
