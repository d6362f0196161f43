"""Networks that are no classifier of many labels, in three sets: about 100 parameters, 10 to 100, and sixteen kinds.

    python -m benchmarks.networks.kinds [--kinds wave counts] [--algorithms FedEP SVI] [--seeds 5]
    python -m benchmarks.networks.kinds --kinds horseshoe relevance --algorithms FedEP [--noncentred] [--rounds 600]
    python -m benchmarks.networks.kinds --set small [--kinds known counts] [--units 5 12] [--algorithms "P2PVI, full"]
    python -m benchmarks.networks.kinds --set sides [--kinds few_rows conv] [--algorithms "FedEP, full" SVI]

N(0, 1) on all weights, one hidden layer of tanh units and a curve of three columns, if nothing else is said. Log
density of a test row, mean ± standard error over seeds (which draw the rows and are those of the runs), the worst in
brackets, and seconds of the processor. `SVI` is Pyro's own on the pooled rows with a diagonal guide, 5,000 steps.
`NAME, full` has full covariances and exact steps, `NAME, diag` diagonal sites by stochastic gradients.

`--set kinds`, 400 rows at ten clients, 20 units:

    wave           a curve with little noise, 0.05, whose scale is learned
    noisy          as many columns as ten, most of the variance noise, its scale learned
    rectified      the same curve as `wave`, ReLU units
    deep           the same curve, three layers of ten units
    narrow         the same curve, 50 units whose outgoing weights have a variance of 1 / 50
    known          the same curve, the scale given
    two_scales     a mean and a scale of each row, both outputs of the network; 10 units
    tails          Student noise of three degrees of freedom, its scale learned
    counts         Poisson of a softplus
    overdispersed  negative binomial, its concentration learned
    binary         two labels

and, run where they are asked for, those whose weights' scales are latent themselves: six columns of which two count,
noise of 0.3, its scale learned; `--noncentred` runs them with weights in units of their scales.

    horseshoe      a half-Cauchy scale of each weight of the first layer, times one of all
    relevance      a half-Cauchy scale of each column's weights
    layered        a scale of each layer's weights, half-normal and lognormal

`--set small`, 240 rows at five clients, `--units`, noise of 0.3: `known`, `learned`, `quiet` (0.05), `rectified`,
`deep` (two layers), `two_scales`, `counts`, and `classes` (three labels).

`--set sides`, 240 rows at five clients, 51 to 87 parameters; beside the seconds how far the intervals of 90 % are from
holding 90 % of the test rows, or of labels the expected calibration error:

    few_rows       60 rows at three clients, a learned noise
    many_rows      2,000 rows at ten clients, sorted by the first column
    gelu           three layers, GELU
    sigmoid        sigmoid units, a noise of 0.1
    wide_prior     N(0, 3) on all weights
    fan_in         weights of N(0, 1 / columns), softplus units
    laplace_prior  Laplace(0, 1) on all weights
    outliers       Student noise, a tenth of the clients' rows far off
    binary         two labels, ReLU, Dirichlet 0.3 by label
    one_label      three labels, a client has one
    overdispersed  negative binomial, clients sorted by the first column
    times          Gamma outcomes, a logarithmic link
    ordinal        five ordered levels, cut points of the model's own
    embedding      eight categories as vectors of two numbers, the clients sorted by category
    conv           a convolution over series of twelve numbers, two labels
    two_outcomes   two outcomes a row, each with a scale of its own that depends on the row
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
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.metrics import predict_rows
from pyro_fed.policy.gaussian import SMALL_ROUNDS
from pyro_fed.results.to_arviz import unconstrained_draws

CATEGORIES, LENGTH, LEVEL = 8, 12, 0.9
Outcome = Callable[[Tensor], Tensor]


class Kind(NamedTuple):
    """A network, its rows, and how they lie at the clients."""

    model: Callable[..., None]
    outcome: Outcome
    columns: int = 3
    rows: int = 240
    clients: int = 5
    inputs: Callable[[int, int], Tensor] = torch.randn
    partition: Callable[[Tensor, Tensor], Any] = lambda x, y: pf.partition.IID()


# -- models -----------------------------------------------------------------------------------------------------------
def layers(
    x: Tensor,
    widths: tuple[int, ...],
    act: Any = torch.tanh,
    last: float | None = None,
    prior: Any = dist.Normal,
    sd: float | Literal["columns"] = 1.0,
) -> Tensor:
    """Outputs of a network of weights of scale `sd` ("columns": one over their root), `last` in the last layer."""
    for number, width in enumerate(widths, 1):
        final = number == len(widths)
        of_weights, of_shifts = (x.shape[-1] ** -0.5, 1.0) if sd == "columns" else (sd, sd)
        of_weights = last if final and last is not None else of_weights
        w = pyro.sample(f"w{number}", prior(x.new_zeros(x.shape[-1], width), of_weights).to_event(2))
        b = pyro.sample(f"b{number}", prior(x.new_zeros(width), of_shifts).to_event(1))
        x = x @ w + b if final else act(x @ w + b)
    return x


def observe(y: Tensor, density: Any) -> None:
    with pyro.plate("data", len(y)):
        pyro.sample("y", density, obs=y)


def regression(x: Tensor, y: Tensor, widths: tuple[int, ...] = (20, 1), **network: Any) -> None:
    """A learned noise scale."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    observe(y, dist.Normal(layers(x, widths, **network)[..., 0], scale))


