"""Days with few and with many seizures: a hidden Markov model with two states, a subject a row.

    s_1 ~ Bernoulli(1/2),    P(s_t = s_{t-1}) = stay_{s_{t-1}},    y_t ~ Poisson(rate_{s_t})

stay ~ Beta(8, 2) for each state, rate_0 ~ Gamma(2, 2), rate_1 = rate_0 + more, more ~ Gamma(4, 1): the second state has
more seizures, so that states do not change their names. The states are summed out in time of order T (`DiscreteHMM`).

Source: Rabiner (1989), A tutorial on hidden Markov models.

Data: simulated from the model, 40 subjects on 30 days, with stay = (0.9, 0.8) and rates (0.7, 4).
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "subject"
STAY, RATE = (0.9, 0.8), (0.7, 4.0)


def model(y):
    """Args: y, counts (subjects, days)."""
    stay = pyro.sample("stay", dist.Beta(y.new_full((2,), 8.0), 2.0).to_event(1))
    low = pyro.sample("low", dist.Gamma(y.new_tensor(2.0), 2.0))
    more = pyro.sample("more", dist.Gamma(y.new_tensor(4.0), 1.0))
    change = torch.stack([torch.stack([stay[0], 1 - stay[0]]), torch.stack([1 - stay[1], stay[1]])]).log()
    rate = torch.stack([low, low + more])
    with pyro.plate("subject", len(y)):
        states = dist.DiscreteHMM(y.new_zeros(2), change, dist.Poisson(rate), duration=y.shape[1])
        pyro.sample("y", states, obs=y)


def load_data(seed=0, subjects=40, days=30):
    """Simulated counts (y,), float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    state = (torch.rand(subjects, generator=generator) < 0.5).long()
    counts = []
    for _ in range(days):
        counts.append(torch.poisson(torch.tensor(RATE)[state], generator=generator))
        stays = torch.rand(subjects, generator=generator) < torch.tensor(STAY)[state]
        state = torch.where(stays, state, 1 - state)
    return (torch.stack(counts, -1),), None
