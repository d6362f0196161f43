"""Radon in houses of Minnesota counties: every county has its own intercept, or intercept and slope.

    y_i ~ N(a_c + b_c floor_i, sigma^2),   a_c ~ N(gamma_0 + gamma_1 u_c, tau_a^2),   b_c ~ N(mu_b, tau_b^2)

for house i in county c = county_idx_i: y is the log radon level, floor is 1 where it was measured on the ground
floor and 0 in the basement, u_c the county's log soil uranium. With slopes=False the slope is common, b_c = mu_b.
Priors: gamma, mu_b ~ N(0, 1), tau_a, tau_b, sigma ~ HalfNormal(1).

Partition it by county: plate="county", rows={"house": "county_idx"}. a_c and b_c then stay at the county's client.

Source: Gelman and Hill, Data analysis using regression and multilevel/hierarchical models (2007), Chapters 12-13.

Data: 919 houses in 85 counties (posteriordb's radon_mn), read from $PYRO_FED_DATA/posteriordb/radon_mn/data.json;
without it simulated counties from the model itself, `load_data(simulate=True)`.
"""

import json
import os
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch

PLATE = "county"
ROWS = {"house": "county_idx"}


def model(floor, county_idx, uranium, y=None, slopes=False):
    """Args: floor, 0. or 1. (houses,); county_idx (houses,); uranium (counties,); y (houses,)."""
    zero, one = floor.new_tensor([0.0, 1.0])
    gamma = pyro.sample("gamma", dist.Normal(floor.new_zeros(2), one).to_event(1))
    mu_b = pyro.sample("mu_b", dist.Normal(zero, one))
    tau_a = pyro.sample("tau_a", dist.HalfNormal(one))
    sigma = pyro.sample("sigma", dist.HalfNormal(one))
    tau_b = pyro.sample("tau_b", dist.HalfNormal(one)) if slopes else None
    with pyro.plate("county", len(uranium)):
        a = pyro.sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau_a))
        b = pyro.sample("b", dist.Normal(mu_b, tau_b)) if slopes else mu_b.expand(len(uranium))
    with pyro.plate("house", len(floor)):
        pyro.sample("y", dist.Normal(a[county_idx] + b[county_idx] * floor, sigma), obs=y)


def load_data(seed=0, simulate=None):
    """(floor, county_idx, uranium, y), float64; there is no test part. Simulated if asked, or if there is no file."""
    folder = os.environ.get("PYRO_FED_DATA")
    path = Path(folder or ".") / "posteriordb" / "radon_mn" / "data.json"
    if simulate is None:
        simulate = not (folder and path.is_file())
    return (_simulated(seed) if simulate else _measured(path)), None


def _measured(path):
    data = json.loads(path.read_text(encoding="utf-8"))
    floor, level, log_uranium = (
        torch.tensor(data[name], dtype=torch.float64) for name in ("floor_measure", "log_radon", "log_uppm")
    )
    county_idx = torch.tensor(data["county_idx"]) - 1
    uranium = torch.zeros(data["J"], dtype=torch.float64)
    uranium[county_idx] = log_uranium
    return floor, county_idx, uranium, level


def _simulated(seed, counties=40, houses=400):
    generator = torch.Generator().manual_seed(seed)

    def normal(count):
        return torch.randn(count, generator=generator, dtype=torch.float64)

    uranium = normal(counties) * 0.4
    # A few counties with many houses, and many with a few; every county has one.
    share = torch.rand(counties, generator=generator, dtype=torch.float64) ** 3
    more = share.multinomial(houses - counties, replacement=True, generator=generator)
    county_idx = torch.cat([torch.arange(counties), more])
    floor = (torch.rand(houses, generator=generator) < 0.2).double()
    a = 1.5 + 0.7 * uranium + 0.4 * normal(counties)
    return floor, county_idx, uranium, a[county_idx] - 0.65 * floor + 0.75 * normal(houses)
