"""Sites' summaries beside each other: what looks like another unit, another numbering, or other dates at one of them.

Means and SDs of a column differ between hospitals, so that a test of equality would find every hospital. Let m_k and
s_k be those of site k, in the unit of the consensus (μ, σ). The model of sites is

    (m_k - μ) / σ ~ t_6 · sqrt(MEAN_HETEROGENEITY² + 1 / n_k),
    log s_k - log σ ~ t_6 · sqrt(LOG_SD_HETEROGENEITY² + 1 / n_k),

with the consensus that is likeliest among the sites' own values. A site is said to have another unit if the likelihood
with its values converted, times the prior probability of that, is MIN_ODDS times that without. The codebook's range is
one more site, with a larger heterogeneity (`_sites_of`). Exchanged levels are found in the same way, by the differences
of other columns between them.

Some rows of a site in another unit are found by its quantiles q_1 < q_2 < ..., with shares π_b of its rows between
them. Let G be the distribution by the other sites' quantiles, M and S the site's own shift and scale with the priors
above, and w the share of rows that are o + f times those in the codebook's unit:

    F(x) = (1 - w) G((x - M) / S) + w G(((x - o) / f - M) / S)
    log L = Σ_b π_b log[(F(q_b) - F(q_{b-1})) / π_b] / (1 / n + SHAPE_HETEROGENEITY²)

w = 0 and w = 1 are a site in one unit. A second group of patients at one site alone is the same if its values happen
to be f times as large; else a factor that is no unit's fits better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from pyro_fed.codebook import sentences
from pyro_fed.codebook.at_site import SiteFinding
from pyro_fed.codebook.codebook import Column
from pyro_fed.codebook.summary import HALVES, QUANTILES, NumberSummary, SiteSummary
from pyro_fed.codebook.units import COINCIDENCE_CHANCE, SHIFTS, Confusion, confusions
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import OVERALL
from pyro_fed.errors import DataError, listed

#: How far hospitals usually differ: means (in SDs), log SDs, log odds of levels, differences between levels (in SDs).
MEAN_HETEROGENEITY, LOG_SD_HETEROGENEITY, LOG_ODDS_HETEROGENEITY, EFFECT_HETEROGENEITY = 0.3, 0.2, 0.5, 0.15
#: The same of periods of recruitment.
PERIOD_HETEROGENEITY = 0.6
#: Degrees of freedom of the differences between hospitals.
STUDENT_FREEDOM = 6
#: Probability that a site's column is in another unit, or its levels are exchanged; and odds from which it is reported.
ERROR_PROBABILITY, MIN_ODDS = 0.05, 20.0
#: How much rarer powers of ten are than the units that the codebook's unit is confused with.
UNNAMED_UNIT_SHARE = 0.2
#: How far shares of rows below a quantile differ between hospitals.
SHAPE_HETEROGENEITY = 0.12
#: Shares of rows in another unit; the site's own shift and scale, in SDs and factors.
MIXED_SHARES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9])
OWN_SHIFTS, OWN_SCALES = np.linspace(-1.2, 1.2, 13)[:, None, None], np.exp(np.linspace(-0.8, 0.8, 9))[:, None]
#: Factors that no unit has: where one of them fits better by MIN_ODDS, the site has a second group of patients.
OTHER_FACTORS = tuple(Confusion(math.exp(size), "") for part in range(2, 77) for size in (0.1 * part, -0.1 * part))
#: Share of rows that may lie anywhere.
STRAY_SHARE = 0.02
#: A mean or an SD that is this many usual differences from the others is reported even if no unit explains it.
OUTLIER_DISTANCE = 8.0
#: An effect at the other sites is used for levels if it is this many standard errors from zero. The score allows for
#: its error too: with 3, more exchanged levels are missed (`tests/helpers/hospital_tables.py` counts them).
MIN_EFFECT_ERRORS = 2.0
#: What tells about levels beside the other columns.
FREQUENCIES = "their frequencies"
#: No value is missing at a site, and at least this share at each other one, with this chance of that. It is smaller
#: than that of a false alarm elsewhere, since hospitals also differ in how often values are missing.
MIN_MISSING_SHARE, NEVER_MISSING_CHANCE = 0.1, 1e-6
#: Findings of a site on a column beside which one between sites says more.
NOT_EXPLAINED = {
    "scale_differs": {"out_of_range", "in_unknown_unit"},
    "units_mixed": {"out_of_range"},
    "time_differs": {"out_of_range"},
}

#: The site that a finding is about, or two of which one is wrong; and the finding.
Found = tuple[tuple[str, ...], Finding]


@checked
def compare(summaries: Sequence[SiteSummary]) -> list[SiteFinding]:
    """Compare the tables of several sites by their summaries.

    Args:
        summaries: of the sites, of `check` or `read_summary`.

    Returns:
        What each site has found itself, and what differs between sites, each with the site's name. Doubts contradict
        the codebook; notes are suspicions, such as another unit, which only the site can confirm.

    Raises:
        DataError: fewer than two summaries, or two of one site.

    Example:
        >>> summaries = [pf.codebook.read_summary(f"{name}.json") for name in ("albany", "boston", "chicago")]
        >>> for one in pf.codebook.compare(summaries):
        ...     print(one.site, one.finding.text)
    """
    check_sites(summaries)
    found: list[Found] = [((one.site,), finding) for one in summaries for finding in one.as_findings()]
    doubted: dict[tuple[str, str], set[str]] = {}
    for sites, finding in found:
        if finding.is_doubt:
            doubted.setdefault((sites[0], str(finding.where.get("column"))), set()).add(finding.code)
    alike, others = by_codebook(summaries)
    with_it = tuple(one.site for one in alike)
    found += [((one.site,), sentences.other_codebook(sites=with_it)) for one in others]
    doubles = [(one.site, other.site) for one, other in combinations(alike, 2) if _have_one_table(one, other)]
    found += [(sites, sentences.same_table()) for sites in doubles]
    for name, column in alike[0].codebook.columns.items() if len(alike) > 1 else ():
        for sites, finding in _column_findings(name, column, alike):
            if all(doubted.get((site, name), set()) <= NOT_EXPLAINED.get(finding.code, set()) for site in sites):
                found.append((sites, finding))
    order = [one.site for one in summaries]
    found.sort(key=lambda one: order.index(one[0][0]))
    return [SiteFinding(" or ".join(sites), finding) for sites, finding in found]


def _have_one_table(one: SiteSummary, other: SiteSummary) -> bool:
    """Whether two sites have the same figures in all columns, and chance does not explain it.

    Sums of n values, which are multiples of 10^-d with SD s, are equal by chance with probability 10^-d / (s √(4 π n)).
    """
    if any(getattr(one, part) != getattr(other, part) for part in ("rows", "numbers", "dates", "categories")):
        return False
    chance = 1.0
    for column in one.numbers.values():
        if column.n and column.sd and column.decimals is not None:
            chance *= min(1.0, 10.0**-column.decimals / (column.sd * math.sqrt(4 * math.pi * column.n)))
    return chance < COINCIDENCE_CHANCE


def check_sites(summaries: Sequence[SiteSummary], least: int = 2) -> None:
    """Raise DataError if there are too few summaries, or two of one site."""
    names = [one.site for one in summaries]
    if len(names) < least:
        raise DataError(f"expected the summaries of {least} sites at least, received {len(names)}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            f"there are two summaries of {listed(twice)}: pass one for each site, and give each site its own name"
        )


def by_codebook(summaries: Sequence[SiteSummary]) -> tuple[list[SiteSummary], list[SiteSummary]]:
    """The summaries by the codebook of most of them, whose `fewest` may differ, and the others."""
    books = [replace(one.codebook, fewest=2) for one in summaries]
    usual = max(books, key=books.count)
    alike = [one for one, book in zip(summaries, books, strict=True) if book == usual]
    return alike, [one for one, book in zip(summaries, books, strict=True) if book != usual]


def check_together(summaries: Sequence[SiteSummary]) -> None:
    """Raise DataError if there are no summaries, two of one site, one called "overall", or some by another codebook."""
    check_sites(summaries, 1)
    if OVERALL in (one.site for one in summaries):
        raise DataError(
            f"a site is called {OVERALL!r}, which is the name of all sites together in the tables: rename it"
        )
    alike, others = by_codebook(summaries)
    if others:
        raise DataError(
            f"the summaries of {listed(one.site for one in others)} were made by another codebook than those of "
            f"{listed(one.site for one in alike)}: check the tables again with one codebook"
        )


def _column_findings(name: str, column: Column, summaries: Sequence[SiteSummary]) -> Iterator[Found]:
    if column.has_moments or column.type == "date":
        sites = {
            one.site: numbers
            for one in summaries
            if (numbers := {**one.numbers, **one.dates}.get(name)) is not None and numbers.has_moments
        }
        scales = list(_scales(name, column, sites))
        mixed = list(_mixed_units(name, column, sites, scales))
        named = {site for which, _ in mixed for site in which}
        scales = [one for one in scales if not named & {*one[0]}] + mixed
        yield from scales or _decimals(name, sites)
    if column.type == "category":
        yield from _levels(name, column, summaries)
    yield from _never_missing(name, summaries)


def log_t(z: Any) -> Any:
    """Log density of Student's t with STUDENT_FREEDOM degrees of freedom, but for its constant."""
    return -(STUDENT_FREEDOM + 1) / 2 * np.log1p(z * z / STUDENT_FREEDOM)