def known(x: Tensor, y: Tensor, units: int = 20, noise: float = 0.05) -> None:
    """The scale given."""
    observe(y, dist.Normal(layers(x, (units, 1))[..., 0], noise))


def two_scales(x: Tensor, y: Tensor, units: int = 10) -> None:
    """A mean and a scale of each row."""
    out = layers(x, (units, 2))
    observe(y, dist.Normal(out[..., 0], out[..., 1].exp()))


def tails(x: Tensor, y: Tensor) -> None:
    """Student noise."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    observe(y, dist.StudentT(3.0, layers(x, (20, 1))[..., 0], scale))


def outliers(x: Tensor, y: Tensor) -> None:
    """Student noise of learned scale and tails."""
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    freedom = pyro.sample("tails", dist.Gamma(2.0, 0.5))
    observe(y, dist.StudentT(1.0 + freedom, layers(x, (10, 1))[..., 0], scale))


def counts(x: Tensor, y: Tensor, units: int = 20) -> None:
    """Poisson of a softplus."""
    observe(y, dist.Poisson(softplus(layers(x, (units, 1))[..., 0])))


def overdispersed(x: Tensor, y: Tensor, units: int = 20) -> None:
    """Negative binomial counts."""
    concentration = pyro.sample("concentration", dist.LogNormal(0.0, 1.0))
    mean = softplus(layers(x, (units, 1))[..., 0])
    observe(y, dist.NegativeBinomial(concentration, logits=(mean / concentration).log()))


def binary(x: Tensor, y: Tensor, units: int = 20, act: Any = torch.tanh) -> None:
    """Two labels."""
    observe(y, dist.Bernoulli(logits=layers(x, (units, 1), act)[..., 0]))


def classes(x: Tensor, y: Tensor, units: int = 10) -> None:
    """Three labels."""
    observe(y, dist.Categorical(logits=layers(x, (units, 3))))


def times(x: Tensor, y: Tensor) -> None:
    """Gamma outcomes."""
    shape = pyro.sample("shape", dist.LogNormal(0.0, 1.0))
    observe(y, dist.Gamma(shape, shape / layers(x, (10, 1))[..., 0].exp()))


def ordinal(x: Tensor, y: Tensor) -> None:
    """Five levels."""
    first = pyro.sample("first", dist.Normal(0.0, 2.0))
    gaps = pyro.sample("gaps", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))
    cuts = torch.cat([first.unsqueeze(-1), first.unsqueeze(-1) + gaps.cumsum(-1)], -1)
    observe(y, dist.OrderedLogistic(layers(x, (10, 1))[..., 0], cuts))


def embedding(x: Tensor, y: Tensor) -> None:
    """Vectors of the first column's categories beside the others."""
    table = pyro.sample("table", dist.Normal(torch.zeros(CATEGORIES, 2), 1.0).to_event(2))
    noise = pyro.sample("noise", dist.HalfNormal(1.0))
    mean = layers(torch.cat([table[x[:, 0].long()], x[:, 1:]], -1), (8, 1))[..., 0]
    observe(y, dist.Normal(mean, noise))


