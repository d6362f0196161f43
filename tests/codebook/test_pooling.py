"""Pooled constants equal the moments of the pooled rows; Table 1 has the same figures as the tables have."""

import dataclasses
import json

import hospital_tables
import numpy as np
import pandas as pd
import pytest
from hospital_tables import FAULTS, HOSPITALS, table

import pyro_fed as pf


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("codebook") / "codebook.toml"
    path.write_text(hospital_tables.CODEBOOK, encoding="utf-8")
    return pf.codebook.read_codebook(path)


@pytest.fixture(scope="module")
def frames():
    return {hospital: table(7, hospital) for hospital in HOSPITALS}


@pytest.fixture(scope="module")
def summaries(book, frames, tmp_path_factory):
    """As the sites' files have them."""
    folder = tmp_path_factory.mktemp("summaries")
    for hospital, frame in frames.items():
        pf.codebook.check(book, frame, hospital).summary.write(folder / f"{hospital}.json")
    return [pf.codebook.read_summary(folder / f"{hospital}.json") for hospital in HOSPITALS]


def months(frame):
    (fault,) = (fault for fault in FAULTS if fault.name == "months for years")
    return fault.plant(frame, None)


def test_constants_are_the_moments_of_the_pooled_rows(summaries, frames, tmp_path):
    written = pf.codebook.constants(summaries).write(tmp_path / "constants.json")
    constants = pf.codebook.read_constants(written)
    assert list(constants.columns) == ["age", "height", "weight", "temperature", "haemoglobin", "creatinine", "crp"]
    assert constants.sites == HOSPITALS and constants.left_out == {}
    for name, moments in constants.columns.items():
        pooled = pd.to_numeric(pd.concat([frame[name] for frame in frames.values()])).dropna().to_numpy()
        mean, sd = (float(one) for one in pf.pooled_moments([pf.column_sums(pooled)]))
        assert moments.n == len(pooled)
        assert moments.mean == pytest.approx(mean, rel=1e-12)
        assert moments.sd == pytest.approx(sd, rel=1e-12)
        assert moments.sd == pytest.approx(float(np.std(pooled)), rel=1e-12)


def test_standardised_columns_have_mean_zero_and_sd_one_over_all_sites(book, summaries, frames):
    constants = pf.codebook.constants(summaries, ["age", "weight"])
    scaled = [constants.standardise(pf.codebook.read_rows(book, frame, site)) for site, frame in frames.items()]
    for name in ("age", "weight"):
        values = pd.concat([frame[name] for frame in scaled]).dropna()
        assert float(values.mean()) == pytest.approx(0, abs=1e-12)
        assert float(values.std(ddof=0)) == pytest.approx(1, abs=1e-12)
    raw = pf.codebook.read_rows(book, frames["albany"], "albany")
    assert scaled[0]["height"].equals(raw["height"])
    with pytest.raises(pf.errors.DataError, match="none of the columns with constants, age, weight"):
        constants.standardise(raw[["sex"]])


def effect_of_age(frames):
    """Log odds of death for one SD of age, by maximum likelihood on the pooled rows."""
    rows = pd.concat(frames.values())
    age, died = pd.to_numeric(rows["age"]).to_numpy(float), (rows["died"] == "yes").to_numpy(float)
    x = np.stack([np.ones(len(age)), (age - age.mean()) / age.std()], 1)
    beta = np.zeros(2)
    for _ in range(10):
        p = 1 / (1 + np.exp(-x @ beta))
        beta += np.linalg.solve(x.T * (p * (1 - p)) @ x, x.T @ (died - p))
    return beta[1]


def test_months_for_years_at_one_hospital_would_hide_the_effect_of_age(frames):
    assert effect_of_age(frames) == pytest.approx(0.472, abs=1e-3)
    assert effect_of_age(frames | {"chicago": months(frames["chicago"])}) == pytest.approx(0.008, abs=1e-3)


def test_months_for_years_are_not_pooled(book, summaries, frames):
    wrong = pf.codebook.check(book, months(frames["chicago"]), "chicago").summary
    mixed = [wrong if one.site == "chicago" else one for one in summaries]
    left_out = pf.codebook.constants(mixed).left_out
    assert left_out.keys() == {"age"} and "at chicago" in left_out["age"] and "months for years" in left_out["age"]
    with pytest.raises(pf.errors.DataError, match="age cannot be pooled: at chicago"):
        pf.codebook.constants(mixed, ["age"])


def test_a_suspicion_leaves_a_column_out_unless_it_is_asked_for(book, summaries, frames):
    tenth = frames["dayton"]["creatinine"].map(lambda text: f"{float(text) / 10:g}")
    wide = dataclasses.replace(book.columns["creatinine"], range=(0.5, 2000))
    book = dataclasses.replace(book, columns=book.columns | {"creatinine": wide})
    tables = frames | {"dayton": frames["dayton"].assign(creatinine=tenth)}
    mixed = [pf.codebook.check(book, frame, site).summary for site, frame in tables.items()]
    assert {one.finding.code for one in pf.codebook.compare(mixed)} == {"scale_differs"}
    left_out = pf.codebook.constants(mixed).left_out
    assert left_out.keys() == {"creatinine"} and "at dayton" in left_out["creatinine"]
    with pytest.warns(UserWarning, match="creatinine is pooled although at dayton"):
        assert "creatinine" in pf.codebook.constants(mixed, ["creatinine"]).columns
    with pytest.raises(pf.errors.DataError, match="'heights' is not a column of numbers; did you mean 'height'"):
        pf.codebook.constants(mixed, ["heights"])


