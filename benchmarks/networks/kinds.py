"""Networks that are no classifier of many labels: noise scales, tails, counts, depth, by the algorithms' defaults.

    python -m benchmarks.networks.kinds
    python -m benchmarks.networks.kinds --kinds wave counts --algorithms FedEP --seeds 5
    python -m benchmarks.networks.kinds --kinds horseshoe relevance layered --algorithms FedEP P2PVI [--noncentred]
    python -m benchmarks.networks.kinds --kinds horseshoe relevance layered --algorithms FedEP --noncentred --rounds 600

One hidden layer with N(0, 1) on its weights, if nothing else is said; 400 rows to train on at ten clients, 400 to test:

    wave           a curve with little noise, 0.05, whose scale is learned; 20 tanh units
    noisy          as many columns as ten, most of the variance noise, its scale learned; 20 tanh units
    rectified      the same curve, 20 ReLU units
    deep           the same curve, three layers of ten tanh units
    narrow         the same curve, 50 units whose outgoing weights have a variance of 1 / 50
    known          the same curve, the scale given
    two_scales     a mean and a scale of each row, both outputs of the network; 10 tanh units
    tails          Student noise of three degrees of freedom, its scale learned; 20 tanh units
    counts         Poisson of a softplus; 20 tanh units
    overdispersed  negative binomial, its concentration learned; 20 tanh units
    binary         two labels; 20 tanh units

and those whose weights' scales are latent themselves, run where they are asked for: six columns of which two count,
noise of 0.3, its scale learned, 20 tanh units; `--noncentred` runs them with weights in units of their scales.

    horseshoe      a half-Cauchy scale of each weight of the first layer, times one of all
    relevance      a half-Cauchy scale of each column's weights
    layered        a scale of each layer's weights, half-normal and lognormal

Log density of a test row, and seconds of the processor; `SVI` is Pyro's own on the pooled rows with `FedEP`'s family,
5,000 steps. Mean ± standard error over seeds, which draw the rows and are those of the runs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoDiagonalNormal
from torch import Tensor
from torch.nn.functional import softplus

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row, spread
from benchmarks.networks.__main__ import quiet
from pyro_fed.algorithm import Algorithm

CLIENTS, TRAIN, TEST, NOISE = 10, 400, 400, 0.05
ALGORITHMS: dict[str, tuple[Callable[[], Algorithm], dict[str, Any]]] = {
    "SVI": (partial(pf.infer.SVI, guide=AutoDiagonalNormal, num_steps=5000, num_samples=1), {}),
    "FedEP": (pf.FedEP, {}),
    "P2PVI": (pf.P2PVI, {"graph": pf.graph.ring(CLIENTS)}),
    "FSGLD": (pf.FSGLD, {}),
    "DSVGD": (pf.DSVGD, {}),
}


def layers(x: Tensor, widths: list[int], act: Callable[[Tensor], Tensor], last: float = 1.0) -> Tensor:
    """Outputs of a network, its weights among the model's sites."""
    for number, width in enumerate(widths, 1):
        final = number == len(widths)
        sd = last if final else 1.0
        w = pyro.sample(f"w{number}", dist.Normal(x.new_zeros(x.shape[-1], width), sd).to_event(2))
        b = pyro.sample(f"b{number}", dist.Normal(x.new_zeros(width), 1.0).to_event(1))
        x = x @ w + b if final else act(x @ w + b)
    return x


def curve(x: Tensor) -> Tensor:
    """What the rows follow."""
    return torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1]


def regression(
    x: Tensor, y: Tensor, widths: tuple[int, ...] = (20, 1), act: Any = torch.tanh, last: float = 1.0
) -> None:
    """A learned noise scale."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    mean = layers(x, list(widths), act, last)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, scale), obs=y)


def known(x: Tensor, y: Tensor) -> None:
    """The scale given."""
    mean = layers(x, [20, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, NOISE), obs=y)


def two_scales(x: Tensor, y: Tensor) -> None:
    """A mean and a scale of each row."""
    out = layers(x, [10, 2], torch.tanh)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(out[..., 0], out[..., 1].exp()), obs=y)


def tails(x: Tensor, y: Tensor) -> None:
    """Student noise."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    mean = layers(x, [20, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.StudentT(3.0, mean, scale), obs=y)


def counts(x: Tensor, y: Tensor) -> None:
    """Poisson of a softplus."""
    rate = softplus(layers(x, [20, 1], torch.tanh)[..., 0])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson(rate), obs=y)


def overdispersed(x: Tensor, y: Tensor) -> None:
    """Negative binomial."""
    concentration = pyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    mean = softplus(layers(x, [20, 1], torch.tanh)[..., 0])
    logits = (mean / concentration).log()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.NegativeBinomial(concentration, logits=logits), obs=y)


def binary(x: Tensor, y: Tensor) -> None:
    """Two labels."""
    logit = layers(x, [20, 1], torch.tanh)[..., 0]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=logit), obs=y)


