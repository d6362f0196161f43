"""Limits on the effect of one client on a product of Gaussian sites, relative to the other clients.

    q ∝ t_0 Π_k t_k,    t_k(θ) = exp(-θ'Λ_kθ/2 + η_k'θ)

In coordinates that whiten q, of covariance Σ and mean m, client k's precision and its pull at parameter i are

    P_k = Σ^(1/2) Λ_k Σ^(1/2)                   eigenvalues λ, each about 1 / K for K equal clients
    u_ki = [Σ (η_k - Λ_k m)]_i / Σ_ii^(1/2)     the shift of the mean of θ_i in SDs

If the model is correct, a pull is noise, and its variance follows from the client's own precision (Fisher's information
equality): v_ki² = [Σ Λ_k Σ]_ii / Σ_ii about the true value, and v² (1 - v²) about the mean m, which includes the
client. Let r_k be the client's number of rows over the median client's, at most `MAX_ROW_RATIO`. Medians are over
clients with the weights min(r, 1). ũ_i is the median of the pulls, and s_i that of |u_ki - ũ_i| / (0.6745 r_k^(1/2)).
Sites are limited to

    λ ≤ c_k med_j λ_max,j / r_j      Σ λ ≤ c_k med_j Σ λ_j / r_j      λ ≥ -c_k med_j (-λ_min,j)_+ / r_j
    |u_ki - min(r_k, 1) ũ_i| ≤ b (1 - v_ki²)^(1/2) max(v_ki, min(r_k, 1)^(1/2) s_i)         c_k = c max(1, r_k / 2)

with b `pull` and c `precision`. Pulls beyond twice the limit are reduced further, and pulls beyond four times the limit
to zero (Hampel's three-part function). A direction whose precision is limited keeps its mean, as if the client had
fewer rows. Sites within the limits are unchanged, so that honest clients that differ no more lose nothing; a client
with more than 2 `MAX_ROW_RATIO` times the median client's rows counts as one with that many.

Effect of one faulty client. The honest sites are unchanged for every m. A pull u moves the mean by u / (1 - v²)^(1/2)
SDs of the others' posterior, so that one faulty client moves no mean by much more than b v. A client with c times the
information of the median client has v = (c / (c + K))^(1/2). It moves the mean by 1.1 SDs among ten clients, and always
by less than b SDs, however many rows it claims. The effect is larger if the clients' pulls happen to be spread widely
(1.6 SDs in the worst of about a hundred draws of three parameters); if the pulls of all clients have the spread s SDs,
the bound is b s. Information that only few clients have cannot be checked: with more parameters than rows at a client,
a faulty client may claim the directions about which no other client has information.

Cost. If an honest client is z > b of its own SDs away from the others by chance, it moves a mean by
(z - b) v / (1 - v²)^(1/2) posterior SDs less than its rows would. For z = 3 this is a third of an SD for one of ten
equal clients, one SD for a client with half of the information, and unbounded for a client with nearly all information
on a direction. Conversely, a rule that uses only these sites and follows such a client up to z SDs lets a faulty client
with the same site move a mean by z v SDs of the others' posterior. This motivates limits of this kind, but does not
show that they are optimal. If a client has more information than its limit, its precision is reduced, and SDs increase
by at most the square root of its information over the remaining information (`widened`).

q is computed from the limited sites in a few passes. The first q is the product of sites whose size and pull, in units
of the median curvature, are shortened to c times the median (Huber's weights).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.message_limits import LARGEST_RATIO
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.ops.backtrack import MAX_ITERATIONS, NEGLIGIBLE_STEP
from pyro_fed.ops.entries import SAMPLED_ENTRIES, evenly
from pyro_fed.ops.gaussian import FullGaussian, Gaussian
from pyro_fed.ops.matrices import with_absolute_eigenvalues

#: Factors on the step of a pass that reverses the previous one, and of a pass that continues in its direction.
REVERSED_PASS_FACTOR, REPEATED_PASS_FACTOR = 0.5, 1.5
#: Median of the absolute value of a standard normal number, which converts median deviations to SDs.
NORMAL_MEDIAN_DEVIATION = NormalDist().inv_cdf(0.75)
#: Effect of one client on a mean, in SDs, that is always accepted, however well the others' surrogates fit.
ACCEPTED_SHIFT_SDS = 2 * MATTERS
#: Smallest share of the other clients' information in each direction; in early passes q may consist of one site.
MIN_OTHERS_SHARE = 0.01
#: Multiple of the limit from which a departure is reduced; at twice this multiple it is zero.
REDESCENDING_FACTOR = 2.0
#: Largest ratio of the rows that a client claims to the median client's.
MAX_ROW_RATIO = 10.0


class BoundedSites(NamedTuple):
    """Sites within the limits."""

    sites: Gaussian  # (K,)
    pull: Tensor  # excess of each client's pull over its limit, in SDs of q, of the worst parameter, (K,)
    precision: Tensor  # ratio of each precision to its limit, 1 if it is within, (K,)
    widened: Tensor  # ratio of an SD to the SD with the client's own site, of the worst parameter, (K,)

    @property
    def limit_excess(self) -> Tensor:
        """The excess of each client over its limits, (K,), in SDs or as the log of a factor; 0 within the limits."""
        return self.pull + self.precision.log()


def bounded_sites(
    base: Gaussian, sites: Gaussian, centre: Tensor, *, pull: float, precision: float, rows: Tensor | None = None
) -> BoundedSites:
    """Sites limited so that none has much more effect per row than the others.

    Args:
        base: t_0, or all factors that are not limited. It only sets the units, and counts as flat if it is not finite,
            as a prior may be at a trial point that a line search will reject.
        sites: (K,), at least three.
        centre: the point from which pulls are first measured, such as an earlier mean of q, (D,).
        pull: b.
        precision: c.
        rows: number of rows of each client, (K,); None if all have the same.
    """
    if not bool(base.precision.isfinite().all() & base.eta.isfinite().all()):
        base = type(base)(torch.zeros_like(base.precision), torch.zeros_like(base.eta))
    row_ratio = relative_rows(rows, sites.eta)
    q = _positive(base.product(sites.power(_weights(sites, centre, precision, row_ratio)).product_over(0)))
    bounded = _sites_within_limits(q, sites, pull, precision, row_ratio)
    step, last = 1.0, torch.zeros_like(centre)
    for _ in range(MAX_ITERATIONS):
        new = _positive(base.product(bounded.sites.product_over(0)))
        move = (new.mean() - q.mean()) * _inverse_sds(new)
        if float(move.abs().amax()) < NEGLIGIBLE_STEP:
            break
        # A faulty client with a huge precision reverses its pull when the mean passes its own, so that full steps would
        # oscillate. Steps that only shrink would end too early.
        step = step * REVERSED_PASS_FACTOR if bool(move @ last < 0) else min(1.0, step * REPEATED_PASS_FACTOR)
        q, last = q.power(1 - step).product(new.power(step)), move
        bounded = _sites_within_limits(q, sites, pull, precision, row_ratio)
    return bounded._replace(widened=_sd_widening(base, sites, bounded))


def relative_rows(rows: Tensor | None, like: Tensor) -> Tensor:
    """r (K,), the rows over the median of those that are positive, clamped to the allowed range; ones for None."""
    rows = like.new_ones(len(like)) if rows is None else rows.to(like)
    some = rows[rows > 0]
    usual = some.quantile(0.5) if len(some) else rows.new_ones(())
    return (rows / usual).clamp(torch.finfo(rows.dtype).eps, MAX_ROW_RATIO)


def median_of(values: Tensor, row_ratio: Tensor) -> Tensor:
    """The weighted median over clients of values (K, ...), with the weights min(r, 1); `row_ratio` is r, (K,).

    Clients with one or two rows are less informative; a client that claims many rows has no more weight than others.
    """
    ordered, order = values.sort(0)
    weight = row_ratio.clamp_max(1.0)[order].cumsum(0)
    half = weight[-1:] / 2
    near = torch.finfo(weight.dtype).eps * len(values) * half
    low, high = ((weight < edge).sum(0, keepdim=True) for edge in (half - near, half + near))
    last = len(values) - 1
    return 0.5 * (ordered.gather(0, low.clamp_max(last)) + ordered.gather(0, high.clamp_max(last))).squeeze(0)


def cohort_reach(sizes: Tensor, pull: float, row_ratio: Tensor, growth: Tensor) -> Tensor:
    """Limits on departures of sizes (K, ...): `pull` times the cohort's usual size, and √r times that for more rows.

    Sizes are compared after division by `growth` (K,): r if the departures of rows add up, √r if they are noise. A
    limit grows only with √r, because r is what a client claims.
    """
    shape = (-1, *[1] * (sizes.dim() - 1))
    usual = median_of(sizes / growth.reshape(shape), row_ratio)
    return pull * row_ratio.clamp_min(1.0).sqrt().reshape(shape) * usual


def redescending(away: Tensor, reach: Tensor) -> Tensor:
    """Departures, unchanged up to `reach`, constant up to `REDESCENDING_FACTOR` times it, and zero from twice that."""
    falling = (2 - away.abs() / (REDESCENDING_FACTOR * reach)).nan_to_num(0.0).clamp(0, 1)
    return torch.minimum(torch.maximum(away, -reach), reach) * falling


def within_cohort(values: Tensor, pull: float, row_ratio: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Values of clients (K, ...), limited to `pull` SDs from their median; SDs are those of the median client.

    An estimate from r times as many rows departs from the median by r^(-1/2) times as much, apart from the error of the
    median, (π / 2K)^(1/2): a client that claims more rows has a narrower limit. Without `row_ratio`, r (K,), all limits
    are equal.

    Returns:
        The values, and the excess of each client's worst value over its limit in these SDs, (K,).
    """
    middle = values.quantile(0.5, 0)
    away = (values - middle).abs()
    if row_ratio is None:
        usual = away.quantile(0.5, 0) / NORMAL_MEDIAN_DEVIATION
    else:
        root = row_ratio.to(values).sqrt().reshape(-1, *[1] * (values.dim() - 1))
        least = (torch.pi / 2 / len(values)) ** 0.5
        usual = (away * root).quantile(0.5, 0) / NORMAL_MEDIAN_DEVIATION * root.reciprocal().clamp_min(min(1.0, least))
    reach = pull * usual
    held = torch.minimum(torch.maximum(values, middle - reach), middle + reach)
    beyond = (values - held).abs() / usual.clamp_min(torch.finfo(values.dtype).tiny)
    worst = torch.where(values == held, 0.0, beyond).reshape(len(values), -1).amax(1)
    return held, worst.double().nan_to_num(posinf=LARGEST_RATIO).clamp_max(LARGEST_RATIO)


