"""Server optimisers: `torch.optim` as pure functions, with the clients' changes in place of negative gradients.

    η ← η + δ optim(Δη)                                       Guo et al., Section 2.2.3; Reddi et al. (2020)

Each step builds an optimiser and restores its state from tensors, which are kept in the algorithm's own state. The
learning rate is δ, the algorithm's `damping`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.nested_settings import Variant, explains_unknown
from pyro_fed.conventions.setting_checks import check_betas, check_between, check_positive

__all__ = ["SGD", "Adagrad", "Adam", "Optimiser"]
__dir__ = public_dir(__all__)

#: Prefix of an optimiser's entries in a state.
OPTIM = "optim"


class Optimiser(Variant):
    """An optimiser that applies a change Δ, instead of adding δ Δ."""

    what: ClassVar[str] = "optimiser"
    door: ClassVar[str] = "pf.infer.optim"

    @abstractmethod
    def build(self, leaves: list[Tensor], rate: float) -> torch.optim.Optimizer:
        """The `torch.optim` optimiser with this learning rate, without a state."""

    def init(self, params: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
        """The state before the first step, flat: `{param}.{entry}`."""
        state = self.step(params, {name: torch.zeros_like(value) for name, value in params.items()}, {}, rate)[1]
        return {name: torch.zeros_like(value) for name, value in state.items()}

    def step(
        self, params: Mapping[str, Tensor], deltas: Mapping[str, Tensor], state: Mapping[str, Tensor], rate: float
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The changes to add to the parameters, and the new state.

        `deltas` are the parameters' changes Δ, in place of the negative gradient; `state` is from `init` or the
        previous step.
        """
        with torch.enable_grad():
            leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        optimiser = self.build(list(leaves.values()), rate)
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


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Steps with momentum: changes of earlier rounds continue with decreasing weight.

    Args:
        momentum: share of the last step that is repeated, in [0, 1).

    References:
        Guo et al. (2023), Table 7; FedAvgM of Hsu et al. (2019).

    Example:
        >>> pf.run(pf.FedAvg(server_optimiser=pf.infer.optim.SGD(momentum=0.9), damping=0.5), fed)
    """

    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_between(self, "momentum", 0, 1, "[)")

    def build(self, leaves: list[Tensor], rate: float) -> torch.optim.Optimizer:
        """These settings as a `torch.optim.SGD` with a learning rate."""
        return torch.optim.SGD(leaves, lr=rate, momentum=self.momentum)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Adagrad(Optimiser):
    """Steps divided by the root of the sum of all squared changes so far.

    Args:
        eps: added to that root (τ in Table 7 of Guo et al.).

    References:
        FedAdagrad of Reddi et al. (2020), Algorithm 2.

    Example:
        >>> pf.run(pf.FedAvg(server_optimiser=pf.infer.optim.Adagrad(eps=1e-3), damping=0.1), fed)
    """

    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, "eps")

    def build(self, leaves: list[Tensor], rate: float) -> torch.optim.Optimizer:
        """These settings as a `torch.optim.Adagrad` with a learning rate."""
        return torch.optim.Adagrad(leaves, lr=rate, eps=self.eps)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Steps with momentum, divided by the root of an average of squared changes.

    Args:
        betas: weights of the past in the averages of the changes and of their squares, each in [0, 1).
        eps: added to that root (τ in Table 7 of Guo et al.).

    References:
        FedAdam of Reddi et al. (2020), Algorithm 2.

    Example:
        >>> pf.run(pf.FedAvg(server_optimiser=pf.infer.optim.Adam(betas=(0.9, 0.99)), damping=0.1), fed)
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(self, "eps")
        check_betas(self)

    def build(self, leaves: list[Tensor], rate: float) -> torch.optim.Optimizer:
        """These settings as a `torch.optim.Adam` with a learning rate."""
        return torch.optim.Adam(leaves, lr=rate, eps=self.eps, betas=self.betas)
