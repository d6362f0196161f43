# The contract of an algorithm as checks, under `pf.testing`.
from .suite import check_algorithm as check_algorithm
from .suite import checks as checks
from .suite import parametrize_with_checks as parametrize_with_checks
