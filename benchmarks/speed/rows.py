"""What algorithms cost as rows grow, in units of ten hand-written Newton passes over the same rows in one process.

    python -m benchmarks.speed.rows [CASE ...] [--audit] [--profile]

Every case is a process of its own, on one thread. The first run of the model is start-up; the second one, on new data
of the same shapes, is what is compared. Seconds are the processor's; memory is the process's peak. Without --audit the
run is not judged, and the log-likelihoods of all rows are never kept.
"""

import argparse
import cProfile
import pstats
import resource
import time
import warnings
from typing import Any

from benchmarks.helpers.records import alone

CASES: dict[str, tuple[Any, ...]] = {  # model, rows, covariates, clients, and the algorithm where it is not FedEP
    "logistic 1,000 x 50": ("logistic", 1_000, 50, 1),
    "logistic 10,000 x 50": ("logistic", 10_000, 50, 1),
    "logistic 10,000 x 50, 10 clients": ("logistic", 10_000, 50, 10),
    "logistic 100,000 x 50": ("logistic", 100_000, 50, 1),
    "logistic 100,000 x 5": ("logistic", 100_000, 5, 1),
    "logistic 100,000 x 10, 1,000 clients": ("logistic", 100_000, 10, 1_000),
    "robust 100,000 x 50": ("robust", 100_000, 50, 1),
    "Poisson 100,000 x 50, 10 intercepts": ("poisson", 100_000, 50, 10),
    "logistic 1,000,000 x 50, 10 clients": ("logistic", 1_000_000, 50, 10),
    "logistic 1,000,000 x 10, 10,000 clients": ("logistic", 1_000_000, 10, 10_000),
    "logistic 2,000,000 x 10, 100,000 clients": ("logistic", 2_000_000, 10, 100_000),
    "DSVGD, logistic 100,000 x 10, 10 clients": ("logistic", 100_000, 10, 10, "DSVGD"),
    "DSVGD, logistic 100,000 x 10": ("logistic", 100_000, 10, 1, "DSVGD"),
    "FedAIS, logistic 100,000 x 10, 10 clients": ("logistic", 100_000, 10, 10, "FedAIS"),
    "P2PVI, logistic 100,000 x 10, 10 agents": ("logistic", 100_000, 10, 10, "P2PVI"),
    "FSGLD, logistic 100,000 x 10, 10 clients": ("logistic", 100_000, 10, 10, "FSGLD"),
    "FSGLD, logistic 1,000,000 x 10, 10 clients": ("logistic", 1_000_000, 10, 10, "FSGLD"),
    "non-centred ridge 100,000 x 10": ("ridge", 100_000, 10, 1),
    "quantile 100,000 x 10, 10 clients": ("quantile", 100_000, 10, 10),
    "softmax of five 100,000 x 10": ("softmax", 100_000, 10, 1),
}


def models():
    """The models by name, each with how its observations are drawn from a linear predictor."""
    import pyro
    import pyro.distributions as dist
    import torch

    def weights(x):
        return pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))

    def logistic(x, y):
        w = weights(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def robust(x, y):
        w = weights(x)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.StudentT(4.0, x @ w, sigma), obs=y)

    def poisson(x, group, y):
        w = weights(x)
        a = pyro.sample("a", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Poisson((x @ w + a[group]).exp()), obs=y)

    def ridge(x, y):
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ (tau * z), sigma), obs=y)

    def quantile(x, y):
        w = weights(x)
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.AsymmetricLaplace(x @ w, sigma, 1.5), obs=y)

    def softmax(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([5, x.shape[1]]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=x @ w.T), obs=y)

    def noisy(u, g):
        return u + torch.randn(u.shape, generator=g, dtype=u.dtype)

    def five(u, g):
        return (noisy(u, g) + 2.5).clamp(0, 4).long()

    def coins(u, g):
        return (torch.rand(u.shape, generator=g, dtype=u.dtype) < torch.sigmoid(u)).to(u)

    def tailed(u, g):
        noise = torch.randn(u.shape, generator=g, dtype=u.dtype)
        return u + noise / torch.rand(u.shape, generator=g, dtype=u.dtype).clamp_min(0.05).sqrt()

    def counts(u, g):
        return torch.poisson((u / 2).exp(), generator=g)

    return {
        "logistic": (logistic, coins),
        "robust": (robust, tailed),
        "poisson": (poisson, counts),
        "ridge": (ridge, noisy),
        "quantile": (quantile, noisy),
        "softmax": (softmax, five),
    }


def data(kind, rows, covariates, seed):
    """Arguments of a model."""
    import torch

    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, covariates, generator=g, dtype=torch.float64)
    u = x @ torch.linspace(-1, 1, covariates, dtype=torch.float64) / covariates**0.5 * 2
    observed = models()[kind][1](u, g)
    return (x, torch.arange(rows) % 10, observed) if kind == "poisson" else (x, observed)


def newton(x, y, passes=10):
    """Seconds of Newton's passes for a logistic regression, by hand; y of other models is made one of coins."""
    import torch

    began, w = time.process_time(), torch.zeros(x.shape[1], dtype=x.dtype)
    y = (y > y.double().mean()).to(x)
    for _ in range(passes):
        p = torch.sigmoid(x @ w)
        hessian = x.T @ (x * (p * (1 - p)).unsqueeze(1)) + torch.eye(len(w), dtype=x.dtype)
        w = w + torch.linalg.solve(hessian, x.T @ (y - p) - w)
    return time.process_time() - began


def work(case, audit, profile):
    """One case: its line."""
    import torch

    import pyro_fed as pf

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kind, rows, covariates, clients, *named = CASES[case]
    algorithm = getattr(pf.infer, named[0] if named else "FedEP")()
    model = models()[kind][0]
    options: dict[str, Any] = {"graph": pf.graph.ring(clients)} if named == ["P2PVI"] else {}
    seconds, rounds, size = [], 0, 0
    for seed in (1, 2):
        arguments = data(kind, rows, covariates, seed)
        size = sum(part.numel() * part.element_size() for part in arguments)
        watch = cProfile.Profile() if profile and seed == 2 else None
        began = time.process_time()
        if watch:
            watch.enable()
        fed = pf.Federation(model, arguments, plate="data", num_clients=clients)
        made = time.process_time() - began
        idata = pf.run(algorithm, fed, progress=False, log_likelihood=False, audit=audit, **options)
        seconds.append(time.process_time() - began)
        rounds = len(idata["federation"]["round"])
        if watch:
            watch.disable()
            pstats.Stats(watch).sort_stats("tottime").print_stats(25)
            pstats.Stats(watch).sort_stats("cumulative").print_stats("pyro_fed", 45)
        del fed, idata
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    passes = min(newton(arguments[0], arguments[-1]) for _ in range(3))
    print(
        f"{case:42s}{passes:8.3f}{seconds[0]:9.2f}{seconds[1]:9.2f}{made:8.2f}{seconds[1] / passes:9.1f}"
        f"{1e6 * seconds[1] / rows:11.1f}{rounds:7d}{peak / 1e9:8.2f}{size / 1e9:7.2f}",
        flush=True,
    )


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    print(
        f"{'':42s}{'10 passes':>8s}{'first':>8s}{'again':>9s}{'made in':>8s}{'ratio':>9s}{'us a row':>11s}"
        f"{'rounds':>7s}{'peak GB':>8s}{'data':>7s}",
        flush=True,
    )
    for case in given.cases:
        alone(work, case, given.audit, given.profile)


if __name__ == "__main__":
    main()
