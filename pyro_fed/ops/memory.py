"""The memory budget: how many rows, points, draws or clients are worked on at once.

Every computation that works in pieces says how many numbers one of its items makes, and takes as many items as fit.
"""

from __future__ import annotations

#: Numbers of one intermediate result, 64 MiB in double precision; those of a result that stays in a processor's cache;
#: and those of all results of a step that are alive together.
RESULT_NUMBERS = 2**23
CACHE_NUMBERS = RESULT_NUMBERS // 32
STEP_NUMBERS = 6 * RESULT_NUMBERS
#: Numbers that the log density of a row makes, of a model of a few operations.
DENSITY_NUMBERS = 16


def fits_in_memory(numbers: int) -> bool:
    """Whether a result of so many numbers fits into memory."""
    return numbers <= RESULT_NUMBERS


def count_in_memory(numbers_each: int) -> int:
    """How many items, with so many numbers each, fit into one result in memory; at least one."""
    return max(1, RESULT_NUMBERS // max(1, numbers_each))


def count_in_cache(numbers_each: int) -> int:
    """How many items, with so many numbers each, fit into a processor's cache; at least one."""
    return max(1, CACHE_NUMBERS // max(1, numbers_each))


def count_in_step(numbers_each: float) -> int:
    """How many items, whose computation makes so many numbers each, fit into one step; at least one."""
    return max(1, int(STEP_NUMBERS / max(1.0, numbers_each)))


def count_of_densities(densities_each: int) -> int:
    """How many items, with so many densities of rows each, are computed together; at least one."""
    return count_in_memory(DENSITY_NUMBERS * densities_each)
