"""Contributions of the clients that chains visit, and noise of chains that comes from privacy.

The server replays a visit to the Gaussian of all sites, with the client's own random numbers. The comparison shows how
far the visit moved the result, and is the basis of the limits of `Bounded`. The equations are in `held_visits`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded, Combination
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.held_visits import departures, held_visits, visit_noise

if TYPE_CHECKING:
    from pyro_fed.algorithm.privacy import Private


@dataclass(frozen=True)
class VisitContributions(Contributions):
    """Contributions to `FSGLD`: visits, which are compared with the same visits to the surrogates."""

    replayed_noise: ClassVar[frozenset[str]] = frozenset({"normal"})

    def visit_weights(self, shared: State, clients: Tensor) -> Tensor:
        """p_c, the part of its chain that each visit has, (C,), or (R, C) for R rounds: all of it."""
        return shared["position"].new_ones(clients.shape)

    def bounding_obstacle(self) -> str | None:
        """The reason why a visit cannot be compared with one to the surrogates, and the cure; "" if it can."""
        why: str = self.algorithm.incomparable()
        return why

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit visits to the reach of the same visits to the surrogates."""
        stride, midpoint = self.algorithm.stride, self.algorithm.rule.midpoint
        steps, noise, _ = self._replay(shared, sent)
        held, cut = held_visits(shared, sent.messages, steps, noise, stride, midpoint, limits.pull)
        own = steps[stride - 1 :: stride].to(held["step_size"])  # no client shortens the others' steps
        return BoundedMessages(shared, held | {"step_size": own.expand_as(held["step_size"])}, {}, cut)

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Distances between the ends of visits and of the same visits to the surrogates; zero without surrogates."""
        if "held_mean" not in shared:
            return torch.zeros(len(sent.clients), dtype=torch.float64)
        steps, noise, weight = self._replay(shared, sent)
        return self._shifts([shared], sent.messages["position"][None], steps[None], noise[None], weight[None])[0]

    def client_shift_sds_of_rounds(self, before: Sequence[State], ledger: State, sent: SentMessages) -> Tensor | None:
        """Distances of all visits of R rounds at once, if their steps are equal and the noise is known."""
        if self.algorithm.rule.decay or sent.noise is None or "held_mean" not in before[0]:
            return super().client_shift_sds_of_rounds(before, ledger, sent)
        weight = self.visit_weights(before[0], sent.clients)
        noise = sent.noise["normal"].transpose(0, 1).unflatten(0, weight.shape) * weight.rsqrt()[..., None, None]
        steps = torch.stack([shared["step_size"] for shared in before]).unsqueeze(1)
        steps = steps.expand(-1, self.algorithm.local_steps)
        return self._shifts(before, sent.messages["position"], steps, noise, weight)

    def _shifts(self, before: Sequence[State], ends: Tensor, steps: Tensor, noise: Tensor, weight: Tensor) -> Tensor:
        """`departures` of R rounds, (R, C), each times its part of its chain."""
        chains = before[0]["position"].shape[0]
        start = torch.stack([shared["position"] for shared in before]).repeat_interleave(ends.shape[1] // chains, 1)
        return departures(before[0], start, ends, steps, noise, self.algorithm.rule.midpoint) * weight

    def _replay(self, shared: State, sent: SentMessages) -> tuple[Tensor, Tensor, Tensor]:
        """h of the steps (T,), the noise (C, T, D) and the parts (C,) of the visits, by the clients that were asked.

        The client's number and the part that a message claims are not used.
        """
        weight = self.visit_weights(shared, sent.clients)
        shape, dtype = (self.algorithm.local_steps, shared["position"].shape[-1]), shared["position"].dtype
        if sent.noise is None:
            noise = visit_noise(sent.seed, sent.round, sent.clients, shape, dtype)
        else:
            noise = sent.noise["normal"].transpose(0, 1)
        steps: Tensor = self.algorithm.step_sizes.of_visit(shared["steps"], shared["step_size"])
        return steps, noise * weight.rsqrt().reshape(-1, 1, 1), weight


@dataclass(frozen=True)
class AveragedVisitContributions(VisitContributions):
    """Contributions to `FALD`, whose chains average the visits to all clients."""

    def visit_weights(self, shared: State, clients: Tensor) -> Tensor:
        """p_c, the client's share among the clients of its chain."""
        weight: Tensor = self.algorithm.visit_weights(shared, clients)
        return weight

    def bounding_obstacle(self) -> str | None:
        """The reason why a visit cannot be compared with one to the surrogates; "" if it can."""
        return super().bounding_obstacle() or (
            ""
            if self.algorithm.conducive
            else "without conducive gradients visits differ as lies do: conducive=pf.infer.Conducive()"
        )

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit visits to the reach of the same visits to the surrogates, with the weights that the server gave."""
        held = super().bounded_messages(limits, shared, ledger, sent)
        return held._replace(messages={**held.messages, "weight": self.visit_weights(shared, sent.clients)})

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """An empty dictionary: with `stand_in` visits end where they began, and a round is shorter by their share."""
        return {}


@dataclass(frozen=True)
class SummedContributions(Contributions):
    """Contributions to `SummedLangevin`, where the noise of privacy is a part of the chain's own."""

    noise_in_draws: ClassVar[bool] = True

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm with the noise of a private release in place of as much of the chain's own.

        Raises:
            SettingError: the step is longer than this noise allows, rows are not shortened as the combination says, or
                there is no noise and `released_noise` says so.
        """
        algorithm, name = self.algorithm, type(self.algorithm).__name__
        if combination is None or not combination.private:
            if algorithm.released_noise:
                raise SettingError(
                    f"{name}: released_noise is set by the run from combination=pf.Private(...): leave it out"
                )
            return algorithm
        private = cast("Private", combination)
        if private.unit == "row" and algorithm.row_norm != private.norm:
            raise SettingError(
                f"{name}: Private(unit='row', norm={private.norm:g}) needs row_norm={private.norm:g} here, by which "
                f"the clients shorten their rows' scores; received row_norm={algorithm.row_norm}"
            )
        noise = private.norm * private.noise_multiplier
        longest = 4 * algorithm.temperature**2 / noise**2
        if algorithm.step_size is not None and algorithm.step_size > longest * (1 + 1e-9):
            raise SettingError(
                f"{name}: with step_size={algorithm.step_size:g} the noise of privacy would be more than the chain's "
                f"own, and the draws wider than at temperature={algorithm.temperature:g}: at most {longest:.3g}, or "
                f"temperature={algorithm.temperature * math.sqrt(algorithm.step_size / longest):.3g}"
            )
        return replace(algorithm, released_noise=noise)

    def form_for_clients(self) -> Any:
        """The algorithm without the noise, which only the server knows."""
        return replace(self.algorithm, released_noise=0.0)
