"""Checks of the contract of algorithms, for the package's own and for any other.

`check_algorithm` runs all checks that apply, and `parametrize_with_checks` makes each a pytest test. A check is a small
function `check_...(algorithm, case)`; `settings`, `steps` and `runs` define them, `suite` lists them.
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
