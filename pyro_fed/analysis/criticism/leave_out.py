"""How well the other clients predict a client's rows: log predictive densities, by one round of messages.

Let p_0 be the prior, L_j the likelihood of client j's rows y_j, and y_-k the rows of all clients but k. Computed are

    elpd_k      = log p(y_k | y_-k) = log Z - log Z_-k          all rows of client k together
    elpd_rows_k = Σ_i log ∫ p(y_i | θ) p(θ | y_-k) dθ           its rows i one by one, as in K-fold cross-validation

    with Z = ∫ p_0 Π_j L_j and Z_-k = ∫ p_0 Π_{j≠k} L_j

One set of draws z_1 … z_S serves all K + 1 integrals. It comes from an equal mixture of K + 1 Student t distributions:
one around the Gaussian posterior q, and one around each q_-k = q / t_k, where t_k is client k's Gaussian site. Every
client is asked for log L_j(z_s), S numbers. Then

    Z_-k ≈ 1/S Σ_s w_s,    w_s = p_0(z_s) Π_{j≠k} L_j(z_s) / mixture(z_s)

Each integrand is near one part of the mixture, so that the weights vary little, even for a client with much influence;
the usual weights 1 / L_k have no finite variance there. Pareto's k of w says whether the estimate is reliable. If it is
not, the posterior of the other clients is computed afresh by FedAIS, whose annealing gives Z_-k with its error. Where
the run has left no sites, the clients are asked for them first, at the Gaussian with the moments of the draws.

Sources: Vehtari et al. (2024), Pareto smoothed importance sampling; Veach & Guibas (1995), Optimally combining sampling
techniques for Monte Carlo rendering (mixture).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise
from pyro_fed.algorithm.states import State, concatenate
from pyro_fed.analysis.criticism.influence import MIN_WEIGHTED_DRAWS, checked_draws, require_result
from pyro_fed.analysis.criticism.loo import Pointwise
from pyro_fed.analysis.predicting.one_round import OneRound, answers
from pyro_fed.audit.client_sites import around, sites_at
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.errors import DataError, SettingError, StoppedError, warn_user
from pyro_fed.infer import FedAIS
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, prepend_gaussian
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, log_mean, smoothed
from pyro_fed.results.record_dataset import kept_sites
from pyro_fed.runtime.executors import Executor, Sequential, Work
from pyro_fed.runtime.executors.base import LOG_LIK
from pyro_fed.runtime.run import run

if TYPE_CHECKING:
    import pandas as pd

    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: Degrees of freedom of the proposals: few, so that their tails fall more slowly than the likelihood of many rows.
STUDENT_FREEDOM = 5.0


class Evidence(NamedTuple):
    """The estimate of log Z for some clients, its standard error and Pareto's k.

    `weights` (S,) are smoothed and normalised: with them the proposals represent the posterior of these clients.
    """

    value: float
    error: float
    pareto_k: float
    weights: Tensor


class Proposals(NamedTuple):
    """Draws of the mixture: unconstrained points (S, D) and the mixture's log density (S,) at them."""

    points: Tensor
    log_density: Tensor


