"""How well the others predict a client: its log density under the posterior without it, by one round of messages.

    elpd_k = log p(y_k | y_-k) = log Z - log Z_-k,     Z = ∫ p_0 Π_j L_j,    Z_-k = ∫ p_0 Π_{j≠k} L_j

One set of draws z_s serves all K + 1 integrals: of the mixture, in equal parts, of Student's t around the posterior q
and around each q_-k = q / t_k, where t_k is the client's Gaussian site. Every client is asked for log L_j(z_s), S
numbers;

    Z_-k = 1/S Σ_s w_s,    w_s = p_0(z_s) Π_{j≠k} L_j(z_s) / mixture(z_s)

The weights are nearly flat, since each integrand has a part of the mixture that is near it, also that of a client with
much influence, where the usual 1 / L_k has no variance. Pareto's k of w says whether the estimate is reliable; where it
is not, the others' posterior is run afresh (FedAIS, whose annealing gives Z_-k with its error). Beside it stands

    elpd_rows_k = Σ_{i in k} log ∫ p(y_i | θ) p(θ | y_-k) dθ

what the others say of the client's rows one by one, as K-fold cross-validation has it, by the same smoothed weights.

Sources: Vehtari et al. (2024), Pareto smoothed importance sampling; Veach & Guibas (1995) for the mixture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.analysis.criticism.influence import checked_draws, kept_sites, require_result
from pyro_fed.audit.clients.say import around, client_log_likelihoods, sites_at
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked
from pyro_fed.density.compiling.compiler import threads
from pyro_fed.density.rows.batches import in_chunks
from pyro_fed.errors import DataError, SettingError, StoppedError, warn_user
from pyro_fed.infer import FedAIS
from pyro_fed.infer.sites.gaussian_sites import gaussian, joined
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.importance import LARGEST_PARETO_K, log_mean, smoothed
from pyro_fed.runtime.run import run

if TYPE_CHECKING:
    import pandas as pd

    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData

#: Degrees of freedom of the proposals: tails that fall more slowly than those of a likelihood of many rows.
FREEDOM = 5.0


class Evidence(NamedTuple):
    """log Z of some clients.

    Args:
        value: its estimate.
        error: standard error.
        pareto_k: of the weights.
        weights: (S,) smoothed, of the draws as a sample of that posterior.
    """

    value: float
    error: float
    pareto_k: float
    weights: Tensor


class Proposals(NamedTuple):
    """Draws of the mixture.

    Args:
        points: (S, D), unconstrained.
        log_density: (S,), of the mixture there.
    """

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
        num_draws: S, at which every client computes its log-likelihood.
        refit: run the others afresh where the weights are not reliable.
        seed: of the draws.

    Returns:
        One row a client: `rows`; `elpd`, of all its rows together; `se`, its Monte Carlo standard error; `elpd_rows`,
        the sum over its rows one by one; `pareto_k`, reliable up to 0.7; and `by`: "weights", "refit", or "unreliable"
        where there was none.

    Raises:
        SettingError: fewer than 100 draws, or a federation that does not hold its rows.
        DataError: the result lacks a site of the model.

    Example:
        >>> pf.leave_one_client_out(pf.run(pf.FedEP(), fed), fed).sort_values("elpd_rows")
    """
    import pandas as pd  # takes half a second

    require_result("leave_one_client_out", idata, federation)
    if not federation.holds_data:
        raise SettingError("leave_one_client_out asks the clients for their log-likelihoods: it needs their rows here")
    if num_draws < 100:
        raise SettingError(f"leave_one_client_out: num_draws must be at least 100, received {num_draws}")
    if federation.num_clients < 2:
        raise DataError("leave_one_client_out needs at least two clients: without the only one there is no posterior")
    with threads(1), torch.no_grad():
        study = _Study.of(idata, federation, num_draws, seed)
        rows = [study.left_out(k, refit) for k in range(federation.num_clients)]
    index = pd.Index(federation.client_names, name="client")
    return pd.DataFrame(rows, index=index)


