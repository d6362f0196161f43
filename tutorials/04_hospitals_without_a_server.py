# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Hospitals without a server
#
# Six hospitals want one posterior, and trust no server. They exchange beliefs with their neighbours alone.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

import pyro_fed as pf
from pyro_fed.recipes import library

FAST = os.environ.get("PYRO_FED_FAST") == "1"
regression = library.load_model("logistic_regression")
(x, y), _ = regression.load_data()
x, y = x[:, [0, 1, 2, 30]].double(), y.double()
hospitals = pf.partition.Dirichlet(1.0, by=y)
fed = pf.Federation(regression.model, (x, y), plate="data", num_clients=6, partition=hospitals, seed=1)

# %% [markdown]
# The graph says who talks to whom. Its spectral gap says how fast news travels.

# %%
ring = pf.graph.ring(6)
pf.plots.plot_graph(ring)
plt.show()
# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    options = {"progress": not FAST, "audit": not FAST}
    idata = pf.run(pf.P2PVI(), fed, graph=ring, num_rounds=20 if FAST else None, **options)
    size, depth = (50, 5) if FAST else (1000, 10)
    long = pf.NUTS(num_samples=size, warmup_steps=size, num_chains=2, max_tree_depth=depth)
    nuts = pf.run(long, fed, **options)
print(idata.attrs["warnings"] or "no warnings")

# %% [markdown]
# Every agent has a posterior of its own, a chain of the result. They agree with each other, and with the
# pooled data.

# %%
means = idata.posterior["w"].mean("draw").values
spread = means.std(0) / nuts.posterior["w"].std(["chain", "draw"]).values
print("disagreement of the hospitals, in posterior SDs:", np.round(spread.max(), 3))
pf.plots.plot_comparison({"pooled": nuts, "P2PVI": idata}, "pooled")
plt.show()
# %%
assert spread.max() < 0.5
