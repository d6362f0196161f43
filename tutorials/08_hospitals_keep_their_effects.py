# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Hospitals keep their effects
#
# Twelve hospitals, each with a level of its own: the first model that a Bayesian federates is hierarchical. The
# levels are latent variables of the hospitals. They must not leave them, and the model must stay ordinary Pyro.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np

import pyro_fed as pf
from pyro_fed.recipes import library

FAST = os.environ.get("PYRO_FED_FAST") == "1"
surgery = library.load_model("hierarchical_logistic")
(x, hospital, num_hospitals, y), _ = surgery.load_data(num_hospitals=12)
x, y = x.double(), y.double()

# %% [markdown]
# The model has two plates: hospitals, which hold the level `a`, and patients, who look their hospital's level up.
# The hospitals are what we split; `rows` says which patients go with them.

# %%
fed = pf.Federation(
    surgery.model,
    (x, hospital, num_hospitals, y),
    plate="hospital",
    rows={"patient": "hospital_idx"},
    num_clients=4,
    coords={"hospital": [f"hospital {chr(65 + h)}" for h in range(num_hospitals)]},
)
print(fed)
print(fed.summary())

# %% [markdown]
# Given the common parameters each level is integrated out where its patients are, so that messages speak of `mu`,
# `tau` and `beta` alone: their size does not depend on the number of hospitals. Every client draws its own levels
# afterwards, in a pass of which nothing is sent. A simulation collects them; `collect_local=False` does not.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    options = {"audit": False, "progress": False} if FAST else {}
    idata = pf.run(pf.FedEP(), fed, **options)
print(idata.attrs["warnings"] or "no warnings")

# %% [markdown]
# The levels stand under the hospitals' names. Those of small hospitals are drawn towards the common mean: this is
# what the hierarchy is for.

# %%
levels = idata.posterior["a"]
mean, sd = (levels.mean(["chain", "draw"]).values, levels.std(["chain", "draw"]).values)
truth = surgery.true_levels(num_hospitals=num_hospitals).numpy()
patients = np.bincount(hospital)
for name, size, m, s, t in zip(levels["hospital"].values, patients, mean, sd, truth, strict=True):
    print(f"{name}: {size:4d} patients, level {m:5.2f} ± {s:.2f}, true {t:5.2f}")

# %% [markdown]
# What the clients bring to the common parameters: shares of the information, beside their shares of the hospitals.

# %%
pf.plots.plot_contributions(pf.contributions(idata, fed))
plt.show()

# %% [markdown]
# What a client sends in a round, against what its hospitals have.

# %%
up = idata["federation"]["bytes_up"].values
print(f"{int(np.nanmax(up))} bytes a round and client; {len(y)} patients in all")

# %%
assert (np.abs(mean - truth) < 4 * sd).all()
assert np.corrcoef(patients, sd)[0, 1] < -0.5
