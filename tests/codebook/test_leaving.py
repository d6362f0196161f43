"""What leaves a site: no withheld count follows from what leaves, and no row's value is in it.

The oracle is linear algebra on the cells of the site's whole table of categories. What leaves is a set of linear
equations of these cells. A count is determined if it is a combination of them, after cells that must be zero are known.
"""

import json
import re

import numpy as np
import pandas as pd
import pytest

import pyro_fed as pf
from pyro_fed.codebook import summary as rules
from pyro_fed.codebook.codebook import Codebook, Column

CATEGORIES = {
    "sex": Column(type="category", levels=("male", "female")),
    "stage": Column(type="category", levels=("I", "II", "III", "IV"), ordered=True),
    "ward": Column(type="category", levels=("A", "B", "C"), suppress_missing=True),
    "event": Column(type="integer", range=(0, 1)),
}
BOOK = Codebook(columns={**CATEGORIES, "age": Column(type="number")}, fewest=5)


def a_table(seed):
    """A small table with rare levels and missing values."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 70))
    frame = pd.DataFrame(
        {
            "sex": rng.choice(["male", "female", ""], n, p=[0.6, 0.37, 0.03]),
            "stage": rng.choice(["I", "II", "III", "IV", ""], n, p=rng.dirichlet([3, 2, 1, 0.4, 0.3])),
            "ward": rng.choice(["A", "B", "C", ""], n, p=rng.dirichlet([3, 2, 0.7, 0.4])),
            "event": rng.choice(["0", "1", ""], n, p=rng.dirichlet([4, 1, 0.3])),
            "age": rng.normal(60, 12, n).round(3).astype(str),
        }
    )
    return frame


def cells_of(frame):
    """The cells of the table of all categories, a row of codes for each that there could be, and their counts."""
    parts = {name: [*levels_of(name), ""] for name in CATEGORIES}
    cells = pd.MultiIndex.from_product(parts.values(), names=parts.keys())
    counts = frame.groupby(list(parts)).size().reindex(cells, fill_value=0)
    return cells.to_frame(index=False), counts.to_numpy(float)


def levels_of(name):
    return ["0", "1"] if name == "event" else list(CATEGORIES[name].levels)


def equations(summary, cells):
    """What leaves, as functionals of the cells: (what, weights)."""
    if summary.rows is None:
        return
    yield "rows", np.ones(len(cells))
    for name, one in summary.categories.items():
        for level, count in one.levels.items():
            if count is not None:
                yield f"{name} {level}", (cells[name] == level).to_numpy(float)
        if one.n is not None:
            yield f"{name} n", (cells[name] != "").to_numpy(float)
    if (event := summary.numbers.get("event")) is not None:
        if event.n is not None:
            yield "event n", (cells["event"] != "").to_numpy(float)
        if event.mean is not None:  # of zeros and ones, mean and SD are one equation
            yield "event sum", (cells["event"] == "1").to_numpy(float)
    for one in summary.relations:
        if one.column == "age":
            continue
        for group in one.n:
            inside = in_group(cells, one.category, group, summary)
            yield f"{one.category} {group} by {one.column}", inside * (cells[one.column] != "").to_numpy(float)
            yield (
                f"{one.category} {group} with {one.column} {one.level}",
                inside * in_group(cells, one.column, one.level or "1", summary),
            )


def in_group(cells, name, group, summary):
    if group not in rules.HALVES:
        return (cells[name] == group).to_numpy(float)
    levels = levels_of(name)
    lower = next(one for one in summary.relations if one.category == name or one.column == name)
    split = SPLITS[summary.site, name]
    chosen = levels[:split] if group == rules.HALVES[0] else levels[split:]
    assert lower is not None
    return cells[name].isin(chosen).to_numpy(float)


#: Where the ordered levels of each table were halved; an eavesdropper may know it.
SPLITS = {}


@pytest.fixture(autouse=True)
def splits(monkeypatch):
    split = rules._split

    def known(counts, codes):
        SPLITS["site", "stage"] = split(counts, codes)
        return SPLITS["site", "stage"]

    monkeypatch.setattr(rules, "_split", known)


def determined(frame):
    """Small counts of one or two categories that follow from what leaves, and how many counts were withheld."""
    summary = pf.codebook.check(BOOK, frame, "site").summary
    cells, counts = cells_of(frame)
    rows = [weights for _, weights in equations(summary, cells)]
    if not rows:
        return [], 1
    known = np.array(rows)
    sums = known @ counts
    possible = ~(known[sums == 0] > 0).any(0)  # cells in a sum that is zero are zero
    basis = np.linalg.svd(known[:, possible], full_matrices=False)
    rank = int((basis[1] > 1e-9 * basis[1][0]).sum())
    span = basis[2][:rank]
    found, names = [], list(CATEGORIES)
    for i, name in enumerate(names):
        missing = [""] if CATEGORIES[name].suppress_missing else []
        for level in [*levels_of(name), *missing]:
            single = (cells[name] == level).to_numpy(float)
            others = [np.ones(len(cells))] + [
                (cells[other] == one).to_numpy(float) for other in names[i + 1 :] for one in levels_of(other)
            ]
            for other in others:
                wanted = (single * other)[possible]
                count = (single * other) @ counts
                if 0 < count < BOOK.fewest and np.allclose(wanted - span.T @ (span @ wanted), 0, atol=1e-7):
                    found.append((name, level, count))
    withheld = sum(count is None for one in summary.categories.values() for count in one.levels.values())
    return found, withheld


def test_no_small_count_follows_from_what_leaves():
    withheld = 0
    for seed in range(30):
        found, number = determined(a_table(seed))
        assert found == [], seed
        withheld += number
    assert withheld > 25


def test_the_oracle_finds_what_the_second_cell_protects(monkeypatch):
    """With small counts alone withheld, they follow from the others."""

    def small_alone(counts, fewest):
        return {i for i, count in enumerate(counts) if 0 < count < fewest}

    monkeypatch.setattr(rules, "withheld_cells", small_alone)
    assert any(determined(a_table(seed))[0] for seed in range(20))


def test_the_oracle_finds_what_the_groups_protect(monkeypatch):
    monkeypatch.setattr(rules, "_groups_may_leave", lambda *_: True)
    assert any(determined(a_table(seed))[0] for seed in range(20))


def test_the_oracle_finds_what_counts_behind_moments_protect(monkeypatch):
    monkeypatch.setattr(rules, "_moments_may_leave", lambda *_: True)
    assert any(determined(a_table(seed))[0] for seed in range(20))


@pytest.mark.parametrize("fewest", [2, 5, 10])
def test_withheld_cells_have_several_possible_values(fewest):
    """Whole numbers, not negative, that have the sum of the withheld cells: each cell has two values or more."""
    rng = np.random.default_rng(fewest)
    for _ in range(300):
        counts = rng.integers(0, 3 * fewest, rng.integers(2, 6))
        if counts.sum() < fewest:
            continue
        hidden = rules.withheld_cells(counts.tolist(), fewest)
        assert {i for i, count in enumerate(counts) if 0 < count < fewest} <= hidden
        if hidden:
            assert len(hidden) >= 2 and sum(counts[i] for i in hidden) >= fewest


def numbers_in(plain):
    if isinstance(plain, dict):
        for value in plain.values():
            yield from numbers_in(value)
    elif isinstance(plain, list):
        for value in plain:
            yield from numbers_in(value)
    elif isinstance(plain, int | float):
        yield float(plain)


def test_no_value_of_a_row_leaves(tmp_path):
    """Neither numbers that no other row has, nor identifiers, nor texts that no level is."""
    columns = {
        "patient": Column(type="identifier"),
        "weight": Column(type="number", range=(0, 200)),
        "score": Column(type="integer", range=(0, 100), missing=("unknown",)),
        "grade": Column(type="category", levels=("low", "high")),
        "seen": Column(type="date"),
    }
    rng = np.random.default_rng(0)
    for n in (3, 6, 12, 60):
        weight = rng.normal(80, 15, n).round(9)
        frame = pd.DataFrame(
            {
                "patient": [f"MARKED{i}" for i in range(n)],
                "weight": weight.astype(str),
                "score": rng.permutation(n).astype(str),
                "grade": rng.choice(["low", "high", "MARKED"], n),
                "seen": pd.date_range("2019-02-03", periods=n, freq="17D").strftime("%Y-%m-%d"),
                "MARKED_COLUMN": "MARKED",
            }
        )
        frame.loc[0, "weight"] = "MARKED text"
        frame.loc[1, "seen"] = "MARKED date"
        checked = pf.codebook.check(Codebook(columns=columns), frame, "site")
        text = checked.summary.write(tmp_path / "site.json").read_text()
        assert "MARKED" not in text
        assert not re.findall(r"\b2019-", text)
        left = list(numbers_in(json.loads(text) | {"codebook": None}))
        assert not {float(value) for value in weight[1:]} & set(left)
        assert checked.summary.rows == (n if n >= 5 else None)
        assert all(count == 0 or count >= 5 for count in checked.summary.counts().values())


def test_quantiles_are_means_of_neighbours():
    values = np.sort(np.random.default_rng(0).normal(0, 1, 101))
    one = rules.summarise_numbers(values, Column(type="number"), 5)
    assert one.quantiles["0.5"] == pytest.approx(values[48:53].mean(), abs=1e-15)
    assert list(one.quantiles) == ["0.1", "0.25", "0.5", "0.75", "0.9"]
    assert list(rules.summarise_numbers(values[:16], Column(type="number"), 5).quantiles) == ["0.5"]
    assert rules.summarise_numbers(values[:6], Column(type="number"), 5).quantiles == {}


def test_a_column_may_withhold_how_many_values_are_missing():
    values = np.array([np.nan, *np.random.default_rng(0).normal(0, 1, 30)])
    assert rules.summarise_numbers(values, Column(type="number"), 5).missing == 1
    hidden = rules.summarise_numbers(values, Column(type="number", suppress_missing=True), 5)
    assert (hidden.n, hidden.missing, hidden.mean, hidden.sd) == (None,) * 4


def test_a_site_may_withhold_more_than_the_codebook():
    frame = a_table(3)
    assert pf.codebook.check(BOOK, frame, "site", fewest=len(frame) + 1).summary.rows is None
    with pytest.raises(pf.errors.SettingError, match="fewest must be at least the codebook's, 5; received 4"):
        pf.codebook.check(BOOK, frame, "site", fewest=4)
