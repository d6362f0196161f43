"""Chains over clients' scores on posteriors of 10 to 50 dimensions: FedHMC beside FSGLD and NUTS on the pooled rows.

    python -m benchmarks.accuracy.exact_chains [--cases schools,walk] [--rounds 2500]

The errors of FedHMC, also on the non-centred form where there is one, and of FSGLD, all from FedEP's Gaussian, with
their rounds (those of FedEP included). The reference of `walk`, a local level model, is exact: its scales by a grid,
the levels given them by Kalman's Gaussian. The others' are four chains of 1,500 draws of NUTS on a non-centred form
that is written by hand; the steps that one of its chains makes for an effective draw are printed, too. Positive sites
are compared by their logarithms. A reference has an error of 0.03 SDs itself.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.tables import heading, row

WALK_TIMES, GROUPS, COEFFICIENTS, PERSONS, ITEMS = 40, 15, 15, 25, 12
QUIET: dict[str, Any] = {"seed": 0, "progress": False, "log_likelihood": False, "audit": False}
GRID = np.linspace(0.005, 1.6, 90)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def normals(*shape: int) -> Any:
    """Standard normals of independent entries."""
    return dist.Normal(torch.zeros(shape, dtype=torch.float64), 1.0).to_event(len(shape))


def effects(name: str, loc: Tensor, scale: Tensor, size: int, apart: bool) -> Tensor:
    """Normal effects, or these as a deterministic site of standard normals."""
    if not apart:
        centred: Tensor = pyro.sample(name, dist.Normal(loc, scale).expand([size]).to_event(1))
        return centred
    found: Tensor = pyro.deterministic(name, loc + scale * pyro.sample(f"{name}_unit", normals(size)))
    return found


def observe(y: Tensor, density: Any) -> None:
    with pyro.plate("data", len(y)):
        pyro.sample("y", density, obs=y)


def schools(apart: bool) -> Callable[..., None]:
    def model(group: Tensor, y: Tensor, sd: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(number(0.0), 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(number(5.0)))
        observe(y, dist.Normal(effects("theta", mu, tau, 8, apart)[group], sd))

    return model


def walk(apart: bool) -> Callable[..., None]:
    def model(at: Tensor, y: Tensor) -> None:
        q, r = (pyro.sample(name, dist.HalfNormal(number(1.0))) for name in ("q", "r"))
        sizes = torch.cat([torch.ones(1, dtype=torch.float64), q.expand(WALK_TIMES - 1)])
        zero = torch.zeros(WALK_TIMES, dtype=torch.float64)
        z = pyro.sample("z", dist.MultivariateNormal(zero, scale_tril=torch.tril(sizes.expand(WALK_TIMES, -1))))
        observe(y, dist.Normal(z[at], r))

    return model


def correlated(apart: bool) -> Callable[..., None]:
    def model(group: Tensor, x: Tensor, y: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(torch.zeros(2, dtype=torch.float64), 3.0).to_event(1))
        sd = pyro.sample("sd", dist.HalfNormal(torch.ones(2, dtype=torch.float64)).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(number(2.0)))
        root = sd[:, None] * pyro.sample("L", dist.LKJCholesky(2, number(2.0)))
        if apart:
            u = pyro.deterministic("u", pyro.sample("unit", normals(GROUPS, 2)) @ root.T)
        else:
            zero = torch.zeros(GROUPS, 2, dtype=torch.float64)
            u = pyro.sample("u", dist.MultivariateNormal(zero, scale_tril=root).to_event(1))
        observe(y, dist.Normal(m[0] + u[group, 0] + (m[1] + u[group, 1]) * x, s))

    return model


def items(apart: bool) -> Callable[..., None]:
    def model(person: Tensor, item: Tensor, y: Tensor) -> None:
        scale = pyro.sample("scale", dist.HalfNormal(number(0.5)))
        spread = pyro.sample("spread", dist.HalfNormal(number(2.0)))
        slope = effects("slope", number(0.0), scale, ITEMS, apart)
        place = effects("place", number(0.0), spread, ITEMS, apart)
        ability = pyro.sample("ability", normals(PERSONS))
        observe(y, dist.Bernoulli(logits=torch.exp(slope[item]) * (ability[person] - place[item])))

    return model


def horseshoe(apart: bool) -> Callable[..., None]:
    def model(x: Tensor, y: Tensor) -> None:
        tau = pyro.sample("tau", dist.HalfCauchy(number(0.3)))
        s = pyro.sample("s", dist.HalfNormal(number(2.0)))
        local = pyro.sample("local", dist.HalfCauchy(torch.ones(COEFFICIENTS, dtype=torch.float64)).to_event(1))
        b = effects("b", number(0.0), tau * local, COEFFICIENTS, apart)
        observe(y, dist.Normal(x @ b, s))

    return model


def logistic(apart: bool) -> Callable[..., None]:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1], dtype=torch.float64), 2.0).to_event(1))
        observe(y, dist.Bernoulli(logits=x @ w))

    return model


class Data:
    """The cases' data, each from a seed of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def yes(self, logits: Tensor) -> Tensor:
        uniform = torch.rand(logits.shape, generator=self.generator, dtype=torch.float64)
        return (uniform < torch.sigmoid(logits)).double()


