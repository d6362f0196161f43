"""A change of the code's form changes no draw: every algorithm's, against the file that `contract_draws` keeps."""

import contract_draws
import numpy as np
import pytest
from contract import CASES as CONTRACTS
from contract import in_one_process
from contract_draws import CASES, FILE, differences, draws_of

KEPT = dict(np.load(FILE))
#: Those that were there when the file was written; a new algorithm has no draws of before.
OLD = [case for case in CASES if f"{case[0]} / {case[2].__name__} / bytes_up" in KEPT]

#: Relative differences of a change of form, and where a processor's rounding is enlarged: L-BFGS's line searches take
#: 1e-16 to 2e-10 on the second processor that was tried.
AT_MOST, ENLARGED = 1e-12, {"NPV": 1e-8}


def test_every_case_of_the_file_is_run():
    assert {f"{name} / {where.__name__}" for name, _, where in OLD} == {key.rpartition(" / ")[0] for key in KEPT}


@pytest.mark.parametrize("name", CONTRACTS)
def test_the_draws_of_every_algorithm_are_kept(name):
    assert any(key.startswith(f"{name} / ") for key in KEPT), (
        f"no draws of {name} are kept: run `python tests/helpers/contract_draws.py --write {name!r}`, and commit {FILE}"
    )


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case[0]}-{case[2].__name__}", marks=in_one_process(case[0])) for case in OLD]
)
def test_the_same_draws_as_before(case):
    away = differences(draws_of(*case), KEPT)
    assert away, "a run without draws"
    limit = ENLARGED.get(case[0], AT_MOST)
    assert max(away.values()) <= limit, {name: value for name, value in away.items() if value > limit}


def test_writing_one_algorithm_leaves_the_others(monkeypatch, tmp_path):
    file, new = tmp_path / "draws.npz", {"BCM / unequal_lines / w": np.zeros(3)}
    file.write_bytes(FILE.read_bytes())
    monkeypatch.setattr(contract_draws, "FILE", file)
    monkeypatch.setattr(contract_draws, "draws_of", lambda *case: new)
    contract_draws.write_or_compare(True, ["BCM"])
    written = dict(np.load(file))
    others = {key: value for key, value in KEPT.items() if not key.startswith("BCM / ")}
    assert others.keys() < KEPT.keys()
    assert written.keys() == others.keys() | new.keys()
    assert all(np.array_equal(written[key], value, equal_nan=True) for key, value in (others | new).items())
    with pytest.raises(SystemExit, match="no row BMC"):
        contract_draws.write_or_compare(True, ["BMC"])
