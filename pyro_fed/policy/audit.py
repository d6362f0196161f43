"""What the audit computes on a model: how many chains, climbs, points and draws; none where they cost too much.

Costs are counted in densities of rows; `evaluations` is how many of them one log density takes, of all rows or of few
that stand for all. Chains, or all climbs, may cost `DENSITIES`. A round of weighted points, draws that are compared,
and a step of all climbs may cost `FIRST_DENSITIES`, and are fewer where they would cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from pyro_fed.density.checks.points import FEW_DRAWS, NUM_DRAWS
from pyro_fed.density.traits import LARGE_DIM, Traits

#: Densities of rows that a round of points, or a comparison, may compute in any model: a tenth of a second.
FIRST_DENSITIES = 4_000_000
#: Densities of rows that chains or climbs may compute: about ten seconds.
DENSITIES = 1_000_000_000
#: How many densities a score costs.
SCORE_COST = 3
#: The audit is not made if the shortest one would take more operations than this, some seconds.
MOST_OPERATIONS = 5_000_000_000
#: Chains: the fewest, where a score costs much or is a run of the model; of a first walk; and of a second one, for
#: results whose error may matter but may also be chance. Few chains hardly determine the SD of a long tail.
FEWEST_CHAINS, CHAINS, MANY_CHAINS = 32, 128, 2048
#: Numbers of climbs: from draws of the prior, from points around the result, and from its draws; and where these are
#: costly, or each density takes a run of the model.
CLIMBS, COSTLY_CLIMBS = (16, 8, 4), (5, 3, 2)
#: With at most this many rows for each parameter, improper priors may leave no posterior, or one without moments: under
#: flat priors, the mean and scale of a Gaussian have a posterior from three rows on, and the scale has a variance from
#: five on.
FEW_ROWS_A_PARAMETER = 2.5
#: More parameters than this are not searched for modes, whose curvature costs as many scores.
LARGEST_DIM_OF_CLIMBS = 50
#: With more parameters than this, importance weights are worth too little.
LARGEST_DIM_OF_WEIGHTS = 8


class Walk(NamedTuple):
    """The number of chains, and the most transitions of each."""

    chains: int
    transitions: int


def walks(traits: Traits, evaluations: int, scores: int, looks: Sequence[int]) -> list[Walk]:
    """Chains and transitions of one walk after the other, each for what the one before has not decided."""
    _, shortest, *_, longest = looks
    afford = DENSITIES // max(1, evaluations * scores)
    chains = FEWEST_CHAINS if traits.looped else min(max(afford // shortest, FEWEST_CHAINS), CHAINS)
    many = 0 if traits.looped else min(MANY_CHAINS, afford // longest)
    first = Walk(chains, min(max(afford // chains, shortest), longest))
    return [first, *[Walk(many, longest)] * (many > chains)]


def climbs(traits: Traits, evaluations: int, steps: int) -> tuple[int, int, int] | None:
    """Numbers of climbs from the prior, around the result and from its draws; None where modes are not searched for."""
    costly = traits.looped or evaluations * sum(CLIMBS) > FIRST_DENSITIES
    chosen = COSTLY_CLIMBS if costly else CLIMBS
    affordable = traits.dim <= LARGEST_DIM_OF_CLIMBS and evaluations * steps * sum(chosen) <= DENSITIES
    return chosen if affordable else None


def affords(traits: Traits, points: int = 0) -> bool:
    """Whether modes can be looked at by log densities at so many points; a looped model takes a run for each."""
    cheap = points * traits.evaluations <= DENSITIES
    return cheap and not traits.looped and traits.dim <= LARGEST_DIM_OF_CLIMBS


def affords_a_climb(traits: Traits, steps: int) -> bool:
    """Whether one climb of so many steps, and the curvature at its end, can be afforded."""
    return affords(traits, steps + traits.dim)


def flat_priors_with_few_rows(traits: Traits) -> bool:
    """Whether rows are so few that improper priors may leave no posterior."""
    return bool(traits.improper) and traits.num_rows <= FEW_ROWS_A_PARAMETER * traits.dim


def takes_weighted_points(traits: Traits) -> bool:
    """Whether points are weighted: not in many dimensions, nor where each density takes a run of the model."""
    return not traits.looped and traits.dim <= LARGEST_DIM_OF_WEIGHTS


def weighted_points(evaluations: int, fewest: int, most: int) -> int:
    """Number of weighted points of a round."""
    return max(fewest, min(most, FIRST_DENSITIES // max(1, evaluations)))


def compared_draws(traits: Traits, evaluations: int) -> int:
    """Number of draws at which densities, with their scores, are compared in two ways."""
    afford = 0 if traits.looped else FIRST_DENSITIES // (2 * SCORE_COST * evaluations)
    return max(FEW_DRAWS, min(NUM_DRAWS, afford))


def unaffordable_operations(traits: Traits, operations: Callable[[], float], scores: int, shortest: int) -> float:
    """Operations of the shortest audit where they are too many; 0 where it can be afforded."""
    if traits.dim <= LARGE_DIM:
        return 0.0
    found = operations() * SCORE_COST * FEWEST_CHAINS * shortest * scores
    return found if found > MOST_OPERATIONS else 0.0


def maps_points(traits: Traits) -> bool:
    """Whether a run of the model takes many points at once, and not one alone."""
    return not traits.looped


def may_round(traits: Traits) -> bool:
    """Whether densities are in single precision, in which rounding may matter."""
    return traits.dtype == torch.float32


def takes_some_rows(traits: Traits) -> bool:
    """Whether some of the rows can be taken, and computed by themselves."""
    return traits.rows_in_tensors and not traits.looped
