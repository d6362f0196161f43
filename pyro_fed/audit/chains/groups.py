"""Chains in each group's own coordinates, for draws of several modes far apart, each much narrower than the distances.

Coordinates that whiten all draws fit none of such modes. Even steps of a small part of the draws' spread leave a mode,
and no chain moves, although each draw may be where it should be. So draws from which no chain can move are split into
groups.

**Groups.** A parameter's sorted values are cut at their longest spaces. The spaces count as gaps if they are more than
`GAP` times as long as the SD of any part between two cuts that has at least `FEWEST_DRAWS` values. The values of one
mode have no gaps except at their ends, however long its tails are. Draws between the same gaps of all parameters are a
group.

**Judgement.** Each group is judged like a result of its own: by chains that begin at its draws, in coordinates that
these draws whiten, and by the same limits in the group's SDs. `modes.missed_modes` judges whether the groups have their
modes' shares of the mass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.chains.moments import Moments

#: The most groups; and how many times as long as the SD of the values on either side a gap has to be.
MOST_GROUPS, GAP = 16, 4.0
#: The fewest draws of a group that is judged; and the smallest share of all draws that the judged groups have together.
FEWEST_DRAWS, FEWEST_SHARE = 10, 0.9


@dataclass(frozen=True)
class EstimatedMoments:
    """The posterior's moments by the audit, with the names of the numbers.

    Args:
        moments: (F,) each; with several groups, those of the first group, then those of the second, and so on.
        labels: names (F,), which include the group if there are several.
    """

    moments: Moments
    labels: tuple[str, ...]


def groups(draws: Tensor) -> list[Tensor]:
    """The groups of draws (S, D), float64 in the model's coordinates, in the order of their first draws.

    An empty list if there is one group, more than `MOST_GROUPS`, or too many draws outside of them.
    """
    keys = torch.stack([_part(column) for column in draws.T], 1)
    number = keys.unique(dim=0, return_inverse=True)[1]
    parts = [draws[number == one] for one in dict.fromkeys(number.tolist())]
    judged = [part for part in parts if len(part) >= FEWEST_DRAWS]
    enough = sum(map(len, judged)) >= FEWEST_SHARE * len(draws)
    return judged if 1 < len(judged) <= MOST_GROUPS and enough else []


def _part(values: Tensor) -> Tensor:
    """For each of a parameter's values (S,), the number of the interval between gaps in which it lies (S,)."""
    number = torch.zeros(len(values), dtype=torch.int64)
    rank = values.argsort()
    ordered = values[rank]
    spaces = ordered.diff()
    longest = spaces.sort(descending=True, stable=True)
    for count in range(min(MOST_GROUPS - 1, len(spaces)), 0, -1):
        ends = (longest.indices[:count] + 1).sort().values.tolist()
        wide = [float(part.std()) for part in ordered.tensor_split(ends) if len(part) >= FEWEST_DRAWS]
        if wide and float(longest.values[count - 1]) > GAP * max(wide):
            for which, part in enumerate(rank.tensor_split(ends)):
                number[part] = which
            break
    return number


def by_groups(parts: list[Tensor], labels: tuple[str, ...], moved: Callable[[Tensor], Moments]) -> EstimatedMoments:
    """Each group's moments, by chains of its own; `moved` gives the moments that chains find, from a group's draws.

    `parts` are the draws of each group (S_g, D), `labels` the names of the numbers of one group (F,).
    """
    found = [moved(part) for part in parts]
    moments = Moments(
        mean=torch.cat([one.mean for one in found]),
        mean_error=torch.cat([one.mean_error for one in found]),
        log_sd=torch.cat([one.log_sd for one in found]),
        log_sd_error=torch.cat([one.log_sd_error for one in found]),
        remembered=torch.cat([one.lower_bounds for one in found], 1),
        accepted=min(one.accepted for one in found),
        whole=all(one.whole for one in found),
    )
    of_group = [f" (mode {i + 1} of {len(parts)})" for i in range(len(parts))]
    return EstimatedMoments(moments, tuple(f"{label}{which}" for which in of_group for label in labels))
