"""A change of the code's form changes no draw: every algorithm's, against the file that `contract_draws` keeps."""

import numpy as np
import pytest
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


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case[0]}-{case[2].__name__}", marks=in_one_process(case[0])) for case in OLD]
)
def test_the_same_draws_as_before(case):
    away = differences(draws_of(*case), KEPT)
    assert away, "a run without draws"
    limit = ENLARGED.get(case[0], AT_MOST)
    assert max(away.values()) <= limit, {name: value for name, value in away.items() if value > limit}
