"""Every algorithm does what every algorithm has to: `pf.testing`, for each row of `algorithms.ALGORITHMS`."""

import numpy as np
import pytest
from algorithms import NEED_NOT, VISITS
from contract import CASES, in_one_process

import pyro_fed as pf
from pyro_fed.testing.case import Case, values
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


def test_points_of_steps_without_noise_follow_from_the_seed_by_their_start_alone():
    """FedLap's Newton steps, on all rows, forget where they began; P2PFedAvg's have not. Others: `check_seed`."""
    assert CASES["FedAvg"].draws_by_chance  # by its minibatches
    for name in ("FedLap", "P2PFedAvg"):
        case = CASES[name]
        assert not case.draws_by_chance
        one, other = values(case.traced), values(case.run(compile="trace", seed=1))
        assert np.allclose(one, other) == (name == "FedLap")


def test_chains_that_store_no_draws_leave_the_state_that_they_are_given():
    """They are excused where there is room for draws; while they burn in, nothing is written."""
    assert Case(pf.FSGLD(**VISITS | {"burn_in": 10_000})).observation.changed == {}
