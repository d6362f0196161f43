"""The audit's work on a model: numbers of chains, mode searches, points and draws, or none if they cost too much.

Costs are counted in densities of rows. `evaluations` is the cost of one log density, of all rows or of a sample that
represents them. Chains, or all mode searches, may cost `DENSITIES`. A round of weighted points, compared draws, or a
step of all searches may cost `FIRST_DENSITIES`; their numbers are reduced if they would cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from pyro_fed.density.checks.points import FEW_DRAWS, NUM_DRAWS
from pyro_fed.density.traits import LARGE_DIM, Traits

#: Largest cost of a round of points, or of a comparison, in densities of rows: a tenth of a second.
FIRST_DENSITIES = 4_000_000
#: Largest cost of chains or of mode searches, in densities of rows: about ten seconds.
DENSITIES = 1_000_000_000
#: Cost of a score, in densities.
SCORE_COST = 3
#: Largest number of operations of the shortest audit, a few seconds; there is no audit beyond it.
MOST_OPERATIONS = 5_000_000_000
#: Numbers of chains: the smallest, for costly scores or looped models; of a first walk; and of a second walk, for
#: results whose error may matter or be chance. Few chains do not determine the SD of a long tail.
FEWEST_CHAINS, CHAINS, MANY_CHAINS = 32, 128, 2048
#: Numbers of mode searches: from draws of the prior, from points around the result, and from its draws; and the same
#: for costly or looped models.
CLIMBS, COSTLY_CLIMBS = (16, 8, 4), (5, 3, 2)
#: Number of rows per parameter up to which improper priors may lead to no posterior, or to one without moments: under
#: flat priors, the mean and scale of a Gaussian have a proper posterior with at least three rows, and the scale has a
#: variance with at least five.
FEW_ROWS_A_PARAMETER = 2.5
#: Largest number of parameters for mode searches, since a curvature costs as many scores.
LARGEST_DIM_OF_CLIMBS = 50
#: Largest number of parameters for importance weights.
LARGEST_DIM_OF_WEIGHTS = 8


class Walk(NamedTuple):
    """The number of chains, and the largest number of transitions of each."""

    chains: int
    transitions: int


def walks(traits: Traits, evaluations: int, scores: int, looks: Sequence[int]) -> list[Walk]:
    """Chains and transitions of successive walks; each is run if the previous one was not conclusive."""
    _, shortest, *_, longest = looks
    afford = DENSITIES // max(1, evaluations * scores)
    chains = FEWEST_CHAINS if traits.looped else min(max(afford // shortest, FEWEST_CHAINS), CHAINS)
    many = 0 if traits.looped else min(MANY_CHAINS, afford // longest)
    first = Walk(chains, min(max(afford // chains, shortest), longest))
    return [first, *[Walk(many, longest)] * (many > chains)]


def climbs(traits: Traits, evaluations: int, steps: int) -> tuple[int, int, int] | None:
    """Numbers of searches from the prior, around the result and from its draws; None if modes are not searched for."""
    costly = traits.looped or evaluations * sum(CLIMBS) > FIRST_DENSITIES
    chosen = COSTLY_CLIMBS if costly else CLIMBS
    affordable = traits.dim <= LARGEST_DIM_OF_CLIMBS and evaluations * steps * sum(chosen) <= DENSITIES
    return chosen if affordable else None


def affords(traits: Traits, points: int = 0) -> bool:
    """Whether log densities at this number of points can be afforded; a looped model takes a run for each."""
    cheap = points * traits.evaluations <= DENSITIES
    return cheap and not traits.looped and traits.dim <= LARGEST_DIM_OF_CLIMBS


def affords_a_climb(traits: Traits, steps: int) -> bool:
    """Whether one search of this number of steps, and the curvature at its end, can be afforded."""
    return affords(traits, steps + traits.dim)


def flat_priors_with_few_rows(traits: Traits) -> bool:
    """Whether there are too few rows for a proper posterior under improper priors."""
    return bool(traits.improper) and traits.num_rows <= FEW_ROWS_A_PARAMETER * traits.dim


def takes_weighted_points(traits: Traits) -> bool:
    """Whether weighted points are used: not in many dimensions, nor for looped models."""
    return not traits.looped and traits.dim <= LARGEST_DIM_OF_WEIGHTS


def weighted_points(evaluations: int, fewest: int, most: int) -> int:
    """Number of weighted points of a round."""
    return max(fewest, min(most, FIRST_DENSITIES // max(1, evaluations)))


def compared_draws(traits: Traits, evaluations: int) -> int:
    """Number of draws at which densities, with their scores, are compared in two ways."""
    afford = 0 if traits.looped else FIRST_DENSITIES // (2 * SCORE_COST * evaluations)
    return max(FEW_DRAWS, min(NUM_DRAWS, afford))


def unaffordable_operations(traits: Traits, operations: Callable[[], float], scores: int, shortest: int) -> float:
    """Operations of the shortest audit if they are too many; 0 if it can be afforded."""
    if traits.dim <= LARGE_DIM:
        return 0.0
    required = operations() * SCORE_COST * FEWEST_CHAINS * shortest * scores
    return required if required > MOST_OPERATIONS else 0.0


def maps_points(traits: Traits) -> bool:
    """Whether the model can be evaluated at many points at once."""
    return not traits.looped


def may_round(traits: Traits) -> bool:
    """Whether densities are in single precision, so that rounding may matter."""
    return traits.dtype == torch.float32


def takes_some_rows(traits: Traits) -> bool:
    """Whether densities can be computed on a subset of the rows."""
    return traits.rows_in_tensors and not traits.looped
