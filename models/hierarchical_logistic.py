"""Deaths after surgery in hospitals: every hospital has its own level.

    a_h ~ N(mu, tau^2),    y_i ~ Bernoulli(sigmoid(a_h + x_i . beta)),    h = hospital_idx_i

for patient i in hospital h: x holds the standardised age and whether it was an emergency. mu ~ N(0, 1.5^2),
tau ~ HalfNormal(1), beta ~ N(0, 1).

Partition it by hospital: plate="hospital", rows={"patient": "hospital_idx"}. a_h then stays at the hospital.

Data: simulated from the model with mu = -2, tau = 0.8 and beta = (0.6, 1); hospitals differ in size.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "hospital"
ROWS = {"patient": "hospital_idx"}
MU, TAU, BETA = -2.0, 0.8, (0.6, 1.0)


def model(x, hospital_idx, num_hospitals, y=None):
    """Args: x, covariates (patients, 2); hospital_idx (patients,); num_hospitals; y, 0. or 1. (patients,)."""
    zero, one = x.new_tensor([0.0, 1.0])
    mu = pyro.sample("mu", dist.Normal(zero, 1.5 * one))
    tau = pyro.sample("tau", dist.HalfNormal(one))
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), one).to_event(1))
    with pyro.plate("hospital", num_hospitals):
        a = pyro.sample("a", dist.Normal(mu, tau))
    with pyro.plate("patient", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=a[hospital_idx] + x @ beta), obs=y)


def load_data(seed=0, num_hospitals=12, smallest=20, largest=150):
    """(x, hospital_idx, num_hospitals, y) of simulated patients, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(smallest, largest + 1, (num_hospitals,), generator=generator)
    hospital_idx = torch.arange(num_hospitals).repeat_interleave(sizes)
    count = len(hospital_idx)
    age = torch.randn(count, generator=generator)
    emergency = (torch.rand(count, generator=generator) < 0.3).float()
    x = torch.stack([age, emergency], -1)
    logits = true_levels(seed, num_hospitals)[hospital_idx] + x @ torch.tensor(BETA)
    y = (torch.rand(count, generator=generator) < logits.sigmoid()).float()
    return (x, hospital_idx, num_hospitals, y), None


def true_levels(seed=0, num_hospitals=12):
    """The levels a that `load_data` simulates with, (hospitals,)."""
    return MU + TAU * torch.randn(num_hospitals, generator=torch.Generator().manual_seed(seed + 1_000_003))
