"""Sixteen networks of at most 100 parameters that differ in all but size: full covariances beside diagonal sites.

    python -m benchmarks.networks.sides [--kinds few_rows conv ...] [--seeds 3] [--algorithms "FedEP, full" SVI]

    few_rows       60 rows at three clients, a learned noise
    many_rows      2,000 rows at ten clients, sorted by the first column
    gelu           three layers, GELU
    sigmoid        sigmoid units, a noise of 0.1
    wide_prior     N(0, 3) on all weights
    fan_in         weights of N(0, 1 / columns), softplus units
    laplace_prior  Laplace(0, 1) on all weights
    outliers       Student noise, a tenth of the clients' rows far off
    binary         two labels, Dirichlet 0.3 by label
    one_label      three labels, a client has one
    overdispersed  negative binomial, clients sorted by the first column
    times          Gamma outcomes, a logarithmic link
    ordinal        five ordered levels, cut points of the model's own
    embedding      eight categories as vectors of two numbers, the clients sorted by category
    conv           a convolution over series of twelve numbers, two labels
    two_outcomes   two outcomes a row, each with a scale of its own that depends on the row

`FedEP, full` has full covariances and exact steps, `FedEP, diag` diagonal sites by stochastic gradients; `SVI` is
Pyro's, on the pooled rows, with a diagonal guide. Log density of a test row, mean over seeds ± standard error, the
worst in brackets; how far the intervals of 90 % are from holding 90 % of the test rows, or of labels the expected
calibration error; seconds of the processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor
from torch.nn.functional import conv1d, gelu, softplus

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import quiet
from benchmarks.networks.kinds import curve, layers
from pyro_fed.algorithm import Algorithm
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.metrics import log_predictive_density, predict_rows
from pyro_fed.policy.networks import SMALL_ROUNDS
from pyro_fed.results.to_arviz import unconstrained_draws

TEST, CATEGORIES, LENGTH = 500, 8, 12
LEVEL = 0.9
ALGORITHMS: dict[str, Callable[[], Algorithm]] = {
    "FedEP, full": partial(pf.FedEP, covariance="full"),
    "FedEP, diag": partial(
        pf.FedEP, covariance="diag", client=pf.infer.tilted.IVON(rounds=SMALL_ROUNDS), start="fedavg"
    ),
    "SVI": partial(pf.infer.SVI, guide=AutoDiagonalNormal, num_steps=5000, num_samples=1),
}
Outcome = Callable[[Tensor], Tensor]


class Kind(NamedTuple):
    """A network, its rows, and how they lie at the clients."""

    model: Callable[..., None]
    outcome: Outcome
    rows: int = 240
    clients: int = 5
    columns: int = 3
    inputs: Callable[[int, int], Tensor] = torch.randn
    partition: Callable[[Tensor, Tensor], Any] = lambda x, y: pf.partition.IID()


def regression(
    x: Tensor,
    y: Tensor,
    widths: tuple[int, ...] = (10, 1),
    act: Any = torch.tanh,
    prior: Any = dist.Normal,
    sd: float | Literal["columns"] = 1.0,
) -> None:
    """A learned noise; the prior's scale is given or, for "columns", one over the root of the columns."""
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    out = x
    for number, width in enumerate(widths, 1):
        scale, shift = (out.shape[-1] ** -0.5, 1.0) if sd == "columns" else (sd, sd)
        w = pyro.sample(f"w{number}", prior(out.new_zeros(out.shape[-1], width), scale).to_event(2))
        b = pyro.sample(f"b{number}", prior(out.new_zeros(width), shift).to_event(1))
        out = out @ w + b if number == len(widths) else act(out @ w + b)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(out[..., 0], noise), obs=y)


def outliers(x: Tensor, y: Tensor) -> None:
    """Student noise of learned scale and tails."""
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    tails = pyro.sample("tails", dist.Gamma(2.0, 0.5))
    mean = layers(x, [10, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(1.0 + tails, mean, noise), obs=y)


def binary(x: Tensor, y: Tensor) -> None:
    """Two labels."""
    logit = layers(x, [10, 1], torch.relu)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=logit), obs=y)