def conv(x: Tensor, y: Tensor) -> None:
    """Filters of three, their mean over time, and a layer of weights."""
    filters = pyro.sample("filters", dist.Normal(torch.zeros(6, 1, 3), 1.0).to_event(3))
    shift = pyro.sample("shift", dist.Normal(torch.zeros(6), 1.0).to_event(1))
    seen = torch.relu(conv1d(x.unsqueeze(1), filters, shift)).mean(-1)
    observe(y, dist.Bernoulli(logits=layers(seen, (6, 1))[..., 0]))


def two_outcomes(x: Tensor, y: Tensor) -> None:
    """Means and scales of two outcomes."""
    out = layers(x, (10, 4))
    observe(y, dist.Normal(out[..., :2], softplus(out[..., 2:])).to_event(1))


def scaled(
    x: Tensor, y: Tensor, first: Callable[[Tensor, int], Tensor], last: Callable[[], Any] = lambda: 1.0, units: int = 20
) -> None:
    """Weights whose scales are latents, and a learned noise scale."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(x.shape[1], units), first(x, units)).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(units), 1.0).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(units), last()).to_event(1))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(()), 1.0))
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    observe(y, dist.Normal(torch.tanh(x @ w1 + b1) @ w2 + b2, scale))


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


def learned_last() -> Any:
    """The last layer's, a latent."""
    return pyro.sample("last", dist.LogNormal(0.0, 1.0))


# -- rows -------------------------------------------------------------------------------------------------------------
def curve(x: Tensor) -> Tensor:
    """What the rows follow."""
    return torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1]


def noisy(scale: float) -> Outcome:
    """The curve and noise."""
    return lambda x: curve(x) + scale * torch.randn(len(x))


def student(x: Tensor) -> Tensor:
    """The curve and noise of scale 0.2."""
    return curve(x) + 0.2 * torch.distributions.StudentT(3.0).sample((len(x),))


def far_off(x: Tensor) -> Tensor:
    """The curve, a tenth of the rows far from it."""
    return curve(x) + 0.2 * torch.randn(len(x)) + 5 * torch.randn(len(x)) * (torch.rand(len(x)) < 0.1)


def poisson(x: Tensor) -> Tensor:
    """Counts."""
    return torch.poisson(softplus(2 * curve(x)))


def negative_binomial(x: Tensor) -> Tensor:
    """Counts of concentration two."""
    return torch.poisson(softplus(2 * curve(x)) * torch.distributions.Gamma(2.0, 2.0).sample((len(x),)))


def coins(x: Tensor) -> Tensor:
    """Two labels."""
    return torch.bernoulli((3 * curve(x)).sigmoid())


def three(x: Tensor) -> Tensor:
    """Three labels by the curve and a square."""
    return dist.Categorical(logits=torch.stack([2 * curve(x), 2 * x[:, 2].square() - 1, -2 * curve(x)], -1)).sample()


def five(x: Tensor) -> Tensor:
    """Five levels of the curve and logistic noise."""
    latent = 3 * curve(x) + torch.logit(torch.rand(len(x)))
    return torch.bucketize(latent, torch.tensor([-3.0, -1.0, 1.0, 3.0]))


def widening(x: Tensor) -> Tensor:
    """The curve and noise that depends on the third column."""
    return curve(x) + 0.3 * x[:, 2].exp() * torch.randn(len(x))


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


