"""`torch.optim` optimisers as pure functions, with changes of parameters as "gradients".

    η ← η + δ optim(Δη)                                       Guo et al., Section 2.2.3; Reddi et al. (2020)

An optimiser is built anew for every step and its state is put back into it, so that the state travels as tensors
in an algorithm's own state. Its learning rate is δ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import State
from pyro_fed.algorithm.states import prefixed, within
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.site_updates import Limits
from pyro_fed.ops.backtrack import backtrack
from pyro_fed.ops.gaussian import Gaussian

#: Under which prefix a state holds an optimiser's.
OPTIM = "optim"
#: The optimisers by the settings `server_optimiser` and `client_optimiser`.
KINDS = ("none", "sgd", "adagrad", "adam")


@dataclass(frozen=True, kw_only=True)
class TorchOptim:
    """One of `torch.optim`'s SGD, Adagrad and Adam.

    Args:
        kind: "sgd", "adagrad" or "adam".
        rate: learning rate.
        momentum: of SGD.
        fudge: Adagrad's and Adam's eps (Guo et al., Table 7: τ).
        betas: of Adam.
    """

    kind: str
    rate: float
    momentum: float
    fudge: float
    betas: tuple[float, float]

    def init(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state before the first step, flat: `{param}.{entry}`."""
        state = self.step(params, {name: torch.zeros_like(value) for name, value in params.items()}, {})[1]
        return {name: torch.zeros_like(value) for name, value in state.items()}

    def step(
        self, params: Mapping[str, Tensor], deltas: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What to add to the parameters, and the new state.

        Args:
            params: parameters by name.
            deltas: their changes Δ, which stand for the negative gradient.
            state: from `init` or the step before.
        """
        with torch.enable_grad():
            leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        optimiser = self._build(list(leaves.values()))
        for name, leaf in leaves.items():
            leaf.grad = -deltas[name]
            entries = {key.split(".", 1)[1]: value.clone() for key, value in state.items() if key.split(".")[0] == name}
            if entries:
                optimiser.state[leaf] = entries
        optimiser.step()
        after = {
            f"{name}.{entry}": value
            for name, leaf in leaves.items()
            for entry, value in optimiser.state[leaf].items()
            if isinstance(value, Tensor)
        }
        return {name: (leaf - params[name]).detach() for name, leaf in leaves.items()}, after

    def _build(self, leaves: list[Tensor]) -> torch.optim.Optimizer:
        if self.kind == "sgd":
            return torch.optim.SGD(leaves, lr=self.rate, momentum=self.momentum)
        if self.kind == "adagrad":
            return torch.optim.Adagrad(leaves, lr=self.rate, eps=self.fudge)
        return torch.optim.Adam(leaves, lr=self.rate, eps=self.fudge, betas=self.betas)


def make_optim(owner: Any, kind: str) -> TorchOptim | None:
    """The optimiser that an algorithm's settings describe; None for "none".

    Raises:
        SettingError: an unknown kind.
    """
    if kind not in KINDS:
        raise SettingError(f"{type(owner).__name__}: optimiser must be one of {list(KINDS)}, received {kind!r}")
    if kind == "none":
        return None
    return TorchOptim(
        kind=kind,
        rate=owner.damping,
        momentum=owner.optimiser_momentum,
        fudge=owner.optimiser_fudge,
        betas=owner.optimiser_betas,
    )


def optimised(
    optim: TorchOptim, shared: State, q: Gaussian, delta: Gaussian, limits: Limits
) -> tuple[Gaussian, float, State]:
    """The server's step by an optimiser, backtracked.

    Returns:
        the new q, the fraction of the optimiser's step that it took (0 where none keeps q positive definite), and
        the optimiser's state under `optim.`.
    """
    step, after = optim.step(_params(q), _params(delta), within(shared, OPTIM))
    move = type(q)(step["precision"], step["eta"])
    taken = backtrack(q, move, min_fraction=limits.min_fraction, margin=limits.margin)
    return q.product(move.power(taken)), float(taken), prefixed(OPTIM, after)


def client_steps(optim: TorchOptim, local: State, delta: Gaussian) -> tuple[Gaussian, State]:
    """The steps of C clients' sites, each by its own optimiser, and the optimisers' states."""
    steps, states = [], []
    for k in range(len(delta.eta)):
        own = {name: value[k] for name, value in within(local, OPTIM).items()}
        site = {name: local[name][k] for name in ("precision", "eta")}
        step, state = optim.step(site, {"precision": delta.precision[k], "eta": delta.eta[k]}, own)
        steps.append(step)
        states.append(state)
    stacked = prefixed(OPTIM, {name: torch.stack([state[name] for state in states]) for name in states[0]})
    return type(delta)(*(torch.stack([step[name] for step in steps]) for name in ("precision", "eta"))), stacked


def _params(q: Gaussian) -> dict[str, Tensor]:
    return {"precision": q.precision, "eta": q.eta}
