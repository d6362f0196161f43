"""Faults of data managers, planted in one of five hospitals' tables, are named with the hospital; clean tables are not.

The tables are made by seed (`helpers/hospital_tables.py`). Over the seeds 1000 to 1299, that is 1,500 clean tables and
300 comparisons, no finding was made: with probability 0.95 fewer than one clean study in 100 has one. Over the seeds 0
to 29, 1,224 of 1,230 planted faults were named; `python tests/helpers/hospital_tables.py --seeds 30` counts them.
"""

import dataclasses

import hospital_tables
import pandas as pd
import pytest
from hospital_tables import FAULTS, HOSPITALS, is_named, summaries_with, table

import pyro_fed as pf

SEED = 1


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("codebook") / "codebook.toml"
    path.write_text(hospital_tables.CODEBOOK, encoding="utf-8")
    return pf.codebook.read_codebook(path)


@pytest.fixture(scope="module")
def frames():
    return {hospital: table(SEED, hospital) for hospital in HOSPITALS}


@pytest.fixture(scope="module")
def clean(book, frames):
    return {hospital: pf.codebook.check(book, frame, hospital).summary for hospital, frame in frames.items()}


def test_there_are_thirty_faults_and_more():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_named_with_the_hospital(number, book, frames, clean, tmp_path):
    fault, hospital = FAULTS[number], HOSPITALS[number % len(HOSPITALS)]
    found = pf.codebook.compare(summaries_with(fault, book, frames, hospital, clean, tmp_path, SEED))
    assert {one.site for one in found} == {hospital}
    assert is_named(fault, hospital, found), [one.finding.text for one in found]


@pytest.mark.parametrize("seed", range(5))
def test_clean_tables_have_no_findings(seed, book):
    checked = [pf.codebook.check(book, table(seed, hospital), hospital) for hospital in HOSPITALS]
    assert [one for check in checked for one in check.findings] == []
    assert pf.codebook.compare([one.summary for one in checked]) == []


def test_two_hospitals_cannot_say_which_of_them_is_wrong(book, frames):
    """Unless the codebook's range does."""
    free = dataclasses.replace(book.columns["haemoglobin"], range=None)
    book = dataclasses.replace(book, columns=book.columns | {"haemoglobin": free})
    tenfold = frames["boston"].assign(
        haemoglobin=frames["boston"]["haemoglobin"].map(lambda text: f"{10 * float(text):g}" if text else "")
    )
    tables = {"albany": frames["albany"], "boston": tenfold}
    (found,) = pf.codebook.compare([pf.codebook.check(book, rows, name).summary for name, rows in tables.items()])
    assert set(found.site.split(" or ")) == {"albany", "boston"}
    assert found.finding.code == "scale_differs"


def test_one_table_at_two_hospitals_is_named(book):
    """A hospital's file is checked under another's name; of two hospitals' clean tables nothing is said."""
    frames = {hospital: table(3, hospital) for hospital in HOSPITALS}
    names = list(frames)
    twice = {**frames, names[1]: frames[names[0]]}
    found = pf.codebook.compare([pf.codebook.check(book, frame, name).summary for name, frame in twice.items()])
    assert [one.site for one in found if one.finding.code == "same_table"] == [f"{names[0]} or {names[1]}"]


def test_few_equal_counts_are_no_sign_of_one_table(tmp_path):
    """Two hospitals of 20 patients with as many treated ones: one column of two values may agree by chance."""
    path = tmp_path / "codebook.toml"
    path.write_text('[columns.treated]\ntype = "integer"\nrange = [0, 1]\n')
    book, frame = pf.codebook.read_codebook(path), pd.DataFrame({"treated": [0, 1] * 10})
    assert not pf.codebook.compare([pf.codebook.check(book, frame, name).summary for name in ("north", "south")])


def test_exchanged_columns_end_in_a_finding(book, tmp_path):
    """Weights in the column of heights, with a decimal: the chance that these are whole in miles is no power of 10."""
    frame = table(3, "boston").rename(columns={"height": "weight", "weight": "height"})
    found = pf.codebook.check(book, frame, "boston").findings
    assert "height" in {one.finding.where.get("column") for one in found}
