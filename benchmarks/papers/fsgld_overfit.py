"""Table 1 of the FSGLD paper: what DSGLD's -0.44 on training and -1.11 on test data can be, and where it is seen.

**No overfit of the network.** Shards differ in their share π_s of positives alone. With L_1, L_0 ≤ 0 the average
log-likelihoods of a row of each class, the same in training and test data, those of all shards and of a balanced test
shard are π̄ L_1 + (1 - π̄) L_0 and (L_1 + L_0)/2. These differ by (π̄ - 1/2)(L_1 - L_0), so that -0.44 and -1.11 need
|π̄ - 1/2| ≥ 0.67 / 2.22 = 0.30, of *any* network; the mean of 30 shares of Beta(0.5, 0.5) has an SD of 0.065: 4.7 SDs,
in every repetition. (What 748 weights fit of 2.7 million rows' chance is 748 / 2.7e6 = 3e-4.) "Train" is therefore
not an average over all shards.

**The labels of the shard that a chain has just visited.** A network that does not look at x, as those of the IID
columns (-0.69 is log 2), has one number, the logit δ of its share, and a visit moves it, T times, by

    δ ← δ + a (π_s - σ(δ)) + noise,        a = h N_s / f_s  (two output biases, h/2 each).

Where visits are long it arrives, δ = logit π_s, and over Beta(0.5, 0.5)

    visited shard  -E[H(π)] = 1 - 2 log 2 = -0.386,        test  (E log π + E log(1 - π))/2 = -2 log 2 = -1.386.

Where they are not, a linear client (curvature A of its log-likelihood a row, modes μ_s of variance V, ρ = (1 - h N_s A
/ 2 f_s)^T) ends its visits at θ' = ρ θ + (1 - ρ) μ_s, whose stationary variance is V (1 - ρ)/(1 + ρ); log-likelihoods
a row are below each shard's own largest by

    visited  A V ρ²/(1 + ρ),        all shards  A V/(1 + ρ),        test  (A V/2) (1 - ρ)/(1 + ρ),

but for the noise of steps and minibatches, so that a longer visit or step raises the first and lowers the last; both
depend on a T alone while a is small. With exact surrogates FSGLD's gradient is that of all shards, the pull to the
visited one is gone, and visited and test shards are the same on average.

Parts: `linear` runs DSGLD and FSGLD on normal shards beside these three terms, `constant` iterates δ with S = 30,
T = 40, m = 50, and `network` runs both samplers on the stand-in of `fsgld_sections_5_2_and_5_3` over steps h. All
print the visited shard / all shards / the test shard.

`linear`, ρ = 0.9 / 0.5 / 0.1: visited 0.415 / 0.161 / 0.009 (closed form 0.426 / 0.167 / 0.009), test 0.027 / 0.168 /
0.403 (0.026 / 0.167 / 0.409); FSGLD at 0.5: 0.489 and 0.000 (0.500 and 0). `constant` (all shards are within 0.015 of
test):

    a        IID, visited; test    non-IID, DSGLD, visited; test       FSGLD, visited; test
    0.01     -0.693; -0.693        -0.656 ± 0.005; -0.709 ± 0.004      -0.690 ± 0.003; -0.697 ± 0.003
    0.1      -0.691; -0.694        -0.490 ± 0.024; -0.820 ± 0.017      -0.690 ± 0.003; -0.697 ± 0.003
    0.2      -0.691; -0.695        -0.435 ± 0.031; -0.918 ± 0.029      -0.690 ± 0.004; -0.697 ± 0.003
    0.5      -0.692; -0.696        -0.407 ± 0.035; -1.064 ± 0.049      -0.690 ± 0.004; -0.698 ± 0.003
    1        -0.692; -0.697        -0.402 ± 0.036; -1.149 ± 0.065      -0.690 ± 0.004; -0.698 ± 0.003
    3        -0.697; -0.701        -0.402 ± 0.036; -1.237 ± 0.087      -0.693 ± 0.005; -0.700 ± 0.003
    paper    -0.69; -0.70          -0.44 ± 0.062; -1.11 ± 0.312        -0.67 ± 0.03; -0.67 ± 0.03

All of the table's figures at a = 0.2 to 1, but for FSGLD's 0.02 better than a constant. (The paper's own h, rows and
m are a = 270, where this recursion jumps by a hundred logits, -17 and -47: its h or its scale of gradients is another.)

`network`, three chains, 40 rounds, visited shard / all shards / test; the visits of the same chains, all of which
`fsgld_sections_5_2_and_5_3` averaged away by its step of 4e-8 and by a "train" of all shards:

    non-IID DSGLD, h = 4e-8    -0.444 ± 0.009 / -0.502 ± 0.004 / -0.489 ± 0.004
                       4e-7    -0.277 ± 0.027 / -0.716 ± 0.050 / -0.699 ± 0.051
                       2e-6    -0.247 ± 0.029 / -1.038 ± 0.116 / -1.020 ± 0.116
    non-IID FSGLD, h = 4e-8    -0.486 ± 0.003 / -0.488 ± 0.001 / -0.475 ± 0.001
                       4e-7    -0.332 ± 0.033 / -0.656 ± 0.078 / -0.641 ± 0.077
    IID, both, 4e-8 to 2e-6    -0.472 to -0.480 / -0.475 to -0.482 / -0.481 to -0.486

At 4e-7 FSGLD's chains have left the region where these surrogates hold, and from 2e-6 (FSGLD) and 1e-5 on steps are
refused as beyond stability. On the IID shards nothing of this is seen at any step.

    python -m benchmarks.papers.fsgld_overfit
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from scipy.special import expit, log_expit

import pyro_fed as pf
from benchmarks.papers.fsgld_sections_5_2_and_5_3 import expansions, published, skewed
from pyro_fed.errors import SettingError
from pyro_fed.results.to_arviz import unconstrained_draws

#: The paper's.
NUM_SHARDS, LOCAL_STEPS, BATCH = 30, 40, 50


def linear(chains, rounds):
    """Normal shards of unit variance, whole batches: measured beside the closed form, a line for each ρ."""
    print("linear: visited shard / all shards / test, below each one's largest, measured and in closed form")
    rng = np.random.default_rng(0)
    modes = rng.standard_normal(NUM_SHARDS)
    modes = (modes - modes.mean()) / modes.std()
    values = rng.standard_normal((NUM_SHARDS, 100))
    values += (modes - values.mean(1))[:, None]  # their modes exactly
    fed = pf.Federation.from_clients(normal, [(torch.tensor(one),) for one in values], plate="data")
    precision = torch.full((NUM_SHARDS, 1), 100.0, dtype=torch.float64)
    given = pf.infer.Given(precision, precision * torch.tensor(modes)[:, None])
    for name, rho in (*[("DSGLD", rho) for rho in (0.99, 0.9, 0.5, 0.1)], ("FSGLD", 0.5)):
        step = 2 * (1 - rho ** (1 / LOCAL_STEPS)) / fed.num_rows
        settings = {"num_chains": chains, "batch_size": None, "burn_in": rounds // 5 * LOCAL_STEPS, "thin": LOCAL_STEPS}
        algorithm = published(name, step, surrogates=given, **settings)
        ends, visited = end_of_visits(fed, algorithm, rounds)
        off = ends - modes[visited][..., None]
        losses = [(off**2).mean() / 2, 0.5 + (ends**2).mean() / 2, (ends**2).mean() / 2]
        wanted = (rho**2 / (1 + rho), 1 / (1 + rho), (1 - rho) / (1 + rho) / 2) if name == "DSGLD" else (0.5, 0.5, 0.0)
        print(f"{name} ρ = {rho:4.2f}   " + "   ".join(f"{a:.3f} {b:.3f}" for a, b in zip(losses, wanted, strict=True)))


def normal(x):
    """A normal mean, with a prior that does not matter."""
    theta = pyro.sample("theta", dist.Normal(x.new_zeros(()), 100.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Normal(theta, 1.0), obs=x)


def constant(share, a, visits, rng, exact=False):
    """Visits of a network that has one logit: log-likelihood a row (visited shard, all shards, test), (visits, 3).

    With `exact` surrogates the client's own mean gradient is replaced by that of all shards.
    """
    logit, out = 0.0, []
    for s in rng.integers(len(share), size=visits):
        for positive in rng.binomial(BATCH, share[s], LOCAL_STEPS) / BATCH:
            logit += a * (positive - expit(logit) + (share.mean() - share[s] if exact else 0.0))
        yes, no = log_expit(logit), log_expit(-logit)
        out.append([one * yes + (1 - one) * no for one in (share[s], share.mean(), 0.5)])
    return np.array(out)


def constants(repetitions, visits):
    """A line for each a: both partitions, DSGLD and FSGLD."""
    print("a network that does not look at x: visited shard / all shards / test, mean ± SD over repetitions")
    for a in (0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0):
        line = f"a = {a:5.2f}"
        for beta, exact, title in ((100, False, "IID DSGLD"), (0.5, False, "non-IID DSGLD"), (0.5, True, "FSGLD")):
            rng = np.random.default_rng(0)
            shares = rng.beta(beta, beta, (repetitions, NUM_SHARDS))
            rows = np.array([constant(share, a, visits, rng, exact).mean(0) for share in shares])
            line += f"   {title} " + figures(rows)
        print(line, flush=True)


def figures(rows):
    """Means and SDs of the rows (n, 3)."""
    return " / ".join(f"{mean:.3f} ± {sd:.3f}" for mean, sd in zip(rows.mean(0), rows.std(0), strict=True))


def end_of_visits(fed, algorithm, rounds):
    """Positions (chain, visit, D) at the ends of visits, and whose they were (chain, visit)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the short runs of this comparison have not converged
        options: dict[str, Any] = {"num_draws": rounds, "progress": False, "log_likelihood": False, "audit": False}
        idata = pf.run(algorithm, fed, num_rounds=rounds, seed=0, **options)
    draws = unconstrained_draws(idata, fed.problem).reshape(algorithm.num_chains, -1, fed.problem.dim)
    return draws.numpy(), idata["sample_stats"]["client"].values.astype(int)


