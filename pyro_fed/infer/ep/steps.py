"""Step rules of expectation propagation, which determine the server's step from the clients' changes, and its state.

    q ← q Π_k (Δ_k)^s_k,    t_k ← t_k (Δ_k)^s_k,    k = 0 the prior          Guo et al., Algorithms 3 and 4

q moves by the same fractions as the prior's site and the clients' sites, so q = t_0 Π_k t_k holds in every round.

    Backtracked    the largest common s_k up to the damping δ that leaves q a distribution, else one for each change
    Optimised      an optimiser moves q along the product of the changes (Section 2.2.3)
    NewtonSteps    Backtracked, with limits and acceleration, for expected Newton steps (`step_control`)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.infer.averaging.optim import OPTIM, Optimiser
from pyro_fed.infer.sites.gaussian_sites import as_state, drop_batch_axis, flat_like, is_finite
from pyro_fed.ops.backtrack import backtrack, halved
from pyro_fed.ops.gaussian import Gaussian

#: Prefix of the change that a client has sent, in its state until it receives the fraction s_k.
CHANGE = "delta_"
#: Prefix of the state of the optimiser that moves the prior's site.
PRIOR_OPTIM = "prior_optim"


@dataclass(frozen=True)
class Server:
    """The server's state between rounds, as a record of its entries (`sites.records`)."""

    q: Annotated[Gaussian, ""]  # the approximation, q = t_0 Π_k t_k
    prior: Gaussian  # t_0
    prior_change: Annotated[Gaussian, "prior_delta_"]  # Δ_0 of this round
    prior_value: Tensor  # E_q[log p_0]
    skips_prior: Annotated[Tensor, "prior_known"]  # whether rounds omit these two: t_0 is constant, no bound is needed
    num_clients: Tensor  # K, an integer
    fractions: Tensor  # s_k of the last round's clients, (C,)
    added: Gaussian  # the factor that acceleration adds to q; each site has an equal share of it
    reset: Tensor  # 1 if the last step was rejected: shares of `added` replace the sites
    cut: Tensor  # 1 if the last step was shortened
    memory: State  # the step rule's state, and further entries of derived algorithms

    @classmethod
    def begin(cls, q: Gaussian, prior: Gaussian, skips_prior: bool, num_clients: int, memory: State) -> Server:
        """The state before the first round."""
        flat, one = flat_like(q), torch.ones((), dtype=torch.float64, device=q.eta.device)
        zero = torch.zeros_like(one)
        return cls(
            q=q,
            prior=prior,
            prior_change=flat,
            prior_value=zero,
            skips_prior=torch.tensor(skips_prior),
            num_clients=torch.tensor(num_clients),
            fractions=one.expand(num_clients).clone(),
            added=flat,
            reset=zero,
            cut=zero,
            memory=memory,
        )

    def lower_bound(self, messages: State) -> Tensor | None:
        """The bound Σ_k E_q[log p_k] + E_q[log p_0] + H(q), (), NaN if a term is; None without the clients' values."""
        if "value" not in messages:
            return None
        is_finite_everywhere = messages["usable"].all() & is_finite(self.prior_change)
        value = self.prior_value + messages["value"].sum() + self.q.entropy()
        return torch.where(is_finite_everywhere, value, torch.nan)

    def feedback(self, clients: int) -> State:
        """For each of the round's clients (C, ...): s_k, whether sites are discarded, and its share of `added`."""
        shares = as_state(self.added.power(1.0 / clients), "share_")
        client_shares = {name: part.expand(clients, *part.shape) for name, part in shares.items()}
        return {"fraction": self.fractions, "reset": self.reset.expand(clients), **client_shares}

    def figures(self) -> dict[str, float]:
        """The smallest fraction, the number of zero fractions, whether the step was cut, and the share of clients."""
        return {
            "fraction": float(self.fractions.min()),
            "skipped": float((self.fractions == 0).sum()),
            "cut": float(self.cut),
            "share": len(self.fractions) / int(self.num_clients),
        }


class Step(NamedTuple):
    """The server's step from a round's changes; see `Server` for `added`, `memory`, `cut` and `reset`."""

    q: Gaussian  # after the round
    prior_taken: Gaussian  # (Δ_0)^s_0
    client_fractions: Tensor  # s_k of the clients' changes, (C,), float64; 0 is skipped
    added: Gaussian
    memory: State
    cut: bool = False
    reset: bool = False

    def server_after(self, server: Server, usable: Tensor) -> Server:
        """The server's state after the step; `usable` (C,) is whether each client's change could be used."""
        return replace(
            server,
            q=self.q,
            prior=server.prior.product(self.prior_taken),
            prior_change=flat_like(self.q),
            fractions=self.client_fractions * usable,
            added=self.added,
            reset=torch.full_like(server.reset, float(self.reset)),
            cut=torch.full_like(server.cut, float(self.cut)),
            memory=self.memory,
        )


class StepRule(ABC):
    """A rule for the server's step from the clients' changes."""

    def memory(self, q: Gaussian) -> State:
        """The rule's state before the first round, which begins at q."""
        return {}

    @abstractmethod
    def step(self, server: Server, changes: Gaussian, bound: Tensor | None) -> Step:
        """The step from the changes Δ_0 and Δ_k, (1 + C,), and from `Server.lower_bound`."""


