"""Real posteriors with reference draws, of posteriordb (Magnusson et al. 2024).

Two layouts are read. A clone of https://github.com/stan-dev/posteriordb::

    posterior_database/posteriors/NAME.json
    posterior_database/data/data/DATA.json.zip
    posterior_database/reference_posteriors/draws/draws/NAME.json.zip     ten chains of 1,000 draws

and a folder of extracts, `NAME/{data.json, reference.npz}`, whose draws are `(chain, draw)` arrays named as there
(`beta[1]`). The models are Stan's, written for Pyro; flat priors are `ImproperUniform`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_fed.analysis.bench.cases.case import Case, Reference
from pyro_fed.errors import DataError, shown

#: The environment variable that names a folder with `posteriordb` in it.
VARIABLE = "PYRO_FED_DATA"
PLATE = "data"


# -- models ---------------------------------------------------------------------------------------------------
def flat(name: str, size: int) -> Tensor:
    """A real vector with a flat prior."""
    value: Tensor = pyro.sample(name, dist.ImproperUniform(constraints.real_vector, (), (size,)))
    return value


def flat_scale() -> Tensor:
    """A positive number with a flat prior."""
    value: Tensor = pyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    return value


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
def _columns(data: Mapping[str, Any], *names: str) -> Tensor:
    ones = torch.ones(len(data[names[0]]), dtype=torch.float64)
    return torch.stack([ones, *(torch.tensor(data[name], dtype=torch.float64) for name in names)], -1)


def _tensor(data: Mapping[str, Any], name: str) -> Tensor:
    return torch.tensor(data[name], dtype=torch.float64)


def _mesquite(data: Mapping[str, Any]) -> tuple[Tensor, ...]:
    area = _tensor(data, "diam1") * _tensor(data, "diam2")
    columns = {"lv": (area * _tensor(data, "canopy_height")).log().tolist(), "la": area.log().tolist()}
    return _columns({**data, **columns}, "lv", "la", "group"), _tensor(data, "weight").log()


def _nes(data: Mapping[str, Any]) -> tuple[Tensor, ...]:
    ages = {f"age{a}": [float(value == a) for value in data["age_discrete"]] for a in (2, 3, 4)}
    names = ("real_ideo", "race_adj", "age2", "age3", "age4", "educ1", "gender", "income")
    return _columns({**data, **ages}, *names), _tensor(data, "partyid7")


def _diamonds(data: Mapping[str, Any]) -> tuple[Tensor, ...]:
    x = _tensor(data, "X")[:, 1:]
    return x - x.mean(0), _tensor(data, "Y")


def _standardise_effects(mu: np.ndarray, tau: np.ndarray, theta: np.ndarray) -> dict[str, np.ndarray]:
    """The schools' effects in units of their own scale, as the model has them."""
    return {"mu": mu, "tau": tau, "z": (theta - mu[..., None]) / tau[..., None]}


@dataclass(frozen=True)
class Posterior:
    """One posterior of the database.

    Args:
        full_name: name in the database.
        about: a description in a few words.
        model: Stan's model, written in Pyro.
        arguments: takes the raw data, and returns the model's arguments, all split by rows.
        sort_by: takes the arguments, and returns the covariate by which clients are sorted.
        groups: takes the arguments, and returns the groups; None if there are none.
        sites: takes the database's draws by name, and returns draws of the model's sites; None if they are the same.
    """

    full_name: str
    about: str
    model: Callable[..., None]
    arguments: Callable[[Mapping[str, Any]], tuple[Tensor, ...]]
    sort_by: Callable[[tuple[Any, ...]], Any]
    groups: Callable[[tuple[Any, ...]], Any] | None = None
    sites: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict

    def args(self, folder: Path) -> tuple[Tensor, ...]:
        """The model's arguments in double precision."""
        return self.arguments(read_data(folder, self.full_name))

    def reference(self, folder: Path) -> dict[str, np.ndarray]:
        """Reference draws by site, each (chain, draw, *shape)."""
        return read_draws(folder, self.full_name)

    def case(self, name: str, folder: Path) -> Case:
        """The posterior as a case of the benchmark."""
        return Case(
            name,
            "posteriordb",
            self.about,
            self.model,
            lambda: self.args(folder),
            lambda args: Reference(self.sites(self.reference(folder)), False, f"posteriordb, {self.full_name}"),
            sort_by=self.sort_by,
            labels=lambda args: args[-1],
            groups=self.groups,
        )


def _age_group(args: tuple[Any, ...]) -> Any:
    """Numbers of the NES survey's groups by age (0 to 3), sex and education."""
    x = args[0]
    return (x[:, 3] + 2 * x[:, 4] + 3 * x[:, 5] + 4 * x[:, 7] + 8 * x[:, 6]).long()


