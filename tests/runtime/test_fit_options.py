"""What `fit` hands on to `run`: typed as it is there, but for what belongs to one algorithm."""

import inspect
import typing

import pyro_fed as pf
from pyro_fed.runtime.fit import RunOptions
from pyro_fed.runtime.run_checks import OF_ONE_ALGORITHM


def test_options_are_those_of_run_with_their_types():
    own = {"algorithm", "federation", "resume", *OF_ONE_ALGORITHM}
    own |= inspect.signature(pf.fit).parameters.keys() - {"options"}
    expected = {name: hint for name, hint in typing.get_type_hints(pf.run).items() if name not in {*own, "return"}}
    assert typing.get_type_hints(RunOptions) == expected
