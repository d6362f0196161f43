"""The contract of an algorithm as checks: of the package's own algorithms and of anybody's.

`check_algorithm` runs all that apply, `parametrize_with_checks` makes each a test of pytest. A check is a small
function `check_...(algorithm, case)`; `settings`, `steps` and `runs` have them, `suite` their list.
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