# -- Units and dates ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sites:
    """Means, SDs and numbers of values of the sites that are compared, (K,) each."""

    names: tuple[str, ...]
    n: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    mean_differs: float
    extent: np.ndarray  # how far the mean and log SD of the range's own site differ besides, (2, K)

    def log_likelihood(self, factors: np.ndarray, offsets: np.ndarray) -> float:
        """Of the values after conversion, with the likeliest consensus; in the sites' own units. (K,), (K,) → ()."""
        mean, sd = (self.mean - offsets) / factors, self.sd / factors
        log_sd = np.log(sd)
        wide_mean = np.sqrt(self.mean_differs**2 + 1 / self.n + self.extent[0] ** 2)
        wide_sd = np.sqrt(LOG_SD_HETEROGENEITY**2 + 1 / self.n + self.extent[1] ** 2)
        real = self.extent[0] == 0
        consensus_sd = log_sd[real][:, None, None]
        z_mean = (mean - mean[real][:, None]) / np.exp(consensus_sd) / wide_mean  # (SDs, means, K)
        z_sd = (log_sd - consensus_sd) / wide_sd
        density = log_t(z_mean) - consensus_sd - np.log(wide_mean * factors)
        return float((density + log_t(z_sd) - np.log(wide_sd)).sum(-1).max())

    def far_off(self, factors: np.ndarray, offsets: np.ndarray) -> Iterator[tuple[int, float, float]]:
        """Sites far from the median of the others: index, difference of means in SDs, ratio of SDs."""
        mean, sd = (self.mean - offsets) / factors, self.sd / factors
        for k in np.nonzero(self.extent[0] == 0)[0]:
            others = (np.arange(len(mean)) != k) & (self.extent[0] == 0)
            if others.sum() < 2:
                continue
            center, scale = float(np.median(mean[others])), float(np.median(sd[others]))
            apart, ratio = (mean[k] - center) / scale, sd[k] / scale
            wide = math.hypot(self.mean_differs, self.n[k] ** -0.5)
            wide_sd = math.hypot(LOG_SD_HETEROGENEITY, self.n[k] ** -0.5)
            if abs(apart) > OUTLIER_DISTANCE * wide or abs(math.log(ratio)) > OUTLIER_DISTANCE * wide_sd:
                yield int(k), float(apart), float(ratio)


