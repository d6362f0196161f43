"""Langevin steps by sums of the clients' scores, where noise for differential privacy is part of the chain's noise.

Source: Wang, Fienberg & Smola (2015), *Privacy for free: posterior sampling and stochastic gradient Monte Carlo*, with
the exact accountant of Gaussian noise (`algorithm.privacy`) in place of theirs, and clients in place of rows.

    θ' = θ + h/2 (∇ log p_0(θ) + S/α) + √(h - (h s / 2α)²) ξ,    S = Σ_k ∇ log p_k(θ) clipped + N(0, s² I)       (1)

In a round every client sends only its score at θ; the server knows the prior. With `pf.Private` (norm r, noise
multiplier z) the sum is released with noise of SD s = z r. Langevin steps need noise of variance h. The release
provides (h s / 2α)² of it. The steps are those of the posterior at temperature α if h ≤ 4 α²/s². At the default,
equality, the release provides all noise. The draws need no correction for noise; clipping biases them.

Privacy: only θ is released. R rounds are R Gaussian mechanisms with noise multiplier z, or zero-concentrated privacy
with ρ = R / 2z². R steps of size 4 α²/s² = 4 α²/(z r)² traverse a posterior of precision λ, at temperature α,

    h R λ / 2α = 4 α λ ρ / r²  times for any R

ε determines the chain's length in relaxation times. A chain that is too short has few effective draws; a temperature
makes it α times as long and the SDs √α times as wide. R determines the step size: hλ/α ≪ 4 is desirable, and the
variance is 1/(1 - hλ/4α) times the correct one, which the autocorrelation of the draws shows.

With `unit="row"` of `pf.Private` each client clips every row's score to `row_norm`, rounds it towards zero to a grid of
2⁻²⁸ to 2⁻²⁷ of that, and then sums in float64. The sum of up to 2²⁵ rows is then exact in any order: a row replaced by
zero changes it by at most `row_norm`, and does not change the rounding of the others (Casacuberta et al. 2022,
*Widespread underestimation of sensitivity in differentially private libraries*).

In a private run ξ comes from the operating system's secure randomness, like the release's noise. ε does not depend on
it: ξ is added after the release, and subtracting it from θ' gives S, which ε covers.

If clients are missing, a round uses K/C times the sum of the others. The noise grows by that factor, and the step
becomes shorter to match.

Letters: θ `position`, h `step_size`, α `temperature`, s `released_noise`, ξ `normal`, K clients, C of a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.combination import Combination, clip
from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.privacy import standard_normal
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.derivatives import likelihood_scores, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chains import ChainStore, Draws, StoredChains, chain_findings
from pyro_fed.infer.langevin.gradients import row_scores
from pyro_fed.infer.sites.records import as_entries, entries_as

if TYPE_CHECKING:
    from pyro_fed.algorithm.privacy import Private

#: Number of grid steps of rows' scores in `row_norm`, as a power of two.
ROW_GRID_BITS = 28


class SummedState(NamedTuple):
    """The server's state."""

    chains: ChainStore  # the chains' positions and draws
    prior_score: Tensor  # ∇ log p_0 at the positions, (M, D)
    step_size: Tensor  # h if all clients reply
    num_clients: Tensor  # K
    key: Tensor  # the seed of ξ


