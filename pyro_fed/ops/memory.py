"""The memory budget: how many rows, points, draws or clients are computed at once.

A computation in pieces states how many numbers one item creates, and takes as many items as fit.
"""

from __future__ import annotations

#: Largest size, in numbers, of one intermediate result (64 MiB in double precision), of a result that fits into a
#: processor's cache, and of all results of a step that are held at once.
RESULT_NUMBERS = 2**23
CACHE_NUMBERS = RESULT_NUMBERS // 32
STEP_NUMBERS = 6 * RESULT_NUMBERS
#: Numbers that the log density of one row creates, in a model of a few operations.
DENSITY_NUMBERS = 16


def fits_in_memory(numbers: int) -> bool:
    """Whether a result of this many numbers fits into memory."""
    return numbers <= RESULT_NUMBERS


def count_in_memory(numbers_each: int) -> int:
    """The number of items, with `numbers_each` numbers each, that fit into one result in memory; at least one."""
    return max(1, RESULT_NUMBERS // max(1, numbers_each))


def count_in_cache(numbers_each: int) -> int:
    """The number of items, with `numbers_each` numbers each, that fit into a processor's cache; at least one."""
    return max(1, CACHE_NUMBERS // max(1, numbers_each))


def count_in_step(numbers_each: float) -> int:
    """The number of items, each creating `numbers_each` numbers, that fit into one step; at least one."""
    return max(1, int(STEP_NUMBERS / max(1.0, numbers_each)))


def count_of_densities(densities_each: int) -> int:
    """The number of items, with `densities_each` densities of rows each, that are computed together; at least one."""
    return count_in_memory(DENSITY_NUMBERS * densities_each)
