# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Your first federated model in ten lines
#
# A hospital network wants one Bayesian model of all its patients, and no patient's record leaves its
# hospital. The model is ordinary Pyro: a prior, and a plate over the data. Nothing in it knows of hospitals.

# %%
import os

import arviz as az
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import pyro_fed as pf

FAST = os.environ.get("PYRO_FED_FAST") == "1"  # continuous integration runs this page on less


def model(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


x, y = load_breast_cancer(return_X_y=True)
x = torch.tensor(StandardScaler().fit_transform(x)[:, :8], dtype=torch.float64)
y = torch.tensor(y, dtype=torch.float64)

# %% [markdown]
# A `Federation` splits the data by the plate. Here ten clients get their rows at random; with data that lie
# apart already, use `pf.Federation.from_clients`.

# %%
fed = pf.Federation(model, (x, y), plate="data", num_clients=10, seed=0)
print(fed.summary())

# %%
pf.plots.plot_partition(fed)
plt.show()

# %% [markdown]
# `fit` answers with an ArviZ `InferenceData` under the model's own names. It begins with federated expectation
# propagation (`FedEP`): clients exchange Gaussian *sites* until they agree.

# %%
idata = pf.fit(fed, seed=0, progress=not FAST)
print(az.summary(idata, kind="stats"))

# %%
pf.plots.plot_forest(idata)
plt.show()

# %% [markdown]
# Then it looks for reasons to doubt the answer, in the model's own densities. Where it finds any it goes on, by
# importance weights (`FedAIS`) and by sampling (`DSVGD`, `FSGLD`), until two answers agree. `steps` tells what was
# done, what that cost, and what spoke against it; nothing did here, and nothing more was spent.

# %%
print(pf.metrics.steps(idata))

# %%
print(idata.attrs["doubts"] or "nothing is left to doubt")

# %% [markdown]
# Who sent what stands in the group `federation`: here in kilobytes a client, over all rounds.

# %%
print((idata.federation["bytes_up"].sum("round") / 1000).to_series())

# %% [markdown]
# Who knows what to run can run it: `pf.run` takes one algorithm, with its settings.

# %%
same = pf.run(pf.FedEP(), fed, seed=0, progress=not FAST, audit=not FAST)
print(bool((same.posterior["w"] == idata.posterior["w"]).all()))

# %% [markdown]
# New observations are drawn by `predict`.

# %%
drawn = pf.predict(idata, model, (x[:3], y[:3]))
print(drawn.posterior_predictive["y"].mean(["chain", "draw"]).values)
