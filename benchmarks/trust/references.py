"""References: the mean and SD of every latent site, on its unconstrained and its constrained scale.

    python -m benchmarks.trust.references [--names 'linear*'] --write

Quadratic log densities have them in closed form; up to four dimensions they are sums over a grid, whose error is what
half of its points would say otherwise (much more than its own, which falls exponentially); some have a quadrature of
their own; the rest four long chains of NUTS, whose error is their Monte Carlo error. All but the last are computed
through Pyro alone. They are kept in `references.json`.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, hessian, vmap

import pyro_fed as pf
from benchmarks.trust.posterior import (
    Grid,
    LongRun,
    Nested,
    Posterior,
    Quadratic,
    Undefined,
    constrained,
    coordinates,
    log_density,
)
from benchmarks.trust.posteriors import POSTERIORS
from pyro_fed.analysis.bench.scores import MAX_KURTOSIS

FILE = Path(__file__).parent / "references.json"
#: Points along each dimension, by the number of dimensions.
POINTS = {1: 20001, 2: 801, 3: 121, 4: 61}
#: Log densities so far below the highest add nothing: exp(-30) of a 1e-13th.
LOWEST = 30.0
#: Largest error of a reference that goes without a warning, in its SDs and as a share of its SD.
LARGEST_ERROR = 0.03
#: Points in one call.
CHUNK = 200_000


@dataclass(frozen=True)
class Moments:
    """Mean, SD and kurtosis of vectors (n, numbers) under weights.

    Attributes:
        mean: (numbers,).
        sd: (numbers,).
        kurtosis: (numbers,).
    """

    mean: np.ndarray
    sd: np.ndarray
    kurtosis: np.ndarray


def moments(values: dict[str, Tensor], weights: Tensor) -> dict[str, Moments]:
    """Weighted moments of values (n, numbers), site by site."""
    found = {}
    for name, value in values.items():
        mean = weights @ value
        away = value - mean
        variance = weights @ away.square()
        kurtosis = (weights @ away.pow(4)) / variance.square().clamp(min=1e-300)
        found[name] = Moments(mean.numpy(), variance.sqrt().numpy(), kurtosis.numpy())
    return found


def by_quadratic(posterior: Posterior) -> dict[str, Any]:
    """Closed form."""
    args = posterior.data()
    sites = coordinates(posterior.model, args)
    density = log_density(posterior.model, args)
    dim = sum(site.size for site in sites.values())
    zero = torch.zeros(dim, dtype=torch.float64)
    curvature = -hessian(density)(zero)
    scale = curvature.diagonal().rsqrt()  # the matrix may be badly scaled
    inverse = torch.linalg.inv(curvature * scale[:, None] * scale) * scale[:, None] * scale
    mean = inverse @ grad(density)(zero)
    # Newton's step twice: the second one mends what rounding has left.
    mean = mean + inverse @ grad(density)(mean)
    sd = inverse.diagonal().sqrt()
    found = {}
    for name, site in sites.items():
        at = slice(site.start, site.start + site.size)
        found[name] = {"mean": mean[at].numpy(), "sd": sd[at].numpy()}
    return found


def on_grid(density: Any, low: Tensor, high: Tensor, points: int, loop: bool) -> tuple[Tensor, Tensor]:
    """Points (n, D) of a grid and the log densities there."""
    axes = [torch.linspace(float(a), float(b), points, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    z = torch.cartesian_prod(*axes).reshape(-1, len(axes))
    if loop:
        return z, torch.stack([density(point) for point in z])
    mapped = vmap(density)
    return z, torch.cat([mapped(piece) for piece in z.split(CHUNK // 10 if len(axes) > 1 else CHUNK // 40)])


def by_grid(posterior: Posterior, how: Grid) -> dict[str, Any]:
    """Sums over a grid, in a box that is narrowed to where the mass is."""
    args = posterior.data()
    model = how.model or posterior.model
    sites = coordinates(posterior.model, args)
    others = coordinates(model, args)
    if {name: site.start for name, site in sites.items()} != {name: site.start for name, site in others.items()}:
        raise ValueError(f"{posterior.name}: the reference's model has other sites: {list(sites)}, {list(others)}")
    density = log_density(model, args)
    ends = [how.box.get(name, how.default) for name, site in sites.items() for _ in range(site.size)]
    low, high = torch.tensor(ends, dtype=torch.float64).unbind(1)
    points = how.points or POINTS[len(ends)]
    for _ in range(6):
        coarse = min(points, 2001 if len(ends) == 1 else 41 if how.loop else {2: 401, 3: 81, 4: 41}[len(ends)])
        z, value = on_grid(density, low, high, coarse, how.loop)
        inside = z[value.nan_to_num(-1e300) > value.nan_to_num(-1e300).max() - LOWEST]
        cell = (high - low) / (coarse - 1)
        narrow = torch.maximum(low, inside.amin(0) - 2 * cell), torch.minimum(high, inside.amax(0) + 2 * cell)
        smaller = (narrow[1] - narrow[0]) / (high - low)
        low, high = narrow
        if float(smaller.min()) > 0.8:
            break
    z, value = on_grid(density, low, high, points, how.loop)
    value = value.nan_to_num(-1e300)
    weights = (value - value.max()).exp()
    weights = weights / weights.sum()
    number = torch.arange(len(z))
    even = torch.ones(len(z), dtype=torch.bool)
    edge = torch.zeros(len(z), dtype=torch.bool)
    for place in range(len(ends)):
        index = number // points ** (len(ends) - 1 - place) % points
        even &= index % 2 == 0
        edge |= (index == 0) | (index == points - 1)
    if float(weights[edge].sum()) > 1e-4:
        raise ValueError(f"{posterior.name}: mass of {float(weights[edge].sum()):.1e} at the edge of {low}, {high}")
    flat = {name: z[:, site.start : site.start + site.size] for name, site in sites.items()}
    whole = moments(flat, weights)
    half = moments({name: value[even] for name, value in flat.items()}, weights[even] / weights[even].sum())
    away = constrained(sites, z)
    # A transform may overflow far out, where there is no mass.
    own = moments({name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in away.items()}, weights)
    found = {}
    for name, mine in whole.items():
        other = half[name]
        error = max(np.abs(mine.mean - other.mean).max() / mine.sd.min(), np.abs(other.sd / mine.sd - 1).max())
        found[name] = {"mean": mine.mean, "sd": mine.sd, "error": float(error)}
        found[name]["constrained"] = own[name]
    return found


def by_long_run(posterior: Posterior, how: LongRun) -> dict[str, Any]:
    """NUTS with four long chains."""
    args = posterior.data()
    fed = posterior.federation(how.model, dtype=torch.float64)
    algorithm = pf.NUTS(num_samples=how.draws, warmup_steps=500, target_accept_prob=how.accept)
    idata = pf.run(algorithm, fed, seed=1, progress=False, log_likelihood=False, audit=False)
    found = {}
    for name, site in coordinates(posterior.model, args).items():
        values = torch.as_tensor(idata["posterior"][name].values)
        chains, draws = values.shape[:2]
        flat = site.transform.inv(values.double())
        weights = torch.full((chains * draws,), 1 / (chains * draws), dtype=torch.float64)
        mine = moments({name: flat.reshape(chains * draws, -1)}, weights)[name]
        own = moments({name: values.double().reshape(chains * draws, -1)}, weights)[name]
        with_chains = {name: flat.reshape(chains, draws, -1).numpy()}
        import arviz as az

        mean_error = az.mcse(with_chains, method="mean")[name].values / mine.sd
        sd_error = az.mcse(with_chains, method="sd")[name].values / mine.sd
        found[name] = {"mean": mine.mean, "sd": mine.sd, "constrained": own}
        found[name]["error"] = float(max(mean_error.max(), sd_error.max()))
    return found


def reference(posterior: Posterior) -> dict[str, Any]:
    """What is kept of a posterior: its data's fingerprint, and by site mean, SD and error of both scales."""
    how = posterior.reference
    if isinstance(how, Undefined):
        found: dict[str, Any] = {}
    elif isinstance(how, Quadratic):
        found = by_quadratic(posterior)
    elif isinstance(how, Grid):
        found = by_grid(posterior, how)
    elif isinstance(how, Nested):
        known = set(coordinates(posterior.model, posterior.data()))
        every = how.moments(*posterior.data())
        found = {name: {"mean": mean, "sd": sd} for name, (mean, sd) in every.items() if name in known}
    else:
        found = by_long_run(posterior, how)
    kept: dict[str, Any] = {"data": posterior.fingerprint(), "how": type(how).__name__, "sites": {}}
    for name, part in found.items():
        error = part.get("error", 0.0)
        if error > LARGEST_ERROR:
            warnings.warn(f"{posterior.name}: the reference of '{name}' has an error of {error:.2g}", stacklevel=2)
        entry = {"mean": rounded(part["mean"]), "sd": rounded(part["sd"]), "error": float(f"{error:.2g}")}
        own = part.get("constrained")
        if own is not None:
            fine = (own.kurtosis < MAX_KURTOSIS) & (own.sd > 1e-9)
            entry["constrained"] = {
                "mean": rounded(np.where(fine, own.mean, np.nan)),
                "sd": rounded(np.where(fine, own.sd, np.nan)),
            }
        kept["sites"][name] = entry
    return kept