def _scales(name: str, column: Column, sites: dict[str, NumberSummary]) -> Iterator[Found]:
    varying = {site: one for site, one in sites.items() if one.sd}
    if len(varying) < 2:
        return
    is_date = column.type == "date"
    compared, possible = _sites_of(varying, column), SHIFTS if is_date else confusions(column)
    factors, offsets = np.ones(len(compared.names)), np.zeros(len(compared.names))
    for _ in varying:
        gain, site, one, rival = _likeliest(compared, possible, factors, offsets)
        if gain < math.log(MIN_ODDS):
            break
        which = (site, rival[1]) if len(varying) == 2 and gain - rival[0] < math.log(MIN_ODDS) else (site,)
        shift = sentences.time_differs(column=name, shift=one.name)
        yield which, shift if is_date else sentences.scale_differs(column=name, factor=one.text)
        factors, offsets = _with_conversion(factors, offsets, compared.names.index(site), one)
    for k, apart, ratio in compared.far_off(factors, offsets):
        mean = f"{abs(apart):.1f} SDs {'above' if apart > 0 else 'below'}"
        yield (compared.names[k],), sentences.distribution_differs(column=name, mean=mean, sd=f"{ratio:.3g} times")


def _decimals(name: str, sites: dict[str, NumberSummary]) -> Iterator[Found]:
    """The one site whose numbers have decimals."""
    found = [site for site, one in sites.items() if one.decimals]
    if len(found) == 1 and len(sites) >= 3 and all(one.decimals is not None for one in sites.values()):
        (site,) = found
        decimals, unit = sites[site].decimals or 0, sites[site].whole_in
        yield (site,), sentences.decimals_differ(column=name, decimals=decimals, factor=unit)