def scaled(
    x: Tensor, y: Tensor, first: Callable[[Tensor, int], Tensor], last: Callable[[], Any], units: int = 20
) -> None:
    """Weights whose scales are latents, and a learned noise scale."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(x.shape[1], units), first(x, units)).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(units), 1.0).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(units), last()).to_event(1))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(torch.tanh(x @ w1 + b1) @ w2 + b2, scale), obs=y)


def of_each_weight(x: Tensor, units: int) -> Tensor:
    """Horseshoe scales."""
    overall = pyro.sample("overall", dist.HalfCauchy(x.new_ones(())))
    return overall * pyro.sample("own", dist.HalfCauchy(x.new_ones(x.shape[1], units)).to_event(2))


def of_each_column(x: Tensor, units: int) -> Tensor:
    """Automatic relevance determination."""
    return pyro.sample("relevance", dist.HalfCauchy(x.new_ones(x.shape[1])).to_event(1))[:, None].expand(-1, units)


def of_the_layer(x: Tensor, units: int) -> Tensor:
    """One of all weights."""
    return pyro.sample("first", dist.HalfNormal(x.new_ones(())))


def one() -> float:
    """The last layer's, given."""
    return 1.0


def learned_last() -> Any:
    """The last layer's, a latent."""
    return pyro.sample("last", dist.LogNormal(0.0, 1.0))


class Kind(NamedTuple):
    """A model, how many columns it has, and how its outcomes are drawn from them."""

    model: Callable[..., None]
    columns: int
    outcome: Callable[[Tensor], Tensor]


def quiet_curve(x: Tensor) -> Tensor:
    """The curve and a little noise."""
    return curve(x) + NOISE * torch.randn(len(x))


def negative_binomial(x: Tensor) -> Tensor:
    """Counts of concentration two."""
    mean = softplus(2 * curve(x))
    return torch.poisson(mean * torch.distributions.Gamma(2.0, 2.0).sample(mean.shape))


def student(x: Tensor) -> Tensor:
    """The curve and noise of scale 0.2."""
    return curve(x) + 0.2 * torch.distributions.StudentT(3.0).sample((len(x),))


def noisy_curve(x: Tensor) -> Tensor:
    """The curve and noise of 0.3."""
    return curve(x) + 0.3 * torch.randn(len(x))


KINDS = {
    "wave": Kind(regression, 3, quiet_curve),
    "noisy": Kind(regression, 10, lambda x: 0.7 * curve(x) + 0.8 * torch.randn(len(x))),
    "rectified": Kind(partial(regression, act=torch.relu), 3, quiet_curve),
    "deep": Kind(partial(regression, widths=(10, 10, 10, 1)), 3, quiet_curve),
    "narrow": Kind(partial(regression, widths=(50, 1), last=50**-0.5), 3, quiet_curve),
    "known": Kind(known, 3, quiet_curve),
    "two_scales": Kind(two_scales, 3, lambda x: curve(x) + 0.3 * x[:, 2].exp() * torch.randn(len(x))),
    "tails": Kind(tails, 3, student),
    "counts": Kind(counts, 3, lambda x: torch.poisson(softplus(2 * curve(x)))),
    "overdispersed": Kind(overdispersed, 3, negative_binomial),
    "binary": Kind(binary, 3, lambda x: torch.bernoulli((3 * curve(x)).sigmoid())),
}
#: Those whose weights' scales are latent.
HIERARCHIES = {
    "horseshoe": Kind(partial(scaled, first=of_each_weight, last=one), 6, noisy_curve),
    "relevance": Kind(partial(scaled, first=of_each_column, last=one), 6, noisy_curve),
    "layered": Kind(partial(scaled, first=of_the_layer, last=learned_last), 6, noisy_curve),
}


def measured(kind: str, name: str, seed: int, noncentred: bool, rounds: int | None) -> tuple[float, float]:
    """Log density of a test row, and seconds."""
    model, columns, outcome = (KINDS | HIERARCHIES)[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = torch.randn(TRAIN + TEST, columns)
        y = outcome(x)
    train, test = (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])
    fed = pf.Federation(model, train, plate="data", num_clients=CLIENTS, seed=seed)
    fed = fed.noncentred if noncentred else fed
    make, options = ALGORITHMS[name]
    if rounds is not None and name != "SVI":  # which counts steps
        options = {**options, "num_rounds": rounds}
    began = time.process_time()
    with quiet():
        idata = pf.run(make(), fed, seed=seed, progress=False, audit=False, log_likelihood=False, **options)
        seconds = time.process_time() - began
        return float(pf.metrics.test_metrics(idata, fed, test)["log_predictive_density"]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=KINDS | HIERARCHIES, default=list(KINDS))
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--noncentred", action="store_true", help="with weights in units of their scales")
    parser.add_argument("--rounds", type=int, help="of the federated algorithms, in place of their defaults")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(heading("network", *(f"`{name}`" for name in given.algorithms), "seconds"))
    for kind in given.kinds:
        cells, seconds = [], []
        for name in given.algorithms:
            try:
                found = [measured(kind, name, seed, given.noncentred, given.rounds) for seed in range(given.seeds)]
            except pf.errors.DivergenceError:
                cells.append("diverges")
                seconds.append("-")
                continue
            cells.append(spread([density for density, _ in found]))
            seconds.append(f"{sum(spent for _, spent in found) / given.seeds:.1f}")
        print(row(kind, *cells, ", ".join(seconds)), flush=True)


if __name__ == "__main__":
    main()