@dataclass(frozen=True)
class Backtracked(StepRule):
    """The largest fractions of the changes, up to the damping δ, that leave q a distribution near the last one.

    Fractions as large as q allows (`largest_fractions`) leave it so wide in some direction that its mean is anywhere.
    """

    damping: float
    reach: float  # longest step of q's mean, in units of √D SDs

    def step(self, server: Server, changes: Gaussian, bound: Tensor | None) -> Step:
        """The step q Π_k (Δ_k)^s_k; `cut` if a fraction is below δ, the prior's or a client's."""
        fractions = largest_fractions(server.q, changes, self.damping)
        damped = changes.power(fractions)
        is_cut = bool((fractions < self.damping).any())
        if is_cut:
            factor = factor_within_reach(server.q, damped.product_over(0), self.reach)
            fractions, damped = factor * fractions, damped.power(factor)
        q = server.q.product(damped.product_over(0))
        return Step(q, drop_batch_axis(damped), fractions[1:], flat_like(q), server.memory, cut=is_cut)


@dataclass(frozen=True)
class Optimised(StepRule):
    """An optimiser's step of q along the product of the changes, backtracked.

    The prior's site moves as a client's site does, so that momentum acts on q and the site alike.
    """

    optimiser: Optimiser  # of q's natural parameters
    site_optimiser: Optimiser | None  # of the prior's site; None takes δ of its change
    rate: float  # their learning rate
    mean: bool  # whether the input is the mean of the clients' changes, in place of their sum

    def memory(self, q: Gaussian) -> State:
        """The optimisers' states before the first round, of q and of the prior's site."""
        first = prefixed(OPTIM, self.optimiser.init(as_state(q), self.rate))
        if self.site_optimiser is None:
            return first
        return {**first, **prefixed(PRIOR_OPTIM, self.site_optimiser.init(as_state(q), self.rate))}

    def step(self, server: Server, changes: Gaussian, bound: Tensor | None) -> Step:
        """The step q optim(Π_k Δ_k), and that of the prior's site."""
        if self.mean:
            weights = torch.full_like(changes.eta[:, 0], 1.0 / (len(changes.eta) - 1))
            weights[0] = 1.0
            changes = changes.power(weights)
        new_q, fraction, q_memory = self._moved_q(server, changes)
        fractions = server.q.eta.new_full((len(changes.eta),), self.rate if fraction > 0 else 0.0)
        prior_taken, prior_memory = self._moved_prior(server, changes, fractions)
        memory = server.memory | q_memory | prior_memory
        return Step(new_q, prior_taken, fractions[1:], flat_like(server.q), memory, cut=fraction < 1)

    def _moved_q(self, server: Server, changes: Gaussian) -> tuple[Gaussian, float, State]:
        """q after the optimiser's step, the fraction of the step that leaves a distribution, and its memory."""
        state = within(server.memory, OPTIM)
        move, new_state = _optimised(self.optimiser, self.rate, server.q, changes.product_over(0), state)
        fraction = backtrack(server.q, move)
        return server.q.product(move.power(fraction)), float(fraction), prefixed(OPTIM, new_state)

    def _moved_prior(self, server: Server, changes: Gaussian, fractions: Tensor) -> tuple[Gaussian, State]:
        """The step of the prior's site, by its optimiser or by its fraction, and the optimiser's memory."""
        if self.site_optimiser is None:
            return drop_batch_axis(changes.power(fractions)), {}
        state, change = within(server.memory, PRIOR_OPTIM), drop_batch_axis(changes)
        step, new_state = _optimised(self.site_optimiser, self.rate, server.prior, change, state)
        return step, prefixed(PRIOR_OPTIM, new_state)


def largest_fractions(q: Gaussian, changes: Gaussian, damping: float) -> Tensor:
    """The fractions s_k (C,) up to δ that leave q a distribution: a common one, or if there is none, one by one."""
    if not damping > 0:  # the limits leave no part of the change
        return torch.zeros(len(changes.eta), dtype=torch.float64, device=q.eta.device)
    joint, count = float(backtrack(q, changes.product_over(0), max_fraction=damping)), len(changes.eta)
    if joint > 0:
        return torch.full((count,), joint, dtype=torch.float64, device=q.eta.device)
    taken = []
    for k in range(count):
        change = type(q)(changes.precision[k], changes.eta[k])
        taken.append(float(backtrack(q, change, max_fraction=damping)))
        q = q.product(change.power(taken[-1]))
    return torch.tensor(taken, dtype=torch.float64, device=q.eta.device)


def factor_within_reach(q: Gaussian, move: Gaussian, reach: float) -> float:
    """The largest factor 1, 1/2, ... on a change of q that moves its mean by at most `reach` √D SDs; 0 if none does."""
    mean = q.mean()

    def is_near(factor: float) -> bool:
        step = q.product(move.power(factor)).mean() - mean
        return bool(-(step * (q.score(mean + step) - q.score(mean))).sum() <= reach**2 * q.dim)

    return halved(is_near)


def optimised_site_steps(optimiser: Optimiser, rate: float, local: State, change: Gaussian) -> tuple[Gaussian, State]:
    """The steps of C clients' sites, t_k ← t_k optim(Δ_k), each by its own optimiser, and the optimisers' states."""
    kind, steps, states = type(change), [], []
    for k in range(len(change.eta)):
        own = {name: value[k] for name, value in within(local, OPTIM).items()}
        site, its_change = kind(local["precision"][k], local["eta"][k]), kind(change.precision[k], change.eta[k])
        step, state = _optimised(optimiser, rate, site, its_change, own)
        steps.append(step)
        states.append(state)
    stacked = prefixed(OPTIM, {name: torch.stack([state[name] for state in states]) for name in states[0]})
    return kind(*(torch.stack(part) for part in zip(*((s.precision, s.eta) for s in steps), strict=True))), stacked


def _optimised(
    optimiser: Optimiser, rate: float, at: Gaussian, change: Gaussian, memory: State
) -> tuple[Gaussian, State]:
    """optim(Δ), the optimiser's step of a Gaussian along its change, and the optimiser's state after it."""
    step, after = optimiser.step(as_state(at), as_state(change), memory, rate)
    return type(at)(step["precision"], step["eta"]), after
