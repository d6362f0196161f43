"""Kaplan-Meier curves from counts by bins of time: those of the pooled rows, and no small count follows from them."""

import itertools
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import pyro_fed as pf
from pyro_fed.codebook.codebook import Codebook, Column, Outcome
from pyro_fed.codebook.summary import summarise_category, summarise_outcome
from pyro_fed.errors import DataError, SettingError
from pyro_fed.ops.small_counts import joined_bins

COLUMNS = {
    "days": Column(type="number", unit="days"),
    "status": Column(type="category", levels={"alive": ("1",), "dead": ("2",)}),
}
ENDS = tuple(float(end) for end in range(30, 241, 30))
BOOK = Codebook(
    columns=COLUMNS, fewest=3, outcomes={"death": Outcome(time="days", event="status", level="dead", ends=ENDS)}
)


def hospital(seed, rows):
    """Times that are whole months, of which the longest is beyond the last bin."""
    rng = np.random.default_rng(seed)
    days = 30.0 * rng.integers(1, 10, rows)
    return pd.DataFrame({"days": days, "status": rng.choice(["1", "2"], rows, p=[0.4, 0.6])})


def curve(frame):
    """S, and limits by Greenwood's variance of log(-log S), of rows as they are, at each time until the last end."""
    survival, variance, found = 1.0, 0.0, []
    for end in ENDS:
        at_risk = (frame["days"] >= end).sum()
        events = ((frame["days"] == end) & (frame["status"] == "2")).sum()
        survival *= 1 - events / at_risk
        variance += events / (at_risk * (at_risk - events))
        spread = 1.959963984540054 * np.sqrt(variance) / np.log(survival)
        found.append((at_risk, events, survival, survival ** np.exp(-spread), survival ** np.exp(spread)))
    return np.array(found)


@pytest.fixture(scope="module")
def tables():
    return {"north": hospital(0, 400), "south": hospital(1, 300)}


def summaries_of(tables, book=BOOK):
    return [pf.codebook.check(book, frame, site).summary for site, frame in tables.items()]


def test_curves_are_those_of_the_rows(tables):
    found = pf.codebook.kaplan_meier(summaries_of(tables))
    assert found.unit == "days" and found.notes == ()
    pooled = pd.concat(tables.values(), ignore_index=True)
    for site, frame in {**tables, "overall": pooled}.items():
        one = found.frame[found.frame["site"] == site]
        assert one["time"].tolist() == list(ENDS)
        columns = one[["at_risk", "events", "survival", "lower", "upper"]].to_numpy(float)
        np.testing.assert_allclose(columns, curve(frame), rtol=0, atol=1e-12)
        assert (one["lower"] < one["survival"]).all() and (one["survival"] < one["upper"]).all()


def test_times_between_dates_are_days(tables):
    days = pd.to_timedelta(tables["north"]["days"], unit="D")
    dated = pd.DataFrame({"entry": "2020-01-31", "exit": (pd.Timestamp("2020-01-31") + days).dt.strftime("%Y-%m-%d")})
    columns = {"entry": Column(type="date"), "exit": Column(type="date", after="entry"), "status": COLUMNS["status"]}
    outcome = Outcome(time="exit", event="status", level="dead", ends=ENDS)
    book = Codebook(columns=columns, fewest=3, outcomes={"death": outcome})
    (found,) = summaries_of({"north": dated.assign(status=tables["north"]["status"])}, book)
    (expected,) = summaries_of({"north": tables["north"]})
    (absent,) = summaries_of({"north": dated[["exit"]].assign(status=tables["north"]["status"])}, book)
    dated.loc[:5, "exit"] = ""
    (missing,) = summaries_of({"north": dated.assign(status="2")}, book)
    assert absent.outcomes["death"].ends == ()
    assert sum(missing.outcomes["death"].events) + sum(missing.outcomes["death"].censored) == 394
    assert found.outcomes == expected.outcomes and pf.codebook.kaplan_meier([found]).unit == "days"


LEVELS = {"alive": "1", "dead": "2", "lost": "3"}
OF_THREE = Codebook(
    columns={**COLUMNS, "status": Column(type="category", levels={name: (text,) for name, text in LEVELS.items()})},
    fewest=5,
    outcomes={"death": Outcome(time="days", event="status", level="dead", ends=(30.0, 60.0))},
)