def test_a_site_without_the_column_is_not_in_its_moments(book, summaries, frames):
    without = pf.codebook.check(book, frames["elgin"].drop(columns="crp"), "elgin").summary
    constants = pf.codebook.constants([*summaries[:-1], without])
    values = pd.to_numeric(pd.concat([frames[site]["crp"] for site in HOSPITALS[:-1]])).dropna()
    assert constants.columns["crp"].n == len(values)
    assert constants.columns["crp"].mean == pytest.approx(float(values.mean()), rel=1e-12)


def test_table_one_has_the_figures_of_the_tables(summaries, frames):
    shown = pf.codebook.table_one(summaries)
    assert list(shown.frame.columns) == [*HOSPITALS, "overall"]
    everyone = pd.concat(frames.values())
    for column, frame in {**frames, "overall": everyone}.items():
        age = pd.to_numeric(frame["age"])
        assert shown.frame.loc["age (years), mean (SD)", column] == f"{age.mean():.0f} ({age.std():.0f})"
        women = (frame["sex"] == "female").sum()
        assert shown.frame.loc["  female", column] == f"{women} ({100 * women / len(frame):.0f} %)"
        assert shown.frame.loc["Rows", column] == str(len(frame))
    crp = list(shown.frame.index).index("C-reactive protein (mg/L), mean (SD)")
    assert shown.frame.index[crp + 1] == "  missing"
    assert list(shown.frame.iloc[crp + 1]) == [
        *(str((frame["crp"] == "").sum()) for frame in frames.values()),
        str((everyone["crp"] == "").sum()),
    ]


def test_an_overall_figure_says_nothing_of_a_withheld_one(book, frames):
    few = frames["boston"].copy()
    few["sex"] = ["female"] * 3 + ["male"] * (len(few) - 3)
    tables = {"albany": frames["albany"], "boston": few, "chicago": frames["chicago"].iloc[:4]}
    summaries = [pf.codebook.check(book, frame, site).summary for site, frame in tables.items()]
    shown = pf.codebook.table_one(summaries)
    assert list(shown.frame.loc["  female", ["boston", "chicago"]]) == ["withheld", "withheld"]
    women = (frames["albany"]["sex"] == "female").sum()
    assert shown.frame.loc["  female", "overall"] == f"≥ {women}"
    assert shown.frame.loc["Rows", "overall"] == f"≥ {len(frames['albany']) + len(few)}"
    assert "Overall mean and SD of age: without chicago, of too few rows." in shown.notes
    assert "≥ n: the sum of the counts that are not withheld." in shown.notes
    assert "withheld" in shown.to_html() and "withheld" in shown.to_markdown() and "withheld" in str(shown)


def test_table_one_is_written_for_pages_and_terminals(summaries):
    shown = pf.codebook.table_one(summaries)
    lines = shown.to_markdown().splitlines()
    assert lines[0].startswith("| ") and "| overall" in lines[0]
    assert len(lines) == len(shown.frame) + 2 + 2 * len(shown.notes)
    assert shown.to_html().count("<tr") == len(shown.frame) + 1
    assert len(str(shown).splitlines()) == len(shown.frame) + 1 + len(shown.notes)


def test_files_of_another_kind_are_refused(summaries, tmp_path):
    path = tmp_path / "site.json"
    summaries[0].write(path)
    assert pf.codebook.read_summary(path) == summaries[0]
    plain = json.loads(path.read_text())
    for change, said in {
        "format": ({"format": "another"}, "format"),
        "rows": ({"rows": "many"}, "rows"),
        "extra": ({"patients": []}, "patients"),
        "code": ({"findings": [{"code": "no_such_code", "figures": {}}]}, "findings.0 has a code"),
        "signs": ({"findings": [{"code": "constant", "figures": {"column": "\x1b[31m"}}]}, "not printable"),
        "column": ({"findings": [{"code": "constant", "figures": {"column": "secret"}}]}, "its codebook does not have"),
    }.values():
        path.write_text(json.dumps(plain | change))
        with pytest.raises(pf.errors.DataError, match=said):
            pf.codebook.read_summary(path)
    few = {"sex": {"n": 5, "missing": 0, "levels": {"male": 5}}}
    for change in ({"categories": few}, {"numbers": {"sex": {}}}, {"dates": {"secret": {}}}):
        path.write_text(json.dumps(plain | change))
        with pytest.raises(pf.errors.DataError, match="its codebook"):
            pf.codebook.read_summary(path)
    with pytest.raises(pf.errors.DataError, match="two summaries of albany"):
        pf.codebook.compare([summaries[0], summaries[0]])
    with pytest.raises(pf.errors.DataError, match="2 sites at least"):
        pf.codebook.compare(summaries[:1])


def test_sites_with_another_codebook_are_named(book, summaries, frames):
    other = dataclasses.replace(book, columns={"sex": pf.codebook.Column(type="category", levels=("female", "other"))})
    odd = pf.codebook.check(other, frames["elgin"].assign(sex="other"), "elgin").summary
    mixed = [odd, *summaries[:-1]]
    found = pf.codebook.compare(mixed)
    assert ("elgin", "other_codebook") in {(one.site, one.finding.code) for one in found}
    assert {one.site for one in found} == {"elgin"}
    for together in (pf.codebook.constants, pf.codebook.table_one):
        with pytest.raises(pf.errors.DataError, match="the summaries of elgin were made by another codebook"):
            together(mixed)
        whole = [dataclasses.replace(summaries[0], site="overall"), *summaries[1:]]
        with pytest.raises(pf.errors.DataError, match="a site is called 'overall'"):
            together(whole)
    stricter = pf.codebook.check(book, frames["elgin"], "elgin", fewest=20).summary
    assert pf.codebook.compare([*summaries[:-1], stricter]) == []
