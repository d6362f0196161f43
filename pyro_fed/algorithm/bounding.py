"""What one client can do to a product of Gaussian sites, bounded by what the others do.

    q ∝ t_0 Π_k t_k,    t_k(θ) = exp(-θ'Λ_kθ/2 + η_k'θ)

In coordinates that whiten q, of covariance Σ and mean m, client k's precision and its pull at parameter i are

    P_k = Σ^(1/2) Λ_k Σ^(1/2)                   eigenvalues λ, about 1 / K each of K like clients
    u_ki = [Σ (η_k - Λ_k m)]_i / Σ_ii^(1/2)     the SDs by which it moves the mean of θ_i

Where the model is right a pull is noise, and its SD follows from the client's own precision (Fisher's information
equality): v_ki = ([Σ Λ_k Σ]_ii / Σ_ii)^(1/2). With ũ_i the median of the pulls and s_i the median distance from it,
over 0.6745, a site is cut back to

    λ ≤ c med_j λ_max,j      Σ λ ≤ c med_j Σ λ_j      λ ≥ -c med_j (-λ_min,j)_+      |u_ki - ũ_i| ≤ b max(v_ki, s_i)

with b `pull` and c `precision`. A direction whose precision is cut keeps its mean, as if the client had fewer rows.
What lies within the limits is returned as it came: honest clients that differ no more than that lose nothing.

The honest sites enter whole, whatever m, so that one liar among K like clients moves no mean by much more than
b (c / (c + K))^(1/2) SDs, 1.1 of ten; more where the clients' pulls happen to be wide, 1.6 in the worst of some hundred
draws of three parameters. Where all clients pull apart by s SDs the bound is b s. What few clients know of nobody can
check: of more parameters than a client has rows a liar may claim the directions that no other client sees.

q itself is found from the bounded sites, in a few passes. It begins with sites whose size and pull, in units of the
median curvature, are shortened to c times the median (Huber's weights).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.entries import evenly
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.gaussian_structures import FullGaussian

#: Passes in which q and the limits are made to fit each other, and the move of a mean in SDs at which they end.
PASSES, STILL = 20, 1e-5
#: Passes that go the whole way; later ones go shorter and shorter ones.
WHOLE = 3
#: A normal number is beyond this in half of the cases: from medians of sizes to SDs.
HALF = 0.6745
#: Smallest eigenvalue, relative to the others, of a q that is not positive definite.
FLOOR = 1e-6
#: How far beyond a limit is told, at most: where the others agree to the bit any distance is without bound.
LARGEST = 1e12
#: Numbers of a message that are compared, evenly spaced, where there are more.
LOOKED_AT = 1000


class BoundedSites(NamedTuple):
    """Sites within the limits.

    Args:
        sites: (K,).
        pull: by how many SDs of q each client's pull was beyond its limit, the worst parameter, (K,).
        precision: how many times the limit its precision was, one where it was within, (K,).
    """

    sites: Gaussian
    pull: Tensor
    precision: Tensor

    @property
    def beyond(self) -> Tensor:
        """How far each client was beyond its limits: SDs, and the logarithm of a factor, (K,); 0: not at all."""
        return self.pull + self.precision.log()


def bounded(base: Gaussian, sites: Gaussian, centre: Tensor, *, pull: float, precision: float) -> BoundedSites:
    """Sites none of which does much more than the others.

    Args:
        base: t_0, or all that is not bounded; it only sets the units, and counts as flat where it is not finite, as a
            prior is at a trial point that a line search will take back.
        sites: (K,), at least three.
        centre: a point from which pulls are first measured, such as an earlier mean of q, (D,).
        pull: b.
        precision: c.
    """
    if not bool(base.precision.isfinite().all() & base.eta.isfinite().all()):
        base = type(base)(torch.zeros_like(base.precision), torch.zeros_like(base.eta))
    q = _positive(base.product(sites.power(_weights(sites, centre, precision)).product_over(0)))
    found = _limited(q, sites, pull, precision)
    for number in range(PASSES):
        new = _positive(base.product(found.sites.product_over(0)))
        if float(((new.mean() - q.mean()).abs() * _inverse_sds(new)).amax()) < STILL:
            break
        # A liar that claims to be certain pulls with all its might as soon as the mean has passed its own: whole steps
        # would go to and fro for ever.
        step = 1.0 if number < WHOLE else 1.0 / (number - WHOLE + 2)
        q = q.power(1 - step).product(new.power(step))
        found = _limited(q, sites, pull, precision)
    return found


def within_cohort(values: Tensor, pull: float) -> tuple[Tensor, Tensor]:
    """Numbers of clients (K, ...), each no further from their median than the median client is, `pull` times in SDs.

    Args:
        values: what was sent.
        pull: b.

    Returns:
        the numbers, and how far beyond in these SDs each client's worst one was, (K,).
    """
    middle = values.quantile(0.5, 0)
    usual = (values - middle).abs().quantile(0.5, 0) / HALF
    reach = pull * usual
    held = torch.minimum(torch.maximum(values, middle - reach), middle + reach)
    beyond = ((values - held).abs() / usual.clamp_min(torch.finfo(values.dtype).tiny)).flatten(1)
    worst = torch.where(values == held, 0.0, beyond.reshape(values.shape)).flatten(1).amax(1)
    return held, worst.double().nan_to_num(posinf=LARGEST).clamp_max(LARGEST)


def apart(values: Tensor) -> Tensor:
    """How far each client's numbers (K, ...) are from their medians, in the cohort's SDs: the median number, (K,).

    A client all of whose numbers are too large, of the wrong sign, or of somebody else's data has most of them far
    from the median; an honest one 0.7 SDs.
    """
    flat = values.reshape(len(values), -1)
    flat = flat[:, evenly(flat.shape[1], LOOKED_AT)].double()
    away = (flat - flat.quantile(0.5, 0)).abs()
    usual = away.quantile(0.5, 0) / HALF
    return torch.where(away > 0, away / usual, 0.0).clamp_max(LARGEST).quantile(0.5, 1)


def _weights(sites: Gaussian, centre: Tensor, limit: float) -> Tensor:
    """The powers (K,) that shorten sites to `limit` times the median in size and pull."""
    full = sites.dense
    diagonal = sites.precision.diagonal(dim1=-2, dim2=-1) if full else sites.precision
    usual = diagonal.abs().quantile(0.5, 0)
    spoken = diagonal.abs().sort(0).values[:-1].mean(0)  # of a parameter that few clients know
    root = torch.where(usual > 0, usual, torch.where(spoken > 0, spoken, 1.0)).sqrt()
    matrix = sites.precision / (root.unsqueeze(-1) * root if full else root.square())
    size = matrix.flatten(1).norm(dim=1)
    pulls = sites.score(centre.expand_as(sites.eta)) / root
    apart = (pulls - pulls.quantile(0.5, 0)).norm(dim=1)
    weights = [(limit * each.median() / each).nan_to_num(nan=1.0).clamp_max(1.0) for each in (size, apart)]
    return torch.minimum(*weights)


def _limited(q: Gaussian, sites: Gaussian, pull: float, precision: float) -> BoundedSites:
    """The sites within the limits that a q gives."""
    root, mean, per_sd = q.root(), q.mean(), _inverse_sds(q)
    score = sites.score(mean.expand_as(sites.eta))
    if sites.dense:
        white = root.mT @ sites.precision @ root
        values, vectors = torch.linalg.eigh((white + white.mT) / 2)
    else:
        values, vectors = root.square() * sites.precision, None
    high = precision * values.amax(-1).median().clamp_min(0)
    low = -precision * (-values.amin(-1)).clamp_min(0).median()
    inside = values.clamp(low, high)
    total, most = inside.clamp_min(0).sum(-1), precision * values.clamp_min(0).sum(-1).median()
    inside = torch.where((total > most).unsqueeze(-1), inside * (most / total).nan_to_num(1.0).unsqueeze(-1), inside)
    negative = (low - values.amin(-1)).clamp_min(0)
    each = torch.stack([values.amax(-1) / high, values.clamp_min(0).sum(-1) / most, 1 + negative / high])
    beyond = each.nan_to_num(1.0).amax(0).clamp_min(1)
    cut = (inside != values).any(-1)
    share = torch.where(inside == values, 1.0, inside / values)
    if vectors is None:
        spread, part = inside * root.square(), share * score * root.square() * per_sd
        new = inside / root.square()
    else:
        inner = vectors * inside.unsqueeze(-2) @ vectors.mT
        along = vectors @ (share * (vectors.mT @ (score @ root).unsqueeze(-1)).squeeze(-1)).unsqueeze(-1)
        part = (root @ along).squeeze(-1) * per_sd
        spread = (root @ inner * root).sum(-1) * per_sd.square()
        inverse = torch.linalg.inv(root)
        new = inverse.mT @ inner @ inverse
    middle = part.quantile(0.5, 0)
    usual = (part - middle).abs().quantile(0.5, 0) / HALF
    reach = pull * torch.maximum(spread.clamp_min(0).sqrt(), usual)
    over = ((part - middle).abs() - reach).clamp_min(0)
    moved = torch.minimum(torch.maximum(part, middle - reach), middle + reach)
    cut |= (over > 0).any(-1)
    at = FullGaussian(new, moved) if sites.dense else type(sites)(new, moved)
    back = moved / per_sd
    pulled = (q.precision @ back.unsqueeze(-1)).squeeze(-1) if sites.dense else q.precision * back
    eta = pulled - type(at)(at.precision, torch.zeros_like(pulled)).score(mean.expand_as(pulled))
    keep = ~cut
    shaped = keep.reshape(-1, *[1] * (sites.precision.dim() - 1))
    result = type(sites)(torch.where(shaped, sites.precision, new), torch.where(keep.unsqueeze(-1), sites.eta, eta))
    return BoundedSites(result, over.amax(-1), beyond)


def _inverse_sds(q: Gaussian) -> Tensor:
    spread = q.moments()[1]
    return (spread.diagonal(dim1=-2, dim2=-1) if q.dense else spread).rsqrt()


def _positive(q: Gaussian) -> Gaussian:
    """|H| in place of a precision H that is not positive definite: it only sets the units."""
    if bool(q.is_proper()):
        return q
    matrix = q.precision if q.dense else torch.diag(q.precision)
    scale = matrix.diagonal().abs().sqrt()
    scale = torch.where(scale > 0, scale, scale.amax().clamp_min(FLOOR))
    values, vectors = torch.linalg.eigh(matrix / scale.unsqueeze(-1) / scale)
    fixed = (vectors * values.abs().clamp_min(FLOOR)) @ vectors.mT * scale.unsqueeze(-1) * scale
    return type(q)(fixed if q.dense else fixed.diagonal(), q.eta)