def labels(x: Tensor, y: Tensor) -> None:
    """Three labels."""
    logits = layers(x, [10, 3], torch.tanh)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)


def overdispersed(x: Tensor, y: Tensor) -> None:
    """Negative binomial counts."""
    concentration = pyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    mean = softplus(layers(x, [10, 1], torch.tanh)[..., 0])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.NegativeBinomial(concentration, logits=(mean / concentration).log()), obs=y)


def times(x: Tensor, y: Tensor) -> None:
    """Gamma outcomes."""
    shape = pyro.sample("shape", dist.LogNormal(0.0, 1.0))
    mean = layers(x, [10, 1], torch.tanh)[..., 0].exp()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)


def ordinal(x: Tensor, y: Tensor) -> None:
    """Five levels."""
    first = pyro.sample("first", dist.Normal(0.0, 2.0))
    gaps = pyro.sample("gaps", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    cuts = torch.cat([first.unsqueeze(-1), first.unsqueeze(-1) + gaps.cumsum(-1)], -1)
    score = layers(x, [10, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.OrderedLogistic(score, cuts), obs=y)


def embedding(x: Tensor, y: Tensor) -> None:
    """Vectors of the first column's categories beside the others."""
    table = pyro.sample("table", dist.Normal(torch.zeros(CATEGORIES, 2), 1.0).to_event(2))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    mean = layers(torch.cat([table[x[:, 0].long()], x[:, 1:]], -1), [8, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, noise), obs=y)


def conv(x: Tensor, y: Tensor) -> None:
    """Filters of three, the largest over time, and a layer of weights."""
    filters = pyro.sample("filters", dist.Normal(torch.zeros(6, 1, 3), 1.0).to_event(3))
    shift = pyro.sample("shift", dist.Normal(torch.zeros(6), 1.0).to_event(1))
    seen = torch.relu(conv1d(x.unsqueeze(1), filters, shift)).mean(-1)
    logit = layers(seen, [6, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=logit), obs=y)


def two_outcomes(x: Tensor, y: Tensor) -> None:
    """Means and scales of two outcomes."""
    out = layers(x, [10, 4], torch.tanh)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(out[..., :2], softplus(out[..., 2:])).to_event(1), obs=y)


def noisy(scale: float) -> Outcome:
    """The curve and noise."""
    return lambda x: curve(x) + scale * torch.randn(len(x))


def far_off(x: Tensor) -> Tensor:
    """The curve, a tenth of the rows far from it."""
    return curve(x) + 0.2 * torch.randn(len(x)) + 5 * torch.randn(len(x)) * (torch.rand(len(x)) < 0.1)


def three(x: Tensor) -> Tensor:
    """Three labels by the curve and a square."""
    return dist.Categorical(logits=torch.stack([2 * curve(x), 2 * x[:, 2].square() - 1, -2 * curve(x)], -1)).sample()


def counted(x: Tensor) -> Tensor:
    """Counts of concentration two."""
    return torch.poisson(softplus(2 * curve(x)) * torch.distributions.Gamma(2.0, 2.0).sample((len(x),)))


def five(x: Tensor) -> Tensor:
    """Five levels of the curve and logistic noise."""
    latent = 3 * curve(x) + torch.logit(torch.rand(len(x)))
    return torch.bucketize(latent, torch.tensor([-3.0, -1.0, 1.0, 3.0]))


def categories(rows: int, columns: int) -> Tensor:
    """A category and numbers."""
    return torch.cat([torch.randint(CATEGORIES, (rows, 1)).float(), torch.randn(rows, columns - 1)], -1)


def of_category(x: Tensor) -> Tensor:
    """A curve whose height and slope are the category's."""
    return torch.sin(2 * x[:, 1] + x[:, 0]) + 0.3 * x[:, 0] - 1 + 0.3 * torch.randn(len(x))


def falls(x: Tensor) -> Tensor:
    """Whether the steepest fall is steep."""
    return torch.bernoulli((4 * ((x[:, :-1] - x[:, 1:]).amax(-1) - 2.4)).sigmoid())


def both(x: Tensor) -> Tensor:
    """The curve and its square, each with its own noise."""
    mean = torch.stack([curve(x), curve(x).square()], -1)
    return mean + 0.3 * torch.stack([x[:, 2].exp().clamp_max(3.0), torch.ones(len(x))], -1) * torch.randn(len(x), 2)


def first_column(x: Tensor, y: Tensor) -> Any:
    """Clients sorted by the first column."""
    return pf.partition.SortedBy(by=x[:, 0])


KINDS = {
    "few_rows": Kind(regression, noisy(0.3), rows=60, clients=3),
    "many_rows": Kind(regression, noisy(0.3), rows=2000, clients=10, partition=first_column),
    "gelu": Kind(partial(regression, widths=(5, 5, 5, 1), act=gelu), noisy(0.3)),
    "sigmoid": Kind(partial(regression, widths=(12, 1), act=torch.sigmoid), noisy(0.1)),
    "wide_prior": Kind(partial(regression, sd=3.0), noisy(0.3)),
    "fan_in": Kind(partial(regression, widths=(12, 1), act=softplus, sd="columns"), noisy(0.3)),
    "laplace_prior": Kind(partial(regression, prior=dist.Laplace), noisy(0.3)),
    "outliers": Kind(outliers, far_off),
    "binary": Kind(
        binary,
        lambda x: torch.bernoulli((3 * curve(x)).sigmoid()),
        partition=lambda x, y: pf.partition.Dirichlet(0.3, by=y),
    ),
    "one_label": Kind(labels, three, clients=6, partition=lambda x, y: pf.partition.LabelShards(1, by=y)),
    "overdispersed": Kind(overdispersed, counted, partition=first_column),
    "times": Kind(times, lambda x: torch.distributions.Gamma(2.0, 2.0 / curve(x).exp()).sample().clamp_min(1e-6)),
    "ordinal": Kind(ordinal, five, partition=lambda x, y: pf.partition.Dirichlet(0.5, by=y)),
    "embedding": Kind(embedding, of_category, columns=2, inputs=categories, partition=first_column),
    "conv": Kind(conv, falls, columns=LENGTH, rows=400),
    "two_outcomes": Kind(two_outcomes, both),
}


def federation(kind: str, seed: int) -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """The clients and the rows to test on."""
    model, outcome, rows, clients, columns, inputs, partition = KINDS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = inputs(rows + TEST, columns)
        y = outcome(x)
    train, test = (x[:rows], y[:rows]), (x[rows:], y[rows:])
    fed = pf.Federation(model, train, plate="data", num_clients=clients, partition=partition(*train), seed=seed)
    return fed, test


def miscalibration(idata: Any, fed: pf.Federation, test: tuple[Tensor, Tensor], probs: Tensor | None) -> float:
    """The expected calibration error of labels; of other outcomes how far intervals are from holding what they say."""
    if probs is not None:
        return float(calibration_errors(probs, test[1])["ece"])
    drawn = pf.predict(idata, fed, test)["posterior_predictive"]["y"].values
    drawn = drawn.reshape(-1, *test[1].shape)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    value = test[1].numpy()
    return float(abs(((value >= low) & (value <= high)).mean() - LEVEL))


def measured(name: str, kind: str, seed: int) -> tuple[float, float, float]:
    """Log density of a test row, miscalibration, seconds."""
    fed, test = federation(kind, seed)
    began = time.process_time()
    with quiet():
        idata = pf.run(ALGORITHMS[name](), fed, seed=seed, progress=False, audit=False, log_likelihood=False)
        seconds = time.process_time() - began
        found = predict_rows(fed.problem, unconstrained_draws(idata, fed.problem), test)
        return log_predictive_density(found.log_prob), miscalibration(idata, fed, test, found.probs), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("network, parameters", *(title for name in given.algorithms for title in (name, "off, s"))))
    for kind in given.kinds:
        cells = [f"{kind}, {federation(kind, 0)[0].problem.dim}"]
        for name in given.algorithms:
            try:
                found = [measured(name, kind, seed) for seed in range(given.seeds)]
            except pf.errors.DivergenceError:
                cells += ["diverges", "-"]
                continue
            density, off, seconds = (list(values) for values in zip(*found, strict=True))
            cells.append(f"{spread(density)} ({min(density):.3f})")
            cells.append(f"{np.mean(off):.3f}, {np.mean(seconds):.1f}")
        print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
