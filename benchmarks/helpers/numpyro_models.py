"""NumPyro's NUTS on the cases of `beside_numpyro`, in an environment of its own; prints one line of JSON.

    python benchmarks/helpers/numpyro_models.py CASE ROWS.npz

Two chains of 500 + 500 draws, one after the other, on one thread. Seconds are the processor's, compilation included,
imports not.
"""

import json
import os
import sys
import time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.diagnostics import summary


def hospitals(x, group, y, num_groups):
    """`models/hierarchical_logistic.py`."""
    mu = numpyro.sample("mu", dist.Normal(0, 1.5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("hospital", num_groups):
        level = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("patient", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=level[group] + x @ beta), obs=y)


def items(y):
    """`models/item_response.py`."""
    count = y.shape[1]
    difficulty = numpyro.sample("difficulty", dist.Normal(0, 1.5).expand([count]).to_event(1))
    discrimination = numpyro.sample("discrimination", dist.LogNormal(0, 0.5).expand([count]).to_event(1))
    with numpyro.plate("person", len(y)):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
        logits = discrimination * (ability[..., None] - difficulty)
        numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def slopes(x, group, y, num_groups):
    """`models/varying_slopes.py`."""
    gamma = numpyro.sample("gamma", dist.Normal(0, 2).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1).expand([2]).to_event(1))
    omega = numpyro.sample("omega", dist.LKJCholesky(2, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("subject", num_groups):
        own = numpyro.sample("own", dist.MultivariateNormal(gamma, scale_tril=tau[:, None] * omega))
    with numpyro.plate("trial", len(x)):
        numpyro.sample("y", dist.Normal(own[group, 0] + own[group, 1] * x, sigma), obs=y)


def counties(floor, group, uranium, y):
    """`models/radon.py`."""
    gamma = numpyro.sample("gamma", dist.Normal(0, 1).expand([2]).to_event(1))
    mu_b = numpyro.sample("mu_b", dist.Normal(0, 1))
    tau_a = numpyro.sample("tau_a", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("county", len(uranium)):
        level = numpyro.sample("a", dist.Normal(gamma[0] + gamma[1] * uranium, tau_a))
    with numpyro.plate("house", len(floor)):
        numpyro.sample("y", dist.Normal(level[group] + mu_b * floor, sigma), obs=y)


def frailty(x, group, died, years, num_groups):
    """The Weibull frailty of `beside_numpyro`."""
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    with numpyro.plate("hospital", num_groups):
        level = numpyro.sample("a", dist.Normal(mu, tau))
    log_ratio = shape * (jnp.log(years) - level[group] - x @ beta)
    hazard = jnp.log(shape) - jnp.log(years) + log_ratio
    with numpyro.plate("patient", len(x)):
        numpyro.factor("time", jnp.where(died, hazard, 0.0) - jnp.exp(log_ratio))


def logistic(x, y):
    """Weights with standard normal priors."""
    w = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


MODELS = {f.__name__: f for f in (hospitals, items, slopes, counties, frailty, logistic)}


def main():
    name, path = sys.argv[1:]
    rows = {key: value if value.ndim else int(value) for key, value in np.load(path).items()}
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(MODELS[name]),
        num_warmup=500,
        num_samples=500,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    began = time.process_time()
    sampler.run(jax.random.PRNGKey(0), **rows)
    draws = {name: np.asarray(value) for name, value in sampler.get_samples(group_by_chain=True).items()}
    seconds = time.process_time() - began
    r_hat = max(float(np.max(part["r_hat"])) for part in summary(draws).values())
    moments = {name: [part.mean((0, 1)).tolist(), part.std((0, 1)).tolist()] for name, part in draws.items()}
    print(json.dumps({"seconds": seconds, "r_hat": r_hat, "moments": moments}))


if __name__ == "__main__":
    main()
