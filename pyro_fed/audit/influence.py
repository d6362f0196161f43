"""How much one client contributes to an answer, by dividing its Gaussian site out of the posterior.

    q ∝ t_0 Π_k t_k,      q_-k = q / t_k

t_0 is the prior, t_k the site that client k sent, q the posterior (covariance Σ) and q_-k the posterior of all other
clients (covariance Σ_-k). The sites are those that the server received. So a client whose site does not follow from its
rows stands out too. With δ = E_q θ - E_-k θ and μ = E_-k θ, the figures of client k are

    shift          δ_i / SD_-k θ_i                 how far the client moves the mean of parameter i, in SDs
    sd_ratio       SD_q θ_i / SD_-k θ_i            how much it narrows parameter i
    influence      √(2 KL(q || q_-k))              its whole effect; d for a client that only moves a mean by d SDs
    disagreement   from δ' (Σ_-k - Σ)⁻¹ δ          how far the client is from the others, beyond chance
    opposed        the test statistic below        how far it points to the opposite of the others

**Disagreement.** If all clients' rows come from a model with the same parameters, δ' (Σ_-k - Σ)⁻¹ δ has a χ²
distribution, with one degree of freedom for each direction in which the client's rows are informative. The figure is
the number of SDs at which a normal distribution has the same two-sided tail probability.

**Opposed.** A client whose labels are flipped, or that turns a sign, has its parameters at -μ. The most powerful test
of this alternative (Neyman and Pearson) has the statistic

    -δ' Σ_-k⁻¹ μ / (μ' Σ_-k⁻¹ (Σ_-k - Σ) Σ_-k⁻¹ μ)^(1/2) ~ N(0, 1)

It has one degree of freedom, not one for each parameter, so that a few rows are already informative.

A large client has influence without disagreement. A client with flipped labels has both, and so has a hospital with
another population. The figures do not tell these two apart.

**Numbers of rows.** If the clients' numbers of rows n_k (n in all) are known, two rules spare honest clients:

1. A client is not named for narrowing the posterior by as much as its share of the rows does. If all rows are equally
   informative, then (SD_-k θ_i / SD_q θ_i)² - 1 = n_k / (n - n_k). The ratio of the two sides, the client's information
   per row, is compared with the median client's.
2. The sum of the scores of few rows is not normal. So d SDs of disagreement count as d / (1 + d / (3 √m))^(1/2), by
   Bernstein's inequality. Here m is the number of the median client's rows that are as informative as this client's.

**Simulated clients.** A client whose rows all have large outcomes disagrees with the others under any model of the
outcome. So no client is named if one data set was split by its labels or by a sorted outcome (`follows_outcome`).
Clients stood apart in 28 of 48 runs on rows sorted by the outcome, and in none of 96 on rows dealt out by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.combination import MIN_COHORT
from pyro_fed.algorithm.states import State
from pyro_fed.codes.sentences import MAX_DESCRIBED
from pyro_fed.conventions.limits import SD_MATTERS, STANDARD_ERRORS
from pyro_fed.density.observations import possible_outcomes
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.labelled import plain
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.labels import row_labels
from pyro_fed.infer.sites.gaussian_sites import gaussian, moments_of
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.matrices import equilibrated_cholesky
from pyro_fed.ops.memory import count_in_memory

#: A client is informative in a direction if its site adds at least this share to the others' precision there.
MIN_INFORMED_SHARE = 1e-3
#: A client stands apart if its influence is `OUTLYING_INFLUENCE` times the median client's, and if it also either
#: disagrees with the others by `OUTLYING_DISAGREEMENT` SDs (one false alarm in 15,000 clients with the same
#: parameters), or narrows the posterior `OUTLYING_NARROWING` times as much as the median client does and some SD by
#: `SD_MATTERS`. With these limits a client is named in 1 % of cohorts of ten honest clients of 8 rows
#: (`benchmarks.faults.naming`).
OUTLYING_DISAGREEMENT, OUTLYING_NARROWING, OUTLYING_INFLUENCE = 4.0, 10.0, 2.5
#: Largest share of the clients, at least one, that is divided out before the others are compared again. Among thousands
#: of clients, a single one does not hide the others.
REMOVED_SHARE = 0.01


class ClientFigures(NamedTuple):
    """Each client's figures, as defined in the module's header."""

    shift: np.ndarray  # (K, D)
    sd_ratio: np.ndarray  # (K, D)
    influence: np.ndarray  # (K,); infinite if the others have no posterior
    disagreement: np.ndarray  # (K,), in SDs of a normal distribution
    opposed: np.ndarray  # (K,)
    pareto_k: np.ndarray  # (K,), Pareto's k of the weights that leave the client out; NaN without weights
    by: np.ndarray  # (K,): what the figures are computed from, "sites" or "draws"


@dataclass(frozen=True)
class StandingApart:
    """Clients that stand apart: clauses by the clients' names, and how many `more` clients there are."""

    clauses: Mapping[str, str] = field(default_factory=dict)
    more: int = 0

    @property
    def text(self) -> str:
        """All clauses in a sentence; "" without any."""
        more = [f"and {self.more} more clients stand apart"] if self.more else []
        return "; ".join([*self.clauses.values(), *more])

    def with_client(self, name: str, clause: str) -> StandingApart:
        """This with one more client and the clause on it, unless the client is described already."""
        return self if name in self.clauses else replace(self, clauses={**self.clauses, name: clause})


