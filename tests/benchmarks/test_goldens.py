"""The goldens: what was run again on the same code is identical, and whatever differs is seen and told by its field."""

import copy
import os

import pytest
from forks import together

from benchmarks.goldens import records
from benchmarks.goldens.__main__ import main, report
from benchmarks.goldens.cases import SETS
from benchmarks.goldens.differences import differences
from benchmarks.helpers.records import Records, run_missing
from pyro_fed import FedEP
from pyro_fed.errors import TimeLimitError

CASE = "linear_sorted / FedLaplace"
GOLDEN = {
    "case": CASE,
    "code": "0",
    "refusal": None,
    "settings": {"tolerance": 1e-4, "covariance": "auto"},
    "phases": [[{"algorithm": "FedLaplace", "settings": {"tolerance": 1e-4, "covariance": "auto"}}]],
    "rounds": [["FedLaplace", 2]],
    "bytes": [10, 20],
    "doubts": ["The integrals are inaccurate."],
    "codes": ["integrals"],
    "draws": {"w": {"shape": [1, 9, 2], "sha256": "a", "mean": [0.0, 1.0], "sd": [2.0, 0.5]}},
}


def changed(path, value):
    """The record with one value in another's place."""
    record = copy.deepcopy(GOLDEN)
    *way, last = path
    place = record
    for key in way:
        place = place[key]
    place[last] = value
    return record


@together
def test_a_case_is_written_and_found_identical_and_a_changed_record_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records, "FOLDER", tmp_path / "kept")
    options = ["--set", "quick", "--cases", CASE]
    assert main(["--write", *options]) == 0
    kept = Records(records.path_of("quick"))
    assert kept.header["threads"] == 1 and list(kept) == [CASE]
    assert kept[CASE]["rounds"] and kept[CASE]["phases"] and kept[CASE]["draws"]["beta"]["sha256"]
    assert kept[CASE]["codes"] == []
    again = ["--compare", *options, "--out", str(tmp_path / "out")]
    assert main(again) == 0
    assert "quick: 1 of 1 cases identical to the bit" in capsys.readouterr().out

    kept[CASE]["draws"]["beta"]["mean"][0] += 1e-9
    kept.keep(kept[CASE])
    assert main(again) == 1  # the run that was kept is compared, without another one
    assert "beta: means and SDs differ by at most" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("draws", "w", "sha256"), "b", {"draws": "w: means and SDs differ by at most 0 SD"}),
        (("draws", "w", "mean"), [0.0, 1.0 + 1e-3], {"draws": "w: means and SDs differ by at most 0.002 SD"}),
        (("draws", "w", "shape"), [1, 9, 3], {"draws": "w: means and SDs differ by at most inf SD"}),
        (("doubts", 0), "Integrals.", {"doubts": '[0] was "The integrals are inaccurate.", is "Integrals."'}),
        (("doubts",), [], {"doubts": 'it was ["The integrals are inaccurate."], is []'}),
        (("codes",), [], {"codes": 'it was ["integrals"], is []'}),
        (("settings", "tolerance"), 1e-3, {"settings": "tolerance was 0.0001, is 0.001"}),
        (
            ("phases", 0, 0, "settings", "covariance"),
            "full",
            {"phases": '[0][0].settings.covariance was "auto", is "full"'},
        ),
        (("rounds", 0, 1), 3, {"rounds": "[0][1] was 2, is 3"}),
        (("bytes", 1), 21, {"bytes": "[1] was 20, is 21"}),
        (("refusal",), {"class": "ModelError"}, {"refusal": 'it was null, is {"class": "ModelError"}'}),
        (("code",), "1", {}),
    ],
)
def test_every_difference_is_told_by_its_field(path, value, said):
    assert differences(GOLDEN, GOLDEN) == {}
    assert differences(GOLDEN, changed(path, value)) == said


def test_fields_and_settings_can_be_ignored_and_codes_are_new_once():
    other = changed(("settings", "tolerance"), 1e-3)
    assert differences(GOLDEN, other, frozenset({"settings.tolerance"})) == {}
    assert differences(GOLDEN, changed(("doubts",), []), frozenset({"doubts"})) == {}
    assert differences(changed(("codes",), None), GOLDEN) == {}


def test_the_report_counts_what_differs_what_is_gone_and_what_was_not_run(capsys):
    other = changed(("draws", "w", "mean"), [0.0, 2.0])
    kept = {CASE: GOLDEN, "gone": GOLDEN, "left": GOLDEN}
    assert report("quick", kept, {CASE: other}, {CASE, "left", "new"}) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == (
        "quick: 0 of 3 cases identical to the bit; differences by field: draws 1 (draws by at most 2 SD); "
        "1 cases are gone; 1 cases not run; 1 cases have no golden"
    )


def test_a_file_whose_last_line_was_cut_off_is_read_up_to_there(tmp_path):
    path = tmp_path / "new" / "set.jsonl"
    records = Records(path)
    records.header = {"set": "set"}
    for case in "ba":
        records.keep({"case": case})
    whole = path.read_text()
    with path.open("a") as file:
        file.write('{"case": "c", "roun')
    found = Records(path)
    assert (found.header, list(found.values())) == ({"set": "set"}, [{"case": "a"}, {"case": "b"}])
    found.drop(lambda record: record["case"] == "a")
    found.keep({"case": "a"})
    assert path.read_text() == whole and len(found) == 2


def squared(case):
    """A record, no answer, or none within the run's seconds."""
    if case == "dies":
        os._exit(3)
    if case == "late":
        raise TimeLimitError("", round=7, algorithm=FedEP())
    if case == "never":
        raise TimeLimitError("")
    return {"square": int(case) ** 2}


@together
def test_only_what_is_missing_is_run(tmp_path, capfd):
    path = tmp_path / "squares.jsonl"
    records = Records(path)
    records.keep({"case": "3", "square": 0})
    found = list(run_missing(records, ["2", "3", "dies"], squared))
    assert [(one["case"], one["square"]) for one in found] == [("2", 4)] and found[0]["seconds"] >= 0
    assert "dies: the process died with exit code 3" in capfd.readouterr().err
    assert [one["square"] for one in Records(path).values()] == [4, 0]
    assert [one["square"] for one in run_missing(records, ["3"], squared, again=True)] == [9]
    assert list(run_missing(records, ["5"], squared, minutes=0)) == []


@together
def test_a_case_that_is_cut_off_by_its_own_limit_has_a_record_of_where(tmp_path):
    records = Records(tmp_path / "squares.jsonl")
    list(run_missing(records, ["late", "2", "never"], squared))
    kept = {case: record.get("cut") for case, record in Records(records.path).items()}
    assert kept == {"late": "round 7 of FedEP", "2": None, "never": "its preparation"}


@pytest.mark.parametrize("name", SETS)
def test_the_cases_of_a_set_have_names_of_their_own(name):
    cases = [case.name for case in SETS[name]()]
    assert len(cases) == len(set(cases)) > 0