def _likeliest(
    compared: _Sites, possible: Sequence[Confusion], factors: np.ndarray, offsets: np.ndarray
) -> tuple[float, str, Confusion, tuple[float, str]]:
    """The conversion of one more site that gains most: log odds, site, what; and log odds and name of the next site."""
    priors = _log_priors(possible) - compared.log_likelihood(factors, offsets)
    best = (-math.inf, "", possible[0])
    rival = (-math.inf, "")
    for k, site in enumerate(compared.names):
        if site and factors[k] == 1 and offsets[k] == 0:
            gains = [compared.log_likelihood(*_with_conversion(factors, offsets, k, one)) for one in possible] + priors
            mine = (float(gains.max()), site, possible[int(gains.argmax())])
            best, next_best = (mine, best) if mine[0] > best[0] else (best, mine)
            rival = max(rival, next_best[:2])
    return *best, rival


def _log_priors(possible: Sequence[Confusion]) -> np.ndarray:
    """Log probabilities that a site's values are in each of these units, (U,)."""
    shares = np.array([1.0 if one.is_named else UNNAMED_UNIT_SHARE for one in possible])
    return np.asarray(np.log(ERROR_PROBABILITY * shares / shares.sum()))


def _with_conversion(factors: np.ndarray, offsets: np.ndarray, k: int, one: Confusion) -> tuple[np.ndarray, np.ndarray]:
    factors, offsets = factors.copy(), offsets.copy()
    factors[k], offsets[k] = one.factor, one.offset
    return factors, offsets


def _sites_of(sites: dict[str, NumberSummary], column: Column) -> _Sites:
    names, n = [*sites], [float(one.n or 0) for one in sites.values()]
    mean, sd = [float(one.mean or 0) for one in sites.values()], [float(one.sd or 0) for one in sites.values()]
    extent = [(0.0, 0.0)] * len(names)
    if column.has_moments and column.range is not None:
        low, high = map(float, column.range)  # type: ignore[arg-type]
        names, n = [*names, ""], [*n, math.inf]
        mean, sd, extent = [*mean, (low + high) / 2], [*sd, (high - low) / 6], [*extent, (2.0, 0.7)]
    differ = PERIOD_HETEROGENEITY if column.type == "date" else MEAN_HETEROGENEITY
    return _Sites(tuple(names), np.array(n), np.array(mean), np.array(sd), differ, np.array(extent).T)


# -- Some rows in another unit ------------------------------------------------------------------------------------