def walk_data() -> tuple[Tensor, ...]:
    data = Data(1)
    levels = torch.cumsum(0.3 * data.normal(WALK_TIMES), 0)
    return torch.arange(WALK_TIMES), levels + 0.5 * data.normal(WALK_TIMES)


def correlated_data() -> tuple[Tensor, ...]:
    data, group = Data(5), torch.arange(150) % GROUPS
    x, root = data.normal(150), torch.tensor([[0.7, 0.0], [0.24, 0.32]], dtype=torch.float64)
    u = data.normal(GROUPS, 2) @ root.T
    return group, x, 1 + u[group, 0] + (0.5 + u[group, 1]) * x + 0.8 * data.normal(150)


def items_data() -> tuple[Tensor, ...]:
    data = Data(8)
    ability, slope, place = data.normal(PERSONS), torch.exp(0.3 * data.normal(ITEMS)), data.normal(ITEMS)
    person, item = torch.arange(PERSONS).repeat_interleave(ITEMS), torch.arange(ITEMS).repeat(PERSONS)
    return person, item, data.yes(slope[item] * (ability[person] - place[item]))


def horseshoe_data() -> tuple[Tensor, ...]:
    data, b = Data(4), torch.zeros(COEFFICIENTS, dtype=torch.float64)
    x, b[:3] = data.normal(80, COEFFICIENTS), torch.tensor([2.0, -1.5, 1.0], dtype=torch.float64)
    return x, x @ b + data.normal(80)


def logistic_data() -> tuple[Tensor, ...]:
    data = Data(7)
    x, w = data.normal(400, 30), 0.5 * data.normal(30)
    return x, data.yes(x @ w)


def schools_data() -> tuple[Tensor, ...]:
    y, sd = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
    return torch.arange(8), torch.tensor(y).double(), torch.tensor(sd).double()


class Case(NamedTuple):
    """A model, by whether its effects are non-centred, and its data."""

    model: Callable[[bool], Callable[..., None]]
    data: Callable[[], tuple[Tensor, ...]]

    def federation(self, apart: bool = False) -> pf.Federation:
        return pf.Federation(self.model(apart), self.data(), plate="data", num_clients=4, seed=0)


CASES = {
    "logistic": Case(logistic, logistic_data),
    "schools": Case(schools, schools_data),
    "horseshoe": Case(horseshoe, horseshoe_data),
    "correlated": Case(correlated, correlated_data),
    "items": Case(items, items_data),
    "walk": Case(walk, walk_data),
}


