"""Contributions of clients to particles: residuals of their scores from those of their Gaussian sites, and turns.

At the n-th particle the server knows the score of client k's surrogate and, from k's messages, the residual

    r_{k,n} = ∇ log p_k(z_n) - (η_k - Λ_k z_n)         R_k = (mean_n |r_{k,n}|²)^(1/2)

in SDs of the Gaussian that whitens the particles: a residual of e moves the mean by e SDs. It is limited to

    R_k ≤ max(b ρ_k^(1/2) med_j R_j / ρ_j^(1/2), `ACCEPTED_SHIFT_SDS`)

with ρ the rows over the median client's, at least 1 for R_k; beyond twice this bound it is reduced as in
`algorithm.bounding`. The server validates the new particles: it computes the turn itself, towards the prior and all
clients' sites with the previous residuals, and accepts the client's particles if all are within one turn's longest move
of its own,

    L h (1 + t / `DECAY_OFFSET`)^-`decay`

Otherwise it uses its own. AdaGrad's state and the figures of convergence are also computed by the server. The next
clients have exact scores at these particles, which corrects turns that were too short or too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import ACCEPTED_SHIFT_SDS, cohort_reach, redescending, relative_rows
from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.message_limits import LARGEST_RATIO
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.ops.whitening import site_scores


def held_residuals(
    known: Tensor, clients: Tensor, sent: Tensor, rows: Tensor | None, pull: float
) -> tuple[Tensor, Tensor]:
    """Residuals (C, N, D) within the cohort's limits, given earlier ones (K, N, D); and each one's excess, (C,)."""
    everyone = known.clone()
    everyone[clients] = sent.to(known)
    row_ratio = relative_rows(rows, known)
    size = everyone.double().square().sum(-1).mean(-1).sqrt().to(known)
    reach = cohort_reach(size, pull, row_ratio, row_ratio.sqrt()).clamp_min(ACCEPTED_SHIFT_SDS)[clients]
    own = size[clients]
    short = torch.where(own > reach, redescending(own, reach) / own, 1.0)
    return sent * short.reshape(-1, 1, 1), (own - reach).double().clamp(0, LARGEST_RATIO)


@dataclass(frozen=True)
class TurnContributions(Contributions):
    """Contributions to `DSVGD`, whose clients take turns with the particles."""

    def account_for_bounds(self, shared: State, local: State) -> State:
        return {"residual": local["residual"]}

    def bounding_obstacle(self) -> str | None:
        """Why a turn cannot be compared with one towards the clients' sites; "" if it can."""
        if self.algorithm.start == "gaussian":
            return ""
        return "turns are compared with turns towards Gaussian sites: use start='gaussian'"

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit the client's residual by the cohort's, and its particles to the reach of the server's own turn."""
        algorithm = self.algorithm
        algorithm.require_one(sent.clients)
        # A client's residual builds on its earlier messages: what it `claimed` is kept beside what was `taken`.
        state, message = _with_account(shared, ledger), sent.messages
        residual = message["residuals"] - (shared["residuals"] - state["claimed"][sent.clients])
        accepted, cut = held_residuals(state["taken"], sent.clients, residual, sent.rows, limits.pull)
        change = accepted - state["taken"][sent.clients]
        own, figures = algorithm.server_turn(cast(Problem, sent.problem), shared)
        reach = algorithm.local_steps * shared["step_factor"] * algorithm.step_size
        reach = reach * (1 + shared["steps"] / algorithm.optimiser.offset) ** -algorithm.decay
        white = message["white"][0]
        beyond = ((white - own["white"]).abs().amax() - reach).double().clamp(0, LARGEST_RATIO)
        held = {
            "white": (white if float(beyond) == 0 else own["white"])[None],
            "residuals": shared["residuals"] + change,
            **{name: own[name][None] for name in ("history", "steps")},
            **{name: value[None] for name, value in figures.items()},
        }
        after = _ledger_after_messages(state, sent.clients, residual, accepted)
        return BoundedMessages(after, held, {}, cut + beyond)

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        return (sent.messages["white"].mean(-2) - shared["white"].mean(-2)).abs().amax(-1).double()


@dataclass(frozen=True)
class ResidualContributions(TurnContributions):
    """Contributions to `ParallelDSVGD`: clients send changes of their residuals, and the server moves particles."""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit changes so that no client's residual exceeds the cohort's limits."""
        state = _with_account(shared, ledger)
        claimed = state["claimed"][sent.clients] + sent.messages["change"]
        accepted, cut = held_residuals(state["taken"], sent.clients, claimed, sent.rows, limits.pull)
        change = accepted - state["taken"][sent.clients]
        after = _ledger_after_messages(state, sent.clients, claimed, accepted)
        return BoundedMessages(after, {"change": change}, {}, cut)

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        return sent.messages["change"].mean(-2).abs().amax(-1).double()


def _with_account(shared: State, ledger: State) -> State:
    """The server's state with the residuals that clients sent, and their accepted parts."""
    if "claimed" in shared:
        return shared
    residual = ledger["residual"].to(shared["residuals"])
    return {**shared, "claimed": residual, "taken": residual.clone()}


def _ledger_after_messages(state: State, clients: Tensor, claimed: Tensor, taken: Tensor) -> State:
    """The server's record after some clients' messages, (C, N, D)."""
    new = {"claimed": claimed, "taken": taken}
    return {**state, **{name: state[name].index_copy(0, clients, value) for name, value in new.items()}}


@dataclass(frozen=True)
class SurveyContributions(Contributions):
    """Contributions to `Survey`: the clients' scores at its points, compared with those of their sites."""

    def account_for_bounds(self, shared: State, local: State) -> State:
        return {name: local[name] for name in ("precision", "eta")}

    def bounding_obstacle(self) -> str | None:
        """Why scores cannot be compared with those of the clients' sites; "" if they can."""
        if self.algorithm.begin == "gaussian":
            return ""
        return (
            "clients' scores are compared with those of their Gaussian sites. Where modes are looked for, or particles "
            "begin as draws of the prior, these sites say nothing: take start='gaussian'"
        )

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Limit the distances of scores from those of the clients' sites by the cohort's; the server keeps them."""
        expected = site_scores(ledger["precision"], ledger["eta"], shared["white"])
        residual = sent.messages["scores"] - expected[sent.clients]
        accepted, cut = held_residuals(torch.zeros_like(expected), sent.clients, residual, sent.rows, limits.pull)
        scores = expected.index_copy(0, sent.clients, expected[sent.clients] + accepted)
        return BoundedMessages({**shared, "held_scores": scores}, {"scores": scores[sent.clients]}, {}, cut)

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        return {"scores": site_scores(ledger["precision"], ledger["eta"], shared["white"])[clients]}
