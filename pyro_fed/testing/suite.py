"""The list of all checks, the choice of those that apply to an algorithm, and the report of those that fail."""

from __future__ import annotations

import functools
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.errors import ContractError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.testing import runs, settings, steps
from pyro_fed.testing.case import Case

#: A check: it raises an error if the algorithm violates the contract.
Function = Callable[[Algorithm, Case], None]
#: This folder, whose lines are not those of the algorithm under test.
TESTING = str(Path(__file__).parent)
#: The message of a check about an unexpected error.
UNENDED = "expected a run that ends well"


class Check(NamedTuple):
    """A check, and the algorithms to which it applies."""

    function: Function
    applies: Callable[[Algorithm], bool] = lambda algorithm: True


def _can_miss_a_client(algorithm: Algorithm) -> bool:
    """Whether a round can continue without one of its clients."""
    return not algorithm.needs_all and not (algorithm.pooled or isinstance(algorithm, OnGraph))


CHECKS = {
    check.function.__name__: check
    for check in (
        Check(settings.check_settings_are_frozen),
        Check(settings.check_repr_shows_settings),
        Check(settings.check_recipe_round_trip, settings.writable),
        Check(settings.check_settings_are_checked),
        Check(settings.check_settings_have_effect),
        Check(settings.check_capabilities_are_taken_up),
        Check(steps.check_inputs_are_unchanged),
        Check(steps.check_no_hidden_randomness),
        Check(steps.check_order_of_messages),
        Check(steps.check_states_are_tensors),
        Check(steps.check_leading_axes),
        Check(steps.check_messages_have_one_form),
        Check(steps.check_figures),
        Check(steps.check_draws),
        Check(steps.check_empty_client),
        Check(steps.check_one_row_clients),
        # A graph of one agent has no links.
        Check(steps.check_one_client, lambda algorithm: not isinstance(algorithm, OnGraph)),
        Check(steps.check_single_precision),
        Check(runs.check_executors_agree),
        Check(runs.check_arrival_order),
        Check(runs.check_compile_levels_agree),
        Check(runs.check_seed),
        Check(runs.check_evaluation_changes_nothing),
        Check(runs.check_resume),
        Check(runs.check_unused_messages, _can_miss_a_client),
        # For an algorithm on the joint density the latents in the plate are parameters.
        Check(runs.check_integrated_latents, lambda algorithm: not getattr(algorithm, "joint", False)),
        # Particles are few, and a point has no SD.
        Check(
            runs.check_conjugate_posterior, lambda algorithm: algorithm.draws_are in ("independent", "chains", "agents")
        ),
    )
}


@checked
def checks(
    algorithm: Algorithm,
    *,
    federation: Federation | None = None,
    num_rounds: int | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Callable[[Algorithm], None]]]:
    """The checks that apply to an algorithm.

    Args:
        algorithm: algorithm under test, with settings whose rounds take milliseconds.
        federation: federation of the short runs; None: linear regression, two parameters, three clients of 3, 7 and 13
            rows. Some checks have their own federations, such as one with a client without rows.
        num_rounds: number of rounds of the short runs; None: 4, or 1 for an algorithm whose default is 1.
        expected_failures: name of a check → the reason why the algorithm need not pass it; the check is left out.

    Yields:
        The name of a check, and a function that runs it, `check(algorithm)`, and raises `ContractError` if it fails.
        The checks share their runs.

    Raises:
        SettingError: `expected_failures` names an unknown check, or the number of rounds is below 1.

    Example:
        >>> algorithm = MyAlgorithm()
        >>> for name, check in pf.testing.checks(algorithm):
        ...     check(algorithm)
    """
    if num_rounds is not None and num_rounds < 1:
        raise SettingError(f"num_rounds must be at least 1, received {num_rounds}")
    excused = expected_failures or {}
    for name in excused:
        if name not in CHECKS:
            raise SettingError(f"expected_failures: there is no check {name!r}; {closest(name, list(CHECKS))}")
    case = Case(algorithm, federation, num_rounds)
    return checks_of(case, excused)


def checks_of(case: Case, excused: Mapping[str, str]) -> Iterator[tuple[str, Callable[[Algorithm], None]]]:
    """`checks` of a case, whose runs they share."""
    for name, check in CHECKS.items():
        if name not in excused and check.applies(case.algorithm):
            yield name, functools.partial(_run, check.function, case=case)


