"""The data of the models in `zoo`, and the prior that most of them have."""

import numpy as np
import pyro.distributions as dist
import torch

N = 13
_RNG = np.random.default_rng(7)
X = torch.as_tensor(_RNG.normal(size=(N, 3)))
Y = torch.as_tensor(_RNG.normal(size=N))
POSITIVE = Y.exp()
BINARY = (Y > 0).double()
COUNTS = torch.as_tensor(_RNG.integers(0, 6, size=N)).double()
CLASSES = torch.as_tensor(_RNG.integers(0, 3, size=N))
GROUP = torch.as_tensor(_RNG.integers(0, 4, size=N))
SEEN = Y > -0.5


def normal(loc, scale, n):
    return dist.Normal(torch.full((n,), float(loc)), float(scale)).to_event(1)
