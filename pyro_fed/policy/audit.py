"""What the audit computes on a model: how many chains, climbs, points and draws; none where they cost too much.

Costs are counted in densities of rows; `evaluations` is how many of them one log density takes, of all rows or of few
that stand for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyro_fed.density.traits import LARGE_DIM, Traits

#: Densities of rows that chains or climbs may compute: about ten seconds.
DENSITIES = 1_000_000_000
#: Densities of rows by which weighted points are drawn: about two seconds.
WEIGHTED_DENSITIES = 200_000_000
#: Densities of rows by which draws are compared, in two precisions or with single clients' rows.
COMPARED_DENSITIES = 2_000_000
#: Numbers that chains may compute where rows' own latents are integrated out, about twenty seconds: a density then
#: takes a search for each row's mode and a sum over nodes.
NUMBERS = 20_000_000_000
#: How many densities a score costs.
SCORE_COST = 3
#: The audit is not made if the shortest one would take more operations than this, some seconds.
MOST_OPERATIONS = 5_000_000_000
#: Chains: of a walk; where they would cost too much, or each score is a run of the model; and of a second walk, for
#: results whose error may matter but may also be chance. Few chains hardly determine the SD of a long tail.
CHAINS, FEWEST_CHAINS, MANY_CHAINS = 128, 32, 2048
#: Numbers of climbs: from draws of the prior, from points around the result, and from its draws; and where each density
#: takes a run of the model.
CLIMBS, LOOPED_CLIMBS = (16, 8, 4), (5, 3, 2)
#: More parameters than this are not searched for modes, whose curvature costs as many scores.
LARGEST_DIM_OF_CLIMBS = 50
#: With more parameters than this, importance weights are worth too little.
LARGEST_DIM_OF_WEIGHTS = 8


class Walks(NamedTuple):
    """How chains are run.

    Args:
        chains: of the first walk.
        transitions: of the first walk, at most.
        more: chains of the second walk; 0: there is none.
    """

    chains: int
    transitions: int
    more: int


def walks(
    traits: Traits, evaluations: int, numbers: Callable[[], float], scores: int, shortest: int, longest: int
) -> Walks:
    """Chains and transitions that can be afforded.

    Args:
        traits: of the model.
        evaluations: densities of rows in a log density.
        numbers: gives those that a log density computes; asked where rows have latents of their own.
        scores: of a transition.
        shortest: number of transitions of the shortest walk.
        longest: of the longest.
    """
    afford = DENSITIES // max(1, evaluations * scores)
    if traits.local_dim:
        afford = min(afford, int(NUMBERS / max(1.0, numbers() * SCORE_COST * scores)))
    chains = FEWEST_CHAINS if traits.looped else min(max(afford // shortest, FEWEST_CHAINS), CHAINS)
    more = 0 if traits.looped else min(MANY_CHAINS, afford // longest)
    return Walks(chains, max(afford // chains, shortest), more if more > chains else 0)


def climbs(traits: Traits, evaluations: int, steps: int) -> tuple[int, int, int] | None:
    """Numbers of climbs from the prior, around the result and from its draws; None where modes are not searched for.

    Args:
        traits: of the model.
        evaluations: densities of rows in a log density.
        steps: of a climb, at most.
    """
    chosen = LOOPED_CLIMBS if traits.looped else CLIMBS
    affordable = traits.dim <= LARGEST_DIM_OF_CLIMBS and evaluations * steps * sum(chosen) <= DENSITIES
    return chosen if affordable else None


def affords(traits: Traits, points: int = 0) -> bool:
    """Whether modes can be looked at by log densities at so many points; a looped model takes a run for each.

    Args:
        traits: of the model.
        points: their number.
    """
    cheap = points * traits.evaluations <= DENSITIES
    return cheap and not traits.looped and traits.dim <= LARGEST_DIM_OF_CLIMBS


def rounds_of_weighted_points(traits: Traits, evaluations: int, points: int, most: int) -> int:
    """Rounds of weighted points: `most`, one where these cost too much, or none in many dimensions.

    Args:
        traits: of the model.
        evaluations: densities of rows in a log density.
        points: of a round.
        most: rounds, at most.
    """
    if traits.looped or traits.dim > LARGEST_DIM_OF_WEIGHTS:
        return 0
    return 1 if evaluations * points * most > WEIGHTED_DENSITIES else most


def compared_draws(traits: Traits, fewest: int, most: int) -> int:
    """Number of draws that are compared in two ways.

    Args:
        traits: of the model.
        fewest: at least; also where the model is run one draw at a time.
        most: at most.
    """
    return fewest if traits.looped else max(fewest, min(most, COMPARED_DENSITIES // traits.evaluations))


def unaffordable_operations(traits: Traits, operations: Callable[[], float], scores: int, shortest: int) -> float:
    """Operations of the shortest audit where they are too many; 0 where it can be afforded.

    Args:
        traits: of the model.
        operations: gives those of a log density.
        scores: of a transition.
        shortest: number of transitions of the shortest walk.
    """
    if traits.dim <= LARGE_DIM:
        return 0.0
    found = operations() * SCORE_COST * FEWEST_CHAINS * shortest * scores
    return found if found > MOST_OPERATIONS else 0.0


def takes_full_matrices(traits: Traits) -> bool:
    """Whether covariances, and a quadratic correction of few rows, are full matrices: these take D scores of all rows.

    Args:
        traits: of the model.
    """
    return traits.few_parameters
