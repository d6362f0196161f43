"""Every algorithm does what every algorithm has to: `pf.testing`, for each row of `algorithms.ALGORITHMS`."""

import numpy as np
import pytest
from algorithms import NEED_NOT
from contract import CASES, in_one_process

import pyro_fed as pf
from pyro_fed.testing.case import values
from pyro_fed.testing.suite import CHECKS, checks_of


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(name, check, id=f"{name}-{of.removeprefix('check_')}", marks=in_one_process(name))
        for name, case in CASES.items()
        for of, check in checks_of(case, NEED_NOT.get(name, {}))
    ],
)
def test_the_contract(name, check):
    check(CASES[name].algorithm)


def test_excuses_are_of_algorithms_and_checks_that_there_are():
    assert NEED_NOT.keys() <= CASES.keys()
    assert {check for excused in NEED_NOT.values() for check in excused} <= CHECKS.keys()


def test_which_work_on_all_latents():
    applies = CHECKS["check_integrated_latents"].applies
    assert {name for name, case in CASES.items() if not applies(case.algorithm)} == {"NUTS", "SVI"}


def test_which_draw_nothing_and_give_the_same_with_every_seed():
    """Newton's steps, on all rows, to a point; the others' draws differ by `check_seed`."""
    assert [name for name, case in CASES.items() if not case.draws_by_chance] == ["FedLap"]
    case = CASES["FedLap"]
    assert isinstance(case.algorithm, pf.FedLap)
    np.testing.assert_allclose(values(case.traced), values(case.run(compile="trace", seed=1)), rtol=1e-5, atol=1e-8)
