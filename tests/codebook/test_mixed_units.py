"""A part of one site's rows in another unit is named with the site; columns of clean sites are not.

Of 30 planted mixtures (shares 0.1 to 0.5) all are named; a tenth of the rows in a unit whose values overlap with the
others' (pounds for kilograms) is below what five quantiles show. 200 clean sets of five sites are normal, skewed, of
two groups, or counts, and differ as hospitals do.
"""

import numpy as np
import pytest

import pyro_fed as pf
from pyro_fed.codebook.codebook import Codebook, Column
from pyro_fed.codebook.summary import FORMAT, SiteSummary, summarise_numbers

SITES = ("albany", "boston", "chicago", "dayton", "elgin")


def normal(mean, sd, sites_sd):
    def column(rng, n):
        return rng.normal(mean + sites_sd * rng.normal(), sd * np.exp(0.1 * rng.normal()), n)

    return column


def lognormal(sigma):
    return lambda rng, n: np.exp(rng.normal(2 + 0.3 * sigma * rng.normal(), sigma * np.exp(0.1 * rng.normal()), n))


def two_groups(low, high, sd):
    """Two groups at every site, in shares that differ."""

    def column(rng, n):
        share, shift = 1 / (1 + np.exp(-0.5 * rng.normal())), 0.3 * sd * rng.normal()
        return np.where(rng.random(n) < share, rng.normal(low, sd, n), rng.normal(high + shift, 1.4 * sd, n))

    return column


def counts(rng, n):
    return rng.poisson(4 * np.exp(0.2 * rng.normal()), n)


COLUMNS = {
    "weight": (Column(type="number", unit="kg"), normal(72, 14, 4)),
    "age": (Column(type="integer", unit="years"), lambda rng, n: normal(62, 12, 4)(rng, n).clip(18, 97).round()),
    "height": (Column(type="number", unit="m"), normal(1.7, 0.09, 0.03)),
    "skewed": (Column(type="number", unit="mg/L"), lognormal(0.8)),
    "heavy": (Column(type="number", unit="g"), lognormal(1.3)),
    "bimodal": (Column(type="number", unit="kg"), two_groups(60, 95, 7)),
    "twofold": (Column(type="number", unit="kg"), two_groups(30, 66, 4)),
    "counts": (Column(type="integer"), counts),
}


def found(column, rows):
    """The findings of `compare` on one column of the sites' rows."""
    book = Codebook(columns={"x": column})
    parts = [
        SiteSummary(
            format=FORMAT,
            site=site,
            rows=len(own),
            numbers={"x": summarise_numbers(own, column, book.fewest)},
            codebook=book,
        )
        for site, own in zip(SITES, rows, strict=True)
    ]
    return pf.codebook.compare(parts)


def drawn(kind, seed):
    rng = np.random.default_rng([seed, list(COLUMNS).index(kind)])
    column, rows = COLUMNS[kind]
    return column, [rows(rng, int(rng.integers(60, 400))) for _ in SITES], rng


def mixed(kind, seed, factor, share):
    """One site's rows, a part of them in another unit, beside the others'."""
    column, rows, rng = drawn(kind, seed)
    k = seed % len(SITES)
    part = rng.random(len(rows[k])) < share
    rows[k] = np.where(part, factor * rows[k], rows[k])
    return column, rows, SITES[k]


#: Column, factor, what the finding says, and shares.
MIXTURES = [
    ("weight", 2.20462, "pounds for kilograms", (0.2, 0.3, 0.4, 0.5)),
    ("age", 12.0, "months for years", (0.1, 0.2, 0.3, 0.4, 0.5)),
    ("weight", 1000.0, "grams for kilograms", (0.1, 0.2, 0.3, 0.4, 0.5)),
    ("height", 1 / 0.0254, "inches for metres", (0.2, 0.3, 0.4, 0.5)),
    ("height", 100.0, "centimetres for metres", (0.1, 0.3, 0.5)),
    ("skewed", 1000.0, "1000 times too large", (0.2, 0.3, 0.5)),
    ("bimodal", 2.20462, "pounds for kilograms", (0.3, 0.4, 0.5)),
    ("heavy", 1000.0, "milligrams for g", (0.2, 0.3, 0.5)),
]
PLANTED = [(kind, factor, says, share) for kind, factor, says, shares in MIXTURES for share in shares]


def test_thirty_mixtures_are_planted():
    assert len(PLANTED) == 30


@pytest.mark.parametrize("number", range(30))
def test_a_part_in_another_unit_is_named_with_the_site(number):
    kind, factor, says, share = PLANTED[number]
    column, rows, site = mixed(kind, number, factor, share)
    assert [(one.site, one.finding.code) for one in found(column, rows)] == [(site, "units_mixed")]
    assert says in found(column, rows)[0].finding.text


@pytest.mark.parametrize("kind", COLUMNS)
def test_clean_sites_have_no_mixtures(kind):
    """25 sets of each kind, 200 in all."""
    for seed in range(25):
        column, rows, _ = drawn(kind, seed)
        assert "units_mixed" not in [one.finding.code for one in found(column, rows)], seed


@pytest.mark.parametrize(("ratio", "named"), [(0.5, False), (1.5, False), (2.2, True), (3.0, False), (4.0, False)])
def test_a_second_group_at_one_site_is_no_unit_unless_its_ratio_is_one(ratio, named):
    """Of a ratio that a unit has the quantiles cannot tell, and the sentence says so."""
    for seed in range(3):
        column, rows, site = mixed("weight", seed, ratio, 0.3)
        parts = [one for one in found(column, rows) if one.finding.code == "units_mixed"]
        assert [one.site for one in parts] == [site] * named
        assert all("a second group of patients" in one.finding.text for one in parts)


@pytest.mark.parametrize("factor", [2.20462, 1000.0, 1 / 6.35029])
def test_a_whole_site_in_another_unit_is_no_mixture(factor):
    column, rows, site = mixed("weight", 2, factor, 2.0)
    assert [(one.site, one.finding.code) for one in found(column, rows)] == [(site, "scale_differs")]


def test_rows_of_a_table_in_pounds_are_named_from_its_file(tmp_path):
    """Through `check`, where the heaviest are out of the codebook's range as well."""
    import hospital_tables

    (tmp_path / "codebook.toml").write_text(hospital_tables.CODEBOOK, encoding="utf-8")
    book = pf.codebook.read_codebook(tmp_path / "codebook.toml")
    frames = {name: hospital_tables.table(1, name) for name in hospital_tables.HOSPITALS}
    part = np.random.default_rng(1).random(len(frames["chicago"])) < 0.2

    def in_pounds(text, chosen):
        return f"{2.20462 * float(text):.1f}" if chosen and text else text

    weights = [in_pounds(text, chosen) for text, chosen in zip(frames["chicago"]["weight"], part, strict=True)]
    frames["chicago"] = frames["chicago"].assign(weight=weights)
    checked = [pf.codebook.check(book, frame, name).summary for name, frame in frames.items()]
    parts = [one for one in pf.codebook.compare(checked) if one.finding.code == "units_mixed"]
    assert [(one.site, one.finding.where["column"]) for one in parts] == [("chicago", "weight")]
    assert "weight" in pf.codebook.constants(checked).left_out
