"""What `fit` hands on to `run`: typed as it is there, but for what belongs to one algorithm."""

import inspect
import typing

import pytest
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed.runtime.fit import RunOptions
from pyro_fed.runtime.run import OF_ONE_ALGORITHM


def test_options_are_those_of_run_with_their_types():
    own = {"algorithm", "federation", "resume", *OF_ONE_ALGORITHM}
    own |= inspect.signature(pf.fit).parameters.keys() - {"options"}
    expected = {name: hint for name, hint in typing.get_type_hints(pf.run).items() if name not in {*own, "return"}}
    assert typing.get_type_hints(RunOptions) == expected


def test_a_warning_is_at_the_line_that_called_the_package():
    """However deep within it, and whatever is called by it: `fit` calls `run`, and that another function of ours."""
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(UserWarning, match="max_rounds=2") as caught:
        pf.fit(unequal_lines(), max_rounds=2, progress=False, compile="off", audit=False)
    assert {(one.filename, one.lineno) for one in caught} == {(__file__, line)}