def distances_from_cohort(values: Tensor) -> Tensor:
    """Median distances (K,) of each client's values from the cohort's medians, in the cohort's SDs: 0.7 if alike."""
    flat = values.reshape(len(values), -1)
    flat = flat[:, evenly(flat.shape[1], SAMPLED_ENTRIES)].double()
    away = (flat - flat.quantile(0.5, 0)).abs()
    usual = away.quantile(0.5, 0) / NORMAL_MEDIAN_DEVIATION
    return torch.where(away > 0, away / usual, 0.0).clamp_max(LARGEST_RATIO).quantile(0.5, 1)


def _weights(sites: Gaussian, centre: Tensor, limit: float, row_ratio: Tensor) -> Tensor:
    """The powers (K,) that shorten sites to `limit` times the median size and pull per row."""
    full = sites.dense
    diagonal = sites.precision.diagonal(dim1=-2, dim2=-1) if full else sites.precision
    usual = diagonal.abs().quantile(0.5, 0)
    typical_diagonal = diagonal.abs().sort(0).values[:-1].mean(0)  # without the largest, for parameters of few clients
    root = torch.where(usual > 0, usual, torch.where(typical_diagonal > 0, typical_diagonal, 1.0)).sqrt()
    matrix = sites.precision / (root.unsqueeze(-1) * root if full else root.square())
    size = matrix.flatten(1).norm(dim=1)
    pulls = sites.score(centre.expand_as(sites.eta)) / root
    apart = (
        pulls - row_ratio.clamp_max(1.0).unsqueeze(-1) * median_of(pulls / row_ratio.unsqueeze(-1), row_ratio)
    ).norm(dim=1)
    allowed = limit * (row_ratio / 2).clamp_min(1.0) * median_of(size / row_ratio, row_ratio)
    reach = limit * median_of(apart / row_ratio.sqrt(), row_ratio)
    weights = [(most / each).nan_to_num(nan=1.0).clamp_max(1.0) for most, each in ((allowed, size), (reach, apart))]
    return torch.minimum(*weights)