@checked
def leave_one_client_out(
    idata: InferenceData, federation: Federation, *, num_draws: int = 8000, refit: bool = True, seed: int = 0
) -> pd.DataFrame:
    """The expected log predictive density of each client under the posterior of all others.

    Args:
        idata: result of `pyro_fed.run` on the federation.
        federation: the model and its clients.
        num_draws: S, the number of points at which every client computes its log-likelihood.
        refit: if a client's weights are not reliable, compute the posterior of the others afresh.
        seed: seed of the draws and of the refits.

    Returns:
        A table with a row for each client. `rows`: number of its rows. `elpd`: log density of all its rows together.
        `se`: Monte Carlo standard error of `elpd`. `elpd_rows`: sum of the log densities of its rows one by one.
        `pareto_k`: the weights are reliable up to 0.7. `by`: "weights" or "refit", the way in which the figures were
        found; "unreliable" if the weights are not reliable and no refit was made or finished.

    Raises:
        SettingError: fewer than 100 draws, or a federation that does not hold its rows.
        DataError: `idata` is no result of a run, lacks a site of the model, or there is one client only.

    Example:
        >>> pf.leave_one_client_out(pf.run(pf.FedEP(), fed), fed).sort_values("elpd_rows")
    """
    import pandas as pd  # takes half a second

    require_result("leave_one_client_out", idata, federation)
    if not federation.holds_data:
        raise SettingError(
            "leave_one_client_out asks the clients for their log-likelihoods, but this federation does not hold the "
            "rows: pass a federation that was made with data"
        )
    if num_draws < MIN_WEIGHTED_DRAWS:
        raise SettingError(
            f"leave_one_client_out: num_draws must be at least {MIN_WEIGHTED_DRAWS}, received {num_draws}"
        )
    if federation.num_clients < 2:
        raise DataError(
            "leave_one_client_out needs at least two clients, received 1: without it no client is left to predict "
            "its rows"
        )
    with threads(1), torch.no_grad():
        q, sites = _gaussians(idata, federation, partial(asked_sites, federation, Sequential()))
        ask = partial(asked_log_likelihoods, federation, Sequential(), True)
        study = _Study.of(q, sites, federation, num_draws, seed, ask)
        rows = [study.left_out(k, refit) for k in range(federation.num_clients)]
    index = pd.Index(federation.client_names, name="client")
    return pd.DataFrame(rows, index=index, columns=["rows", "elpd", "se", "elpd_rows", "pareto_k", "by"])