def _run(function: Function, algorithm: Algorithm, *, case: Case) -> None:
    """Run a check, with a new case for another algorithm; errors begin with the check's name."""
    if algorithm is not case.algorithm:
        case = Case(algorithm, case.given, case.num_rounds)
    name = function.__name__
    try:
        function(algorithm, case)
    except ContractError as error:
        raise ContractError(f"{name}: {error}") from error.__cause__
    except Exception as error:  # an algorithm may raise any error
        cure = "Run it by itself, pf.run(algorithm, federation), to see the whole traceback"
        received = f"{type(error).__name__}: {error}{_place(error, algorithm)}"
        raise ContractError(f"{name}: {UNENDED}; received {received}. {cure}") from error


def _place(error: Exception, algorithm: Algorithm) -> str:
    """The last line of an error's traceback in the algorithm's module, or else outside the package and libraries."""
    own = getattr(sys.modules.get(type(algorithm).__module__), "__file__", None)
    others = (str(Path(TESTING).parent), *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == own
        or not (frame.filename.startswith(others) or any(part in frame.filename for part in ("site-packages", "<")))
    ]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in `{frames[-1].name}`)" if frames else ""


@checked
def check_algorithm(
    algorithm: Algorithm,
    *,
    federation: Federation | None = None,
    num_rounds: int | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> None:
    """Check that an algorithm satisfies the contract of all algorithms.

    Its settings are frozen, checked, used, shown and written to recipes. Its methods are pure functions of flat
    dictionaries of tensors, with finite messages of one form. Its answer does not depend on the executor, the order of
    the clients, the compiler, an interruption or the precision. Clients may have no rows or one row, or never reply. On
    a conjugate posterior mean and SDs are right, unless the answer consists of particles or a point.

    Args:
        algorithm: algorithm under test, with settings whose rounds take milliseconds.
        federation: federation of the short runs; None: linear regression, two parameters, three clients of 3, 7 and 13
            rows. Some checks have their own federations, such as one with a client without rows.
        num_rounds: number of rounds of the short runs; None: 4, or 1 for an algorithm whose default is 1. The conjugate
        posterior takes
            the algorithm's default number of rounds.
        expected_failures: name of a check → the reason why the algorithm need not pass it; the check is left out.

    Raises:
        ContractError: lists every check that failed: its name, what was expected and received, and the cure.
        SettingError: `expected_failures` names an unknown check.

    Example:
        >>> pf.testing.check_algorithm(pf.FedEP())
        >>> pf.testing.check_algorithm(
        ...     pf.infer.FedPA(), expected_failures={"check_conjugate_posterior": "its samples are shrunk"}
        ... )
    """
    options: dict[str, Any] = {
        "federation": federation,
        "num_rounds": num_rounds,
        "expected_failures": expected_failures,
    }
    failures, count = dict[str, list[str]](), 0
    for name, check in checks(algorithm, **options):
        count += 1
        try:
            check(algorithm)
        except ContractError as error:
            failures.setdefault(str(error).removeprefix(f"{name}: "), []).append(name)
    if failures:
        # Unexpected errors come last: a check's message on their cause is more useful.
        sorted_failures = sorted(failures.items(), key=lambda item: item[0].startswith(UNENDED))
        lines = "\n".join(f"- {', '.join(names)}: {text}" for text, names in sorted_failures)
        number = sum(map(len, failures.values()))
        raise ContractError(f"{algorithm!r} fails {number} of {count} checks:\n{lines}")


@checked
def parametrize_with_checks(
    algorithms: Sequence[Algorithm],
    *,
    federation: Federation | None = None,
    num_rounds: int | None = None,
    expected_failures: Callable[[Algorithm], Mapping[str, str]] | None = None,
) -> Any:
    """Decorate a pytest test, which then runs once for each algorithm and each check that applies to it.

    Args:
        algorithms: algorithms under test.
        federation: as for `check_algorithm`.
        num_rounds: as for `check_algorithm`.
        expected_failures: function that returns `expected_failures` of `check_algorithm` for an algorithm; these tests
            are left out.

    Returns:
        `pytest.mark.parametrize` of the arguments `algorithm` and `check`.

    Example:
        >>> @pf.testing.parametrize_with_checks([MyAlgorithm(), MyAlgorithm(step_size=0.1)])
        ... def test_contract(algorithm, check):
        ...     check(algorithm)
    """
    import pytest

    rows = [
        pytest.param(algorithm, check, id=f"{algorithm!r}-{name}")
        for algorithm in algorithms
        for name, check in checks(
            algorithm,
            federation=federation,
            num_rounds=num_rounds,
            expected_failures=expected_failures(algorithm) if expected_failures else None,
        )
    ]
    return pytest.mark.parametrize(("algorithm", "check"), rows)