def patients(*groups):
    """Rows from numbers of them, their days and their level."""
    rows = [(days, LEVELS.get(level, "")) for count, days, level in groups for _ in range(count)]
    return pd.DataFrame(rows, columns=["days", "status"])


@pytest.mark.parametrize(
    ("groups", "suppressed"),
    [
        ([(13, 20, "dead"), (7, 50, "dead"), (15, 20, "alive"), (15, 50, "alive"), (3, 50, "lost")], None),
        ([(10, 20, "dead"), (9, 50, "dead"), (1, 900, "dead"), (20, 50, "alive")], None),
        ([(10, 20, "dead"), (9, 50, "dead"), (6, 900, "dead"), (20, 20, "alive"), (1, 50, "alive")], None),
        ([(10, 20, "dead"), (10, 50, "dead"), (20, 50, "alive"), (2, np.nan, "")], "status"),
        ([(10, 20, "dead"), (10, 50, "dead"), (20, 50, "alive"), (2, np.nan, "")], "days"),
        ([(10, 20, "dead"), (10, 50, "dead"), (2, np.nan, "dead"), (20, 50, "alive")], None),
        ([(10, 20, "dead"), (10, 50, "dead"), (20, 50, "alive"), (2, np.nan, "alive")], None),
        ([(10, 20, "dead"), (10, 50, "dead"), (20, 50, "alive"), (2, 50, "")], None),
    ],
)
def test_no_small_count_follows_with_the_counts_of_levels(groups, suppressed):
    """With five rows in place of each small number the counts leave; with it none do, or bins are joined."""
    columns = dict(OF_THREE.columns)
    if suppressed:
        columns[suppressed] = replace(columns[suppressed], suppress_missing=True)
    book = replace(OF_THREE, columns=columns)
    (few,) = summaries_of({"few": patients(*groups)}, book)
    (many,) = summaries_of({"many": patients(*((max(count, 5), *rest) for count, *rest in groups))}, book)
    assert few.outcomes["death"].ends in ((), (60.0,)) and many.outcomes["death"].ends == (30.0, 60.0)
    assert few.outcomes["death"].ends == () or groups[2][0] == 6


def test_a_small_hospital_joins_its_bins_or_has_no_curve(tables, tmp_path):
    few, one_event = hospital(2, 14), hospital(3, 8).assign(status=["2"] + ["1"] * 7)
    summaries = summaries_of({**tables, "west": few, "east": one_event})
    west, east = (summary.outcomes["death"] for summary in summaries[2:])
    assert 0 < len(west.ends) < len(ENDS) and east.ends == ()
    assert all(count == 0 or count >= 3 for count in (*west.events, *west.censored))
    assert sum(west.events) + sum(west.censored) == 14
    found = pf.codebook.kaplan_meier(
        [pf.codebook.read_summary(one.write(tmp_path / f"{one.site}.json")) for one in summaries]
    )
    assert found.notes[0].startswith("Without east") and "every site's bins end" in found.notes[1]
    overall = found.frame.query("site == 'overall'")
    assert overall["time"].tolist() == list(west.ends)
    pooled = pd.concat([*tables.values(), few], ignore_index=True)
    assert overall["events"].sum() == ((pooled["status"] == "2") & (pooled["days"] <= ENDS[-1])).sum()
    assert set(summaries[2].counts()) >= {f"death: events to {end:g}" for end in west.ends}  # which the gate judges


def test_no_small_count_follows_from_all_that_leaves():
    """Of all tables of two bins with few deaths, some after the last end, and few others: those alike in all counts."""
    dead = [one for one in itertools.product(range(7), repeat=3) if sum(one) <= 6]
    alive = [one for one in itertools.product(range(6), repeat=2) if sum(one) <= 5]
    book, alike = replace(OF_THREE, fewest=3), defaultdict(list)
    for cells in ((*one, *two) for one in dead for two in alive):
        place = np.repeat(np.arange(5), cells)
        status = pd.Series(np.array(["dead", "dead", "dead", "alive", "alive"], object)[place])
        levels = summarise_category(status, book.columns["status"], 3)
        if levels.is_whole:
            frame = pd.DataFrame({"days": np.array([20.0, 50, 900, 20, 50])[place], "status": status})
            alike[repr((levels, summarise_outcome(frame, book.outcomes["death"], book)))].append(cells)
    assert len(alike) > 50
    for tables in map(np.array, alike.values()):
        same = (tables == tables[0]).all(0)
        assert not (same & (tables[0] > 0) & (tables[0] < 3)).any(), tables


