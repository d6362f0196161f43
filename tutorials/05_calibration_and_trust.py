# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Calibration and trust
#
# An answer with error bars is worth nothing if the bars are wrong. Three checks need no reference: does the
# run itself complain, how often has it counted the prior, and are its probabilities right on new data?

# %%
import os
import warnings

import matplotlib.pyplot as plt

import pyro_fed as pf
from pyro_fed.recipes import library

FAST = os.environ.get("PYRO_FED_FAST") == "1"
options = {"progress": not FAST, "audit": not FAST}
logistic = library.load_model("logistic_regression")
(x, y), test = logistic.load_data()
keep = [1, 0, 4, 5, 8, 9, 30]
x, y, test = x[:, keep].double(), y.double(), (test[0][:, keep].double(), test[1].double())
fed = pf.Federation(
    logistic.model, (x, y), plate="data", num_clients=10, partition=pf.partition.Dirichlet(0.5, by=y), seed=0
)

# %% [markdown]
# Two runs: expected Newton sites (FedEP), and DSVGD exactly as published, whose density estimates have a
# fixed bandwidth.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they are in the table below
    good = pf.run(pf.FedEP(), fed, **options)
    published = pf.papers.PaperDSVGD(
        num_particles=30, local_steps=20 if FAST else 200, distill_steps=20 if FAST else 200
    )
    doubtful = pf.run(published, fed, **options)
results = {"FedEP": good, "DSVGD as published": doubtful}
table = pf.compare(results, federation=fed, test=test)
print(table[["prior_count", "prior_count_se", "ksd", "test_log_density", "accuracy", "ece", "mce"]].round(3))

# %%
for name, said in table["warnings"].items():
    print(f"{name}: {said or 'nothing speaks against it'}")

# %% [markdown]
# The *prior count* comes from Stein's identity: integration by parts ties the draws to the gradients of the
# prior and of the likelihood, and shows how often each has been counted. One is right; a prior that every
# client multiplies in again gives the number of clients.

# %%
pf.plots.plot_reliability(results, fed, test)
plt.show()
# %% [markdown]
# The accuracy hardly tells the two apart. The posterior does.

# %%
assert abs(table["prior_count"]["FedEP"] - 1) < 0.5
assert table["ksd"]["DSVGD as published"] > 2 * abs(table["ksd"]["FedEP"])

# %% [markdown]
# ## Right at the end, and which model?
#
# `FedAIS` takes FedEP's sites, gives the server the exact prior in place of its Gaussian, and asks every client once
# more, for its log-likelihood at the server's draws. Weights then make up for what the sites lack. They say themselves
# how well that works (Pareto's k below 0.7), and their mean is the evidence p(y): Bayes factors without pooling the
# data.


# %%
def evidence(columns):
    """log p(y) of the model with these covariates, and its Monte-Carlo error."""
    chosen = (x[:, columns], y)
    data = pf.Federation(logistic.model, chosen, plate="data", num_clients=10, partition=fed.partition, seed=0)
    idata = pf.run(pf.FedAIS(num_proposals=1000 if FAST else 8000), data, **options)
    figures = idata["federation"].isel(round=-1)
    return {name: round(float(figures[name]), 3) for name in ("log_evidence", "log_evidence_se", "pareto_k")}


everything, without_first = evidence([0, 1, 2, 3, 4, 5, 6]), evidence([1, 2, 3, 4, 5, 6])
print("all covariates:   ", everything)
print("without the first:", without_first)
print("log Bayes factor:  %.2f" % (everything["log_evidence"] - without_first["log_evidence"]))