def _sites_within_limits(
    q: Gaussian, sites: Gaussian, pull: float, precision: float, row_ratio: Tensor
) -> BoundedSites:
    """The sites within the limits at a given q."""
    root, mean, per_sd = q.root(), q.mean(), _inverse_sds(q)
    values, vectors = _spectra(root, sites)
    inside, beyond = _limited_precision(values, precision, row_ratio)
    kept = torch.where(inside == values, 1.0, inside / values)
    score = sites.score(mean.expand_as(sites.eta))
    new, part, spread = _by_parameter(root, vectors, inside, kept, score, per_sd)
    middle, reach, chance = _room(part, spread, pull, row_ratio.unsqueeze(-1))
    away = part - middle
    over = (away.abs() - reach).clamp_min(0)
    moved = torch.where(over > 0, middle + redescending(away, reach), part)
    cut = (inside != values).any(-1) | (over > 0).any(-1)
    if vectors is not None:
        scale = _in_others_units(root, vectors, inside, (moved - middle) / per_sd, pull, chance)
        moved = torch.where((scale < 1).unsqueeze(-1), middle + scale.unsqueeze(-1) * (moved - middle), moved)
        cut |= scale < 1
    at = FullGaussian(new, moved) if sites.dense else type(sites)(new, moved)
    back = moved / per_sd
    pulled = (q.precision @ back.unsqueeze(-1)).squeeze(-1) if sites.dense else q.precision * back
    eta = pulled - type(at)(at.precision, torch.zeros_like(pulled)).score(mean.expand_as(pulled))
    keep = ~cut
    shaped = keep.reshape(-1, *[1] * (sites.precision.dim() - 1))
    result = type(sites)(torch.where(shaped, sites.precision, new), torch.where(keep.unsqueeze(-1), sites.eta, eta))
    return BoundedSites(result, over.amax(-1).clamp_max(LARGEST_RATIO), beyond, torch.ones_like(beyond))