@dataclass(frozen=True, kw_only=True)
class SummedChains(StoredChains):
    """Langevin chains at the server, by the clients' scores at the chains' positions.

    Args:
        step_size: h; about a quarter of the narrowest posterior variance.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        burn_in: first rounds that are not kept.
    """

    #: When the step size may be left out, at the end of the error that asks for it.
    step_size_is_optional: ClassVar[str] = ""

    step_size: float | None = None
    temperature: float = 1.0
    num_chains: int = 1
    burn_in: int = 100
    target_ess: int | None = 500

    def __post_init__(self) -> None:
        check_positive(self, "step_size", allow_none=True)
        check_positive(self, "temperature")
        check_at_least(self, 1, "num_chains")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", allow_none=True)

    def default_rounds(self, num_clients: int) -> int:
        """At most 5,000 rounds; the run ends at `target_ess` effective draws."""
        return 5000

    # -- start ----------------------------------------------------------------------------------------------
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of the prior."""
        position = problem.init(self.num_chains, generator)
        state = SummedState(
            chains=ChainStore.begin(position),
            prior_score=torch.zeros_like(position),
            step_size=torch.tensor(self.first_step_size(problem), dtype=torch.float64),
            num_clients=torch.tensor(num_clients),
            key=torch.randint(2**62, (), generator=generator),
        )
        return as_entries(state), {}

    def first_step_size(self, problem: Problem) -> float:
        """h; SettingError if it is not set."""
        if self.step_size is None:
            raise SettingError(
                f"{type(self).__name__}: give step_size, about a quarter of the narrowest posterior variance, such as "
                f"{1 / max(1, problem.num_rows):.2g}{self.step_size_is_optional}"
            )
        return self.step_size

    # -- a round --------------------------------------------------------------------------------------------
    def prepare(self, problem: Problem, shared: State) -> State:
        return {**shared, "prior_score": prior_scores(problem, shared["position"])}

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({"position": shared["position"]}, clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        return ()

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        return message_limits.outlying_clients(message_limits.sizes(messages["score"]), "score")

    def after_step(self, state: SummedState, score: Tensor, h: float, noise: Tensor) -> SummedState:
        """The state after θ' = θ + h/2 (∇ log p_0 + score / α) + noise; a draw is stored after `burn_in` steps."""
        drift = state.prior_score + score.to(state.prior_score) / self.temperature
        theta = state.chains.position + h / 2 * drift + noise
        chains = state.chains._replace(position=theta, steps=state.chains.steps + 1)
        if int(chains.steps) > self.burn_in:
            ones = theta.new_ones(len(theta), 1)
            draws = Draws(theta[:, None], -ones, drift.norm(dim=-1, keepdim=True), h * ones)
            chains = chains.append(draws, self.target_ess)
        return state._replace(chains=chains)

    def normal(self, state: SummedState) -> Tensor:
        """ξ, of the positions' shape."""
        at = state.chains.position
        generator = torch.Generator().manual_seed(int(state.key) + int(state.chains.steps))
        return torch.randn(at.shape, generator=generator, dtype=at.dtype).to(at.device)

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat and ESS as last computed, the number of stored draws, and the factor by which steps widen SDs."""
        chains = entries_as(ChainStore, after)
        judged = int(chains.judged) > int(entries_as(ChainStore, before).judged)
        return super().monitor(before, after) | {"widened": widening(chains) if judged else math.nan}

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the target number of effective draws is reached."""
        return None if self.target_ess is None else super().converged(figures)

    def advice(self, problem: Problem, before: State) -> str:
        return f"reduce step_size below its present {float(before['step_size']):.3g}"

    @property
    def cure(self) -> str:
        """The cure of too few draws."""
        return "run more rounds"

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about chains that disagree, too few effective draws, and steps that are too long."""
        end, step_size = f"within burn_in={self.burn_in} rounds", self.first_step_size(problem)
        notes = chain_findings(record, problem, self.num_chains, end, step_size, self.cure)
        widenings = [one["widened"] for one in record.figures if one and not math.isnan(one["widened"])]
        if widenings and not widenings[-1] <= SD_MATTERS:
            notes.append(sentences.steps_widen_draws(factor=widenings[-1]))
        return notes


@dataclass(frozen=True)
class SummedContributions(Contributions):
    """Contributions to `SummedLangevin`, where privacy noise is part of the chain's noise."""

    noise_in_draws: ClassVar[bool] = True

    def form_for(self, combination: Combination | None) -> Any:
        """The algorithm in which the noise of a private release replaces part of the chain's noise."""
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
                f"{name}: Private(unit='row', norm={private.norm:g}) needs row_norm={private.norm:g} here, to which "
                f"the clients clip their rows' scores; received row_norm={algorithm.row_norm}"
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
        return replace(self.algorithm, released_noise=0.0)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SummedLangevin(SummedChains):
    """Langevin steps by sums of all clients' scores: a sampler under differential privacy or secure aggregation.

    There is no preconditioner: unconstrained parameters should have posteriors of similar width, as with standardised
    covariates.

    Args:
        step_size: h; about a quarter of the narrowest posterior variance. None, with `pf.Private`, takes the longest
            step that its noise allows, 4 α² / (norm × noise_multiplier)².
        temperature: α of generalised Bayes; the likelihood is raised to 1/α. Under privacy it makes the chain α times
            as long and the SDs √α times as wide.
        num_chains: M. Under privacy the chains share the norm, so that one chain is best.
        target_ess: the run ends when the slowest coordinate has this many effective draws; None runs all rounds, as
            private runs do.
        row_norm: norm to which rows' scores are clipped, for `pf.Private(unit="row")`, whose norm it has to equal; None
            does not clip.
        released_noise: s, set by the run from `pf.Private`, not by hand.

    References:
        Welling & Teh (2011). Wang, Fienberg & Smola (2015), Privacy for free.

    Example:
        >>> private = pf.Private(norm=15.0, noise_multiplier=30.0)
        >>> idata = pf.run(pf.infer.SummedLangevin(temperature=4.0), fed, num_rounds=400, combination=private)
        >>> idata = pf.run(pf.infer.SummedLangevin(step_size=0.01), fed)
    """

    additive: ClassVar[bool] = True
    step_size_is_optional: ClassVar[str] = "; only with combination=pf.Private(...) it follows from the noise"

    row_norm: float | None = None
    released_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "row_norm", allow_none=True)
        check_between(self, "released_noise", 0.0, math.inf, "[)")

    # -- privacy --------------------------------------------------------------------------------------------
    def contributions(self) -> Contributions:
        return SummedContributions(self)

    def first_step_size(self, problem: Problem) -> float:
        """h; by default the longest step that the privacy noise allows."""
        noise = self.released_noise / self.temperature
        if self.step_size is None and noise:
            return 4 / noise**2
        return super().first_step_size(problem)

    # -- a round --------------------------------------------------------------------------------------------
    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute the clients' scores, (C, M, D)."""
        scores = problem.mapped(self._scores, (0, BATCHES))(shared["position"], data.full_batch())
        return {"score": scores}, {}, {}

    def _scores(self, problem: Problem, position: Tensor, batch: Batch) -> Tensor:
        """The score of a client's likelihood at each chain, (M, D), with rows' scores clipped to `row_norm`."""
        if self.row_norm is None:
            return likelihood_scores(problem, position, batch)
        by_row = torch.stack([row_scores(problem, z, batch.rows) for z in position.unbind(0)], 1)  # (m, M, D)
        step = 2.0 ** (math.frexp(self.row_norm)[1] - ROW_GRID_BITS)
        clipped = (clip(by_row.double().flatten(1), self.row_norm) / step).trunc().reshape(by_row.shape)
        return step * (batch.weight[:, None, None] * clipped).sum(0)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take a step of Eq. (1), with K/C times the sum of C clients' scores, and the remaining noise."""
        state, score = entries_as(SummedState, shared), messages["score"]
        scale = int(state.num_clients) / len(score)
        h, s_over_alpha = float(state.step_size), scale * self.released_noise / self.temperature
        if s_over_alpha:
            h = min(h, 4 / s_over_alpha**2)
        noise_scale = math.sqrt(max(0.0, h - (h * s_over_alpha / 2) ** 2))
        return as_entries(self.after_step(state, scale * score.sum(0), h, noise_scale * self.normal(state)))

    def normal(self, state: SummedState) -> Tensor:
        """ξ, from secure randomness in a private run."""
        return standard_normal(state.chains.position) if self.released_noise else super().normal(state)

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the target number of effective draws is reached; None if an early end would reveal facts on rows."""
        return None if self.released_noise else super().converged(figures)

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of a chain that became non-finite: a shorter step."""
        if self.step_size is not None:
            return super().advice(problem, before)
        step = f"{float(before['step_size']):.3g}"
        return (
            f"give a step_size below {step}, the longest that the noise of pf.Private allows: about a quarter of the "
            "narrowest posterior variance"
        )

    @property
    def cure(self) -> str:
        """The cure of too few draws; under privacy, rounds are not free."""
        return "raise temperature, spend more epsilon, or have more clients" if self.released_noise else super().cure