def released(cells, fewest):
    ends = joined_bins(cells, fewest)
    if ends is None:
        return sum(map(sum, cells))
    return tuple(zip(ends, (tuple(np.sum(cells[a:b], 0)) for a, b in itertools.pairwise([0, *ends])), strict=True))


def given_away(fewest, largest, release):
    """Small counts that are the same in all tables of three bins that would leave as the table at hand does.

    All tables with at most so many events, and as many censored rows; both numbers leave, if any count does.
    """
    columns = [one for one in itertools.product(range(largest + 1), repeat=3) if sum(one) <= largest]
    alike = defaultdict(list)
    for events, censored in itertools.product(columns, repeat=2):
        cells = list(zip(events, censored, strict=True))
        alike[release(cells, fewest)].append((*events, *censored))
    whole = [np.array(tables) for left, tables in alike.items() if not isinstance(left, int) or left <= largest]
    shared = [(tables[0], (tables == tables[0]).all(0)) for tables in whole]
    return sum(int(((one > 0) & (one < fewest) & same).sum()) for one, same in shared), len(whole)


@pytest.mark.parametrize(("fewest", "largest"), [(3, 6), (4, 8)])
def test_no_small_count_follows_from_joined_bins(fewest, largest):
    """An eavesdropper knows the rule and the number of rows, and still has several values for each small count."""
    found, kinds = given_away(fewest, largest, released)
    assert found == 0 and kinds > 50


def test_the_attack_finds_what_joining_protects():
    assert given_away(3, 4, lambda cells, _: tuple(cells))[0] > 0
    assert given_away(2, 4, released)[0] > 0  # so the codebook refuses fewest = 2


def test_outcomes_that_cannot_be_counted_are_refused(tables, tmp_path):
    path = tmp_path / "codebook.toml"
    path.write_text(
        'fewest = 2\n[columns.days]\ntype = "number"\n[columns.status]\ntype = "category"\nlevels = ["alive", "dead"]\n'
        '[outcomes.death]\ntime = "status"\nevent = "statu"\nlevel = "dead"\nends = [60, 30]\n'
    )
    with pytest.raises(SettingError, match="did you mean 'status'") as error:
        pf.codebook.read_codebook(path)
    assert all(part in str(error.value) for part in ("neither a column of numbers", "ascending", "at least 3"))
    for ends in ("[30, inf]", "[nan]"):
        path.write_text(path.read_text().partition("ends")[0] + f"ends = {ends}\n")
        with pytest.raises(SettingError, match="finite"):
            pf.codebook.read_codebook(path)
    path.write_text(
        'fewest = 3\n[columns.days]\ntype = "number"\n[columns.status]\ntype = "category"\nlevels = ["alive", "dead", '
        '"lost"]\n'
        + "".join(
            f'[outcomes.{level}]\ntime = "days"\nevent = "status"\nlevel = "{level}"\nends = [30]\n'
            for level in ("dead", "lost")
        )
    )
    with pytest.raises(SettingError, match=r"dead and outcomes\.lost share a column, 'days'"):
        pf.codebook.read_codebook(path)
    with pytest.raises(DataError, match="no outcome 'deth'; did you mean 'death'"):
        pf.codebook.kaplan_meier(summaries_of(tables), "deth")
    with pytest.raises(DataError, match="no site has counts"):
        pf.codebook.kaplan_meier(summaries_of({"east": hospital(3, 8).assign(status="1").assign(days=np.nan)}))


def test_the_figure_has_a_line_for_each_site(tables):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    curves = pf.codebook.kaplan_meier(summaries_of(tables))
    panel = pf.plots.plot_kaplan_meier(curves)
    assert [line.get_label() for line in panel.get_lines()] == ["north", "south", "overall"]
    assert panel.get_lines()[0].get_ydata()[-1] == curves.frame.query("site == 'north'")["survival"].iloc[-1]
    assert panel.get_xlabel() == "time, days"
