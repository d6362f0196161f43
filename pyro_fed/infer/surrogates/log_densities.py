"""Log densities at distant draws, some of which are NaN, or dominated by rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.derivatives import log_likelihoods_at
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData

#: Share of the draws at which the prior, or a client's log-likelihood, may be NaN, because the proposals' tails exceed
#: its floating-point range: these draws are impossible. With more the model or the client has failed.
MOST_UNKNOWN = 0.1
#: Difference in nats between the highest log-likelihood of all draws and the eighth above which it is checked for
#: rounding; and its relative change beside the draw that shows rounding.
ABOVE, HIGHEST_DRAWS, ROUGH = 5.0, 8, 1e-3
#: Distances of the check, in roundings of the draw: several, because rounding has few values, and they may agree by
#: chance, most often at powers of two.
ROUNDINGS = (16, -16, 5, -11)


def log_likelihoods_beyond_rounding(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """The clients' log-likelihoods (C, S) at draws (S, D), NaN where they are dominated by rounding.

    Far away a likelihood may be the difference of large numbers with the same leading digits, such as lgamma(a + n) -
    lgamma(a) at a = e^50, and be thousands of nats above all others. There it has another value next to the same draw.
    """
    values = log_likelihoods_at(problem, draws, data)
    highest = values.nan_to_num(nan=-torch.inf).topk(min(HIGHEST_DRAWS, values.shape[1]), 1).values
    if not bool((highest[:, 0] - highest[:, -1] > ABOVE).any()):
        return values
    most = torch.maximum(torch.ones_like(values), ROUGH * values.abs())
    rounding = torch.zeros_like(values, dtype=torch.bool)
    for roundings in ROUNDINGS:
        beside = log_likelihoods_at(problem, draws * (1 + roundings * torch.finfo(draws.dtype).eps), data)
        rounding |= (values - beside).abs() > most
    return torch.where(rounding, torch.nan, values)


def with_few_impossible(values: Tensor) -> Tensor:
    """Log densities at draws (..., S), with NaN replaced by an impossible value if there are few."""
    few = values.isnan().double().mean(-1, keepdim=True) <= MOST_UNKNOWN
    return torch.where(values.isnan() & few, -torch.inf, values)