def at_ends_of_visits(fed, test, algorithm, rounds):
    """Log-likelihood a row of the shard visited last, of all shards and of the test shard, a chain: (chain, 3)."""
    chains = []
    with torch.no_grad():
        for z, clients in zip(*end_of_visits(fed, algorithm, rounds), strict=True):
            ends = []
            for position, client in zip(torch.from_numpy(z), clients, strict=True):
                shards = fed.problem.pointwise_log_lik(position).reshape(fed.num_clients, -1).mean(1)  # of equal size
                tested = fed.problem.pointwise_log_lik(position, test).mean()
                ends.append([float(shards[client]), float(shards.mean()), float(tested)])
            chains.append(np.mean(ends, 0))
    return np.array(chains)


def network(chains, rounds, steps, shares):
    """A line for each partition, sampler and step; half of the visits are burn-in, a draw at the end of each."""
    print("the network 18-18-8 on 30 shards of 3,000 rows: visited shard / all shards / test, mean ± SD over chains")
    for beta in shares:
        title = f"Beta({beta:g}, {beta:g})"
        fed, test = skewed(beta, seed=0)
        given = expansions(fed, seed=0)
        for name in ("DSGLD", "FSGLD"):
            for step in steps:
                settings = {"num_chains": chains, "batch_size": BATCH, "minibatches": "anew", "thin": LOCAL_STEPS}
                settings["burn_in"] = rounds // 2 * LOCAL_STEPS
                algorithm = published(name, step, surrogates=given, **settings)
                where = f"{title:14s} {name} h = {step:.0e}, a = {step * fed.num_rows:6.3f}   "
                try:
                    print(where + figures(at_ends_of_visits(fed, test, algorithm, rounds)), flush=True)
                except SettingError as error:
                    print(where + f"refused: {error}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["linear", "constant", "network"])
    parser.add_argument("--chains", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=float, nargs="+", default=[4e-8, 4e-7, 2e-6, 1e-5])
    parser.add_argument("--shares", type=float, nargs="+", default=[100, 0.5], help="a of Beta(a, a)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only in (None, "linear"):
        linear(64, 100)
    if options.only in (None, "constant"):
        constants(10, 400)
    if options.only in (None, "network"):
        network(options.chains, options.rounds, options.steps, options.shares)


if __name__ == "__main__":
    main()