#: Smallest number of draws per parameter for which the autocorrelation of every direction can be estimated.
DRAWS_PER_PARAMETER = 20


def widening(chains: ChainStore) -> float:
    """Largest factor by which the steps widen an SD, from the draws; infinite if the steps do not contract."""
    draws = chains.buffers.draws[:, : int(chains.kept)].double()
    centred = (draws - draws.mean(1, keepdim=True)).cpu().numpy()
    lowest = smallest_autocorrelation(centred)
    contraction = (1 + lowest) / 2
    return math.inf if contraction <= 0 else contraction**-0.5


def smallest_autocorrelation(centred: np.ndarray) -> float:
    """The smallest lag-one autocorrelation of centred chains (M, n, D), only of coordinates if draws are few."""
    chains, draws, dim = centred.shape
    centred = centred / np.abs(centred).max()  # scaled, since a diverging chain may still be finite
    current, next_draws = (part.reshape(-1, dim) for part in (centred[:, :-1], centred[:, 1:]))
    variance = (centred.reshape(-1, dim) ** 2).mean(0)
    if chains * draws < DRAWS_PER_PARAMETER * dim:
        return float(((current * next_draws).mean(0) / variance).min())
    whole = centred.reshape(-1, dim)
    values, vectors = np.linalg.eigh(whole.T @ whole / len(whole))
    white = vectors / np.sqrt(values.clip(np.finfo(float).tiny))
    lagged = white.T @ (current.T @ next_draws / len(current)) @ white
    return float(np.linalg.eigvalsh((lagged + lagged.T) / 2).min())
