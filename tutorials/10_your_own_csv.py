# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Your own CSV with a hospital column
#
# A file with a row a patient, one column of which says the hospital: from there to a report, with a model of your own.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist

import pyro_fed as pf

FAST = os.environ.get("PYRO_FED_FAST") == "1"

# %% [markdown]
# This cell stands for your file. It makes one, so that the truth is known: each hospital has a level of blood pressure
# of its own, a year of age adds 0.4, a step of the dose takes 5.

# %%
rng = np.random.default_rng(0)
levels = {"Basel": 128.0, "Bern": 133.0, "Chur": 125.0, "Geneva": 137.0, "Jena": 131.0, "Lyon": 129.0}
frames = []
for (hospital, level), size in zip(levels.items(), (40, 25, 60, 12, 33, 50), strict=True):
    age, dose = rng.normal(60, 12, size).round(), rng.integers(0, 3, size)
    pressure = level + 0.4 * (age - 60) - 5 * dose + rng.normal(0, 9, size)
    frames.append(pd.DataFrame({"hospital": hospital, "age": age, "dose": dose, "pressure": pressure.round(1)}))
pd.concat(frames).sample(frac=1, random_state=0).to_csv("patients.csv", index=False)

# %%
patients = pd.read_csv("patients.csv")
print(patients.head())

# %% [markdown]
# The model is ordinary Pyro. Hospitals have a plate, which holds what each has of its own; patients have another, and
# look their hospital's level up. Columns become arguments: text such as `hospital` looks up, `level[hospital]`, and is
# compared with its labels, `hospital == "Basel"`; it is no number.


# %%
def model(hospital, age, dose, pressure, num_hospitals):
    mean = pyro.sample("mean", dist.Normal(130.0, 20.0))
    spread = pyro.sample("spread", dist.HalfNormal(10.0))
    per_year = pyro.sample("per_year", dist.Normal(0.0, 1.0))
    per_dose = pyro.sample("per_dose", dist.Normal(0.0, 10.0))
    noise = pyro.sample("noise", dist.HalfNormal(20.0))
    with pyro.plate("hospitals", num_hospitals):
        level = pyro.sample("level", dist.Normal(mean, spread))
    with pyro.plate("patients", len(age)):
        expected = level[hospital] + per_year * (age - 60) + per_dose * dose
        pyro.sample("pressure", dist.Normal(expected, noise), obs=pressure)


# %% [markdown]
# What is split is the plate of hospitals, and every hospital is a client under its own name; `rows` says by which
# argument patients belong to hospitals.

# %%
columns = [patients[name] for name in ("hospital", "age", "dose", "pressure")]
names = sorted(patients["hospital"].unique())
each = pf.partition.ByGroup(names)
fed = pf.Federation(model, (*columns, len(names)), plate="hospitals", rows={"patients": "hospital"}, partition=each)
print(fed.summary())

# %% [markdown]
# Without a hierarchy it is shorter: a plate over patients, and `partition=pf.partition.ByGroup(patients["hospital"])`.
# Files that lie apart need no partition at all: `pf.Federation.from_clients(model, [(...), (...)], plate=...)`.

# %%
idata = pf.run(pf.FedAIS(), fed, seed=0, progress=False, audit=False) if FAST else pf.fit(fed, seed=0)
print(pf.Overview(idata))

# %% [markdown]
# `fit` tries `FedEP` first, and weighs draws by `FedAIS` where the checks of its answer object, as they do here: the
# spread of six hospitals is skewed. The rows of this example can be pooled, so that NUTS tells whether that is right;
# where a scale is latent its steps have to be small (`target_accept_prob`).

# %%
samples, warmup = (500, 300) if FAST else (1000, 1000)
long = pf.NUTS(num_samples=samples, warmup_steps=warmup, num_chains=2, target_accept_prob=0.95)
nuts = pf.run(long, fed, seed=0, progress=False, audit=not FAST)
results = {"NUTS": nuts, "federated": idata}
table = pf.compare(results, "NUTS", federation=None if FAST else fed)  # a federation adds checks, and their time
print(table[["mean_error", "sd_ratio_min", "sd_ratio_max", "rounds", "bytes_up"]].round(2))

# %%
pf.plots.plot_forest(results, "NUTS")
plt.show()

# %% [markdown]
# What would each hospital say alone, over what all say together? One without a dot has no Gaussian answer by itself: a
# single hospital says little of how far hospitals are apart.

# %%
pf.plots.plot_client_forest(pf.contributions(idata, fed), labels=["per_year", "per_dose"])
plt.show()

# %% [markdown]
# Everything that is known of both results as one page, which needs no other file:
# <a href="../_static/generated/report.html">report.html</a>, explained in
# [Reading the report](../reading_the_report.md).

# %%
pf.write_report("report.html", table, results, fed, title="Blood pressure in six hospitals", reference="NUTS")

# %% [markdown]
# In a deployment the hospitals keep their files. `pf.Federation.from_clients` is the simulation of it: every client is
# made from its own file alone, where its hospital is the only one, number 0. The answer is the same.

# %%
apart = {}
for name, own in patients.groupby("hospital"):
    here = np.zeros(len(own), dtype=int)
    apart[name] = (here, own["age"], own["dose"], own["pressure"], 1)
separate = pf.Federation.from_clients(model, apart, plate="hospitals", rows={"patients": "hospital"})
again = pf.run(pf.FedEP(), separate, seed=0, progress=False, audit=not FAST)

# %%
for name, truth in {"per_year": 0.4, "per_dose": -5.0}.items():
    for result in (idata, again):
        draws = result.posterior[name]
        assert abs(float(draws.mean()) - truth) < 4 * float(draws.std())