POSTERIORS = {
    "sblrc": Posterior(
        "sblrc-blr",
        "5 coefficients and a scale, proper priors",
        blr,
        lambda d: (_tensor(d, "X"), _tensor(d, "y")),
        lambda a: a[0][:, 0],
    ),
    "kidiq": Posterior(
        "kidiq-kidscore_momiq",
        "children's scores by their mothers' IQ, which is not centred: a correlation of -0.99",
        kidscore,
        lambda d: (_columns(d, "mom_iq"), _tensor(d, "kid_score")),
        lambda a: a[0][:, 1],
        lambda a: (a[0][:, 1] // 5).long(),
    ),
    "earnings": Posterior(
        "earnings-logearn_height",
        "log earnings by height, not centred: a correlation of -0.999, flat priors",
        flat_regression,
        lambda d: (_columns(d, "height"), _tensor(d, "earn").log()),
        lambda a: a[0][:, 1],
        lambda a: a[0][:, 1].long(),
    ),
    "mesquite": Posterior(
        "mesquite-logmesquite_logva",
        "46 bushes, 4 coefficients and a scale, flat priors",
        flat_regression,
        _mesquite,
        lambda a: a[0][:, 1],
    ),
    "nes1980": Posterior(
        "nes1980-nes",
        "a survey, 9 coefficients and a scale, flat priors",
        flat_regression,
        _nes,
        lambda a: a[0][:, 1],
        _age_group,
    ),
    "gauss_mix": Posterior(
        "low_dim_gauss_mix-low_dim_gauss_mix",
        "a mixture of two Gaussians with ordered means",
        gauss_mix,
        lambda d: (_tensor(d, "y"),),
        lambda a: a[0],
    ),
    "eight_schools": Posterior(
        "eight_schools-eight_schools_noncentered",
        "eight schools, all latents global: a skewed, heavy-tailed scale",
        eight_schools,
        lambda d: (torch.arange(8), _tensor(d, "sigma"), _tensor(d, "y")),
        lambda a: a[1],
        lambda a: a[0],
        lambda draws: _standardise_effects(**draws),
    ),
    "diamonds": Posterior(
        "diamonds-diamonds",
        "26 parameters, nearly collinear, 5,000 rows",
        diamonds,
        _diamonds,
        lambda a: a[0][:, 0],
        lambda a: (a[0][:, 0] * 20).long(),
    ),
}


# -- files ----------------------------------------------------------------------------------------------------
def find(folder: Path | None = None) -> Path | None:
    """The folder of the posteriors in a clone or in extracts; None if it does not exist."""
    if folder is None:
        named = os.environ.get(VARIABLE)
        folder = Path(named) / "posteriordb" if named else None
    if folder is None or not folder.is_dir():
        return None
    inner = folder / "posterior_database"
    return inner if inner.is_dir() else folder


def has(folder: Path, full_name: str) -> bool:
    """Whether a posterior is there, with its reference draws."""
    extract = folder / full_name
    whole = _draws_of_clone(folder, full_name)
    return ((extract / "data.json").is_file() and (extract / "reference.npz").is_file()) or whole.is_file()


def read_data(folder: Path, full_name: str) -> Mapping[str, Any]:
    """The raw data of a posterior; DataError if files are missing or malformed."""
    extract = folder / full_name / "data.json"
    if extract.is_file():
        return _object(extract.read_text(encoding="utf-8"), extract)
    said = folder / "posteriors" / f"{full_name}.json"
    try:
        name = _object(said.read_text(encoding="utf-8"), said)["data_name"]
    except (OSError, KeyError) as error:
        raise DataError(f"{folder} has no data of '{full_name}': expected {extract} or {said}") from error
    packed = folder / "data" / "data" / f"{name}.json.zip"
    return _object(_read_zip(packed), packed)


def read_draws(folder: Path, full_name: str) -> dict[str, np.ndarray]:
    """Reference draws by site, each (chain, draw, *shape); DataError if files are missing or malformed."""
    return dict(_kept_draws(folder, full_name))


@functools.cache
def _kept_draws(folder: Path, full_name: str) -> dict[str, np.ndarray]:
    extract, whole = folder / full_name / "reference.npz", _draws_of_clone(folder, full_name)
    path, read = (extract, _draws_by_name) if extract.is_file() else (whole, _draws_by_chain)
    try:
        draws = read(path)
    except DataError:
        raise
    except (OSError, ValueError, TypeError, KeyError, IndexError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} is damaged, or no file of posteriordb's reference draws: {type(error).__name__}: {error}; fetch "
            "the file again"
        ) from error
    if odd := [key for key, value in draws.items() if value.ndim != 2]:
        raise DataError(f"{path}: expected draws (chain, draw), '{odd[0]}' has the shape {draws[odd[0]].shape}")
    return sites_of(draws)


def _draws_by_name(path: Path) -> dict[str, np.ndarray]:
    """The draws of an extract, an array (chain, draw) by name."""
    with np.load(path) as stored:
        return {key: stored[key] for key in stored.files}


def _draws_by_chain(path: Path) -> dict[str, np.ndarray]:
    """The draws of a clone, which has a list of draws by name for each chain."""
    chains: Any = json.loads(_read_zip(path))
    return {key: np.array([chain[key] for chain in chains], dtype=float) for key in chains[0]}


def sites_of(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join entries named as Stan names them into sites: `beta[1]` and `beta[2]` become `beta` (chain, draw, 2).

    Raises:
        DataError: a name is not in Stan's form, or a site has more than one dimension.
    """
    elements: dict[str, dict[int, np.ndarray]] = {}
    for key, value in draws.items():
        found = re.fullmatch(r"(\w+?)(?:\[(\d+)\])?", key)
        if found is None:
            raise DataError(f"reference draws: expected Stan's names, such as 'sigma' or 'beta[1]', received '{key}'")
        elements.setdefault(found[1], {})[int(found[2] or 0)] = value
    return {
        name: parts[0] if 0 in parts else np.stack([parts[i] for i in sorted(parts)], -1)
        for name, parts in elements.items()
    }


def _draws_of_clone(folder: Path, full_name: str) -> Path:
    return folder / "reference_posteriors" / "draws" / "draws" / f"{full_name}.json.zip"


def _read_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = archive.namelist()
            return archive.read(name).decode("utf-8")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected a zip of one JSON file, as posteriordb has it: {error}") from error


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: expected JSON: {error}; fetch the file again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object with the data by name, received {shown(found)}")
    return found