def _mixed_units(
    name: str, column: Column, sites: dict[str, NumberSummary], scales: Sequence[Found]
) -> Iterator[Found]:
    """Sites some of whose rows are in another unit, the likeliest first: it makes others look wrong.

    `scales` are the findings on whole sites, with which no other site is compared.
    """
    whole = {site: one for site, one in sites.items() if len(one.quantiles) == len(QUANTILES)}
    rescaled = {site for which, finding in scales if finding.code == "scale_differs" for site in which}
    while True:
        gains: dict[str, tuple[float, Confusion]] = {}
        for site, one in whole.items():
            others = [each for other, each in whole.items() if other not in {site, *rescaled}]
            if len(others) >= 2 and all(each.quantiles["0.1"] < each.quantiles["0.9"] for each in others):
                gains[site] = _mixture_gain(one, others, confusions(column), site in rescaled)
        worst = max(gains, key=lambda site: gains[site][0], default="")
        if not worst or gains[worst][0] < math.log(MIN_ODDS):
            return
        yield (worst,), sentences.units_mixed(column=name, factor=gains[worst][1].text)
        del whole[worst]


def _mixture_gain(
    one: NumberSummary, others: Sequence[NumberSummary], possible: Sequence[Confusion], is_rescaled: bool
) -> tuple[float, Confusion]:
    """Log odds that a part of a site's rows is in another unit and not all of them in one; and the likeliest unit.

    `is_rescaled` says that mean and SD are not those of the usual unit.
    """
    priors = _log_priors(possible)
    found = _shares_log_likelihood(one, others, possible, np.array([0.0, *MIXED_SHARES, 1.0]))
    mixed, in_one_unit = found[:, 1:-1] + priors[:, None], logsumexp(found[:, -1] + priors)
    if not is_rescaled:
        in_one_unit = np.logaddexp(in_one_unit, found[0, 0])
    gain = float(logsumexp(mixed) - math.log(len(MIXED_SHARES)) - in_one_unit)
    if gain < math.log(MIN_ODDS):
        return gain, possible[0]
    # Between the outer quantiles nothing tells one large factor from another, but the SD does.
    fit = (mixed + _mixed_sd_log_likelihood(one, others, possible)).max(1)
    free = _shares_log_likelihood(one, others, OTHER_FACTORS, MIXED_SHARES)
    free += _mixed_sd_log_likelihood(one, others, OTHER_FACTORS)
    best = int(fit.argmax())
    is_unit = free.max() - (fit - priors)[best] < math.log(MIN_ODDS)
    return (gain if is_unit else -math.inf), possible[best]


def _mixed_sd_log_likelihood(
    one: NumberSummary, others: Sequence[NumberSummary], units: Sequence[Confusion]
) -> np.ndarray:
    """Log likelihoods of a site's SD by the share of its rows in each unit, (U, MIXED_SHARES)."""
    mean, sd = (float(np.median([getattr(each, part) for each in others])) for part in ("mean", "sd"))
    factors, offsets = (np.array([getattr(unit, part) for unit in units])[:, None] for part in ("factor", "offset"))
    apart = MIXED_SHARES * (1 - MIXED_SHARES) * (factors * mean + offsets - mean) ** 2
    expected = np.sqrt(sd**2 * (1 - MIXED_SHARES + MIXED_SHARES * factors**2) + apart)
    wide = math.hypot(LOG_SD_HETEROGENEITY, 2 / math.sqrt(one.n or 1))
    return np.asarray(log_t(np.log(float(one.sd or 0) / expected) / wide))


