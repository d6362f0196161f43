"""Log densities at draws far out, some of which are no numbers, or nothing but rounding."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.density.derivatives.few_rows import log_likelihoods_at
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData

#: Share of the draws at which the prior, or a client's log-likelihood, may be no number, beyond the range of its
#: precision in the proposals' tails: these are impossible. With more the model or the client has failed.
MOST_UNKNOWN = 0.1
#: Nats by which the highest log-likelihood of all draws is above the eighth where it is looked at for rounding, and by
#: which part of itself it has to be another number beside the draw.
ABOVE, HIGHEST_DRAWS, ROUGH = 5.0, 8, 1e-3
#: How far beside it, in roundings of the draw: at several places, for rounding has few values, and is the same at one
#: of them by chance, most often at powers of two.
ROUNDINGS = (16, -16, 5, -11)


def log_likelihoods_beyond_rounding(problem: Problem, draws: Tensor, data: ClientData) -> Tensor:
    """The clients' log-likelihoods at draws (S, D), (C, S), NaN where they are rounding alone.

    Far away a likelihood may be the difference of numbers that are too large for it, as lgamma(a + n) - lgamma(a) at
    a = e^50, and come out thousands of nats above all others. There it is another number next to the same draw.
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
    """Log densities at draws (..., S), those that are no numbers impossible where these are few."""
    few = values.isnan().double().mean(-1, keepdim=True) <= MOST_UNKNOWN
    return torch.where(values.isnan() & few, -torch.inf, values)
