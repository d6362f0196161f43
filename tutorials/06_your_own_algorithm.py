# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Write your own algorithm in one file
#
# An algorithm is a frozen dataclass: its fields are its settings, its methods pure functions between
# tensors. It never sees Pyro, and it is registered nowhere. This one finds the posterior mode by gradient
# ascent: the server sends a point, each client answers with the gradient of its log-likelihood, the server
# adds the prior's and takes a step.

# %%
from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch.func import grad

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm, Batch


@dataclass(frozen=True, kw_only=True)
class FederatedAscent(Algorithm):
    """Gradient ascent to the posterior mode.

    Args:
        step_size: length of a step per unit of gradient.
    """

    draws_are: ClassVar[str] = "point"
    step_size: float = 0.05

    def default_rounds(self, num_clients):
        return 200

    def init(self, problem, num_clients, generator, start):
        point = problem.init(1, generator)[0]
        return {"point": point, "prior": torch.zeros_like(point)}, {}

    def prepare(self, problem, shared):  # the server's own work with the model: the prior counts once
        return {**shared, "prior": grad(problem.log_prior)(shared["point"])}

    def local_step(self, problem, shared, local, data, noise):
        slope = problem.mapped(self.slope, (0, Batch(0, 0)))  # mapped over the clients, traced and compiled
        return {"slope": slope(shared["point"], data.full_batch())}, {}, {}

    def slope(self, problem, point, batch):
        return grad(lambda z: problem.log_lik(z, batch))(point)

    def combine(self, shared, messages, weights):
        ascent = shared["prior"] + messages["slope"].sum(0)
        return {**shared, "point": shared["point"] + self.step_size * ascent}

    def monitor(self, before, after):
        return {"change": float((after["point"] - before["point"]).norm())}

    def converged(self, figures):
        return figures[-1]["change"] < 1e-6

    def sample(self, shared, num_draws, generator):
        return shared["point"].expand(1, 2, -1)


# %% [markdown]
# It runs like any other, with every executor and schedule, a record of its traffic, and an `InferenceData`
# at the end.


# %%
def model(y):
    mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=y.dtype), 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


y = torch.linspace(0.0, 2.0, 12, dtype=torch.float64)
fed = pf.Federation(model, (y,), plate="data", num_clients=3)
idata = pf.run(FederatedAscent(), fed, progress=False)
idata.attrs["converged"], idata.federation.sizes["round"], float(idata.posterior["mu"][0, 0])

# %% [markdown]
# The exact mode is the sum of the data over N + 1.

# %%
assert abs(float(idata.posterior["mu"][0, 0]) - float(y.sum() / 13)) < 1e-5

# %% [markdown]
# A recipe names it, and the command line runs it: `algorithm = "my_package.ascent:FederatedAscent"`.
