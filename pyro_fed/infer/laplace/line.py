"""Log-likelihoods of clients that are not trusted, along a line, at all steps of a line search at once."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION, median_of, redescending, relative_rows
from pyro_fed.ops.gaussian import Gaussian


def held_values(
    sites: Gaussian, point: Tensor, line: Tensor, values: Tensor, pull: float, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Values on a line (K, L), limited by the clients' sites and the cohort's departures, and their sum at `point`.

    Sites are quadratics, so that honest values depart from them by terms of third order, which are alike in size, row
    for row. No client's level counts, because nothing could check it: all are put at the median one.

    Args:
        sites: within their limits, (K,).
        point: where they were taken, (D,).
        line: the points' differences from it, (L, D), followed by that of the present point, (L + 1, D).
        values: as sent, of the points, (K, L); the one nearest to the present point is the last in `line` again.
        pull: departures beyond this many SDs of the cohort's are cut.
        rows: of each client, (K,); None: as many.
    """
    score, still = sites.score(point.expand_as(sites.eta)), torch.zeros_like(sites.eta)
    turned = torch.stack([type(sites)(sites.precision, still).score(each.expand_as(still)) for each in line], 1)
    expected = score @ line.T + 0.5 * (turned * line).sum(-1)
    here = int((line[:-1] - line[-1]).abs().amax(-1).argmin())
    expected = expected[:, :-1] - expected[:, here : here + 1]
    level = values[:, here : here + 1]
    apart = values - level - expected
    share = relative_rows(values.new_ones(len(values)) if rows is None else rows.to(values))
    known = median_of(apart.abs() / share.unsqueeze(-1), share) / NORMAL_MEDIAN_DEVIATION
    reach = pull * share.clamp_min(1.0).sqrt().unsqueeze(-1) * known
    usual = level.median()
    fits = apart.abs() <= reach
    return usual + expected + torch.where(fits, apart, redescending(apart, reach)), len(values) * usual
