"""Federated importance sampling: Gaussian sites put right by one round in which clients send numbers alone.

After any algorithm that leaves a Gaussian site t_k at each client, the server, alone,

    1. draws z_s of the Gaussian q, and takes them to p_0(z) t(z), the exact prior with the sites, by annealed
       importance sampling (`ops.annealing`), of weights a_s. t is Π_k t_k with the tails of Student's t
       (`ops.student`): where a likelihood falls more slowly than its Gaussian site, weights would have no variance.
       Half of the draws are wider than q, and stay so (`defence`): where the likelihood does not fall at all, as a
       ridge's does not, prior times sites ends before the posterior;
    2. sends them to all clients, who answer with log p_k(z_s), S numbers (of many rows by few, see `sites.few_rows`);
    3. corrects the weights,  log w_s = log a_s + Σ_k log p_k(z_s) - log t(z_s),

and smooths them (Vehtari et al. 2024). The result is S' draws of the weighted ones, and

    E w = ∫ p_0 Π_k p_k = p(y)                                                  the evidence, for Bayes factors.

Asymptotically exact for any sites, where FedEP's error stays; how far "asymptotically" is away the weights say
themselves: a run warns where parts of the draws disagree about a mean or an SD by what matters. What a Gaussian cannot
follow is mostly the prior (a precision that is shared by many weights), so that step 1 does most of the work without a
message; likelihoods of many rows are near their sites. Weights cannot see a mode that the sites do not reach.

Particles and chains have no sites: where these are the surrogates, z_s are draws of a mixture around them
(`surrogates.neighbourhoods`), a_s / t is p_0 / q at each, and nothing is annealed. In few dimensions that follows
any shape, and several modes. So are they where the surrogates are `FedAIS` itself: around its draws, chosen by their
weights, which are raised to the power that leaves enough of them (adaptive importance sampling, as Cappé et al. 2004).
What the first round saw nothing of, a mode, the second does not see either.

None of the papers has this. Neal (2001) has the annealing, Yao et al. (2018) the use of k for an approximation, Cappé,
Guillin, Marin & Robert (2004), *Population Monte Carlo*, proposals around weighted draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, required_start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.kinds import cast_checked
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.density.scores import prior_scores_and_values
from pyro_fed.errors import DivergenceError
from pyro_fed.infer.sites.few_rows import log_likelihoods_at
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.infer.sites.whitening import Coordinates, turned
from pyro_fed.infer.surrogates.contributions import HELD, LogLikContributions
from pyro_fed.infer.surrogates.defence import Defence
from pyro_fed.infer.surrogates.neighbourhoods import FREEDOM, around
from pyro_fed.infer.surrogates.phase import Name, check_surrogates, surrogate_phase
from pyro_fed.infer.surrogates.surrogates import Given, fitted, one_each
from pyro_fed.ops.annealing import Annealed, Difference, anneal_sparingly, from_normal, levels_for
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.gaussian_structures import DiagGaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, PARTS, flattened, log_mean, smoothed, systematic, weighted_errors
from pyro_fed.ops.points import even_normals
from pyro_fed.ops.student import Tails

#: Draws that a part of them must have for its own weights to be smoothed.
FEWEST_A_PART = 50
#: Particles, or draws, around which draws are proposed, at most.
MOST_POINTS = 400
#: Effective draws that weights are to leave where proposals are made around weighted draws.
FEWEST_EFFECTIVE = 100
#: Log-likelihood of a draw that is impossible: messages hold finite numbers.
IMPOSSIBLE = -1e30
#: Share of the draws at which the prior, or a client's log-likelihood, may be no number, beyond the range of its
#: precision in the proposals' tails: these are impossible. With more the model or the client has failed.
MOST_UNKNOWN = 0.1
#: Nats by which the highest log-likelihood of all draws is above the eighth where it is looked at for rounding, and by
#: which part of itself it has to be another number beside the draw.
ABOVE, HIGHEST, ROUGH = 5.0, 8, 1e-3
#: How far beside it, in roundings of the draw: at several places, for rounding has few values, and is the same at one
#: of them by chance, most often at powers of two.
ROUNDINGS = (16, -16, 5, -11)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class FedAIS(Algorithm):
    """Federated annealed importance sampling: exact in the limit, and it says how near that is.

    Args:
        surrogates: where the sites come from: an algorithm that leaves Gaussian ones at the clients, or its name:
            "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, "local_sgld" for `LocalSGLD()`, and "auto" for "fedep"
            up to its `full_dim` parameters and "laplace" beyond. `Given` has them as tensors. An algorithm of particles
            or chains, such as `DSVGD()`, or another `FedAIS()`, gives the points around which draws are proposed.
        num_proposals: S, draws that every client is asked about.
        freedom: ν of the t-distribution whose tails the sites' product gets; None leaves it a Gaussian, and no part of
            the proposals wide (`defence`). Where the product fits, log weights get a variance of (D / (ν + D))² / 2
            from it, less than 1/2 in any dimension.
        levels: J, the most temperatures of the annealing. It takes as many as leave its log weights the variance
            `spread`, or a fifth of them where that will do.
        flat: there is no annealing if log p_0 t - log q varies by less than this over draws, an SD.
        spread: variance of log weights that all J temperatures are to leave.
        leapfrog_steps: leapfrog steps of an annealing transition.
        step_size: of the leapfrog steps, in SDs of q.
        trusted_share: if the weights are worth at least this share of S, they hardly differ, and a Pareto k above
            `LARGEST_PARETO_K` means nothing.
        largest_error: the run warns of a mean or an SD that is off by more than this, in SDs, as parts of the draws
            show. It does not warn of k alone, which may be the tail of what no mean depends on.
        min_effective: fewer effective draws than this are warned of.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α, the surrogates' too where they are a name.

    The record has `pareto_k`, `effective_draws`, `accepted` (of the transitions), and where no prior is improper the
    `log_evidence` log p(y) with its standard error `log_evidence_se`; so have the result's `attrs`.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Neal (2001), Annealed importance sampling. Vehtari et al. (2024), Pareto smoothed importance sampling.

    Example:
        >>> idata = pf.run(pf.FedAIS(), fed)
        >>> evidence, error = idata.attrs["log_evidence"], idata.attrs["log_evidence_se"]
    """

    remedy: ClassVar[str] = cures.OF_WEIGHTS

    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    temperature: float = 1.0
    surrogates: Algorithm | Given | Name = "auto"
    num_proposals: int = 8000
    freedom: float | None = 5.0
    levels: int = 32
    flat: float = 0.01
    spread: float = 0.1
    leapfrog_steps: int = 8
    step_size: float = 0.25
    trusted_share: float = 0.95
    largest_error: float = MATTERS
    min_effective: int = 400

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_proposals")
        check_at_least(self, 1, "levels", "leapfrog_steps", "min_effective")
        check_positive(self, "flat", "spread", "step_size", "largest_error", "temperature")
        check_positive(self, "freedom", allow_none=True)
        check_between(self, "trusted_share", 0, 1)
        check_surrogates(self)

    def row_temperature(self) -> float:
        """α."""
        return self.temperature

    def default_rounds(self, num_clients: int) -> int:
        """One with all clients; it stops when each has answered."""
        return num_clients

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What fits the sites."""
        return surrogate_phase(self.surrogates, self.temperature)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Proposals and the logarithms of a_s / t(z_s), or of p_0(z_s) / q(z_s)."""
        if self._of_points:
            return self._around(problem, num_clients, generator, required_start(start, self))
        surrogates = self.surrogates if isinstance(self.surrogates, Given) else self.warm_start(problem)
        sites, q = fitted(problem, surrogates, start)
        product = one_each(sites, num_clients).product_over(0)
        whitened = Coordinates.of(q)
        coordinates, site, turn = turned(whitened, whitened.site(product.to(torch.float64)))
        tails = Tails.of(site, self.freedom)
        constant = product.log_factor(coordinates.mean) - q.log_prob(coordinates.mean)
        found = self._proposals(_difference(problem, coordinates, site, constant, tails), q, turn, generator)
        draws = coordinates.model(found.white).to(problem.dtype)
        asked = product.log_factor(draws.double()) + tails.log_ratio(found.white)[0]
        shared, local = self._states(problem, num_clients, draws, found.log_weights - asked, found.accepted)
        return shared, local | as_state(sites, HELD)

    def _around(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start
    ) -> tuple[State, State]:
        """Proposals around the points that particles, chains or weighted draws left."""
        surrogates = cast_checked(self.surrogates, Algorithm)
        if isinstance(surrogates, FedAIS):
            weights = flattened(start.shared["log_weights"], min(FEWEST_EFFECTIVE, surrogates.num_proposals / 2))
            points = start.shared["draws"][systematic(weights, MOST_POINTS, generator).unique()]
        else:
            points = surrogates.sample(start.shared, MOST_POINTS, generator).flatten(0, 1)
            points = points[evenly(len(points), MOST_POINTS)]
        q = around(points)
        draws = q.sample(self.num_proposals, FREEDOM, generator).to(problem.dtype)
        log_prior = torch.cat([problem.log_prior(piece).double() for piece in in_chunks(draws, problem.evaluations)])
        log_weights = _possible(log_prior) - q.log_density(draws.double(), FREEDOM)
        return self._states(problem, num_clients, draws, log_weights, log_weights.new_ones(()))

    def _states(
        self, problem: Problem, num_clients: int, draws: Tensor, log_weights: Tensor, accepted: Tensor
    ) -> tuple[State, State]:
        """The server's and the clients' states before the round.

        Raises:
            DivergenceError: the prior is no number at more than a few of the draws.
        """
        if unknown := int(log_weights.isnan().sum()):
            raise DivergenceError(
                f"FedAIS: the prior's density is no number at {unknown} of {len(draws)} draws around its surrogates. "
                "Compute it in float64 (dtype=torch.float64 of the federation), or give other surrogates"
            )
        shared = {
            "draws": draws,
            "log_weights": log_weights,
            "accepted": accepted,
            "answered": accepted.new_zeros(()),
            "num_clients": accepted.new_tensor(float(num_clients)),
            "proper": accepted.new_tensor(float(not problem.layout.improper)),
        }
        return shared, {"answered": accepted.new_zeros(num_clients)}

    def _proposals(
        self, difference: Difference, q: Gaussian, turn: Tensor | None, generator: torch.Generator
    ) -> Annealed:
        """Draws, with the weights that make them those of the prior with the sites."""
        white = even_normals(self.num_proposals, q.dim, generator).to(q.eta.device)
        white = white if turn is None else white @ turn
        value = difference(white)[0]
        if float(value.std()) < self.flat:
            return Annealed(white, value, value.new_ones(()))
        levels = min(self.levels, levels_for(value[value > -torch.inf], self.spread))
        how: Any = {"levels": levels, "leapfrog_steps": self.leapfrog_steps, "step_size": self.step_size, "axes": turn}
        usual = float(value.logsumexp(0)) - math.log(len(value))
        if self.freedom is None or not math.isfinite(usual):
            return anneal_sparingly(from_normal(difference), white, generator, **how)
        defence = Defence(usual)
        ends = defence.ends(difference)
        found = anneal_sparingly(ends, defence.draws(white, generator), generator, **how)
        narrow = difference(found.white)[0] - ends(found.white)[0][0]
        return found._replace(log_weights=found.log_weights + narrow)

    def download(self, shared: State, clients: Tensor) -> State:
        """The proposals, of which every client says its log-likelihood."""
        return super().download({"draws": shared["draws"]}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """log p_k(z_s), (C, S), float64, zero for who has answered before."""
        values = _possible(_computed(problem, shared["draws"], data)).clamp_min(IMPOSSIBLE)
        new = 1 - local["answered"]
        message = {"log_lik": torch.where(new[:, None] > 0, values, 0.0), "answered": new}
        return message, {"answered": torch.ones_like(new)}, {}

    def contributions(self) -> Contributions:
        """The clients' log-likelihoods beside their sites."""
        return LogLikContributions(self, sites_known=not self._of_points)

    @property
    def _of_points(self) -> bool:
        """Whether the surrogates are points, and no sites."""
        surrogates = self.surrogates
        points = isinstance(surrogates, Algorithm) and surrogates.draws_are in ("particles", "chains")
        return points or isinstance(surrogates, FedAIS)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The weights so far."""
        return {
            **shared,
            "log_weights": shared["log_weights"] + messages["log_lik"].sum(0),
            "answered": shared["answered"] + messages["answered"].sum(),
        }

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """The shape of the weights, what they are worth and their mean, once all clients have answered."""
        work = {"answered": float(after["answered"] / after["num_clients"]), "accepted": float(after["accepted"])}
        if work["answered"] < 1:
            return work
        found = smoothed(after["log_weights"])
        figures = {"pareto_k": found.pareto_k, "effective_draws": found.effective}
        if self.num_proposals >= PARTS * FEWEST_A_PART:
            figures["mean_error"], figures["sd_error"] = weighted_errors(after["draws"], after["log_weights"])
        if bool(after["proper"]):
            figures["log_evidence"], figures["log_evidence_se"] = log_mean(after["log_weights"])
        return figures | work

    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """As parts of the draws show."""
        return figures.get("mean_error", 0.0), figures.get("sd_error", 0.0)

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether all clients have answered."""
        return figures[-1]["answered"] >= 1

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Clients that have not answered, and weights with too long a tail or of too few."""
        latest, answered = record.latest, record.latest.get("answered", 0.0)
        if answered < 1:
            return [sentences.clients_have_not_answered(share=answered)]
        k, effective = latest["pareto_k"], latest["effective_draws"]
        error = max(latest.get(name, math.inf) for name in ("mean_error", "sd_error"))
        long_tail = k > LARGEST_PARETO_K and effective < self.trusted_share * self.num_proposals
        if error > self.largest_error and (long_tail or effective >= self.min_effective):
            samplers = record.untried("FSGLD", "DSVGD", "NUTS")
            return [sentences.sites_do_not_fit(pareto_k=k, error=error, samplers=samplers)]
        if effective < self.min_effective:
            return [sentences.weights_are_few(effective=effective)]
        return []

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of log-likelihoods that are no numbers: other sites."""
        return "a log-likelihood is not a number at draws of the sites' Gaussian: give other surrogates"

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Proposals by their weights, (1, num_draws, D); heavy ones stand there several times."""
        weights = smoothed(shared["log_weights"]).weights
        return shared["draws"][systematic(weights, num_draws, generator)][None]


def _computed(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """The clients' log-likelihoods at draws (S, D), (C, S), NaN where they are rounding alone.

    Far away a likelihood may be the difference of numbers that are too large for it, as lgamma(a + n) - lgamma(a) at
    a = e^50, and come out thousands of nats above all others. There it is another number next to the same draw.
    """
    values = log_likelihoods_at(problem, draws, data)
    highest = values.nan_to_num(nan=-torch.inf).topk(min(HIGHEST, values.shape[1]), 1).values
    if not bool((highest[:, 0] - highest[:, -1] > ABOVE).any()):
        return values
    most = torch.maximum(torch.ones_like(values), ROUGH * values.abs())
    rounding = torch.zeros_like(values, dtype=torch.bool)
    for roundings in ROUNDINGS:
        beside = log_likelihoods_at(problem, draws * (1 + roundings * torch.finfo(draws.dtype).eps), data)
        rounding |= (values - beside).abs() > most
    return torch.where(rounding, torch.nan, values)


def _possible(values: Tensor) -> Tensor:
    """Log densities at draws (..., S), those that are no numbers impossible where these are few."""
    few = values.isnan().double().mean(-1, keepdim=True) <= MOST_UNKNOWN
    return torch.where(values.isnan() & few, -torch.inf, values)


def _difference(
    problem: Problem, coordinates: Coordinates, site: DiagGaussian, constant: Tensor, tails: Tails
) -> Difference:
    """log p_0 + log t - log q of whitened points, with its gradient.

    Args:
        problem: has the prior p_0.
        coordinates: in which q is N(0, I), and t diagonal.
        site: t there.
        constant: log t - log q where q has its mean.
        tails: of t.
    """
    prior, curvature = (
        problem.mapped(prior_scores_and_values, (0,)),
        site.precision - 1,
    )  # log t - log q is a quadratic form

    def difference(white: Tensor) -> tuple[Tensor, Tensor]:
        z = coordinates.model(white)
        score, value = (part[0].double() for part in prior(z.to(problem.dtype)[None]))
        value, score = _possible(value), score.nan_to_num(nan=0.0)
        wider, outward = tails.log_ratio(white)
        bent = white * curvature
        form = ((site.eta - 0.5 * bent) * white).sum(-1)
        return value + constant + form + wider, coordinates.pull(score) + site.eta - bent + outward

    return difference
