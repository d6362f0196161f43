"""Checks of the arguments of `run`, before anything is computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pyro_fed.algorithm.capabilities import Indicators
from pyro_fed.algorithm.contract import Algorithm, Plan
from pyro_fed.algorithm.schedule import Informed, Schedule
from pyro_fed.errors import SettingError

#: More threads than any machine has.
MAX_THREADS = 4096
#: Draws of one parameter that fill a gigabyte.
MOST_DRAWS = 134_217_728
#: Arguments that belong to one algorithm, with the cure where several are tried.
OF_ONE_ALGORITHM = {
    "num_rounds": "its stages have rounds of their own; limit them by {name}(max_rounds=...)",
    "schedule": "each of its stages has its own",
    "combination": "its stages need every client's own message",
    "start": "it hands over between its stages by itself; run FedEP(), which can start there",
    "checkpoint": "only a single algorithm can be resumed",
}


def check_of_plan(plan: Plan, **given: Any) -> None:
    """Refuse arguments that belong to one algorithm, see `OF_ONE_ALGORITHM`, for a plan; None stands for not given."""
    for name, value in given.items():
        if value is not None:
            kind = type(plan).__name__
            cure = OF_ONE_ALGORITHM[name].format(name=kind)
            raise SettingError(
                f"{kind} does not take {name}=: {cure}. Leave it out, or run one algorithm, such as pf.FedEP()"
            )


def check_folders(**folders: str | Path | None) -> None:
    """Refuse texts that name no folder. An empty text would mean the current folder; None stands for not given."""
    for name, folder in folders.items():
        if folder is not None and (not str(folder).strip() or "\0" in str(folder)):
            raise SettingError(f"{name} must be a folder's path, received {str(folder)!r}; such as {name}='state'")
        if folder is not None and str(folder).startswith("~"):
            raise SettingError(
                f"{name}={str(folder)!r} would be a folder called '~' in the one that the program runs in: write "
                f"Path({str(folder)!r}).expanduser()"
            )


def check_numbers(
    rounds: int, num_draws: int, seed: int, min_clients: int | None, num_clients: int, num_threads: int | str | None
) -> None:
    """Refuse numbers out of their ranges."""
    if isinstance(num_threads, int) and not 1 <= num_threads <= MAX_THREADS:
        bound = "at least 1, or None" if num_threads < 1 else f"at most {MAX_THREADS}"
        raise SettingError(f"num_threads must be {bound}, received {num_threads}")
    if rounds < 1:
        raise SettingError(f"num_rounds must be at least 1, received {rounds}")
    if seed < 0:
        raise SettingError(f"seed must not be negative, received {seed}")
    if not 1 <= num_draws <= MOST_DRAWS:
        bound = "at least 1" if num_draws < 1 else f"at most {MOST_DRAWS}"
        raise SettingError(f"num_draws must be {bound}, received {num_draws}")
    if min_clients is not None and not 0 <= min_clients <= num_clients:
        raise SettingError(f"min_clients must lie in 0..{num_clients}, received {min_clients}")


def check_seconds(max_seconds: float | None) -> None:
    """Refuse a limit of time that is not a positive number of seconds."""
    if max_seconds is not None and not 0 < max_seconds < math.inf:
        raise SettingError(f"max_seconds must be positive, received {max_seconds}; None is no limit")


def check_indicator(algorithm: Algorithm, schedule: Schedule | None) -> None:
    """Refuse a schedule that asks the clients for an indicator which the algorithm does not have."""
    if isinstance(schedule, Informed) and not schedule.asks:
        raise SettingError(
            f"schedule {type(schedule).__name__} does not say what it asks the clients for: use KSD or HIP, or a class "
            "of your own with `asks`"
        )
    given = algorithm.indicators if isinstance(algorithm, Indicators) else ()
    if schedule is None or not schedule.asks or schedule.asks in given:
        return
    has = f"it gives {list(given)}" if given else "it gives none"
    raise SettingError(
        f"schedule {type(schedule).__name__} asks clients for the indicator {schedule.asks!r}, which "
        f"{type(algorithm).__name__} cannot give ({has}): use UniformRandom, RoundRobin or Availability"
    )
