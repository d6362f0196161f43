"""How much of an answer is one client's doing: its Gaussian site divided out of the posterior.

    q ∝ t_0 Π_k t_k,      q_-k = q / t_k     the posterior of all the others

The sites are what the server was sent, so that a client that says something else than its data say is seen as well. Of
a client k

    shift          (E_q θ_i - E_-k θ_i) / SD_-k θ_i            by how many SDs it moves each parameter's mean
    sd_ratio       SD_q θ_i / SD_-k θ_i                        and by how much it narrows it
    influence      √(2 KL(q || q_-k))                          all of it in SDs: d for a mean moved by d SDs
    disagreement   how far the client is from the others       in SDs of what chance does
    opposed        how far towards the opposite of what they say, likewise

for which, with δ = E_q θ - E_-k θ, note that clients with the same parameters have δ' (Σ_-k - Σ)⁻¹ δ ~ χ²
over the directions that the client knows about: the tail probability of that is told as SDs of a normal distribution.
Of all directions one is that of labels flipped or a sign turned: the others' mean μ = E_-k θ, mirrored at zero. Along
it (Neyman and Pearson, for a client at -μ)

    -δ' Σ_-k⁻¹ μ / (μ' Σ_-k⁻¹ (Σ_-k - Σ) Σ_-k⁻¹ μ)^(1/2) ~ N(0, 1)

has one degree of freedom in place of as many as there are parameters: of a few rows that is most of what can be seen.
A large client has influence and no disagreement; one whose labels are flipped has both; one whose rows are counted a
hundred times has the influence of a large one. A hospital with another population disagrees too: this says what
differs, and decides nothing.

Where the clients' numbers of rows n_k are known, of n, a client that narrows the posterior no more than so many rows do
is not named for narrowing it. Rows that say as much as the others' make

    (SD_-k θ_i / SD_q θ_i)² - 1 = n_k / (n - n_k)

and what a client says for each of its rows, as a multiple of that, is compared with the median client's. A sum of few
rows' scores is no normal number either: a one where a zero was all but certain is six SDs away, one time in forty. Of a
client whose rows say as much as m of the median client's do d SDs count as

    d / (1 + d / (3 √m))^(1/2)                             Bernstein's inequality, of scores of one SD of a row

which is d of many rows, and of one event of probability p, p^(-1/2) SDs away, at most (3 (m / p)^(1/2))^(1/2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.limits import SD_MATTERS
from pyro_fed.infer.sites.gaussian_sites import gaussian, moments_of
from pyro_fed.ops.cholesky import equilibrated_cholesky
from pyro_fed.ops.gaussian import Gaussian

#: Directions in which a client adds less than this share to what the others know are none that it speaks of.
LEAST_SHARE = 1e-3
#: A client is said to stand apart where it disagrees with the others by so many SDs, one false alarm in 15,000 of those
#: with the same parameters, or narrows the posterior so many times as much as the median client does, and some SD by
#: as much as matters; and where its influence is so many times the median client's. Rows are few and no normal numbers:
#: with both, 1 % of cohorts of ten honest clients of 8 rows have one that is named (`benchmarks.faults.naming`).
FAR, NARROWER, TIMES = 4.0, 10.0, 2.5
#: A client says the opposite of the others where most of its disagreement, and more than chance, is of that kind.
OPPOSITE, TOLD = 0.8, 3.0
#: Of two clients nobody can say which one stands apart.
FEWEST = 3
#: Of many clients so many are divided out before the others are looked at again, a share of them and at least one: one
#: of thousands hides nobody.
TOGETHER = 0.01
#: Of those that stand apart so many are described, and the others counted.
MOST_SAID = 10
#: Numbers in the matrices of the clients that are compared at once.
BLOCK = 1_000_000


class Without(NamedTuple):
    """The posterior with and without each client, in figures.

    Args:
        shift: (K, D).
        sd_ratio: (K, D).
        influence: (K,).
        disagreement: (K,).
        opposed: (K,).
        pareto_k: (K,), NaN where no weights were taken.
        by: (K,), "sites" or "draws".
    """

    shift: np.ndarray
    sd_ratio: np.ndarray
    influence: np.ndarray
    disagreement: np.ndarray
    opposed: np.ndarray
    pareto_k: np.ndarray
    by: np.ndarray


def by_sites(q: Gaussian, sites: Gaussian) -> Without:
    """Of Gaussians.

    Args:
        q: the posterior.
        sites: (K,).
    """
    count = len(sites.eta)
    others = type(sites)(q.precision - sites.precision, q.eta - sites.eta)
    proper = others.is_proper()
    mean, sd = moments_of(q)
    other_mean, other_sd = moments_of(others)
    whole = type(sites)(q.precision.expand_as(sites.precision), q.eta.expand_as(sites.eta))
    divergence = whole.kl(others).clamp_min(0)
    size = torch.where(proper, (2 * divergence).sqrt(), torch.inf)
    far = mean.new_full((2, count), torch.nan)
    for some in proper.nonzero().flatten().split(max(1, BLOCK // q.dim**2)):
        far[:, some] = _distances(q, _some(others, some), mean - other_mean[some], other_mean[some])
    disagreement, opposed = far.numpy()
    return Without(
        ((mean - other_mean) / other_sd).numpy(),
        (sd / other_sd).numpy(),
        size.numpy(),
        disagreement,
        opposed,
        np.full(count, np.nan),
        np.full(count, "sites"),
    )


def _some(sites: Gaussian, which: Tensor) -> Gaussian:
    return type(sites)(sites.precision[which], sites.eta[which])


def _distances(q: Gaussian, others: Gaussian, delta: Tensor, other_mean: Tensor) -> Tensor:
    """Disagreement and `opposed` of C clients, (2, C).

    Disagreement is in SDs of a normal distribution whose two-sided tail is that of δ' (Σ_-k - Σ)⁻¹ δ under χ²; at least
    the others' SDs by which it is moved along what the client has no information on, which cannot be chance: a
    likelihood that is saturated pulls without bending.
    """
    both = torch.stack([delta, other_mean], -1)  # (C, D, 2)
    if q.dense:
        factor = equilibrated_cholesky(others.precision).whole()
        inside = equilibrated_cholesky(q.precision).half_solve(factor)
        added, vectors = torch.linalg.eigh(torch.eye(q.dim, dtype=delta.dtype) - inside.mT @ inside)
        both = vectors.mT @ (factor.mT @ both)
    else:
        added = 1 - others.precision / q.precision
        both = others.precision.sqrt().unsqueeze(-1) * both
    spoken = added > LEAST_SHARE
    unfounded = both[..., 0].masked_fill(spoken, 0.0).norm(dim=-1)
    along, where = both.masked_fill(~spoken.unsqueeze(-1), 0.0).unbind(-1)
    added, degrees = added.masked_fill(~spoken, 1.0), spoken.sum(-1)
    spread = (added * where.square()).sum(-1).sqrt()
    opposed = torch.where(spread > 0, -(along * where).sum(-1) / spread, 0.0)
    squared = (along.square() / added).sum(-1)
    half = torch.special.gammaincc(degrees.clamp_min(1) / 2.0, squared / 2) / 2
    sds = torch.where(half > 0, -torch.special.ndtri(half), squared.sqrt())
    return torch.stack([torch.where(degrees > 0, torch.maximum(sds, unfounded), unfounded), opposed])


def who_stands_apart(sites: State, names: list[str], labels: list[str], rows: Tensor | None = None) -> str:
    """A sentence on the clients that stand apart; "" where none does, or there are no sites.

    Args:
        sites: as in `Record.sites`.
        names: the clients'.
        labels: the parameters', (D,).
        rows: the clients' numbers of rows, (K,), which are then no reason to name one.
    """
    return apart_by_sites(gaussian(sites, "q_"), gaussian(sites), names, labels, rows) if sites else ""


def apart_by_sites(
    q: Gaussian, sites: Gaussian, names: list[str], labels: list[str], rows: Tensor | None = None
) -> str:
    """The same of Gaussians: a client that stands apart is divided out before the others are compared.

    One liar of ten puts the others' mean so far away that honest clients disagree with it, and two hide each other.

    Args:
        q: the posterior.
        sites: (K,).
        names: the clients', (K,).
        labels: the parameters', (D,).
        rows: the clients' numbers of rows, (K,), which are then no reason to name one.
    """
    said, more, left = list[str](), 0, list(range(len(names)))
    fewest = max(FEWEST, len(names) // 2 + 1)
    while len(left) >= fewest and bool(q.is_proper()):  # what is left need not be a distribution
        rest = type(sites)(sites.precision[left], sites.eta[left])
        found = by_sites(q, rest)
        together = min(max(1, int(TOGETHER * len(left))), len(left) + 1 - fewest)
        chosen = _far(found, None if rows is None else rows[left].numpy())[:together]
        if not chosen:
            break
        described = chosen[: max(0, MOST_SAID - len(said))]
        said += [_said(found, k, names[left[k]], labels) for k in described]
        more += len(chosen) - len(described)
        q = type(q)(q.precision - rest.precision[chosen].sum(0), q.eta - rest.eta[chosen].sum(0))
        gone = {left[k] for k in chosen}
        left = [client for client in left if client not in gone]
    return "; ".join([*said, *([f"and {more} more clients stand apart"] if more else [])])


def apart(found: Without, names: list[str], labels: list[str]) -> str:
    """A sentence on the clients that stand apart; "" where none does.

    Of a client without whose site the others' are no distribution nothing is said: it may be the one that knows of a
    parameter, as clients that are sorted are, and `pf.influence` shows it. One without whom the draws' weights fail is
    named before those that stand apart, which may be told by its doing alone.

    Args:
        found: of the clients.
        names: theirs, (K,).
        labels: the parameters', (D,).
    """
    chosen = _far(found)
    said = [_said(found, k, names[k], labels) for k in chosen]
    if chosen:  # of whom it disagrees with may be the one without whom no draw is left
        beyond = np.flatnonzero(np.isfinite(found.pareto_k) & ~np.isfinite(found.influence))
        said = [f"client {names[k]} moves the answer further than weights of its draws can tell" for k in beyond] + said
    return "; ".join(said)


def _far(found: Without, rows: np.ndarray | None = None) -> list[int]:
    """The clients that stand apart, those of most influence first."""
    narrowing = -np.log(found.sd_ratio).sum(1)
    if len(narrowing) < FEWEST or not np.isfinite(narrowing).any():
        return []
    narrower = (narrowing > NARROWER * np.abs(np.nanmedian(narrowing))) & (found.sd_ratio.min(1) * SD_MATTERS < 1)
    away = np.maximum(found.disagreement, found.opposed)
    if rows is not None:
        each = _said_by_a_row(found, rows)
        narrower &= ~(each <= NARROWER)
        worth = np.where(each > 0, each * rows, np.inf)  # what bends the other way, or has no rows, is no chance
        away = away / np.sqrt(1 + away / (3 * np.sqrt(worth)))
    far = (away > FAR) | narrower
    least = TIMES * float(np.median(found.influence))
    return [int(k) for k in np.argsort(-found.influence) if far[k] and found.influence[k] > least]


def _said_by_a_row(found: Without, rows: np.ndarray) -> np.ndarray:
    """What a client's rows say, each, as a multiple of what the median client's do, (K,); NaN where it is not known."""
    here = (rows > 0) & np.isfinite(found.sd_ratio).all(1)
    said = np.full(len(rows), np.nan)
    said[here] = (found.sd_ratio[here] ** -2.0 - 1).mean(1) * (rows.sum() - rows[here]) / rows[here]
    return said / np.abs(np.median(said[here])) if here.any() else said


def _said(found: Without, k: int, name: str, labels: list[str]) -> str:
    most = int(np.abs(found.shift[k]).argmax())
    return (
        f"client {name} moves the mean of '{labels[most]}' by {abs(found.shift[k, most]):.2g} SDs and its SD by the "
        f"factor {found.sd_ratio[k, most]:.2g}; it disagrees with the others by {found.disagreement[k]:.2g} SDs"
        + (
            f", {found.opposed[k]:.2g} of them towards the opposite of what these say"
            if found.opposed[k] > OPPOSITE * found.disagreement[k] and found.opposed[k] > TOLD
            else ""
        )
    )