def _spectra(root: Tensor, sites: Gaussian) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues (K, D) and eigenvectors (K, D, D) of the sites' precisions where q is white; None for the axes."""
    if not sites.dense:
        return root.square() * sites.precision, None
    white = root.mT @ sites.precision @ root
    values, vectors = torch.linalg.eigh((white + white.mT) / 2)
    return values, vectors


def _limited_precision(values: Tensor, precision: float, row_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (K, D) within the limits, and the ratio of each site's precision to its limit, at least 1, (K,).

    The limits are on the largest eigenvalue, on the smallest if it is negative, and on the sum of the positive ones.
    `values` are the eigenvalues in coordinates that whiten q, `precision` is c, and `row_ratio` is r.
    """
    allowed = precision * (row_ratio / 2).clamp_min(1.0)
    high = (allowed * median_of(values.amax(-1) / row_ratio, row_ratio).clamp_min(0)).unsqueeze(-1)
    low = -(allowed * median_of((-values.amin(-1)).clamp_min(0) / row_ratio, row_ratio)).unsqueeze(-1)
    inside = torch.minimum(torch.maximum(values, low), high)
    total = inside.clamp_min(0).sum(-1)
    most = allowed * median_of(values.clamp_min(0).sum(-1) / row_ratio, row_ratio)
    inside = torch.where((total > most).unsqueeze(-1), inside * (most / total).nan_to_num(1.0).unsqueeze(-1), inside)
    negative = (low.squeeze(-1) - values.amin(-1)).clamp_min(0)
    highest = high.squeeze(-1)
    each = torch.stack([values.amax(-1) / highest, values.clamp_min(0).sum(-1) / most, 1 + negative / highest])
    return inside, each.nan_to_num(1.0).amax(0).clamp(1, LARGEST_RATIO)


def _by_parameter(
    root: Tensor, vectors: Tensor | None, inside: Tensor, kept: Tensor, score: Tensor, per_sd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Precisions with these eigenvalues, and the pull of each site on each mean, in SDs, with its variance.

    `inside` are eigenvalues (K, D) along `vectors` (None: the axes), `kept` the shares of each site and of its `score`
    (K, D) along them, and `per_sd` is 1 / SD of q.
    """
    if vectors is None:
        return inside / root.square(), kept * score * root.square() * per_sd, inside * root.square()
    inner = vectors * inside.unsqueeze(-2) @ vectors.mT
    along = vectors @ (kept * (vectors.mT @ (score @ root).unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)
    inverse = torch.linalg.inv(root)
    new = inverse.mT @ inner @ inverse
    return new, (root @ along).squeeze(-1) * per_sd, (root @ inner * root).sum(-1) * per_sd.square()


def _room(part: Tensor, spread: Tensor, pull: float, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The centre of pulls (K, D), limits of distances from it, and the SDs of honest distances; `rows` is r (K, 1)."""
    row_ratio = rows.squeeze(-1)
    middle = rows.clamp_max(1.0) * median_of(part / rows, row_ratio)
    usual = median_of((part - middle).abs() / rows.sqrt(), row_ratio) / NORMAL_MEDIAN_DEVIATION
    known = spread.clamp(0, 1)
    reach = pull * (1 - known).sqrt() * torch.maximum(known.sqrt(), rows.sqrt().clamp_max(1.0) * usual)
    return middle, reach, pull * rows.sqrt().clamp_max(1.0) * usual


def _in_others_units(
    root: Tensor, vectors: Tensor, values: Tensor, away: Tensor, pull: float, chance: Tensor
) -> Tensor:
    """The share (K,) of each client's departure that moves the mean by at most a limit in SDs of the others' posterior.

    The limit is `pull` times the SD of an honest site's effect, at most one, or `chance`. For one parameter it equals
    the limit in SDs of q. With several parameters, a site with much information on a single direction may have little
    on each parameter, and moves q along this direction by far more than its pull on any of them. In coordinates that
    whiten q, the sites' precisions are `values` (K, D) along `vectors` (K, D, D); `away` are departures of q's mean.
    """
    loose = vectors / (1 - values).clamp_min(MIN_OTHERS_SHARE).unsqueeze(-2) @ vectors.mT
    white = torch.linalg.solve(root, away.unsqueeze(-1))
    moved = (root @ (loose @ white)).squeeze(-1)
    sd = ((root @ loose) * root).sum(-1).sqrt()
    twice = loose @ (vectors * values.clamp_min(0).unsqueeze(-2) @ vectors.mT) @ loose
    own = (((root @ twice) * root).sum(-1).sqrt() / sd).clamp_max(1.0)
    most = torch.maximum(pull * own, chance)
    part: Tensor = (most * sd / moved.abs()).nan_to_num(nan=1.0, posinf=1.0).amin(-1).clamp_max(1.0)
    return part


def _sd_widening(base: Gaussian, sites: Gaussian, found: BoundedSites) -> Tensor:
    """The ratio (K,) of an SD to the SD with the client's own site in place of the limited one."""
    widened = torch.ones_like(found.precision)
    cut = (found.precision > 1).nonzero().flatten()
    if not len(cut):
        return widened
    q = base.product(found.sites.product_over(0))
    whole = type(q)(
        q.precision + sites.precision[cut] - found.sites.precision[cut], q.eta + sites.eta[cut] - found.sites.eta[cut]
    )
    proper = whole.is_proper() & q.is_proper()
    if bool(proper.any()):
        ratio = _inverse_sds(type(q)(whole.precision[proper], whole.eta[proper])) / _inverse_sds(q)
        widened[cut[proper]] = ratio.amax(-1).clamp(1, LARGEST_RATIO)
    return widened


def _inverse_sds(q: Gaussian) -> Tensor:
    spread = q.moments()[1]
    return (spread.diagonal(dim1=-2, dim2=-1) if q.dense else spread).rsqrt()


def _positive(q: Gaussian) -> Gaussian:
    """|H| in place of a precision H that is not positive definite, since it only sets the units."""
    if bool(q.is_proper()):
        return q
    fixed = with_absolute_eigenvalues(q.precision if q.dense else torch.diag(q.precision))
    return type(q)(fixed if q.dense else fixed.diagonal(), q.eta)