# -- the sets ---------------------------------------------------------------------------------------------------------
LARGER = partial(Kind, rows=400, clients=10)
KINDS = {
    "wave": LARGER(regression, noisy(0.05)),
    "noisy": LARGER(regression, lambda x: 0.7 * curve(x) + 0.8 * torch.randn(len(x)), 10),
    "rectified": LARGER(partial(regression, act=torch.relu), noisy(0.05)),
    "deep": LARGER(partial(regression, widths=(10, 10, 10, 1)), noisy(0.05)),
    "narrow": LARGER(partial(regression, widths=(50, 1), last=50**-0.5), noisy(0.05)),
    "known": LARGER(known, noisy(0.05)),
    "two_scales": LARGER(two_scales, widening),
    "tails": LARGER(tails, student),
    "counts": LARGER(counts, poisson),
    "overdispersed": LARGER(overdispersed, negative_binomial),
    "binary": LARGER(binary, coins),
}
#: Those whose weights' scales are latent.
HIERARCHIES = {
    "horseshoe": LARGER(partial(scaled, first=of_each_weight), noisy(0.3), 6),
    "relevance": LARGER(partial(scaled, first=of_each_column), noisy(0.3), 6),
    "layered": LARGER(partial(scaled, first=of_the_layer, last=learned_last), noisy(0.3), 6),
}
SIDES = {
    "few_rows": Kind(partial(regression, widths=(10, 1)), noisy(0.3), rows=60, clients=3),
    "many_rows": Kind(partial(regression, widths=(10, 1)), noisy(0.3), rows=2000, clients=10, partition=first_column),
    "gelu": Kind(partial(regression, widths=(5, 5, 5, 1), act=gelu), noisy(0.3)),
    "sigmoid": Kind(partial(regression, widths=(12, 1), act=torch.sigmoid), noisy(0.1)),
    "wide_prior": Kind(partial(regression, widths=(10, 1), sd=3.0), noisy(0.3)),
    "fan_in": Kind(partial(regression, widths=(12, 1), act=softplus, sd="columns"), noisy(0.3)),
    "laplace_prior": Kind(partial(regression, widths=(10, 1), prior=dist.Laplace), noisy(0.3)),
    "outliers": Kind(outliers, far_off),
    "binary": Kind(
        partial(binary, units=10, act=torch.relu), coins, partition=lambda x, y: pf.partition.Dirichlet(0.3, by=y)
    ),
    "one_label": Kind(classes, three, clients=6, partition=lambda x, y: pf.partition.LabelShards(1, by=y)),
    "overdispersed": Kind(partial(overdispersed, units=10), negative_binomial, partition=first_column),
    "times": Kind(times, lambda x: torch.distributions.Gamma(2.0, 2.0 / curve(x).exp()).sample().clamp_min(1e-6)),
    "ordinal": Kind(ordinal, five, partition=lambda x, y: pf.partition.Dirichlet(0.5, by=y)),
    "embedding": Kind(embedding, of_category, columns=2, inputs=categories, partition=first_column),
    "conv": Kind(conv, falls, columns=LENGTH, rows=400),
    "two_outcomes": Kind(two_outcomes, both),
}