def _shares_log_likelihood(
    one: NumberSummary, others: Sequence[NumberSummary], units: Sequence[Confusion], shares: np.ndarray
) -> np.ndarray:
    """Log likelihoods of a site's quantiles by the share of its rows in each of some units, (U,), (W,) → (U, W)."""
    own, quantiles = (np.array([[*each.quantiles.values()] for each in sites]) for sites in ([one], others))
    in_logs = min(own.min(), quantiles.min()) > 0
    if in_logs:
        quantiles = np.log(quantiles)
    center, width = quantiles[:, 2:3], quantiles[:, 4:5] - quantiles[:, :1]
    shape, cells = np.median((quantiles - center) / width, 0), np.diff([0.0, *QUANTILES, 1.0])
    shift, scale = OWN_SHIFTS * np.median(width) / (ndtri(0.9) - ndtri(0.1)), OWN_SCALES * np.median(width)
    prior = log_t(OWN_SHIFTS / MEAN_HETEROGENEITY) + log_t(np.log(OWN_SCALES) / LOG_SD_HETEROGENEITY)

    def below(values: np.ndarray) -> np.ndarray:
        """Shares of rows below some values, by the other sites; (V,) → (shifts, scales, V)."""
        values = np.log(np.maximum(values, np.finfo(float).tiny)) if in_logs else values
        return _interpolated((values - np.median(center) - shift) / scale, shape)

    usual, found = below(own[0]), []
    for unit in units:
        mixed = usual + shares[:, None, None, None] * (below((own[0] - unit.offset) / unit.factor) - usual)
        inside = np.diff(mixed, axis=-1, prepend=0.0, append=1.0)
        inside = (1 - STRAY_SHARE) * inside + STRAY_SHARE / len(cells)
        fit = (cells * np.log(inside / cells)).sum(-1) / (1 / float(one.n or 1) + SHAPE_HETEROGENEITY**2)
        found.append(logsumexp(fit + prior[..., 0], axis=(1, 2)) - logsumexp(prior))
    return np.array(found)