def by_sites(q: Gaussian, sites: Gaussian) -> ClientFigures:
    """Each client's figures, from the Gaussian posterior and the clients' sites (K,)."""
    count = len(sites.eta)
    others = type(sites)(q.precision - sites.precision, q.eta - sites.eta)
    proper = others.is_proper()
    mean, sd = moments_of(q)
    other_mean, other_sd = moments_of(others)
    whole = type(sites)(q.precision.expand_as(sites.precision), q.eta.expand_as(sites.eta))
    divergence = whole.kl(others).clamp_min(0)
    influence = torch.where(proper, (2 * divergence).sqrt(), torch.inf)
    distances = mean.new_full((2, count), torch.nan)
    for some in proper.nonzero().flatten().split(count_in_memory(q.dim**2)):
        chosen = type(sites)(others.precision[some], others.eta[some])
        distances[:, some] = _distances(q, chosen, mean - other_mean[some], other_mean[some])
    disagreement, opposed = distances.numpy()
    return ClientFigures(
        ((mean - other_mean) / other_sd).numpy(),
        (sd / other_sd).numpy(),
        influence.numpy(),
        disagreement,
        opposed,
        np.full(count, np.nan),
        np.full(count, "sites"),
    )


def _distances(q: Gaussian, others: Gaussian, delta: Tensor, other_mean: Tensor) -> Tensor:
    """`disagreement` and `opposed` of C clients (2, C), from δ and μ (C, D)."""
    both = torch.stack([delta, other_mean], -1)  # (C, D, 2)
    if q.dense:
        factor = equilibrated_cholesky(others.precision).full_lower()
        inside = equilibrated_cholesky(q.precision).half_solve(factor)
        added, vectors = torch.linalg.eigh(torch.eye(q.dim, dtype=delta.dtype) - inside.mT @ inside)
        both = vectors.mT @ (factor.mT @ both)
    else:
        added = 1 - others.precision / q.precision
        both = others.precision.sqrt().unsqueeze(-1) * both
    informed = added > MIN_INFORMED_SHARE
    # A saturated likelihood may move the mean in directions in which its site adds no precision: that is not chance.
    uninformed_shift = both[..., 0].masked_fill(informed, 0.0).norm(dim=-1)
    along, where = both.masked_fill(~informed.unsqueeze(-1), 0.0).unbind(-1)
    added, degrees = added.masked_fill(~informed, 1.0), informed.sum(-1)
    spread = (added * where.square()).sum(-1).sqrt()
    opposed = torch.where(spread > 0, -(along * where).sum(-1) / spread, 0.0)
    squared = (along.square() / added).sum(-1)
    half = torch.special.gammaincc(degrees.clamp_min(1) / 2.0, squared / 2) / 2
    sds = torch.where(half > 0, -torch.special.ndtri(half), squared.sqrt())
    return torch.stack([torch.where(degrees > 0, torch.maximum(sds, uninformed_shift), uninformed_shift), opposed])


def who_stands_apart(sites: State, names: list[str], labels: list[str], rows: Tensor | None = None) -> StandingApart:
    """The clients that stand apart, from `sites` as in `Record.sites`; none without sites."""
    if not sites:
        return StandingApart()
    return apart_by_sites(gaussian(sites, "q_"), gaussian(sites), names, labels, rows)


