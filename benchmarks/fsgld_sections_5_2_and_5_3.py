"""Sections 5.2 and 5.3 of the FSGLD paper in small: metric learning on pairs of digits, and the 18-18-8 network.

Average log-likelihood on training and test data, mean and SD over seeds, DSGLD against FSGLD with surrogates
and the trust region. Metric learning, with Laplace surrogates (Appendix F.2; without the trust region, surrogates from
local draws make FSGLD diverge, and with it they spread by 0.08 over seeds): 5 shards without a common
class, h = 1e-4 (the paper's 1e-3 is beyond stability on these data), m = 256. Network: 30 shards whose share of
positives is Beta(100, 100) or Beta(0.5, 0.5), h = 1e-7 (1e-4 is beyond stability at a draw from the prior), m = 50, 40
local updates, diagonal surrogates from 3,000 draws; rows are drawn with replacement from breast cancer, 300 a shard
(paper: SUSY, 90,000).

    python benchmarks/fsgld_sections_5_2_and_5_3.py --seeds 10
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch

import pyro_fed as pf
from models import metric_learning, mlp_classification
from pyro_fed.to_arviz import unconstrained_draws

PUBLISHED = {"precondition": False, "control_variate": False, "midpoint": False, "target_ess": None}


def scores(fed, test, algorithm, rounds, seed):
    """Average log-likelihood a row of the training and of the test data, over the draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the short runs of this comparison have not converged
        idata = pf.run(
            algorithm, fed, num_rounds=rounds, num_draws=200, seed=seed, progress=False, log_likelihood=False
        )
    with torch.no_grad():
        z = unconstrained_draws(idata, fed.problem)
        return float(fed.problem.log_lik(z).mean()) / fed.num_rows, float(fed.problem.pointwise_log_lik(z, test).mean())


def compare(title, federation, test, surrogates, rounds, seeds, **settings):
    for name in ("DSGLD", "FSGLD"):
        rows = []
        for seed in range(seeds):
            fits = surrogates if name == "FSGLD" else None
            algorithm = getattr(pf, name)(surrogates=fits, num_chains=1, **PUBLISHED | settings)
            rows.append(scores(federation(seed), test, algorithm, rounds, seed))
        mean, sd = np.mean(rows, 0), np.std(rows, 0)
        print(f"{title:28s} {name}  train {mean[0]:8.3f} ± {sd[0]:.3f}   test {mean[1]:8.3f} ± {sd[1]:.3f}", flush=True)


def metric(seeds, rounds):
    train, test = metric_learning.load_data()
    groups = pf.partition.ByGroup(metric_learning.shards(len(train[1])))
    fed = pf.Federation(metric_learning.model, train, plate="data", partition=groups)
    compare(
        "metric learning",
        lambda seed: fed,
        test,
        "laplace",
        rounds,
        seeds,
        step_size=1e-4,
        batch_size=256,
        local_steps=40,
        burn_in=rounds * 20,
        thin=10,
    )


def skewed(beta, rows=300, num_clients=30):
    """Shards with Beta(beta, beta) shares of positives, by the seed."""
    (x, y), _ = mlp_classification.load_data()

    def federation(seed):
        rng = np.random.default_rng(seed)
        by_label = [np.flatnonzero(y.numpy() == k) for k in (0, 1)]
        clients = []
        for share in rng.beta(beta, beta, num_clients):
            labels = (rng.random(rows) < share).astype(int)
            at = np.array([rng.choice(by_label[k]) for k in labels])
            clients.append((x[at], y[at]))
        return pf.Federation.from_clients(mlp_classification.model, clients, plate="data")

    return federation


def network(seeds, rounds):
    _, test = mlp_classification.load_data()
    for beta, title in ((100, "network, IID"), (0.5, "network, non-IID")):
        compare(
            title,
            skewed(beta),
            test,
            pf.LocalSGLD(covariance="diag", batch_size=50),
            rounds,
            seeds,
            step_size=1e-7,
            batch_size=50,
            local_steps=40,
            burn_in=rounds * 20,
            thin=10,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--only", choices=["metric", "network"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only != "network":
        metric(options.seeds, options.rounds)
    if options.only != "metric":
        network(options.seeds, options.rounds)


if __name__ == "__main__":
    main()