@dataclass(frozen=True)
class _Study:
    """What is asked once for all clients.

    Args:
        federation: the clients.
        proposals: the draws.
        log_prior: (S,).
        log_lik: (S, K).
        rows: of each client, (K,).
        seed: of refits.
    """

    federation: Federation
    proposals: Proposals
    log_prior: Tensor
    log_lik: Tensor
    rows: list[int]
    seed: int

    @classmethod
    def of(cls, idata: InferenceData, federation: Federation, num_draws: int, seed: int) -> _Study:
        problem = federation.problem
        q, sites = _gaussians(idata, federation)
        proposals = _mixture(q, sites, num_draws, seeding.torch_generator(seed, seeding.DRAWS))
        points = proposals.points.to(problem.dtype)
        log_prior = torch.cat([problem.log_prior(part) for part in in_chunks(points, 1)]).double()
        log_lik = client_log_likelihoods(federation, points)
        return cls(federation, proposals, log_prior, log_lik, federation.summary()["rows"].tolist(), seed)

    @cached_property
    def whole(self) -> Evidence:
        """That of all clients."""
        return self.evidence(None)

    @cached_property
    def whole_refitted(self) -> tuple[float, float]:
        """log Z of all clients with its error, where the weights are reliable, else by a run."""
        return (
            (self.whole.value, self.whole.error)
            if self.whole.pareto_k <= LARGEST_PARETO_K
            else self._annealed(None)[:2]
        )

    def evidence(self, without: int | None) -> Evidence:
        """log Z of all clients, or of those but one."""
        total = self.log_prior + self.log_lik.sum(1)
        if without is not None:
            total = total - self.log_lik[:, without]
        weights = (total - self.proposals.log_density).nan_to_num(nan=-math.inf)
        found = smoothed(weights)
        return Evidence(*log_mean(weights), found.pareto_k, found.weights)

    def left_out(self, k: int, refit: bool) -> dict[str, float | int | str]:
        """A client's row of the table."""
        whole, others = self.whole, self.evidence(k)
        found: dict[str, float | int | str] = {
            "rows": self.rows[k],
            "elpd": whole.value - others.value,
            "se": self._difference_error(k, whole, others),
            "elpd_rows": self._by_rows(k, self.proposals.points, others.weights),
            "pareto_k": max(whole.pareto_k, others.pareto_k),
            "by": "weights",
        }
        if float(str(found["pareto_k"])) > LARGEST_PARETO_K:
            found |= self._refitted(k) if refit else {"by": "unreliable"}
        return found

    def _difference_error(self, k: int, whole: Evidence, others: Evidence) -> float:
        """Standard error of log Z - log Z_-k: the weights of both are of the same draws, so that much of it cancels."""
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

    def _refitted(self, k: int) -> dict[str, float | int | str]:
        """The same by runs on the others, and where need be on all, whose annealing has the evidence."""
        total, (value, error, points) = self.whole_refitted, self._annealed(k)
        if not math.isfinite(value + total[0] + math.hypot(total[1], error)):
            return {"by": "unreliable"}
        even = torch.full((len(points),), 1 / len(points), dtype=torch.float64)
        by_rows = self._by_rows(k, points, even)
        return {"elpd": total[0] - value, "se": math.hypot(total[1], error), "elpd_rows": by_rows, "by": "refit"}

    def _annealed(self, without: int | None) -> tuple[float, float, Tensor]:
        """log Z with its error, and draws (S, D), of all clients or of those but one.

        NaN under an improper prior, and where the run stopped, which a warning says.
        """
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
    """The same without one client, on the pooled data as they are: nothing is checked or compiled anew.

    Args:
        federation: all of them.
        client: its number.
    """
    rest = federation.with_problem(federation.problem)
    keep = [k for k in range(federation.num_clients) if k != client]
    rest.client_rows = [federation.client_rows[k] for k in keep]
    rest.client_names = [federation.client_names[k] for k in keep]
    return rest


def _gaussians(idata: InferenceData, federation: Federation) -> tuple[Gaussian, Gaussian]:
    """q and the clients' sites: those that the run left, or such as the draws suggest."""
    group = group_of(idata, "sites") if "sites" in idata else None
    if group is not None and group["client"].values.tolist() == federation.client_names:
        q, sites = kept_sites(group)
        if q.dim == federation.problem.dim:
            return q, sites
    q = around(federation.problem, checked_draws(idata, federation))
    return q, sites_at(federation, q)


def _mixture(q: Gaussian, sites: Gaussian, num_draws: int, generator: torch.Generator) -> Proposals:
    """Draws of the mixture in equal parts around q and each proper q / t_k, and its log density there."""
    others = type(sites)(q.precision - sites.precision, q.eta - sites.eta)
    proper = others.is_proper()
    parts = joined(q, type(sites)(others.precision[proper], others.eta[proper]))
    count, dim = parts.eta.shape
    each = -(-num_draws // count)
    normal = torch.randn(each, count, dim, generator=generator, dtype=torch.float64)
    squares = torch.randn(each, count, int(FREEDOM), generator=generator, dtype=torch.float64).square().mean(-1)
    points = parts.transform(normal / squares.sqrt().unsqueeze(-1)).flatten(0, 1)
    log_density = torch.stack([_student(gaussian(_at(parts, i)), points) for i in range(count)]).logsumexp(0)
    return Proposals(points, log_density - math.log(count))


def _at(parts: Gaussian, i: int) -> dict[str, Tensor]:
    return {"precision": parts.precision[i], "eta": parts.eta[i]}


def _student(part: Gaussian, points: Tensor) -> Tensor:
    """Log density of Student's t of the Gaussian's mean and scale at points (S, D)."""
    dim = part.dim
    away = -2 * (part.log_prob(points) - part.log_prob(part.mean()))
    constant = math.lgamma((FREEDOM + dim) / 2) - math.lgamma(FREEDOM / 2) - dim / 2 * math.log(FREEDOM * math.pi)
    return constant + part.log_det() / 2 - (FREEDOM + dim) / 2 * torch.log1p(away / FREEDOM)