def rounded(values: np.ndarray) -> list[float | None]:
    """Seven digits, None for what is not compared."""
    return [float(f"{v:.9g}") if np.isfinite(v) else None for v in np.atleast_1d(values).ravel()]


def read() -> dict[str, Any]:
    """The references that are kept, by posterior."""
    kept: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", default="*", help="patterns of posteriors, separated by commas")
    parser.add_argument("--missing", action="store_true", help="only those without a reference, or of other data")
    parser.add_argument("--write", action="store_true", help=f"keep them in {FILE.name}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    quick_first = sorted(POSTERIORS.items(), key=lambda item: isinstance(item[1].reference, LongRun))
    for name, posterior in quick_first:
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.names.split(",")):
            continue
        if options.missing and read().get(name, {}).get("data") == posterior.fingerprint():
            continue
        began = time.perf_counter()
        try:
            found = reference(posterior)
        except Exception as error:  # the others are still wanted
            print(f"{name:26s} FAILED {type(error).__name__}: {error}", flush=True)
            continue
        largest = max((site["error"] for site in found["sites"].values()), default=0.0)
        first = next(iter(found["sites"].items()), ("", {"mean": [0.0], "sd": [0.0]}))
        seconds = time.perf_counter() - began
        print(
            f"{name:26s}{found['how']:10s} error {largest:.1e}  {first[0]} {first[1]['mean'][0]} ± {first[1]['sd'][0]}"
            f"  {seconds:.1f} s",
            flush=True,
        )
        if options.write:
            kept = read() | {name: found}
            lines = (f'"{key}": {json.dumps(kept[key])}' for key in POSTERIORS if key in kept)
            FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
