"""Federated importance sampling: Gaussian sites corrected by one round in which clients send only numbers.

    E_p f = Σ_s w_s f(z_s) / Σ_s w_s,        w_s = u_s Π_k p_k(z_s),        E w = ∫ p_0 Π_k p_k = p(y)

After any algorithm that leaves a Gaussian site t_k at each client, the server

    1. draws z_s with weights u_s = a_s / t(z_s): weighted by a_s the draws represent p_0 t, the posterior as far as the
       sites are right; weighted by u_s they represent the prior (`surrogates.proposals`);
    2. sends them to all clients, which return log p_k(z_s), S numbers (with many rows from a sample, see
       `density.derivatives.few_rows`);
    3. computes  log w_s = log u_s + Σ_k log p_k(z_s),

and smooths the weights (Vehtari et al. 2024). The result consists of S' draws, resampled by weight. The mean of the
weights is the evidence, for Bayes factors.

The result is asymptotically exact for all sites, whereas FedEP's error remains. The weights show the distance from that
limit: a run warns if parts of the draws disagree about a mean or an SD by a relevant amount. Often only the prior is
far from a Gaussian, and step 1, which needs no messages, makes most of the correction. Weights cannot detect a mode
that the sites do not reach.

Particles and chains have no sites. If they are the surrogates, z_s are draws of a mixture around them, which in few
dimensions follows all shapes and several modes. If the surrogates are `FedAIS` itself, the mixture is around its draws,
selected by their weights to the power that leaves enough of them (adaptive importance sampling, as in Cappé et al.
2004). A mode that the first round misses is also missed by the second.

Sources: Neal (2001) for annealing; Yao et al. (2018) for the use of k with approximations; Cappé, Guillin, Marin &
Robert (2004), *Population Monte Carlo*, for proposals around weighted draws.

Letters: z `draws`, logarithm of w `log_weights`, t_k `held_` sites, S `num_proposals`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, Tempered, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.message_limits import IMPOSSIBLE
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import cures
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import DivergenceError
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.surrogates.proposals import (
    Defence,
    Proposals,
    around_points,
    log_likelihoods_beyond_rounding,
    log_ratio_of_prior_and_sites,
    with_few_impossible,
)
from pyro_fed.infer.surrogates.surrogates import (
    Given,
    Name,
    check_surrogates,
    fitted_surrogates,
    require_one_per_client,
    surrogate_phase,
)
from pyro_fed.infer.surrogates.weighted_draws import HELD, LogLikContributions, WeightedDraws, weight_findings
from pyro_fed.ops.annealing import Annealed, Difference, anneal_sparingly, from_normal, levels_for
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import flattened, systematic
from pyro_fed.ops.points import even_normals
from pyro_fed.ops.student import Tails
from pyro_fed.ops.whitening import Coordinates, diagonal_coordinates

#: Largest number of particles, or draws, around which draws are proposed.
MAX_CENTRES = 400
#: Smallest effective number of draws for proposals around weighted draws.
MIN_EFFECTIVE_CENTRES = 100


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedAIS(Tempered):
    """Federated annealed importance sampling: exact in the limit, with a diagnostic of its error.

    Args:
        surrogates: the source of the sites: an algorithm that leaves Gaussian ones at the clients, or its name:
            "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, "local_sgld" for `LocalSGLD()`, and "auto" for "fedep"
            up to its 100 parameters and "laplace" beyond. `Given` has them as tensors. With an algorithm of particles
            or chains, such as `DSVGD()`, or another `FedAIS()`, draws are proposed around its points.
        num_proposals: S, number of draws at which every client sends its log-likelihood.
        freedom: degrees of freedom ν of the tails of the sites' product; None uses Gaussian tails and no wide proposals
            (see `proposals`). If the product fits, the tails add a variance of (D / (ν + D))² / 2 to the log weights,
            which is less than 1/2 in every dimension.
        levels: J, largest number of annealing temperatures. The number is chosen so that the variance of the log
            weights is `spread`, with a fifth of J if that suffices.
        flat: there is no annealing if the SD of log p_0 t - log q over draws is less than this.
        spread: target for the variance of the log weights after all temperatures.
        leapfrog_steps: leapfrog steps of an annealing transition.
        step_size: size of the leapfrog steps, in SDs of q.
        min_effective: number of effective draws below which a run warns.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α, also for surrogates given by name.

    The record and the result's `attrs` have `pareto_k`, `effective_draws`, `accepted` (the acceptance rate of
    transitions), and, if all priors are proper, `log_evidence` log p(y) with its standard error `log_evidence_se`.

    References:
        Neal (2001), Annealed importance sampling. Vehtari et al. (2024), Pareto smoothed importance sampling.

    Example:
        >>> idata = pf.run(pf.FedAIS(), fed)
        >>> evidence, error = idata.attrs["log_evidence"], idata.attrs["log_evidence_se"]
    """

    remedy: ClassVar[str] = cures.OF_WEIGHTS

    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    surrogates: Algorithm | Given | Name = "auto"
    num_proposals: int = 8000
    freedom: float | None = 5.0
    levels: int = 32
    flat: float = 0.01
    spread: float = 0.1
    leapfrog_steps: int = 8
    step_size: float = 0.25
    min_effective: int = 400

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_proposals")
        check_at_least(self, 1, "levels", "leapfrog_steps", "min_effective")
        check_positive(self, "flat", "spread", "step_size", "temperature")
        check_positive(self, "freedom", allow_none=True)
        check_surrogates(self)

    def default_rounds(self, num_clients: int) -> int:
        """One round with all clients; the run ends when each has answered."""
        return num_clients

    def warm_start(self, problem: Problem) -> Algorithm | None:
        return surrogate_phase(self.surrogates, self.temperature)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start with proposals and log u_s (step 1), and at each client its site, if there are sites."""
        if self._has_point_surrogates:
            points = self._points(required_start(start, self), generator)
            proposals, sites = around_points(problem, points, self.num_proposals, generator), State()
        else:
            surrogates = self.surrogates if isinstance(self.surrogates, Given) else self.warm_start(problem)
            each, q = fitted_surrogates(problem, surrogates, start)
            product = require_one_per_client(each, num_clients).product_over(0)
            proposals, sites = self._annealed_proposals(problem, product, q, generator), as_state(each, HELD)
        if unknown := int(proposals.log_weights.isnan().sum()):
            raise DivergenceError(
                f"FedAIS: the prior's density is NaN at {unknown} of {len(proposals.draws)} draws around its "
                "surrogates. Use float64 (dtype=torch.float64 of the federation), or other surrogates"
            )
        drawn = WeightedDraws.begin(proposals, num_clients, proper=not problem.traits.improper)
        return drawn._asdict(), {"answered": drawn.answered.new_zeros(num_clients)} | sites

    def _annealed_proposals(
        self, problem: Problem, product: Gaussian, q: Gaussian, generator: torch.Generator
    ) -> Proposals:
        """Draws z_s with u_s = a_s / t(z_s); `product` is Π_k t_k, and q is near p_0 Π_k t_k."""
        whitened = Coordinates.of(q)
        coordinates, site, turn = diagonal_coordinates(whitened, whitened.site(product.to(torch.float64)))
        tails = Tails.of(site, self.freedom)
        constant = product.log_factor(coordinates.mean) - q.log_prob(coordinates.mean)
        annealed = self._annealed(
            log_ratio_of_prior_and_sites(problem, coordinates, site, constant, tails), q, turn, generator
        )
        draws = coordinates.model(annealed.white).to(problem.dtype)
        log_t = product.log_factor(draws.double()) + tails.log_ratio(annealed.white)[0]
        return Proposals(draws, annealed.log_weights - log_t, annealed.accepted)

    def _annealed(
        self, difference: Difference, q: Gaussian, turn: Tensor | None, generator: torch.Generator
    ) -> Annealed:
        """Whitened draws of p_0 t, with log a_s; `turn` is the rotation of the whitened coordinates, if any."""
        white = even_normals(self.num_proposals, q.dim, generator).to(q.eta.device)
        white = white if turn is None else white @ turn
        value = difference(white)[0]
        if float(value.std()) < self.flat:
            return Annealed(white, value, value.new_ones(()))
        levels = min(self.levels, levels_for(value[value > -torch.inf], self.spread))
        how: Any = {"levels": levels, "leapfrog_steps": self.leapfrog_steps, "step_size": self.step_size, "axes": turn}
        log_normaliser = float(value.logsumexp(0)) - math.log(len(value))
        if self.freedom is None or not math.isfinite(log_normaliser):
            return anneal_sparingly(from_normal(difference), white, generator, **how)
        defence = Defence(log_normaliser)
        log_densities = defence.log_densities(difference)
        annealed = anneal_sparingly(log_densities, defence.draws(white, generator), generator, **how)
        log_share_of_target = difference(annealed.white)[0] - log_densities(annealed.white)[0][0]
        return annealed._replace(log_weights=annealed.log_weights + log_share_of_target)

    @property
    def _has_point_surrogates(self) -> bool:
        """Whether the surrogates are points instead of sites."""
        surrogates = self.surrogates
        points = isinstance(surrogates, Algorithm) and surrogates.draws_are in ("particles", "chains")
        return points or isinstance(surrogates, FedAIS)

    def _points(self, start: Start, generator: torch.Generator) -> Tensor:
        """The points of particles, chains or weighted draws, (N, D)."""
        surrogates = cast_checked(self.surrogates, Algorithm)
        if isinstance(surrogates, FedAIS):
            before = entries_as(WeightedDraws, start.shared)
            weights = flattened(before.log_weights, min(MIN_EFFECTIVE_CENTRES, surrogates.num_proposals / 2))
            return before.draws[systematic(weights, MAX_CENTRES, generator).unique()]
        points = surrogates.sample(start.shared, MAX_CENTRES, generator).flatten(0, 1)
        return points[evenly(len(points), MAX_CENTRES)]

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({"draws": shared["draws"]}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Compute log p_k(z_s) (step 2), (C, S), float64, zero for clients that have answered before."""
        log_lik = log_likelihoods_beyond_rounding(problem, shared["draws"], data)
        values = with_few_impossible(log_lik).clamp_min(IMPOSSIBLE)
        new = 1 - local["answered"]
        message = {"log_lik": torch.where(new[:, None] > 0, values, 0.0), "answered": new}
        return message, {"answered": torch.ones_like(new)}, {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return entries_as(WeightedDraws, shared).with_answers(messages["log_lik"], messages["answered"])._asdict()

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return entries_as(WeightedDraws, after).figures()

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        return figures[-1]["answered"] >= 1

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return entries_as(WeightedDraws, shared).sample(num_draws, generator)[None]

    # -- warnings about the draws ---------------------------------------------------------------------------
    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """The largest differences of a mean and of an SD between parts of the draws."""
        return figures.get("mean_error", 0.0), figures.get("sd_error", 0.0)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        return weight_findings(record, self.num_proposals, self.min_effective)

    def advice(self, problem: Problem, before: State) -> str:
        return "a log-likelihood is not a number at draws of the sites' Gaussian: give other surrogates"

    # -- faulty clients -------------------------------------------------------------------------------------
    def contributions(self) -> Contributions:
        return LogLikContributions(self, sites_known=not self._has_point_surrogates)
