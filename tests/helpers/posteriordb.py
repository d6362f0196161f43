"""Real posteriors with reference draws (posteriordb), as ordinary Pyro models in float64.

The models and the files' readers are the benchmark's (`pyro_fed.analysis.bench.cases.posteriordb`). `PYRO_FED_DATA`
names the folder that holds `posteriordb`; `needs_data` skips a test where it is absent. Reference draws are keyed by
the model's site names: `reference()["beta"]` has shape (chain, draw, D).

    case = posteriordb.CASES["nes1980"]
    fed = case.federation(num_clients=5, sort=True)
    means, sds = case.moments()
    case.error(idata)      # largest (mean error / reference SD), smallest and largest SD ratio
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import pyro_fed as pf
from pyro_fed.analysis.bench.cases.posteriordb import PLATE, Posterior, find
from pyro_fed.analysis.bench.cases.stan_models import POSTERIORS

FOLDER = find()
HAVE_DATA = FOLDER is not None
needs_data = pytest.mark.skipif(not HAVE_DATA, reason="PYRO_FED_DATA does not name a folder with posteriordb")


@dataclass(frozen=True)
class Case:
    """One posterior.

    Attributes:
        posterior: its model, and what is read from its files.
    """

    posterior: Posterior

    @property
    def folder(self) -> str:
        """Its folder's name."""
        return self.posterior.full_name

    @property
    def model(self) -> Any:
        """The Pyro model."""
        assert FOLDER is not None, "set PYRO_FED_DATA"
        return self.posterior.model_of(FOLDER)

    def args(self) -> tuple[Tensor, ...]:
        """The model's arguments in float64."""
        assert FOLDER is not None, "set PYRO_FED_DATA"
        return self.posterior.args(FOLDER)

    def federation(self, num_clients: int = 5, sort: bool = False, seed: int = 0) -> pf.Federation:
        """The posterior's data over clients, IID or sorted by a covariate."""
        args = self.args()
        part = pf.partition.SortedBy(self.posterior.sort_by(args)) if sort else pf.partition.IID()
        return pf.Federation(self.model, args, plate=PLATE, num_clients=num_clients, partition=part, seed=seed)

    def reference(self) -> dict[str, np.ndarray]:
        """Reference draws by site name, each (chain, draw, *site shape)."""
        assert FOLDER is not None, "set PYRO_FED_DATA"
        return self.posterior.reference(FOLDER)

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


#: The eight that algorithms are tried on; `test_bench_cases` has the densities of all.
NAMES = ("sblrc", "kidiq", "earnings", "mesquite", "nes1980", "gauss_mix", "eight_schools", "diamonds")
CASES = {name: Case(POSTERIORS[name]) for name in NAMES}

#: Those whose latents all lie outside the plate: the others' belong to rows.
WITHOUT_LOCAL = tuple(name for name in CASES if name != "eight_schools")
