"""Reaction times of subjects who are kept awake: every subject has an intercept and a slope, which are correlated.

    y_i ~ N(a_s + b_s x_i, sigma^2),    (a_s, b_s) ~ N((gamma_0, gamma_1), diag(tau) Omega diag(tau)),    s = subject_i

for day x_i of subject s. gamma ~ N(0, 2^2), tau ~ HalfNormal(1), Omega ~ LKJ(2), sigma ~ HalfNormal(1).

Partition it by subject: plate="subject", rows={"trial": "subject_idx"}. (a_s, b_s) then stay with the subject.

Source: Lewandowski, Kurowicka and Joe (2009) for the prior of correlations; the design is that of Belenky et al.
(2003), 18 subjects on 10 days.

Data: simulated from the model with gamma = (0, 0.8), tau = (0.7, 0.4), a correlation of 0.4 and sigma = 0.5; days are
centred and divided by 3, times are in units of their spread.
"""

import pyro
import pyro.distributions as dist
import torch

PLATE = "subject"
ROWS = {"trial": "subject_idx"}
GAMMA, TAU, CORRELATION, SIGMA = (0.0, 0.8), (0.7, 0.4), 0.4, 0.5


def model(x, subject_idx, num_subjects, y=None):
    """Args: x, the day (trials,); subject_idx (trials,); num_subjects; y, the reaction time (trials,)."""
    one = x.new_tensor(1.0)
    gamma = pyro.sample("gamma", dist.Normal(x.new_zeros(2), 2.0).to_event(1))
    tau = pyro.sample("tau", dist.HalfNormal(one.expand(2)).to_event(1))
    omega = pyro.sample("omega", dist.LKJCholesky(2, 2 * one))
    sigma = pyro.sample("sigma", dist.HalfNormal(one))
    with pyro.plate("subject", num_subjects):
        own = pyro.sample("own", dist.MultivariateNormal(gamma, scale_tril=tau[:, None] * omega))
    with pyro.plate("trial", len(x)):
        a, b = own[..., subject_idx, :].unbind(-1)
        pyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def load_data(seed=0, num_subjects=18, days=10):
    """(x, subject_idx, num_subjects, y) of simulated trials, float32; there is no test part."""
    generator = torch.Generator().manual_seed(seed)
    subject_idx = torch.arange(num_subjects).repeat_interleave(days)
    x = (torch.arange(days).repeat(num_subjects) - (days - 1) / 2) / 3
    z = torch.randn(num_subjects, 2, generator=generator)
    mixed = torch.stack([z[:, 0], CORRELATION * z[:, 0] + (1 - CORRELATION**2) ** 0.5 * z[:, 1]], -1)
    own = torch.tensor(GAMMA) + torch.tensor(TAU) * mixed
    mean = own[subject_idx, 0] + own[subject_idx, 1] * x
    return (x, subject_idx, num_subjects, mean + SIGMA * torch.randn(len(x), generator=generator)), None
