"""Draws of several modes, each far narrower than they are apart: chains in each group's own coordinates.

Coordinates that whiten all draws fit none of such modes: steps of a small part of the draws' own spread leave the mode,
and no chain moves, though each draw may be where it should be. So draws that no chain can move from are taken apart
where a parameter's sorted values have gaps, spaces more than `GAP` times as long as the SD of any `FEWEST_DRAWS` values
or more that lie between two of them. The values of one mode have none but at their ends, however long its tails.
Draws that are between the same gaps of all parameters are a group, which is judged as a result of its own is: by chains
that begin at its draws, in coordinates that whiten these, and by the same limits in its own SDs. Whether groups have
their modes' shares of the mass is for `modes.missed`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.audit.chains.motion import Moments

#: Groups at most, and how many times as long as the SDs of values between them gaps of a parameter are.
MOST_GROUPS, GAP = 16, 4.0
#: Draws of a group that is judged, and the share of them that all such groups have together, at least.
FEWEST_DRAWS, FEWEST_SHARE = 10, 0.9


@dataclass(frozen=True)
class Looked:
    """What chains have found of some numbers.

    Args:
        moments: (F,) of each; of several groups those of one after those of the other.
        labels: (F,) names.
    """

    moments: Moments
    labels: tuple[str, ...]


def groups(draws: Tensor) -> list[Tensor]:
    """The draws of each group, (S_g, D), in the order of their first ones; none where there are not several.

    Args:
        draws: (S, D), the model's coordinates, float64.
    """
    keys = torch.stack([_part(column) for column in draws.T], 1)
    number = keys.unique(dim=0, return_inverse=True)[1]
    parts = [draws[number == one] for one in dict.fromkeys(number.tolist())]
    judged = [part for part in parts if len(part) >= FEWEST_DRAWS]
    enough = sum(map(len, judged)) >= FEWEST_SHARE * len(draws)
    return judged if 1 < len(judged) <= MOST_GROUPS and enough else []


def _part(values: Tensor) -> Tensor:
    """Between which gaps each of a parameter's values (S,) is, (S,)."""
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


def by_groups(parts: list[Tensor], labels: tuple[str, ...], moved: Callable[[Tensor], Moments]) -> Looked:
    """Each group's moments by chains of its own.

    Args:
        parts: the draws of each, (S_g, D).
        labels: (F,) names.
        moved: chains from such draws.
    """
    found = [moved(part) for part in parts]
    moments = Moments(
        mean=torch.cat([one.mean for one in found]),
        mean_error=torch.cat([one.mean_error for one in found]),
        log_sd=torch.cat([one.log_sd for one in found]),
        log_sd_error=torch.cat([one.log_sd_error for one in found]),
        accepted=min(one.accepted for one in found),
        whole=all(one.whole for one in found),
    )
    of_group = [f" (mode {i + 1} of {len(parts)})" for i in range(len(parts))]
    return Looked(moments, tuple(f"{label}{which}" for which in of_group for label in labels))