def _interpolated(values: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Probabilities below values of a distribution with QUANTILES at `shape`: normal scores in straight lines."""
    scores, knots = ndtri(QUANTILES), np.maximum.accumulate(shape + 1e-9 * np.arange(len(shape)))
    place = np.clip(np.searchsorted(knots, values) - 1, 0, len(knots) - 2)
    slopes = np.diff(scores) / np.diff(knots)
    return np.asarray(ndtr(scores[place] + (values - knots[place]) * slopes[place]))


# -- Levels -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Difference:
    """Difference of one quantity between two levels at each site that has it, NaN elsewhere, (K,) each."""

    by: str
    value: np.ndarray
    variance: np.ndarray
    differs: float


def _levels(name: str, column: Column, summaries: Sequence[SiteSummary]) -> Iterator[Found]:
    sites = [one for one in summaries if name in one.categories]
    pairs = [*combinations(list(column.levels), 2), *([HALVES] if column.ordered and len(column.levels) > 2 else [])]
    scores: dict[str, tuple[float, Finding]] = {}
    for pair in pairs:
        differences = list(_differences(name, pair, sites))
        for k, site in enumerate(sites):
            score, by = _exchange_score(differences, k)
            if score > scores.get(site.site, (math.log(MIN_ODDS) - math.log(ERROR_PROBABILITY / len(pairs)),))[0]:
                reversed_order = sentences.levels_reversed(column=name, by=tuple(by))
                exchanged = sentences.levels_exchanged(column=name, levels=pair, by=tuple(by))
                scores[site.site] = score, reversed_order if pair == HALVES else exchanged
    if scores:  # a wrong site makes others look wrong
        worst = max(scores, key=lambda site: scores[site][0])
        yield (*scores,) if len(sites) == 2 else (worst,), scores[worst][1]


def _differences(name: str, pair: tuple[str, str], sites: Sequence[SiteSummary]) -> Iterator[_Difference]:
    """The log odds of two levels, and the difference of each other column's mean between them, in SDs."""
    first, second = pair
    counts = [list(one.categories[name].levels.items()) for one in sites]
    yield _mean_levels(counts) if pair == HALVES else _log_odds(pair, counts)
    found = [
        {(r.column, r.level): r for r in one.relations if r.category == name and {*pair} <= r.n.keys()} for one in sites
    ]
    for key in dict.fromkeys(key for one in found for key in one):
        value, variance = np.full(len(sites), np.nan), np.full(len(sites), np.nan)
        for k, (site, relations) in enumerate(zip(sites, found, strict=True)):
            relation = relations.get(key)
            if relation is not None and (sd := _sd_of(site, key, relation.n, relation.means)):
                value[k] = (relation.means[first] - relation.means[second]) / sd
                variance[k] = 1 / relation.n[first] + 1 / relation.n[second]
        if np.isfinite(value).sum() >= 2:
            yield _Difference(key[0], value, variance, EFFECT_HETEROGENEITY)


def _log_odds(pair: tuple[str, str], counts: Sequence[list[tuple[str, int | None]]]) -> _Difference:
    """Log odds of two levels, where their counts have left the site."""
    a, b = (np.array([np.nan if (n := dict(of)[level]) is None else n + 0.5 for of in counts]) for level in pair)
    a, b = np.where(np.isnan(b), np.nan, a), np.where(np.isnan(a), np.nan, b)
    return _Difference(FREQUENCIES, np.log(a / b), 1 / a + 1 / b, LOG_ODDS_HETEROGENEITY)


def _mean_levels(counts: Sequence[list[tuple[str, int | None]]]) -> _Difference:
    """How far the mean level is above the middle one, in SDs; withheld counts are small ones, and taken as none."""
    value = []
    for of in counts:
        known = np.array([n or 0 for _, n in of], float)
        place = np.arange(len(of)) - (len(of) - 1) / 2
        mean = known @ place / max(1, known.sum())
        sd = math.sqrt(known @ (place - mean) ** 2 / max(1, known.sum()))
        value.append(mean / sd if sd else np.nan)
    total = np.array([sum(n or 0 for _, n in of) for of in counts], float)
    return _Difference(FREQUENCIES, np.array(value), 1 / np.maximum(total, 1), LOG_ODDS_HETEROGENEITY)


def _sd_of(site: SiteSummary, key: tuple[str, str], n: dict[str, int], means: dict[str, float]) -> float:
    column, level = key
    if not level:
        return site.numbers[column].sd or 0.0
    share = sum(n[group] * means[group] for group in n) / sum(n.values())
    return math.sqrt(share * (1 - share))


def _exchange_score(differences: Sequence[_Difference], k: int) -> tuple[float, list[str]]:
    """Log likelihood ratio of exchanged levels at site k, by the other sites, and the columns that say so."""
    parts: dict[str, float] = {}
    for one in differences:
        others = np.isfinite(one.value) & (np.arange(len(one.value)) != k)
        if not np.isfinite(one.value[k]) or not others.any():
            continue
        expected = float(np.median(one.value[others]))
        wide = one.differs**2 + one.variance
        error = math.sqrt(1 / (1 / wide[others]).sum())
        if one.by != FREQUENCIES and abs(expected) < MIN_EFFECT_ERRORS * error:
            continue
        scale = math.sqrt(wide[k] + error**2)
        same, other = ((one.value[k] - sign * expected) / scale for sign in (1, -1))
        gain = float(log_t(other) - log_t(same))
        if abs(gain) > abs(parts.get(one.by, 0.0)):  # one part for each column, not for each of its levels
            parts[one.by] = gain
    return sum(parts.values()), [name for name, gain in parts.items() if gain > 1] or [FREQUENCIES]


# -- Missing values -----------------------------------------------------------------------------------------------


def _never_missing(name: str, summaries: Sequence[SiteSummary]) -> Iterator[Found]:
    """Sites without a missing value, where every other site has many."""
    known = [
        (one.site, one.rows, columns[name].missing)
        for one in summaries
        if one.rows and name in (columns := one.columns) and columns[name].missing is not None
    ]
    for site, rows, missing in known:
        shares = [(its or 0) / number for other, number, its in known if other != site]
        often = len(shares) >= 2 and min(shares) >= MIN_MISSING_SHARE
        if missing == 0 and often and (1 - min(shares)) ** rows < NEVER_MISSING_CHANCE:
            yield (site,), sentences.never_missing(column=name)
