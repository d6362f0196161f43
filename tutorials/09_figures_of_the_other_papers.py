# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
# ---

# %% [markdown]
# # Figures of the papers: expectation propagation, Langevin dynamics, peers
#
# The main figure of each of these papers, with the algorithms as published, in minutes. The scripts in
# `benchmarks/papers/` do the same at full size; tutorial 7 has the figures of Stein variational inference.
#
# ## Federated expectation propagation (Guo et al., Fig. 1)
#
# Two clients with Gaussian likelihoods that are correlated in opposite ways, and diagonal families. Neither the average
# of the clients' modes (FedAvg) nor the product of their own diagonal approximations (FedPA) has the mean of the global
# posterior. FedEP, which approximates each likelihood in the context of the others, does.

# %%
import os
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf

FAST = os.environ.get("PYRO_FED_FAST") == "1"


def run(algorithm, fed, **settings):
    """A result, quietly: what is wrong with some of them is what the figures show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pf.run(algorithm, fed, progress=False, log_likelihood=False, audit=not FAST, **settings)


means = torch.tensor([[-1.5, 0.5], [1.5, 0.0]], dtype=torch.float64)
covariances = torch.tensor([[[1.0, 0.8], [0.8, 1.0]], [[1.2, -0.7], [-0.7, 0.6]]], dtype=torch.float64)


def two_gaussians(covariances, means):
    theta = pyro.sample("theta", dist.Normal(means.new_zeros(2), 1e4).to_event(1))
    with pyro.plate("clients", len(means)):
        pyro.sample("mean", dist.MultivariateNormal(theta, covariance_matrix=covariances), obs=means)


fed = pf.Federation(
    two_gaussians,
    (covariances, means),
    plate="clients",
    shard=("covariances", "means"),
    num_clients=2,
    partition=pf.partition.Explicit([[0], [1]]),
)
family = {"covariance": "diag", "start": "prior", "num_points": 2}
fits = {
    "FedPA": (pf.infer.FedPA(client=pf.infer.tilted.Laplace(steps=1), **family), 1),
    "FedEP": (pf.FedEP(**family), None),
}
points = {"FedAvg": means.mean(0).numpy()}
for name, (algorithm, r) in fits.items():
    idata = run(algorithm, fed, num_rounds=r, num_draws=20_000)
    points[name] = idata.posterior["theta"].mean(["chain", "draw"]).values
precisions = torch.linalg.inv(covariances)
product = torch.linalg.inv(precisions.sum(0))
mean = product @ (precisions @ means[..., None]).sum(0)[:, 0]

# %%
circle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
circle = 2 * torch.stack([circle.cos(), circle.sin()])  # two standard deviations
figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for label, centre, covariance in [("client 0", means[0], covariances[0]), ("client 1", means[1], covariances[1])]:
    axis.plot(*(centre[:, None] + torch.linalg.cholesky(covariance) @ circle), label=label)
axis.plot(*(mean[:, None] + torch.linalg.cholesky(product) @ circle), color="black", label="global posterior")
for (name, point), marker in zip(points.items(), "s^x", strict=True):
    axis.plot(*point, marker, color="tab:red", label=name)
axis.set(xlabel="theta[0]", ylabel="theta[1]", aspect="equal")
axis.legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# ## Federated stochastic gradient Langevin dynamics (El Mekkaoui et al., Fig. 2, 3b and 4)
#
# Ten clients of 200 rows from normals with different means; a chain stays with a client for 1, 10, 100 or 1000 updates.
# The posterior is a dot at the middle. DSGLD drifts towards whichever client it visits; FSGLD's conducive gradients
# hold it, whatever the number of updates between visits. Its spread here, three posterior standard deviations, is the
# noise of minibatches of 10 rows at the published step 1e-4; `pf.FSGLD()` by default takes that away.

# %%
draw = torch.Generator().manual_seed(0)
centres = 6 * (2 * torch.rand(10, 1, 2, generator=draw, dtype=torch.float64) - 1)
shards = centres + torch.randn(10, 200, 2, generator=draw, dtype=torch.float64)


def gaussian_mean(x):
    mu = pyro.sample("mu", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(mu, 1.0).to_event(1), obs=x)


fed = pf.Federation.from_clients(gaussian_mean, [(rows,) for rows in shards], plate="data")
likelihoods = pf.infer.Given(torch.full((10, 2), 200.0, dtype=torch.float64), shards.sum(1))
posterior_mean = shards.sum((0, 1)) / 2001
paper = {
    "sweeps": False,
    "step": pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False),
    "target_ess": None,
    "minibatches": "anew",
    "control_variate": False,
}
paper |= {"batch_size": 10, "num_chains": 4 if FAST else 16, "thin": 5}
updates, steps = ((1, 100), 200) if FAST else ((1, 10, 100, 1000), 4000)
figure, axes = plt.subplots(2, len(updates), figsize=(2.75 * len(updates), 5.6), layout="constrained")
error_figure, error_axis = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
kinds = {"DSGLD": {}, "FSGLD": {"surrogates": likelihoods, "conducive": pf.infer.Conducive(trust=None)}}
for row, (name, own) in zip(axes, kinds.items(), strict=True):
    for axis, count in zip(row, updates, strict=True):
        algorithm = getattr(pf.infer, name)(local_steps=count, burn_in=steps // 4, **paper, **own)
        draws = run(algorithm, fed, num_rounds=steps // count, num_draws=100_000).posterior["mu"].values
        for rows in shards:
            axis.scatter(*rows[::4].T, s=1, alpha=0.5)
        every = draws.reshape(-1, 2)
        axis.scatter(*every[:: max(1, len(every) // 500)].T, s=2, color="black")
        axis.set(title=f"{name}, {count} update{'s' if count > 1 else ''}", xlim=(-9, 9), ylim=(-9, 9), aspect="equal")
        number = np.arange(1, draws.shape[1] + 1)
        running = draws.cumsum(1) / number[:, None]
        error = ((running - posterior_mean.numpy()) ** 2).sum(-1).mean(0)
        error_axis.plot(number, error, linestyle="-" if name == "DSGLD" else "--", label=f"{name} ({count})")
error_axis.set(xscale="log", yscale="log", xlabel="draws a chain", ylabel="squared error of the mean")
error_axis.legend(frameon=False, ncols=2, fontsize="small")
plt.show()

# %% [markdown]
# The constants of Theorems 1 and 2 say why: over the square [-6, 6]², a row's gradient (γ², DSGLD's) is about a hundred
# times as large as its distance from the surrogate's share (ε², FSGLD's).

# %%
square = torch.cartesian_prod(*[torch.linspace(-6, 6, 21, dtype=torch.float64)] * 2)
gamma = (shards[:, :, None] - square).square().sum(-1).amax((1, 2))
epsilon = (shards - shards.mean(1, keepdim=True)).square().sum(-1).mean(1)
figure, axis = plt.subplots(figsize=(5.5, 3), layout="constrained")
axis.bar(np.arange(10) - 0.2, gamma, 0.4, label=r"$\gamma_s^2$, DSGLD")
axis.bar(np.arange(10) + 0.2, epsilon, 0.4, label=r"$\epsilon_s^2$, FSGLD")
axis.set(xlabel="client", yscale="log", ylim=(1, 2000))
axis.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Peer-to-peer variational inference (Wang et al., Fig. 1)
#
# Linear regression by four agents, each of whom sees one coordinate of the inputs. Alone none can predict; together, by
# averaging their beliefs over the graph W, each comes near the noise, below which no learner with all data gets.

# %%
truth = torch.tensor([-0.3, 0.5, 0.5, 0.1], dtype=torch.float64)
bounds = torch.tensor([1.0, 1.5, 1.25, 0.75], dtype=torch.float64)
graph = pf.graph.from_matrix([[0.5, 0.5, 0, 0], [0.3, 0.1, 0.3, 0.3], [0, 0.5, 0.5, 0], [0, 0.5, 0, 0.5]])


def regression(x, y):
    theta = pyro.sample("theta", dist.Normal(x.new_zeros(4), 0.5**0.5).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ theta, 0.8), obs=y)


def rows(count, seen):
    x = (2 * torch.rand(count, 4, generator=draw, dtype=torch.float64) - 1) * bounds * seen
    return x, x @ truth + 0.8 * torch.randn(count, generator=draw, dtype=torch.float64)


length = 15 if FAST else 100
clients = [rows(5 * length, one) for one in torch.eye(4, dtype=torch.float64)]
test_x, test_y = rows(20_000, torch.ones(4, dtype=torch.float64))
fed = pf.Federation.from_clients(regression, clients, plate="data")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
alone = pf.graph.Partitioned(graph, [[0], [1], [2], [3]])
for axis, (title, links) in zip(axes, {"alone": alone, "together": graph}.items(), strict=True):
    algorithm = pf.P2PVI(weighting="paper", batch_size=5, gossip_steps=1, trace=True)
    idata = run(algorithm, fed, graph=links, num_rounds=length, num_draws=2)
    beliefs = torch.from_numpy(idata["federation"]["belief_mean"].values)
    axis.plot((test_y - beliefs @ test_x.T).square().mean(-1), label=[f"agent {i + 1}" for i in range(4)])
    axis.axhline(0.64, color="black", linestyle="--", label="noise alone")
    axis.set(title=title, xlabel="round", ylabel="test MSE")
axes[1].legend(frameon=False)
plt.show()
