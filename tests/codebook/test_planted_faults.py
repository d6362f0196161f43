"""Faults of data managers, planted in one of five hospitals' tables, are named with the hospital; clean tables are not.

The tables are made by seed (`helpers/hospital_tables.py`). Over the seeds 1000 to 1299, that is 1,500 clean tables and
300 comparisons, no finding was made: with probability 0.95 fewer than one clean study in 100 has one. Over the seeds 0
to 29, 1,224 of 1,230 planted faults were named; `python tests/helpers/hospital_tables.py --seeds 30` counts them.
"""

import dataclasses

import hospital_tables
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