def apart_by_sites(
    q: Gaussian, sites: Gaussian, names: list[str], labels: list[str], rows: Tensor | None = None
) -> StandingApart:
    """The clients that stand apart, from the posterior, K sites and, if they are known, numbers of `rows` (K,)."""
    # Each is divided out before the others are compared again: else one faulty client would hide or incriminate others.
    clauses, more, remaining = dict[str, str](), 0, list(range(len(names)))
    min_remaining = max(MIN_COHORT, len(names) // 2 + 1)
    while len(remaining) >= min_remaining and bool(q.is_proper()):  # the remainder need not be a distribution
        rest = type(sites)(sites.precision[remaining], sites.eta[remaining])
        figures = by_sites(q, rest)
        max_removed = min(max(1, int(REMOVED_SHARE * len(remaining))), len(remaining) + 1 - min_remaining)
        outlying = _outlying_clients(figures, None if rows is None else rows[remaining].numpy())[:max_removed]
        if not outlying:
            break
        described = outlying[: max(0, MAX_DESCRIBED - len(clauses))]
        clauses |= {
            names[remaining[k]]: _outlying_client_clause(figures, k, names[remaining[k]], labels) for k in described
        }
        more += len(outlying) - len(described)
        q = type(q)(q.precision - rest.precision[outlying].sum(0), q.eta - rest.eta[outlying].sum(0))
        removed = {remaining[k] for k in outlying}
        remaining = [client for client in remaining if client not in removed]
    return StandingApart(clauses, more)


def outlying_clients_sentence(figures: ClientFigures, names: list[str], labels: list[str]) -> str:
    """A sentence on the clients that stand apart, first those whose removal makes the weights fail; "" without any."""
    # A client whose removal leaves an improper posterior may be the only one that informs a parameter: it is not named.
    outlying = _outlying_clients(figures)
    clauses = [_outlying_client_clause(figures, k, names[k], labels) for k in outlying]
    if outlying:
        beyond = np.flatnonzero(np.isfinite(figures.pareto_k) & ~np.isfinite(figures.influence))
        clauses = [
            f"client {names[k]} moves the answer further than weights of its draws can tell" for k in beyond
        ] + clauses
    return "; ".join(clauses)


def _outlying_clients(figures: ClientFigures, rows: np.ndarray | None = None) -> list[int]:
    """The numbers of the clients that stand apart, those with the most influence first."""
    narrowing = -np.log(figures.sd_ratio).sum(1)
    if len(narrowing) < MIN_COHORT or not np.isfinite(narrowing).any():
        return []
    narrower = (narrowing > OUTLYING_NARROWING * np.abs(np.nanmedian(narrowing))) & (
        figures.sd_ratio.min(1) * SD_MATTERS < 1
    )
    distance = np.maximum(figures.disagreement, figures.opposed)
    if rows is not None:
        row_information = _information_a_row(figures, rows)
        narrower &= ~(row_information <= OUTLYING_NARROWING)
        # A site that widens the posterior, or that has no rows, is not due to chance: its distance counts in full.
        worth = np.where(row_information > 0, row_information * rows, np.inf)
        distance = distance / np.sqrt(1 + distance / (3 * np.sqrt(worth)))
    distant = (distance > OUTLYING_DISAGREEMENT) | narrower
    min_influence = OUTLYING_INFLUENCE * float(np.median(figures.influence))
    return [int(k) for k in np.argsort(-figures.influence) if distant[k] and figures.influence[k] > min_influence]


def _information_a_row(figures: ClientFigures, rows: np.ndarray) -> np.ndarray:
    """Each client's information per row, as a multiple of the median client's (K,); NaN where unknown."""
    known = (rows > 0) & np.isfinite(figures.sd_ratio).all(1)
    information = np.full(len(rows), np.nan)
    information[known] = (figures.sd_ratio[known] ** -2.0 - 1).mean(1) * (rows.sum() - rows[known]) / rows[known]
    median = np.abs(np.median(information[known])) if known.any() else 0.0
    return information / median if median else np.full(len(rows), np.nan)  # no comparison if most are uninformative


def _outlying_client_clause(figures: ClientFigures, k: int, name: str, labels: list[str]) -> str:
    """A clause on why client k stands apart."""
    parameter = int(np.abs(figures.shift[k]).argmax())
    opposite = figures.opposed[k] > max(figures.disagreement[k] / 2, STANDARD_ERRORS)  # and most of the disagreement
    return (
        f"client {name} moves the mean of '{labels[parameter]}' by {abs(figures.shift[k, parameter]):.2g} SDs and its "
        f"SD by the factor {figures.sd_ratio[k, parameter]:.2g}; it disagrees with the others by "
        f"{figures.disagreement[k]:.2g} SDs"
        + (f", {figures.opposed[k]:.2g} of them towards the opposite of what these say" if opposite else "")
    )


def follows_outcome(federation: Federation, problem: Problem) -> bool:
    """Whether the partition assigns rows by an outcome, or by a function of it, such as labels or `y > 0`."""
    count = problem.num_rows
    by = federation.partition.dealt_by(count, row_labels(problem.arguments))
    if by is None:
        return False
    outcomes = [plain(value).detach().cpu() for value in possible_outcomes(problem)]
    of_rows = [value.reshape(count, -1).numpy() for value in outcomes if value.dim() and len(value) == count]
    return any(is_function(by, column) for value in of_rows for column in value.T)


def is_function(by: np.ndarray, outcome: np.ndarray) -> bool:
    """Whether the values `by` (N,) are a function of the outcome (N,), by more than chance."""
    # Equal outcomes need equal values. Besides, outcomes have to repeat, or the values have to be monotone in them.
    if by.dtype.kind == "f" and outcome.dtype.kind == "f":
        by = by.astype(outcome.dtype)  # in the model's precision different values may be equal
    code = np.unique(by, return_inverse=True)[1]
    values, place = np.unique(outcome, return_inverse=True)
    if len(np.unique(code)) < 2:
        return False
    lowest = np.full(len(values), len(code))
    np.minimum.at(lowest, place, code)
    if (code != lowest[place]).any():
        return False
    steps = np.diff(lowest)
    return 2 * len(values) <= len(code) or bool((steps >= 0).all() or (steps <= 0).all())
