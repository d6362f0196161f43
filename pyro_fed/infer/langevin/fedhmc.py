"""Hamiltonian Monte Carlo over the clients' exact scores: one round is one leapfrog step of all chains.

Source: Neal, *MCMC using Hamiltonian dynamics* (2011); many short chains that share their adaptation as in Hoffman,
Radul & Sountsov, *An adaptive MCMC scheme for setting trajectory lengths in Hamiltonian Monte Carlo* (2021).

    f(θ) = log p_0(θ) + Σ_k log p_k(θ),    A A' = Cov(θ)

In a round the server sends the M points at which trajectories are, θ (M, D). Every client answers with its
log-likelihood log p_k and its score there, each a sum over its rows. The server adds them up, adds the prior's, and
makes the step, or accepts a trajectory's end and begins the next (`trajectories` has the equations). Only sums are
needed, and the draws are the posterior's own: the Gaussian of other algorithms is where chains begin, and the first A.

A round costs the clients M scores, whatever a trajectory needs, so that many chains are cheap and rounds are dear. All
chains have the same number of steps in a trajectory, and none waits for another's, as in trees of NUTS.

Windows of 8, 16, 32, ... trajectories follow each other. In a window ε and A are constant, and the kernel is that of a
Markov chain with the posterior as its stationary distribution. Between two windows A becomes the root of the draws'
covariance, and ε follows from the acceptance. The draws of the last window and of the present one are kept; those
before are burn-in, about as many. The run ends at `target_ess` effective draws with a small R-hat, in the second window
at the earliest.

Deviations from ChEES-HMC: the length of trajectories is a setting, since A makes π/2 about the best one at once; A is
dense; ε follows from Eq. (2) of `trajectories` in place of a gradient; windows in place of a decaying adaptation.

Letters: θ `point`, ε `step_size`, A `factor`, M `num_chains`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Start, State, Tempered
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores_and_values, prior_scores_and_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chains import StoredChains, chain_findings
from pyro_fed.infer.langevin.trajectories import HmcState, first_step, retuned_factor, retuned_step, steps_of
from pyro_fed.infer.langevin.visits import at_surrogates
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.surrogates import Surrogates, check_surrogates, surrogate_phase
from pyro_fed.ops.entries import choose
from pyro_fed.ops.hamiltonian import LENGTH_JITTER, MAX_ENERGY_ERROR, acceptance, fresh_momenta

#: Trajectories of the first window; each window is twice as long as the one before.
FIRST_WINDOW = 8


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedHMC(StoredChains, Tempered):
    """Hamiltonian Monte Carlo over the clients' exact scores: exact, by sums alone, with one leapfrog step a round.

    Args:
        num_chains: M, chains that run at once, whose scores travel in one message. More need fewer rounds.
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is small.
        target_accept: the mean acceptance that steps are tuned for; raise it if trajectories diverge.
        length: of trajectories, in SDs of the posterior: a quarter of a turn, π/2, makes ends independent of starts
            where the posterior is a Gaussian.
        surrogates: where the chains begin, and the first preconditioner: an algorithm that leaves Gaussian sites, its
            name, "laplace", "fedep" or "local_sgld", `Given`, or "auto": "fedep" as far as that has a full covariance
            by default, and "laplace" beyond.

    References:
        Neal (2011), MCMC using Hamiltonian dynamics, Section 5.3.2. Hoffman, Radul & Sountsov (2021), An adaptive MCMC
        scheme for setting trajectory lengths in Hamiltonian Monte Carlo.

    Example:
        >>> idata = pf.run(pf.infer.FedHMC(), fed)
        >>> idata = pf.run(pf.infer.FedHMC(target_accept=0.95, surrogates="laplace"), fed)
    """

    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True
    may_be_infinite: ClassVar[frozenset[str]] = frozenset({"trajectory.value", "prior_value", "r_hat", "ess"})

    num_chains: int = 64
    target_ess: int = 1000
    target_accept: float = 0.8
    length: float = math.pi / 2
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_chains")
        check_at_least(self, 1, "target_ess")
        check_between(self, "target_accept", 0.0, 1.0)
        check_positive(self, "length", "temperature")
        check_surrogates(self)

    def default_rounds(self, num_clients: int) -> int:
        """At most 5,000 rounds; the run ends at `target_ess` effective draws."""
        return 5000

    def expected_rounds(self, dim: int) -> int:
        """Rounds of the first window, and of a trajectory for each effective draw: those of a Gaussian posterior."""
        trajectories = FIRST_WINDOW + max(FIRST_WINDOW, math.ceil(self.target_ess / self.num_chains))
        return 1 + trajectories * steps_of(self.length, first_step(dim, self.target_accept))

    # -- start ----------------------------------------------------------------------------------------------
    def warm_start(self, problem: Problem) -> Algorithm | None:
        return surrogate_phase(self.surrogates, self.temperature)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of the surrogates' Gaussian."""
        begin = at_surrogates(problem, self.surrogates, start, self.num_chains, True, generator)
        key = torch.randint(2**62, (), generator=generator)
        step = first_step(problem.dim, self.target_accept)
        return as_entries(HmcState.begin(begin.position, begin.factor, step, num_clients, key)), {}

    # -- a round --------------------------------------------------------------------------------------------
    def prepare(self, problem: Problem, shared: State) -> State:
        """Compute the prior and its score at the trajectories' points."""
        both = problem.mapped(prior_scores_and_values, (0,))(entries_as(HmcState, shared).points()[None])
        score, value = (part[0].double() for part in both)
        inside = value.isfinite() & score.isfinite().all(-1)
        value, score = choose(inside, value, -torch.inf), choose(inside, score, 0.0)
        return {**shared, "prior_value": value, "prior_score": score}

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({"point": entries_as(HmcState, shared).points()}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Any) -> LocalResult:
        """The clients' log-likelihoods (C, M) and scores (C, M, D); `outside` counts points of density zero."""
        score, value = clients_likelihood_scores_and_values(problem, shared["point"], data)
        inside = value.isfinite() & score.isfinite().all(-1)
        message = {"value": choose(inside, value, 0.0), "score": choose(inside, score, 0.0)}
        return message | {"outside": (~inside).double()}, {}, {}

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return message_limits.outlying_clients(message_limits.sizes(messages["score"]), "score")

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Make a leapfrog step with the clients' sum; at a trajectory's end accept it or not, and begin the next."""
        state = entries_as(HmcState, shared)
        if len(messages["value"]) != int(state.num_clients):
            raise SettingError(
                f"FedHMC adds up the scores of all {int(state.num_clients)} clients in every round, and the schedule "
                f"named {len(messages['value'])}: use schedule.All(), or FSGLD, whose chains visit one client at a time"
            )
        value = state.prior_value + messages["value"].sum(0)
        score = state.prior_score + messages["score"].double().sum(0)
        inside = (messages["outside"].sum(0) == 0) & value.isfinite() & score.isfinite().all(-1)
        value, score = choose(inside, value, -torch.inf), choose(inside, score, 0.0)
        trajectory = state.trajectory
        if int(trajectory.steps_left) > 1:
            return as_entries(state._replace(trajectory=trajectory.stepped(score, state.factor)))
        return as_entries(self._ended(state, value, score))

    def _ended(self, state: HmcState, value: Tensor, score: Tensor) -> HmcState:
        """The state after trajectories' ends, of these densities and scores, with the next trajectories begun."""
        generator = torch.Generator().manual_seed(int(state.key) + int(state.chains.steps))
        uniform = torch.rand(self.num_chains, generator=generator, dtype=torch.float64)
        gain = state.trajectory.energy_gain(value, score, state.factor)
        trajectory = state.trajectory.accepted(uniform < acceptance(gain), value, score)
        moved = state._replace(trajectory=trajectory if int(state.chains.steps) else trajectory.inside())
        moved = self._with_figures(moved.with_draws(self.target_ess), gain)
        momentum, length = fresh_momenta(state.prior_score, generator, LENGTH_JITTER)
        step = float(moved.step_size)
        count = steps_of(self.length, step)
        return moved._replace(trajectory=moved.trajectory.launched(momentum, step * length, count, moved.factor))

    def _with_figures(self, state: HmcState, gain: Tensor) -> HmcState:
        """The state with the figures of trajectories; ε and A change at the end of a window, in the first ε at once."""
        if not int(state.chains.steps) > 1:
            return state  # the first round only finds the density where the chains begin
        inside = gain[gain > -torch.inf]
        accepted = float(acceptance(inside).mean()) if len(inside) else 0.0
        diverged = torch.stack([state.diverged[0], state.diverged[1] + (inside < -MAX_ENERGY_ERROR).sum()])
        state = state._replace(done=state.done + 1, acceptance=state.acceptance + accepted, diverged=diverged)
        first, step = int(state.window) == 0, float(state.step_size)
        if first:
            step = retuned_step(step, accepted, self.target_accept)
            state = state._replace(step_size=state.step_size.new_tensor(step))
        if int(state.done) < FIRST_WINDOW * 2 ** int(state.window):
            return state
        if not first:
            step = retuned_step(step, float(state.acceptance) / int(state.done), self.target_accept)
        kept = int(state.chains.kept)
        draws = state.chains.buffers.draws[:, kept - int(state.done) : kept].double().flatten(0, 1)
        return state.next_window(step, retuned_factor(state.factor, draws))

    # -- the draws ------------------------------------------------------------------------------------------
    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat and ESS as last computed, kept draws, acceptance and divergences, ε, and the window's number."""
        state = entries_as(HmcState, after)
        done = int(state.done)
        return super().monitor(before, after) | {
            "acceptance": float(state.acceptance) / done if done else math.nan,
            "divergences": float(state.diverged.sum()),
            "step_size": float(state.step_size),
            "window": float(state.window),
        }

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether chains agree and have as many effective draws as wanted, in a window after the first."""
        return figures[-1]["window"] > 0 and super().converged(figures)

    def advice(self, problem: Problem, before: State) -> str:
        return "raise target_accept, which makes steps shorter"

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about chains that disagree, too few effective draws, and trajectories that diverged."""
        end = "before the first trajectory"
        notes = chain_findings(record, problem, self.num_chains, end, None, "run more rounds")
        if diverged := record.latest.get("divergences"):
            notes = [sentences.trajectories_diverged(trajectories=diverged), *notes]
        return notes
