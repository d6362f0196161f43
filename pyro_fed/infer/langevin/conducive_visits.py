"""Visits with conducive gradients, v_s(θ) + α g_s(θ), Eq. (7) of el Mekkaoui et al.: the base of `FSGLD` and `FALD`.

A client's effect on the chains that visit it is limited by the surrogates and the cohort's departures from them. A
visit's randomness depends on the run's seed, the round and the client, so that the server can compute the same visit to
the Gaussian q = p Π_s q_s, with positions p_t. At a client whose score differs from q's by e, in SDs of a parameter,
the true positions are

    z_t = p_t + O(t h / 2) e        h the step, in preconditioned time

and the received positions are limited to |z_t - p_t|_i ≤ R_i t h / 2 in SDs of θ_i, with

    R_i = max(b m_i, `ACCEPTED_SHIFT_SDS` K)   m_i the cohort's own departures, root mean square (`Mismatch`)

with b `Bounded.pull`. A chain spends a share f_s of its time at client s, so that a malicious client moves the mean by
at most f_s R_i SDs in the long run, R_i / K for uniform f. Honest visits within R_i are unchanged, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import ACCEPTED_SHIFT_SDS
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import Start, State
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.conventions import seeding
from pyro_fed.conventions.nested_settings import Settings, explains_unknown
from pyro_fed.conventions.setting_checks import check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.dsgld import VisitingLangevin
from pyro_fed.infer.langevin.gradients import conducive_gradients
from pyro_fed.infer.langevin.visits import Beginning, ClientState
from pyro_fed.infer.surrogates.surrogates import require_one_per_client


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Conducive(Settings):
    """The conducive gradient α g_s, which makes the expected score nearly the same at all clients.

    Args:
        alpha: exploration weight α, positive; every value is unbiased in `FSGLD`, and the paper has 1.
        trust: the gradient stops growing at √D + trust posterior SDs from the mode; None means nowhere.

    References:
        El Mekkaoui et al. (2021), Eq. (6) and (7).

    Example:
        >>> idata = pf.run(pf.FSGLD(conducive=pf.infer.Conducive(trust=None)), fed)
    """

    alpha: float = 1.0
    trust: float | None = 3.0

    def __post_init__(self) -> None:
        check_positive(self, "alpha")
        check_positive(self, "trust", allow_none=True)


@dataclass(frozen=True)
class VisitContributions(Contributions):
    """Contributions to `FSGLD`: visits, which are compared with the same visits to the surrogates."""

    replayed_noise: ClassVar[frozenset[str]] = frozenset({"normal"})

    def chain_shares(self, shared: State, clients: Tensor) -> Tensor:
        """p_c, the part of its chain that each visit has, (C,), or (R, C) for R rounds: all of it."""
        return shared["position"].new_ones(clients.shape)

    def bounding_obstacle(self) -> str | None:
        """The reason why a visit cannot be compared with one to the surrogates, and the cure; "" if it can."""
        algorithm = self.algorithm
        if algorithm.surrogates is None or not algorithm.rule.preconditions:
            return "visits are compared with visits to surrogates: set surrogates, and a step that preconditions"
        if algorithm.batch_size is not None and not algorithm.control_variate:
            return "the noise of minibatches looks like a faulty client: use batch_size=None or control_variate=True"
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Visits limited to the reach around p_t, with the step sizes that the server knows."""
        messages, stride = sent.messages, self.algorithm.step_sizes.stride
        steps, noise, _ = self._steps_noise_and_shares(shared, sent)
        chains = shared["position"]
        start = chains.repeat_interleave(len(noise) // len(chains), 0)  # several clients a chain
        expected = self._visits_to_surrogates(shared, start[None], steps[None], noise[None])[0]
        spread = _spread(shared["held_root"])
        reach = self._reach(limits, shared, steps) * spread
        positions = torch.cat([messages["draws"], messages["position"].unsqueeze(1)], 1)
        departure = positions - expected
        excess = ((departure.abs() - reach).clamp_min(0) / spread).flatten(1).amax(1)
        did_not_move = (messages["position"] == start).all(-1)  # or the visit failed
        excess = torch.where(did_not_move, 0.0, excess)
        limited = expected + torch.minimum(torch.maximum(departure, -reach), reach)
        positions = torch.where((excess > 0).reshape(-1, 1, 1), limited, positions)
        known_steps = steps[stride - 1 :: stride].to(messages["step_size"])  # no client shortens the others' steps
        accepted = {
            "draws": positions[:, :-1],
            "position": positions[:, -1],
            "step_size": known_steps.expand_as(messages["step_size"]),
        }
        return BoundedMessages(shared, messages | accepted, {}, excess.double())

    def _visits_to_surrogates(self, shared: State, start: Tensor, steps: Tensor, noise: Tensor) -> Tensor:
        """p_t of each sent draw and of the end, (R, C, T / stride + 1, D), from the visits' starts (R, C, D).

        `steps` are h of each round (R, T), and `noise` is ξ of each visit (R, C, T, D).
        """
        mean, root = shared["held_mean"], shared["held_root"]
        stride, midpoint = self.algorithm.step_sizes.stride, self.algorithm.rule.midpoint
        white, draws = _times_each(start - mean, _inverse(root)), []
        for h, normal in zip(steps[:, None, :, None].unbind(2), noise.unbind(2), strict=True):
            evaluated_at = white + 0.5 * h.sqrt() * normal if midpoint else white
            white = white - 0.5 * h * evaluated_at + h.sqrt() * normal
            draws.append(evaluated_at if midpoint else white)
        return mean + _times_each(torch.stack([*draws[stride - 1 :: stride], white], 2), root)

    def _reach(self, limits: Bounded, shared: State, steps: Tensor) -> Tensor:
        """R_i t h / 2 of each sent draw and of the end, (T / stride + 1, D), in SDs."""
        stride, departure = self.algorithm.step_sizes.stride, shared["held_departure"]
        accepted = torch.full_like(departure, ACCEPTED_SHIFT_SDS * len(shared["visit_share"]))
        rate = torch.maximum(limits.pull * departure, accepted)
        time = 0.5 * steps.cumsum(0)
        return torch.cat([time[stride - 1 :: stride], time[-1:]]).unsqueeze(-1) * rate

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Distances between the ends of visits and of the same visits to the surrogates; zero without surrogates."""
        if "held_mean" not in shared:
            return torch.zeros(len(sent.clients), dtype=torch.float64)
        steps, noise, weight = self._steps_noise_and_shares(shared, sent)
        return self._distances_of_rounds(
            [shared], sent.messages["position"][None], steps[None], noise[None], weight[None]
        )[0]

    def client_shift_sds_of_rounds(self, before: Sequence[State], ledger: State, sent: SentMessages) -> Tensor | None:
        """Distances of all visits of R rounds at once, if their steps are equal and the noise is known."""
        if self.algorithm.rule.decay or sent.noise is None or "held_mean" not in before[0]:
            return super().client_shift_sds_of_rounds(before, ledger, sent)
        weight = self.chain_shares(before[0], sent.clients)
        noise = sent.noise["normal"].transpose(0, 1).unflatten(0, weight.shape) * weight.rsqrt()[..., None, None]
        steps = torch.stack([shared["step_size"] for shared in before]).unsqueeze(1)
        steps = steps.expand(-1, self.algorithm.local_steps)
        return self._distances_of_rounds(before, sent.messages["position"], steps, noise, weight)

    def _distances_of_rounds(
        self, before: Sequence[State], ends: Tensor, steps: Tensor, noise: Tensor, weight: Tensor
    ) -> Tensor:
        """Distances (R, C) in SDs of visits' ends from those to q, times their parts of chains; zero if one failed."""
        chains = before[0]["position"].shape[0]
        start = torch.stack([shared["position"] for shared in before]).repeat_interleave(ends.shape[1] // chains, 1)
        expected = self._visits_to_surrogates(before[0], start, steps, noise)[:, :, -1]
        distance = ((ends - expected).abs() / _spread(before[0]["held_root"])).amax(-1)
        return torch.where((ends == start).all(-1), 0.0, distance).double() * weight

    def _steps_noise_and_shares(self, shared: State, sent: SentMessages) -> tuple[Tensor, Tensor, Tensor]:
        """h of the steps (T,), noise (C, T, D) and part of its chain (C,) of each visit, whatever messages claim."""
        weight = self.chain_shares(shared, sent.clients)
        position = shared["position"]
        if sent.noise is None:
            shape = self.algorithm.local_steps, position.shape[-1]
            generators = seeding.torch_generators(sent.seed, seeding.client_keys(sent.round, sent.clients.tolist()))
            noise = torch.stack([torch.randn(shape, generator=own, dtype=position.dtype) for own in generators])
        else:
            noise = sent.noise["normal"].transpose(0, 1)
        steps: Tensor = self.algorithm.step_sizes.of_visit(shared["steps"], shared["step_size"])
        return steps, noise * weight.rsqrt().reshape(-1, 1, 1), weight


def _spread(root: Tensor) -> Tensor:
    """The SDs (D,) of the surrogates' Gaussian, from A."""
    return root.square().sum(-1).sqrt() if root.dim() == 2 else root


def _inverse(root: Tensor) -> Tensor:
    """A⁻¹, of an upper triangular A or of its diagonal."""
    if root.dim() == 1:
        return root.reciprocal()
    inverse: Tensor = torch.linalg.solve_triangular(root, torch.eye(len(root)).to(root), upper=True)
    return inverse


def _times_each(values: Tensor, matrix: Tensor) -> Tensor:
    """A x of (R, C, ..., D), as one product for each round: a product of another shape may differ in its last bits."""
    if matrix.dim() == 1:
        return matrix * values
    products = torch.bmm(values.flatten(1, -2), matrix.T.expand(len(values), *matrix.shape))
    return products.reshape(values.shape)


@dataclass(frozen=True, kw_only=True)
class ConduciveVisits(VisitingLangevin):
    """Visits by conducive gradients, beside the same visits to the surrogates.

    Args:
        conducive: a `pf.infer.Conducive`: the weight and the reach of the conducive gradient.
    """

    conducive: Conducive | None = Conducive()

    def __post_init__(self) -> None:
        if self.conducive is not None and not isinstance(self.conducive, Conducive):
            name = type(self).__name__
            raise SettingError(f"{name}: conducive must be a pf.infer.Conducive, received {self.conducive!r}")
        super().__post_init__()

    @property
    def needs_surrogates(self) -> bool:
        """Whether surrogates are used, for conducive gradients or a control variate at their mode."""
        return self.conducive is not None or super().needs_surrogates

    def with_score_terms(self, clients: ClientState, begin: Beginning, visit_share: Tensor) -> ClientState:
        """The clients' states with α g_s, Eq. (6)."""
        clients = super().with_score_terms(clients, begin, visit_share)
        if begin.gaussians is None or self.conducive is None:
            return clients
        sites, target = begin.gaussians
        pull = conducive_gradients(
            require_one_per_client(sites, len(visit_share)), visit_share, begin.anchor, self.conducive.alpha
        )
        clients = clients._replace(pull=pull.value, pull_slope=pull.slope)
        if self.conducive.trust is None:
            return clients
        metric = target.precision.to(begin.anchor.dtype)
        radius = torch.full_like(visit_share, math.sqrt(len(begin.anchor)) + self.conducive.trust)
        return clients._replace(metric=metric.expand(len(visit_share), *metric.shape), trust_radius=radius)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start as `Langevin`, and keep the surrogates' Gaussian and the cohort's errors, to compare visits with."""
        shared, local = super().init(problem, num_clients, generator, start)
        if self.contributions().bounding_obstacle():
            return shared, local
        mean, root = local["anchor"][0], local["factor"][0]
        mismatch = None if start is None else start.shared.get("mismatch")
        departure = torch.zeros_like(mean) if mismatch is None else mismatch.clamp_min(0).sqrt().to(mean.dtype)
        return shared | {"held_mean": mean, "held_root": root, "held_departure": departure}, local

    def contributions(self) -> Contributions:
        return VisitContributions(self)
