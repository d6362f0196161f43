# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # All families on one real posterior
#
# Linear regression with unknown noise on scikit-learn's diabetes data (442 patients, 10 covariates), over
# five clients whose patients are sorted by body mass index, so that no two clients see the same kind of
# patient.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import load_diabetes

import pyro_fed as pf

FAST = os.environ.get("PYRO_FED_FAST") == "1"


def model(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(x.new_tensor(1.0)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, sigma), obs=y)


x, y = load_diabetes(return_X_y=True)
x, y = torch.tensor(x / x.std(0))[:, : 5 if FAST else 10], torch.tensor((y - y.mean()) / y.std())
order = x[:, 2].argsort()
clients = [(x[part], y[part]) for part in order.chunk(5)]
fed = pf.Federation.from_clients(model, clients, plate="data")

# %% [markdown]
# One algorithm of each family, each with its defaults, and NUTS on the pooled data:
#
# - **FedEP**: Gaussian sites, all clients in parallel;
# - **DSVGD**: particles, one client a round;
# - **FSGLD**: Markov chains that travel from client to client;
# - **P2PVI**: no server, Gaussian beliefs mixed over a ring.

# %%
results = {}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they are shown in the table
    quiet = {"seed": 0, "progress": not FAST, "audit": not FAST}
    size, warmup = (200, 150) if FAST else (1000, 1000)
    long = pf.NUTS(num_samples=size, warmup_steps=warmup, num_chains=2)
    results["NUTS"] = pf.run(long, fed, **quiet)
    results["FedEP"] = pf.run(pf.FedEP(), fed, **quiet)
    results["P2PVI"] = pf.run(pf.P2PVI(), fed, graph=pf.graph.ring(5), **quiet)
    if not FAST:
        results["DSVGD"] = pf.run(pf.DSVGD(), fed, **quiet)
        results["FSGLD"] = pf.run(pf.FSGLD(), fed, **quiet)
table = pf.compare(results, "NUTS", federation=fed)
print(table[["mean_error", "sd_ratio_min", "sd_ratio_max", "prior_count", "rounds", "bytes_up", "warnings"]])

# %%
pf.plots.plot_comparison(results, "NUTS")
plt.show()
# %%
w, pooled = results["FedEP"].posterior["w"], results["NUTS"].posterior["w"]
away = abs(w.mean(("chain", "draw")) - pooled.mean(("chain", "draw"))) / pooled.std(("chain", "draw"))
assert float(away.max()) < 0.3
