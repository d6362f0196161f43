# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Label skew: federated against centralised
#
# Federated learning is hard where clients differ. Here each client has its own mix of labels, drawn from a
# Dirichlet
# distribution: some see one class almost alone.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

import pyro_fed as pf
from pyro_fed.recipes import library

FAST = os.environ.get("PYRO_FED_FAST") == "1"
logistic = library.load_model("logistic_regression")
(x, y), test = logistic.load_data()
columns = [0, 1, 4, 5, 30]  # radius, texture, smoothness, compactness and the intercept: moderately correlated
x, test = x[:, columns].double(), (test[0][:, columns].double(), test[1].double())
y = y.double()

fed = pf.Federation(
    logistic.model, (x, y), plate="data", num_clients=10, partition=pf.partition.Dirichlet(0.3, by=y), seed=0
)
pf.plots.plot_partition(fed)
plt.show()
# %% [markdown]
# The reference is NUTS on the pooled data: what one would do if the data could be brought together.

# %%
size, warmup = (200, 150) if FAST else (1000, 1000)
chains = {"num_samples": size, "warmup_steps": warmup, "num_chains": 2}
options = {"progress": not FAST, "audit": not FAST}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # R-hat asks for longer chains than continuous integration runs
    nuts = pf.run(pf.NUTS(**chains), fed, **options)
fedep = pf.run(pf.FedEP(), fed, **options)

# %% [markdown]
# A client alone knows little: this is client 0's own posterior, against what it learns by taking part.

# %%
rows = fed.client_rows[0]
alone = pf.Federation(logistic.model, (x[rows], y[rows]), plate="data", num_clients=1)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    own = pf.run(pf.NUTS(**chains, start="prior", max_tree_depth=5 if FAST else 10), alone, **options)
pf.plots.plot_comparison({"pooled": nuts, "client 0 alone": own, "FedEP": fedep}, "pooled")
plt.show()
# %%
table = pf.compare({"pooled": nuts, "FedEP": fedep}, "pooled", federation=fed, test=test)
print(table[["mean_error", "sd_ratio_min", "sd_ratio_max", "accuracy", "ece"]].round(3))

# %% [markdown]
# No client's posterior is close to the pooled one; their product is.

# %%
w, pooled = fedep.posterior["w"], nuts.posterior["w"]
away = abs(w.mean(("chain", "draw")) - pooled.mean(("chain", "draw"))) / pooled.std(("chain", "draw"))
assert float(away.max()) < 0.5
assert np.abs(table["accuracy"]["FedEP"] - table["accuracy"]["pooled"]) < 0.03
