# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Figures of the papers: Stein variational inference
#
# The main figures of the papers on DSVGD, with the algorithms as published, in minutes. The scripts in
# `benchmarks/papers/` do the same at full size; tutorial 9 has the other papers' figures.
#
# ## Distributed Stein variational gradient descent (Kassab and Simeone, Fig. 2 and 3)
#
# Two agents whose local posteriors differ, and whose product has two modes: N = 200 particles, L = L' = 200 steps and
# bandwidth 0.55. The prior here is flat in θ itself. The paper's uniform prior on (-6, 6) would be sampled through a
# transform to the real line, in which a density estimate of bandwidth 0.55 is another estimate.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch.distributions import constraints

import pyro_fed as pf
from pyro_fed.analysis.judging.metrics import test_metrics
from pyro_fed.recipes import library

FAST = os.environ.get("PYRO_FED_FAST") == "1"
toy = library.load_model("gaussian_mixture_1d")


def run(algorithm, fed, **settings):
    """A result, quietly: what is wrong with some of them is what the figures show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(algorithm, fed, progress=False, log_likelihood=False, audit=not FAST, **settings)


def by_round(measure, algorithm, fed, **settings):
    """What `measure` makes of the posterior after every round of one run."""
    seen = []
    run(algorithm, fed, evaluate=lambda idata: seen.append(measure(idata)) or {}, **settings)
    return seen


def model(component):
    theta = pyro.sample("theta", dist.ImproperUniform(constraints.real, (), ()))
    factor = torch.where(component == 0, toy.log_factor_0(theta), toy.log_factor_1(theta))
    with pyro.plate("data", len(component)):
        pyro.factor("likelihood", factor)


(component,), _ = toy.load_data()
agents = pf.partition.Explicit([[0], [1]])
fed = pf.Federation(model, (component.double(),), plate="data", partition=agents)

# %%
grid = torch.linspace(-7, 7, 1401, dtype=torch.float64)
exact = (toy.log_factor_0(grid) + toy.log_factor_1(grid)).exp().numpy()
exact /= np.trapezoid(exact, grid)


def density(idata, width=0.55):
    """The particles' density estimate on the grid."""
    theta = idata.posterior["theta"].values.reshape(-1, 1)
    kernel = np.exp(-0.5 * ((grid.numpy() - theta) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return kernel.mean(0)


def kl(approximate):
    """KL(exact || approximate), as in the paper's Fig. 3."""
    return float(np.trapezoid(exact * np.log(exact / np.maximum(approximate, 1e-300)), grid))


steps = 100 if FAST else 200
particles = {"num_particles": 100 if FAST else 200}
rounds = range(1, 5 if FAST else 11)
dsvgd = pf.papers.PaperDSVGD(local_steps=steps, distill_steps=steps, **particles)
udsvgd = pf.papers.UDSVGD(local_steps=steps, **particles)
curves = {
    name: by_round(density, algorithm, fed, num_rounds=len(rounds))
    for name, algorithm in {"DSVGD": dsvgd, "U-DSVGD": udsvgd}.items()
}
pooled = density(run(pf.papers.PaperSVGD(local_steps=4 * steps, **particles), fed, num_rounds=1))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
left.fill_between(grid, exact, color="0.8", label="exact posterior")
for i in (0, len(rounds) - 1):
    left.plot(grid, curves["DSVGD"][i], label=f"DSVGD after {rounds[i]} round{'s' if rounds[i] > 1 else ''}")
left.set(xlabel="θ", ylabel="density")
left.legend(frameon=False)
for name, values in curves.items():
    right.plot(rounds, [kl(one) for one in values], marker="o", label=name)
right.axhline(kl(pooled), color="black", linestyle="--", label="SVGD, pooled")
right.set(xlabel="round", ylabel="KL(exact ‖ q)", yscale="log")
right.legend(frameon=False)
print({name: [round(kl(one), 3) for one in values] for name, values in curves.items()}, "SVGD", round(kl(pooled), 3))
plt.show()

# %% [markdown]
# After one round the particles know agent 1 alone; after the second both modes are there. From then on both forms stay
# within a factor of about two of pooled SVGD, which itself is as near as an estimate of width 0.55 can be: exact draws,
# smoothed so, have KL 0.011.
#
# In two dimensions (Fig. 10), the default DSVGD of this package:

# %%
plane = library.load_model("gaussian_mixture_2d")
data, _ = plane.load_data()
fed = pf.Federation(plane.model, data, plate=plane.PLATE, num_clients=2)
idata = run(pf.DSVGD(**particles), fed, num_rounds=4 if FAST else None)
problem = fed.problem


def log_posterior(z):
    return problem.log_prior(z.to(problem.dtype)) + problem.log_lik(z.to(problem.dtype))


pf.plots.plot_particles(idata, log_posterior)
plt.show()

# %% [markdown]
# ## Parallel DSVGD and client selection (Yang, Liu and Kassab, Fig. 2)
#
# Logistic regression over clients with classes in the ratio 1:9. Instead of a random client, one is chosen whose
# particles' kernelised Stein discrepancy (KSD) or Hilbert inner product (HIP) says that it has most to tell.

# %%
logistic = library.load_model("logistic_regression")
train, test = logistic.load_data()
skewed = pf.partition.MajorityShare(0.9, by=train[1])
fed = pf.Federation(logistic.model, train, plate="data", num_clients=30, partition=skewed, seed=0)
steps = 10 if FAST else 50
settings = {"num_particles": 6, "batch_size": 10, "local_steps": steps, "distill_steps": steps}
schemes = {
    "DSVGD, random": (pf.papers.PaperDSVGD(**settings), pf.schedule.UniformRandom()),
    "DSVGD, KSD": (pf.papers.PaperDSVGD(**settings), pf.schedule.KSD()),
    "DSVGD, HIP": (pf.papers.PaperDSVGD(**settings), pf.schedule.HIP()),
    "P-DSVGD, a fifth a round": (pf.papers.PaperParallelDSVGD(**settings), None),
}
rounds = range(1, 3 if FAST else 21)
figure, axis = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
for name, (algorithm, schedule) in schemes.items():
    idata = run(
        algorithm, fed, num_rounds=len(rounds), schedule=schedule, evaluate=lambda idata: test_metrics(idata, fed, test)
    )
    accuracy = idata.federation["accuracy"].values
    print(f"{name:26}", *(f"{100 * value:.1f}" for value in accuracy))
    axis.plot(rounds, accuracy, marker=".", label=name)
axis.set(xlabel="round", ylabel="test accuracy")
axis.legend(frameon=False)
plt.show()
