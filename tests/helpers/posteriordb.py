"""Real posteriors with reference draws (posteriordb), as ordinary Pyro models in float64.

`PYRO_FED_DATA` names the folder that holds `posteriordb/NAME/{data.json, reference.npz}`; `needs_data` skips a
test where it is absent. Flat priors are `dist.ImproperUniform`. Reference draws are keyed by the model's site
names: `reference(name)["beta"]` has shape (chain, draw, D).

    case = posteriordb.CASES["nes1980"]
    fed = case.federation(num_clients=5, sort=True)
    means, sds = case.moments()
    case.error(idata)      # largest (mean error / reference SD), smallest and largest SD ratio
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from torch import Tensor

import pyro_fed as pf

FOLDER = Path(os.environ["PYRO_FED_DATA"]) / "posteriordb" if "PYRO_FED_DATA" in os.environ else None
HAVE_DATA = FOLDER is not None and FOLDER.is_dir()
needs_data = pytest.mark.skipif(not HAVE_DATA, reason="PYRO_FED_DATA does not name a folder with posteriordb")
PLATE = "data"


# -- models ---------------------------------------------------------------------------------------------------
def flat(name: str, size: int) -> Tensor:
    """A real vector with a flat prior."""
    return pyro.sample(name, dist.ImproperUniform(constraints.real_vector, (), (size,)))


def flat_scale() -> Tensor:
    """A positive number with a flat prior."""
    return pyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))


def observe(mean: Tensor, sigma: Tensor, y: Tensor) -> None:
    """Normal observations, one a row."""
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def blr(x: Tensor, y: Tensor) -> None:
    """Linear regression with proper priors."""
    beta = pyro.sample("beta", dist.Normal(x.new_zeros(x.shape[1]), 10.0).to_event(1))
    observe(x @ beta, pyro.sample("sigma", dist.HalfNormal(x.new_tensor(10.0))), y)


def kidscore(x: Tensor, y: Tensor) -> None:
    """Flat coefficients, half-Cauchy scale."""
    beta = flat("beta", x.shape[1])
    observe(x @ beta, pyro.sample("sigma", dist.HalfCauchy(x.new_tensor(2.5))), y)


def flat_regression(x: Tensor, y: Tensor) -> None:
    """Flat coefficients, flat scale."""
    beta = flat("beta", x.shape[1])
    observe(x @ beta, flat_scale(), y)


def gauss_mix(y: Tensor) -> None:
    """Two Gaussians with ordered means."""
    mu = pyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    pyro.factor("mu_prior", dist.Normal(y.new_zeros(()), 2.0).log_prob(mu).sum())
    sigma = pyro.sample("sigma", dist.HalfNormal(y.new_full((2,), 2.0)).to_event(1))
    theta = pyro.sample("theta", dist.Beta(y.new_tensor(5.0), y.new_tensor(5.0)))
    weights = torch.stack([theta, 1 - theta])
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(mu, sigma)), obs=y)


def eight_schools(school: Tensor, sigma_j: Tensor, y: Tensor) -> None:
    """Eight schools, non-centred, the schools' latents as one global vector that rows index."""
    mu = pyro.sample("mu", dist.Normal(y.new_tensor(0.0), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(y.new_tensor(5.0)))
    z = pyro.sample("z", dist.Normal(y.new_zeros(8), 1.0).to_event(1))
    theta = pyro.deterministic("theta", mu + tau * z)
    with pyro.plate(PLATE, len(y)):
        pyro.sample("y", dist.Normal(theta[school], sigma_j), obs=y)


def diamonds(x: Tensor, y: Tensor) -> None:
    """26 parameters, nearly collinear; `x` is centred over all rows."""
    b = pyro.sample("b", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    intercept = pyro.sample("Intercept", dist.StudentT(x.new_tensor(3.0), 8.0, 10.0))
    half = dist.FoldedDistribution(dist.StudentT(x.new_tensor(3.0), 0.0, 10.0))
    observe(intercept + x @ b, pyro.sample("sigma", half), y)


# -- data -----------------------------------------------------------------------------------------------------
def _columns(data: dict[str, Any], *names: str) -> Tensor:
    ones = torch.ones(len(data[names[0]]), dtype=torch.float64)
    return torch.stack([ones, *(torch.tensor(data[name], dtype=torch.float64) for name in names)], -1)


def _tensor(data: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(data[name], dtype=torch.float64)


def _mesquite(data: dict[str, Any]) -> tuple[Tensor, ...]:
    area = _tensor(data, "diam1") * _tensor(data, "diam2")
    columns = {"lv": (area * _tensor(data, "canopy_height")).log().tolist(), "la": area.log().tolist()}
    return _columns({**data, **columns}, "lv", "la", "group"), _tensor(data, "weight").log()


def _nes(data: dict[str, Any]) -> tuple[Tensor, ...]:
    ages = {f"age{a}": [float(value == a) for value in data["age_discrete"]] for a in (2, 3, 4)}
    names = ("real_ideo", "race_adj", "age2", "age3", "age4", "educ1", "gender", "income")
    return _columns({**data, **ages}, *names), _tensor(data, "partyid7")


def _diamonds(data: dict[str, Any]) -> tuple[Tensor, ...]:
    x = _tensor(data, "X")[:, 1:]
    return x - x.mean(0), _tensor(data, "Y")


@dataclass(frozen=True)
class Case:
    """One posterior.

    Attributes:
        folder: its folder's name.
        model: the Pyro model.
        arguments: raw data → the model's arguments, all split by rows.
        sort_by: arguments → the covariate that clients are sorted by.
    """

    folder: str
    model: Callable[..., None]
    arguments: Callable[[dict[str, Any]], tuple[Tensor, ...]]
    sort_by: Callable[[tuple[Tensor, ...]], Tensor]

    def args(self) -> tuple[Tensor, ...]:
        """The model's arguments in float64."""
        return self.arguments(json.loads((FOLDER / self.folder / "data.json").read_text()))

    def federation(self, num_clients: int = 5, sort: bool = False, seed: int = 0) -> pf.Federation:
        """The posterior's data over clients, IID or sorted by a covariate."""
        args = self.args()
        part = pf.partition.SortedBy(self.sort_by(args)) if sort else pf.partition.IID()
        return pf.Federation(self.model, args, plate=PLATE, num_clients=num_clients, partition=part, seed=seed)

    def reference(self) -> dict[str, np.ndarray]:
        """Reference draws by site name, each (chain, draw, *site shape)."""
        return _reference(self.folder)

    def moments(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Reference means and SDs by site name."""
        draws = self.reference()
        return (
            {name: value.mean((0, 1)) for name, value in draws.items()},
            {name: value.std((0, 1)) for name, value in draws.items()},
        )

    def error(self, idata: Any) -> tuple[float, float, float]:
        """Largest mean error in reference SDs, and the smallest and largest SD ratio, over all parameters."""
        means, sds = self.moments()
        errors, ratios = [], []
        for name in means:
            values = idata["posterior"][name].values
            errors.append(np.abs(values.mean((0, 1)) - means[name]) / sds[name])
            ratios.append(values.std((0, 1)) / sds[name])
        flat_errors, flat_ratios = (np.concatenate([np.ravel(p) for p in parts]) for parts in (errors, ratios))
        return float(flat_errors.max()), float(flat_ratios.min()), float(flat_ratios.max())


@functools.cache
def _reference(folder: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / folder / "reference.npz") as stored:
        draws = {key: stored[key] for key in stored.files}
    elements: dict[str, dict[int, np.ndarray]] = {}
    for key, value in draws.items():
        name, number = re.fullmatch(r"(\w+?)(?:\[(\d+)\])?", key).groups()
        elements.setdefault(name, {})[int(number or 0)] = value
    return {
        name: parts[0] if 0 in parts else np.stack([parts[i] for i in sorted(parts)], -1)
        for name, parts in elements.items()
    }


CASES = {
    "sblrc": Case("sblrc-blr", blr, lambda d: (_tensor(d, "X"), _tensor(d, "y")), lambda a: a[0][:, 0]),
    "kidiq": Case(
        "kidiq-kidscore_momiq",
        kidscore,
        lambda d: (_columns(d, "mom_iq"), _tensor(d, "kid_score")),
        lambda a: a[0][:, 1],
    ),
    "earnings": Case(
        "earnings-logearn_height",
        flat_regression,
        lambda d: (_columns(d, "height"), _tensor(d, "earn").log()),
        lambda a: a[0][:, 1],
    ),
    "mesquite": Case("mesquite-logmesquite_logva", flat_regression, _mesquite, lambda a: a[0][:, 1]),
    "nes1980": Case("nes1980-nes", flat_regression, _nes, lambda a: a[0][:, 1]),
    "gauss_mix": Case("low_dim_gauss_mix-low_dim_gauss_mix", gauss_mix, lambda d: (_tensor(d, "y"),), lambda a: a[0]),
    "eight_schools": Case(
        "eight_schools-eight_schools_noncentered",
        eight_schools,
        lambda d: (torch.arange(8), _tensor(d, "sigma"), _tensor(d, "y")),
        lambda a: a[1],
    ),
    "diamonds": Case("diamonds-diamonds", diamonds, _diamonds, lambda a: a[0][:, 0]),
}

#: Those whose latents all lie outside the plate: the others' belong to rows.
WITHOUT_LOCAL = tuple(name for name in CASES if name != "eight_schools")