def small(units: int) -> dict[str, Kind]:
    """The small networks of so many units, or of half as many in each of two layers."""
    learned = partial(regression, widths=(units, 1))
    return {
        "known": Kind(partial(known, units=units, noise=0.3), noisy(0.3)),
        "learned": Kind(learned, noisy(0.3)),
        "quiet": Kind(learned, noisy(0.05)),
        "rectified": Kind(partial(learned, act=torch.relu), noisy(0.3)),
        "deep": Kind(partial(regression, widths=(-(-units // 2), -(-units // 2), 1)), noisy(0.3)),
        "two_scales": Kind(partial(two_scales, units=units), widening),
        "counts": Kind(partial(counts, units=units), poisson),
        "classes": Kind(partial(classes, units=units), three),
    }


class Set(NamedTuple):
    """Kinds that are run together, those that are run if none is named, and the algorithms and seeds by default."""

    kinds: dict[str, Kind]
    usual: list[str]
    algorithms: list[str]
    seeds: int
    test_rows: int = 400


def sets(units: list[int]) -> dict[str, Set]:
    """The sets by name."""
    by_units = {f"{name}, {number}": kind for number in units for name, kind in small(number).items()}
    names = ["FedEP", "FedSEP", "PVI", "P2PVI", "FedLap", "FedLapCov", "BayesADMM", "FSGLD", "DSVGD", "FedAIS"]
    return {
        "kinds": Set(KINDS | HIERARCHIES, list(KINDS), ["SVI", "FedEP", "P2PVI", "FSGLD", "DSVGD"], 3),
        "small": Set(by_units, list(by_units), names, 2),
        "sides": Set(SIDES, list(SIDES), ["FedEP, full", "FedEP, diag", "SVI"], 3, 500),
    }


#: What is set beside covariance="diag" to have the steps of large models; of the others they are the default's.
DIAGONAL: dict[str, dict[str, Any]] = {
    "FedEP": {"client": pf.infer.tilted.IVON(rounds=SMALL_ROUNDS), "start": "fedavg"}
}


def algorithm_of(label: str) -> Any:
    """An algorithm by its defaults, or, of "FedEP, diag", with one side of the threshold set by hand."""
    name, _, side = label.partition(", ")
    if name == "SVI":
        return pf.infer.SVI(guide=AutoDiagonalNormal, num_steps=5000, num_samples=1)
    settings = {"covariance": side, **(DIAGONAL.get(name, {}) if side == "diag" else {})} if side else {}
    return getattr(pf.infer, name)(**settings)


def federation(kind: Kind, seed: int, test_rows: int) -> tuple[pf.Federation, tuple[Tensor, Tensor]]:
    """The clients and the rows to test on."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        x = kind.inputs(kind.rows + test_rows, kind.columns)
        y = kind.outcome(x)
    train, test = (x[: kind.rows], y[: kind.rows]), (x[kind.rows :], y[kind.rows :])
    how: dict[str, Any] = {"num_clients": kind.clients, "partition": kind.partition(*train), "seed": seed}
    return pf.Federation(kind.model, train, plate="data", **how), test


def miscalibration(idata: Any, fed: pf.Federation, test: tuple[Tensor, Tensor]) -> float:
    """The expected calibration error of labels; of other outcomes how far intervals are from holding what they say."""
    probs = predict_rows(fed.problem, unconstrained_draws(idata, fed.problem), test).probs
    if probs is not None:
        return float(calibration_errors(probs, test[1])["ece"])
    drawn = pf.predict(idata, fed, test)["posterior_predictive"]["y"].values
    low, high = np.quantile(drawn.reshape(-1, *test[1].shape), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    value = test[1].numpy()
    return float(abs(((value >= low) & (value <= high)).mean() - LEVEL))


def measured(label: str, kind: Kind, seed: int, given: Any) -> tuple[float, float, float]:
    """Log density of a test row, minus infinity where there is none, miscalibration, seconds."""
    fed, test = federation(kind, seed, sets(given.units)[given.set].test_rows)
    fed = fed.noncentred if given.noncentred else fed
    algorithm = algorithm_of(label)
    options: dict[str, Any] = {"graph": pf.graph.ring(kind.clients)} if isinstance(algorithm, pf.P2PVI) else {}
    if given.rounds is not None and label != "SVI":  # which counts steps
        options["num_rounds"] = given.rounds
    began = time.process_time()
    try:
        with quiet():
            idata = pf.run(algorithm, fed, seed=seed, progress=False, audit=False, log_likelihood=False, **options)
            seconds = time.process_time() - began
            density = float(pf.metrics.test_metrics(idata, fed, test)["log_predictive_density"])
            return density, miscalibration(idata, fed, test) if given.set == "sides" else np.nan, seconds
    except (pf.errors.DivergenceError, pf.errors.QuorumError, pf.errors.DataError):  # the last of predictions of NaN
        return -np.inf, np.nan, time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=["kinds", "small", "sides"], default="kinds")
    parser.add_argument("--kinds", nargs="+", help="of the set")
    parser.add_argument("--units", nargs="+", type=int, default=[5, 12], help="of the small networks")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--algorithms", nargs="+")
    parser.add_argument("--noncentred", action="store_true", help="with weights in units of their scales")
    parser.add_argument("--rounds", type=int, help="of the federated algorithms, in place of their defaults")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen, with_off = sets(given.units)[given.set], given.set == "sides"
    labels, seeds = given.algorithms or chosen.algorithms, range(given.seeds or chosen.seeds)
    wanted = given.kinds or chosen.usual
    last = "off, s" if with_off else "s"
    print(heading("network, parameters", *(title for label in labels for title in (f"`{label}`", last))))
    for name, kind in chosen.kinds.items():
        if name not in wanted and name.partition(",")[0] not in wanted:
            continue
        cells = [f"{name}, {federation(kind, 0, chosen.test_rows)[0].problem.dim}"]
        for label in labels:
            found = [measured(label, kind, seed, given) for seed in seeds]
            density, off, seconds = (list(part) for part in zip(*found, strict=True))
            cells.append(f"{spread(density)} ({min(density):.3f})" if np.isfinite(density).all() else "diverges")
            spent = f"{np.mean(seconds):.1f}"
            cells.append(f"{np.mean(off):.3f}, {spent}" if with_off else spent)
        print(row(*cells), flush=True)


if __name__ == "__main__":
    main()