def walk_reference() -> dict[str, np.ndarray]:
    """4,000 exact draws of the local level model, up to the grid of its scales."""
    rng, y = np.random.default_rng(0), walk_data()[1].numpy()
    sums, found = np.tril(np.ones((WALK_TIMES, WALK_TIMES))), {}
    value = np.empty((len(GRID), len(GRID)))
    for i, q in enumerate(GRID):
        prior = sums @ np.diag([1.0] + [q * q] * (WALK_TIMES - 1)) @ sums.T
        for j, r in enumerate(GRID):
            root = np.linalg.cholesky(prior + r * r * np.eye(WALK_TIMES))
            half, gain = np.linalg.solve(root, y), np.linalg.solve(root, prior)
            value[i, j] = -half @ half / 2 - np.log(np.diag(root)).sum() - (q * q + r * r) / 2
            found[i, j] = gain.T @ half, prior - gain.T @ gain
    weight = np.exp(value - value.max()).ravel()
    places = np.unravel_index(rng.choice(weight.size, 4000, p=weight / weight.sum()), value.shape)
    z = np.stack([rng.multivariate_normal(*found[i, j]) for i, j in zip(*places, strict=True)])
    shift = (GRID[1] - GRID[0]) * (rng.random((2, 4000)) - 0.5)
    return {"q": GRID[places[0]] + shift[0], "r": GRID[places[1]] + shift[1], "z": z}


def reference(name: str) -> tuple[dict[str, np.ndarray], str]:
    """Draws of each site, and the steps of NUTS for an effective draw."""
    if name == "walk":
        return walk_reference(), ""
    chains = pf.NUTS(num_samples=1500, warmup_steps=700, target_accept_prob=0.97 if name == "horseshoe" else 0.9)
    idata: Any = pf.run(chains, CASES[name].federation(True), **QUIET)
    sites = list(CASES[name].federation().problem.sites)
    least = min(float(az.ess(idata.posterior[site].values).min()) for site in sites if site != "L")
    return flat(idata, sites), f"{float(idata.sample_stats['n_steps'].sum()) / least:.0f}"


def flat(idata: Any, sites: list[str]) -> dict[str, np.ndarray]:
    """All draws of each site, (S, ...)."""
    values = {site: idata.posterior[site].values for site in sites}
    return {site: value.reshape(-1, *value.shape[2:]) for site, value in values.items()}


def errors(draws: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> str:
    """Largest error of a mean in SDs, and the SDs' ratios."""
    away, ratios = [0.0], [1.0]
    for site, known in truth.items():
        pair = (draws[site], known)
        if site == "L":
            pair = (draws[site][:, 1, 0], known[:, 1, 0])
        elif all((one > 0).all() for one in pair):
            pair = (np.log(draws[site]), np.log(known))
        sd = pair[1].std(0)
        away.append(float(np.max(np.abs(pair[0].mean(0) - pair[1].mean(0)) / sd)))
        ratios += np.ravel(pair[0].std(0) / sd).tolist()
    return f"{max(away):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=2500, help="the most rounds of FedHMC")
    options = parser.parse_args()
    torch.set_num_threads(1)
    titles = ("mean error (SD), SD ratios", "rounds", "ESS", "NUTS steps", "seconds", "doubts")
    print(heading("posterior", "D", "algorithm", *titles))
    for name in options.cases.split(","):
        truth, steps = reference(name)
        fed = CASES[name].federation()
        forms = [("FedHMC", fed), ("FSGLD", fed)]
        if fed.problem.traits.effects:
            forms.insert(1, ("FedHMC, non-centred", fed.noncentred))
        for label, form in forms:
            start = time.perf_counter()
            hmc = label != "FSGLD"
            algorithm = pf.infer.FedHMC(surrogates="fedep") if hmc else pf.FSGLD(surrogates=pf.FedEP())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                idata: Any = pf.run(algorithm, form, num_rounds=options.rounds if hmc else None, **QUIET)
            figures = idata.federation
            cells = [name, fed.problem.dim, label, errors(flat(idata, list(truth)), truth), figures.sizes["round"]]
            cells += [f"{float(figures['ess'].values.ravel()[-1]):.0f}", steps, f"{time.perf_counter() - start:.0f}"]
            print(row(*cells, idata.attrs["doubts"].replace("\n", "; ")[:60]), flush=True)


if __name__ == "__main__":
    main()