def leave_out_by_log_likelihoods(
    idata: InferenceData,
    federation: Federation,
    num_draws: int,
    log_likelihoods: Callable[[Tensor], Tensor],
    ask_sites: Callable[[Gaussian], Gaussian] | None = None,
) -> pd.DataFrame:
    """`leave_one_client_out` where the rows are elsewhere: without `elpd_rows`, and without refits.

    `log_likelihoods` asks the clients for their log-likelihoods (S, K) at the points (S, D), of which there are at most
    `num_draws`. `ask_sites` asks for their sites (K,) at a Gaussian, if the run has left none; None refuses.
    """
    import pandas as pd

    def refuse(q: Gaussian) -> Gaussian:
        raise SettingError(
            f"leave_one_client_out: the result of {idata.attrs.get('algorithm', 'something else')} has no Gaussian "
            "sites of its clients, around which it draws: run FedEP, PVI or FedLaplace"
        )

    parts = federation.num_clients + 1
    with threads(1), torch.no_grad():
        q, sites = _gaussians(idata, federation, ask_sites or refuse)
        study = _Study.of(q, sites, federation, num_draws // parts * parts, 0, log_likelihoods)
        rows = [study.weighed(k, study.evidence(k)) for k in range(federation.num_clients)]
    return pd.DataFrame(rows, index=pd.Index(federation.client_names, name="client"))


@dataclass(frozen=True, kw_only=True)
class SitesAt(OneRound):
    """One round in which every client sends its Gaussian site at a Gaussian that it receives."""

    answer_kind: ClassVar[str] = "state"

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Each client's site."""
        asked = [{name: value[k] for name, value in shared.items()} for k in range(len(data.num_rows))]
        found = [sites_at(problem, data.of(slice(k, k + 1)), gaussian(one, "q_")) for k, one in enumerate(asked)]
        return concatenate([as_state(one) for one in found]), local, {}


def asked_sites(federation: Federation, executor: Executor, q: Gaussian) -> Gaussian:
    """All clients' sites (K,) at a Gaussian, by one question."""
    return gaussian(answers(SitesAt(), as_state(q, "q_"), federation, executor, 0, "eta"))


def asked_log_likelihoods(federation: Federation, executor: Executor, one_by_one: bool, points: Tensor) -> Tensor:
    """All clients' log-likelihoods (S, K) at unconstrained points (S, D), by one question.

    `one_by_one` computes them as each client would at its own place, with the same last bits.
    """
    everyone = list(range(federation.num_clients))
    orders = [
        Work(0, 0, clients, {"draws": points.expand(len(clients), *points.shape)})
        for clients in ([[k] for k in everyone] if one_by_one else [everyone])
    ]
    executor.start(Pointwise(), federation.problem, federation.client_data(), {})
    try:
        return torch.cat([executor.ask(LOG_LIK, order)[LOG_LIK] for order in orders]).double().T
    finally:
        executor.close()


@dataclass(frozen=True)
class _Study:
    """The proposals and what was computed at them once: `log_prior` (S,), `log_lik` (S, K) and `rows` (K,)."""

    federation: Federation
    proposals: Proposals
    log_prior: Tensor
    log_lik: Tensor
    rows: list[int]
    seed: int

    @classmethod
    def of(
        cls,
        q: Gaussian,
        sites: Gaussian,
        federation: Federation,
        num_draws: int,
        seed: int,
        log_likelihoods: Callable[[Tensor], Tensor],
    ) -> _Study:
        problem = federation.problem
        proposals = _mixture(q, sites, num_draws, seeding.torch_generator(seed, seeding.DRAWS))
        points = proposals.points.to(problem.dtype)
        log_prior = torch.cat([problem.log_prior(part) for part in in_chunks(points, 1)]).double()
        log_lik = log_likelihoods(points)
        return cls(federation, proposals, log_prior, log_lik, federation.summary()["rows"].tolist(), seed)

    @cached_property
    def full_evidence(self) -> Evidence:
        """The estimate of log Z for all clients, by weights."""
        return self.evidence(None)

    @cached_property
    def whole_refitted(self) -> tuple[float, float]:
        """log Z of all clients and its standard error: by weights if these are reliable, else by a refit."""
        return (
            (self.full_evidence.value, self.full_evidence.error)
            if self.full_evidence.pareto_k <= LARGEST_PARETO_K
            else self._annealed_evidence(None)[:2]
        )

    def evidence(self, without: int | None) -> Evidence:
        """The estimate of log Z for all clients, or for all but the client with number `without`."""
        total = self.log_prior + self.log_lik.sum(1)
        if without is not None:
            total = total - self.log_lik[:, without]
        weights = (total - self.proposals.log_density).nan_to_num(nan=-math.inf)
        found = smoothed(weights)
        return Evidence(*log_mean(weights), found.pareto_k, found.weights)

    def left_out(self, k: int, refit: bool) -> dict[str, float | int | str]:
        """A client's row of the table."""
        others = self.evidence(k)
        found = self.weighed(k, others) | {"elpd_rows": self._by_rows(k, self.proposals.points, others.weights)}
        return found | self._refit(k) if found["by"] == "unreliable" and refit else found

    def weighed(self, k: int, others: Evidence) -> dict[str, float | int | str]:
        """A client's figures by weights, from the evidence of the others; they need none of its rows."""
        whole = self.full_evidence
        pareto_k = max(whole.pareto_k, others.pareto_k)
        return {
            "rows": self.rows[k],
            "elpd": whole.value - others.value,
            "se": self._difference_error(k, whole, others),
            "pareto_k": pareto_k,
            "by": "weights" if pareto_k <= LARGEST_PARETO_K else "unreliable",
        }

    def _difference_error(self, k: int, whole: Evidence, others: Evidence) -> float:
        """Standard error of log Z - log Z_-k; the same draws give both, so that errors partly cancel."""
        both = self.log_prior + self.log_lik.sum(1) - self.proposals.log_density
        first, second = (both - whole.value).exp(), (both - self.log_lik[:, k] - others.value).exp()
        return float((first - second).std() / len(first) ** 0.5)

    def _by_rows(self, k: int, points: Tensor, weights: Tensor) -> float:
        """Σ_i log Σ_s w_s p(y_i | z_s) over the client's rows."""
        problem, index = self.federation.problem, self.federation.client_rows[k]
        if not len(index):
            return 0.0
        rows = tuple(leaf[index] for leaf in problem.rows)
        pieces = in_chunks(points.to(problem.dtype), len(index) * max(1, problem.evaluations // problem.num_rows))
        pointwise = torch.cat([problem.pointwise_log_lik(piece, rows) for piece in pieces]).double()
        return float(torch.logsumexp(pointwise + weights.log().unsqueeze(1), 0).sum())

    def _refit(self, k: int) -> dict[str, float | int | str]:
        """A client's figures by a refit without it; log Z of all clients is by a refit too if its weights need it."""
        total, (value, error, points) = self.whole_refitted, self._annealed_evidence(k)
        if not math.isfinite(value + total[0] + math.hypot(total[1], error)):
            return {"by": "unreliable"}
        even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        by_rows = self._by_rows(k, points, even)
        return {"elpd": total[0] - value, "se": math.hypot(total[1], error), "elpd_rows": by_rows, "by": "refit"}

    def _annealed_evidence(self, without: int | None) -> tuple[float, float, Tensor]:
        """FedAIS's log Z and error (NaN if the run stopped) and draws (S, D), of all clients or all but one."""
        fed = self.federation if without is None else others_of(self.federation, without)
        options: dict[str, Any] = dict.fromkeys(("progress", "audit", "log_likelihood", "collect_local"), False)
        try:
            found = run(FedAIS(), fed, seed=self.seed, **options)
        except StoppedError as stopped:
            who = "all clients" if without is None else f"the others of client {self.federation.client_names[without]}"
            warn_user(f"leave_one_client_out: {who} could not be run afresh: {stopped}")
            return math.nan, math.nan, self.proposals.points[:0]
        value, error = (float(found.attrs.get(name, math.nan)) for name in ("log_evidence", "log_evidence_se"))
        return value, error, checked_draws(found, self.federation)


def others_of(federation: Federation, client: int) -> Federation:
    """The federation without one client. It shares the pooled data and the compiled model: nothing is checked again."""
    rest = federation.with_problem(federation.problem)
    keep = [k for k in range(federation.num_clients) if k != client]
    rest.client_rows = [federation.client_rows[k] for k in keep]
    rest.client_names = [federation.client_names[k] for k in keep]
    return rest


def _gaussians(
    idata: InferenceData, federation: Federation, ask_sites: Callable[[Gaussian], Gaussian]
) -> tuple[Gaussian, Gaussian]:
    """The Gaussian posterior and the K clients' sites: left by the run, or asked for at its draws."""
    group = group_of(idata, "sites") if "sites" in idata else None
    if group is not None and group["client"].values.tolist() == federation.client_names:
        q, sites = kept_sites(group)
        if q.dim == federation.problem.dim:
            return q, sites
    q = around(federation.problem, checked_draws(idata, federation))
    return q, ask_sites(q)


def _mixture(q: Gaussian, sites: Gaussian, num_draws: int, generator: torch.Generator) -> Proposals:
    """Draws of the equal mixture of Student's t around q and around each proper q / t_k, with its log density."""
    others = type(sites)(q.precision - sites.precision, q.eta - sites.eta)
    proper = others.is_proper()
    parts = prepend_gaussian(q, type(sites)(others.precision[proper], others.eta[proper]))
    count, dim = parts.eta.shape
    each = -(-num_draws // count)
    normal = torch.randn(each, count, dim, generator=generator, dtype=torch.float64)
    squares = torch.randn(each, count, int(STUDENT_FREEDOM), generator=generator, dtype=torch.float64).square().mean(-1)
    points = parts.transform(normal / squares.sqrt().unsqueeze(-1)).flatten(0, 1)
    each_part = (type(parts)(*natural) for natural in zip(parts.precision, parts.eta, strict=True))
    log_density = torch.stack([_student(part, points) for part in each_part]).logsumexp(0)
    return Proposals(points, log_density - math.log(count))


def _student(part: Gaussian, points: Tensor) -> Tensor:
    """Log density at points (S, D) of Student's t with the Gaussian's mean, and its covariance as the scale matrix."""
    dim = part.dim
    away = -2 * (part.log_prob(points) - part.log_prob(part.mean()))
    constant = (
        math.lgamma((STUDENT_FREEDOM + dim) / 2)
        - math.lgamma(STUDENT_FREEDOM / 2)
        - dim / 2 * math.log(STUDENT_FREEDOM * math.pi)
    )
    return constant + part.log_det() / 2 - (STUDENT_FREEDOM + dim) / 2 * torch.log1p(away / STUDENT_FREEDOM)
