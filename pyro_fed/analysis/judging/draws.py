"""A result's draws as numbers: whether they can be measured, and how many independent ones they are worth."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from pyro_fed.ops.arviz_versions import ess
from pyro_fed.results.inference_data import InferenceData

#: Larger draws have squares, or squares over the reference's variance, that are no numbers in double precision.
LARGEST_DRAW = 1e100
#: Draws a chain that an autocorrelation needs.
FEWEST_OF_A_CHAIN = 4
#: Autocorrelation times that a block of draws has, so that blocks are nearly independent of each other.
TIMES_A_BLOCK = 5
#: Draws worth more than this share of their number have no autocorrelation to speak of.
INDEPENDENT_SHARE = 0.9
#: What draws are that are independent of each other, and what they are where nothing is random.
INDEPENDENT = ("independent", "agents")
FIXED = ("particles", "point")


@dataclass(frozen=True)
class Draws:
    """Draws of a posterior.

    Args:
        values: (chain, draw, D).
        labels: a name of each of the D columns, such as `w[0]`.
        kind: "particles", "independent" draws of a density, Markov "chains", "agents", a "point"; "" where nobody
            says it, which counts as chains.
    """

    values: np.ndarray
    labels: list[str]
    kind: str

    @classmethod
    def of(cls, idata: InferenceData, names: list[str]) -> Draws:
        """The draws of a result.

        Args:
            idata: the result.
            names: variables of its group `posterior`.
        """
        posterior = idata["posterior"]
        blocks, labels = [], []
        for name in names:
            values = np.asarray(posterior[name].transpose("chain", "draw", ...).values, dtype=float)
            blocks.append(values.reshape(*values.shape[:2], math.prod(values.shape[2:])))
            labels += entries_of(name, posterior[name])
        return cls(np.concatenate(blocks, 2), labels, str(idata.attrs.get("draws_are", "")))

    @property
    def flat(self) -> np.ndarray:
        """(S, D), chain after chain."""
        chains, each, dim = self.values.shape
        return self.values.reshape(chains * each, dim)

    @cached_property
    def fault(self) -> str:
        """Why nothing can be measured on them; empty where it can."""
        flat = self.flat
        if not flat.size:
            return "there are no draws"
        lost = ~np.isfinite(flat)
        if lost.any():
            count, where = lost.any(1).sum(), self.labels[int(lost.any(0).argmax())]
            return f"the draws are not finite: {count} of {len(flat)} have a NaN or an infinity, first in '{where}'"
        farthest = np.abs(flat).max(0)
        if farthest.max() > LARGEST_DRAW:
            where = self.labels[int(farthest.argmax())]
            return f"the draws reach {farthest.max():.0e} in '{where}': the run has diverged"
        return ""

    @property
    def alike(self) -> bool:
        """Whether all draws are the same point."""
        flat = self.flat
        return bool((flat == flat[:1]).all())

    @property
    def spreadless(self) -> str:
        """What is to be said of draws that are no distribution; empty where they are one, or there are none."""
        if not self.flat.size:
            return ""
        if self.kind == "point":
            return "a point, without any uncertainty"
        if len(self.flat) == 1:
            return "a single draw, without any uncertainty"
        return f"all {len(self.flat)} draws are the same point, without any uncertainty" if self.alike else ""


def labels_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the entries of a variable: `w[0]`, `w[1]`, or `w` alone of a scalar."""
    return [name] if not shape else [f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(shape)]


def entries_of(name: str, values: xr.DataArray) -> list[str]:
    """Names of the entries of a variable: `w[0]`, `w[1]`, by their labels where these are text, `w` alone of a scalar.

    Args:
        name: of the variable.
        values: (chain, draw, ...), in any order of dimensions.
    """
    dims = [dim for dim in values.dims if dim not in ("chain", "draw")]
    entries = [
        values[dim].values if dim in values.coords and values[dim].dtype.kind in "UO" else range(values.sizes[dim])
        for dim in dims
    ]
    return [f"{name}[{', '.join(map(str, one))}]" for one in itertools.product(*entries)] if dims else [name]


def worth(values: np.ndarray, kind: str) -> np.ndarray:
    """How many independent draws the mean of each column is worth.

    Args:
        values: (chain, draw, D), finite.
        kind: as in `Draws`.

    Returns:
        (D,): infinity for particles and points, whose mean has no Monte Carlo error; of independent draws their number,
        where those that repeat (draws chosen by their weights) count less, S² / Σ repeats²; else the effective sample
        size (Vehtari et al. 2021), which sees chains that disagree.
    """
    chains, each, dim = values.shape
    if kind in FIXED:
        return np.full(dim, np.inf)
    if kind in INDEPENDENT:
        repeats = np.bincount(repeated(values.reshape(-1, dim)))
        return np.full(dim, repeats.sum() ** 2 / np.square(repeats).sum())
    if each < FEWEST_OF_A_CHAIN:
        return np.full(dim, float(chains))
    found = ess(values, method="mean")
    constant = np.ptp(values.reshape(-1, dim), axis=0) == 0
    return np.where(constant, float(chains), np.nan_to_num(found, nan=float(chains)))


def repeated(flat: np.ndarray) -> np.ndarray:
    """A number (S,) of each draw (S, D), the same for draws that are the same."""
    return np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1)


def blocks(values: np.ndarray, kind: str) -> np.ndarray | None:
    """Which draws hang together.

    Args:
        values: (chain, draw, D), the draws beside all that is computed from them, on whose autocorrelation it depends.
        kind: as in `Draws`.

    Returns:
        A number (S,) of each draw, chain after chain, the same for draws that repeat and for those of a stretch of a
        chain that is `TIMES_A_BLOCK` autocorrelation times long; None for particles, which are no random draws.
    """
    chains, each, dim = values.shape
    if kind in FIXED:
        return None
    if kind in INDEPENDENT:
        return repeated(values.reshape(-1, dim))
    share = float(worth(values, kind).min()) / (chains * each)
    length = 1 if share > INDEPENDENT_SHARE else int(np.ceil(TIMES_A_BLOCK / max(share, 1 / (chains * each))))
    within = np.arange(each) // min(length, each)
    return np.concatenate([chain * each + within for chain in range(chains)])
