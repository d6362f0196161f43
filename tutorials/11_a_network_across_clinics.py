# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # A network across clinics, and where it does not know
#
# Ten clinics read handwritten digits from forms, each mostly its own few digits, and want one network without pooling
# the images. Averaging weights gives them one; a posterior also says which images it has never learned to read.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

import pyro_fed as pf

FAST = os.environ.get("PYRO_FED_FAST") == "1"
HIDDEN = 15 if FAST else 50

# %% [markdown]
# The digits 0 to 7 are what the clinics have. Nobody has seen an 8 or a 9: these are kept to see what the network says
# of them. (scikit-learn's images have no writers' names, so that the clinics are made: shares of each digit drawn from
# a Dirichlet distribution.)

# %%
images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
x, y = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
unknown, x, y = x[y >= 8], x[y < 8], y[y < 8]
test, x, y = (x[-300:], y[-300:]), x[:-300], y[:-300]

# %% [markdown]
# The network is a plain `torch.nn.Module`. Pyro makes it Bayesian: every parameter gets a prior in its place, here
# N(0, 1). Nothing in it knows of clients; the plate says what is split.


# %%
def network():
    return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 8))


bayesian = network()
to_pyro_module_(bayesian)
for layer in bayesian.modules():
    for name, value in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, PyroSample(dist.Normal(torch.zeros_like(value), 1.0).to_event(value.dim())))


def model(x, y):
    logits = bayesian(x)
    with pyro.plate("images", len(x)):
        pyro.sample("digit", dist.Categorical(logits=logits), obs=y)


skew = pf.partition.Dirichlet(0.3, by=y)
fed = pf.Federation(model, (x, y), plate="images", num_clients=10, partition=skew, seed=0)
pf.plots.plot_partition(fed)
plt.show()

# %% [markdown]
# `FedAvg` averages weights. `FedEP` has a Gaussian over them: every clinic refines its own factor of it by gradients on
# minibatches, beginning where forty rounds of averaging end (its default on
# [large models](../networks.md)). The third result needs all images at one place: Pyro's own SVI, with a Gaussian of
# the same kind.

# %%
options = {"seed": 0, "progress": False, "audit": False, "log_likelihood": False, "num_draws": 200}
steps = 300 if FAST else 2000
one_place = pf.infer.SVI(guide=AutoDiagonalNormal, num_steps=steps, num_samples=1, num_guide_draws=200)
results = {
    "FedAvg": pf.run(pf.FedAvg(), fed, num_rounds=150, **options),
    "FedEP": pf.run(pf.FedEP(), fed, num_rounds=40, **options),
    "pooled": pf.run(one_place, fed, **options),
}

# %% [markdown]
# A draw of the posterior is a set of weights under the names that the plain module has, so that torch alone can
# predict: the probabilities of an image are the mean over the draws.


# %%
def probabilities(idata, pixels):
    plain, posterior = network(), idata.posterior
    names = [name for name, _ in plain.named_parameters()]
    weights = {name: torch.as_tensor(posterior[name].values).float().flatten(0, 1) for name in names}
    each = torch.vmap(lambda own: functional_call(plain, own, (pixels,)).softmax(-1))
    return each(weights).mean(0).detach()


def entropy(probs):
    return -(probs * probs.clamp_min(1e-30).log()).sum(-1)


table = {}
for name, idata in results.items():
    known, new = probabilities(idata, test[0]), probabilities(idata, unknown)
    table[name] = {
        "accuracy": (known.argmax(-1) == test[1]).float().mean(),
        "log density": known.gather(1, test[1][:, None]).log().mean(),
        "entropy, known": entropy(known).mean(),
        "entropy, 8 and 9": entropy(new).mean(),
        "surer than 95 % of an 8 or 9": (new.max(-1).values > 0.95).float().mean(),
        "kB sent by a clinic": float(idata["federation"]["bytes_up"].sum()) / 10 / 1000 if name != "pooled" else np.nan,
    }
table = pd.DataFrame(table).T.astype(float)
print(table.T.round(3))

# %% [markdown]
# After 150 rounds averaging has the log density of `FedEP`, give or take 0.01, and is surer than 95 % of more of the 8s
# and 9s: that is what a posterior has besides.

# %% [markdown]
# What travelled are weights for `FedAvg`, and for `FedEP` a mean and a precision each besides the averaging that it
# begins with; no image, and no label. The pooled network needs the images themselves.

# %%
print(f"images and labels: {(x.numel() + y.numel()) / 1000:.0f} kB as bytes; parameters: {fed.problem.dim:,}")

# %% [markdown]
# ## Do probabilities mean what they say?
#
# Of the images that are read with confidence 0.8, four in five should be right. Nearly all of these are read with
# confidence one: what differs are the few others, and the log density above, which counts a sure error most.

# %%
pf.plots.plot_reliability(results, fed, test)
plt.show()

# %% [markdown]
# ## Where it does not know
#
# The entropy of the probabilities is zero where the network is sure, and log 8 = 2.1 where it has no idea. The curves
# are the share of images below an entropy: that of digits which nobody has shown the network should lie far to the
# right. A clinic that hands the least sure images to a person reads off, in the last panel, how many of the others are
# read correctly, if its forms have as many 8s and 9s as there are here.

# %%
colours = dict(zip(results, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
_, axes = plt.subplots(1, 4, figsize=(11, 2.9), layout="constrained")
handed, apart = np.linspace(0, 0.9, 46), {}
for ax, (name, idata) in zip(axes, results.items(), strict=False):
    known, new = probabilities(idata, test[0]), probabilities(idata, unknown)
    for kind, probs, colour in (("known digits", known, "#6f7680"), ("8 and 9", new, colours[name])):
        ax.step(entropy(probs).sort().values, np.arange(1, len(probs) + 1) / len(probs), color=colour, label=kind)
    apart[name] = float((entropy(known)[:, None] < entropy(new)).float().mean())
    ax.set(title=f"{name}: told apart {100 * apart[name]:.0f} %", xlabel="entropy", xlim=(0, 2.1), ylim=(0, 1.02))
    ax.legend(frameon=False, fontsize=8)
    unsure = torch.cat([entropy(known), entropy(new)])
    right = torch.cat([known.argmax(-1) == test[1], torch.zeros(len(unknown), dtype=torch.bool)]).double()
    right = right[unsure.argsort()].numpy()
    kept = [right[: round((1 - share) * len(right))].mean() for share in handed]
    axes[-1].plot(100 * handed, 100 * np.array(kept), color=colours[name], label=name)
axes[0].set_ylabel("share of images below")
axes[-1].set(xlabel="% of all images handed to a person", ylabel="% of the others right", title="the surest first")
axes[-1].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# "Told apart" is the share of pairs, one image of each kind, in which the unknown digit has the larger entropy. It is
# not 100 %: nothing forces a network to be unsure of what it has not seen, and a Gaussian around one mode knows the
# networks near that mode alone.

# %%
assert table["accuracy"]["FedEP"] > table["accuracy"]["FedAvg"] - 0.02
assert table["log density"]["FedEP"] > table["log density"]["FedAvg"] - 0.02
sure = table["surer than 95 % of an 8 or 9"]
assert sure["FedEP"] < sure["FedAvg"]
assert apart["FedEP"] > 0.75
