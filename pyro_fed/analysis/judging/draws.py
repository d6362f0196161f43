"""A result's draws as an array: whether figures can be computed from them, and their effective number."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from pyro_fed.ops.arviz_versions import ess
from pyro_fed.results.inference_data import InferenceData

#: Larger draws are not measured: their fourth powers, by which kurtoses are found, exceed double precision.
LARGEST_DRAW = float(np.finfo(float).max ** 0.25)
#: Draws that are evaluated at once. It bounds the memory, and changes no result.
DRAWS_AT_ONCE = 64
#: An autocorrelation needs at least this many draws in each chain.
MIN_CHAIN_DRAWS = 4
#: Length of a block of draws, in autocorrelation times: so long that blocks are nearly independent of each other.
BLOCK_TIMES = 5
#: Draws of a chain count as independent if their effective number is more than this share of their number. In blocks
#: they would be too few for the random signs of `discrepancy`, and no short chain could be flagged.
INDEPENDENT_SHARE = 0.9
#: Kinds of draws that are independent of each other.
INDEPENDENT = ("independent", "agents")
#: Kinds of draws that are not random, and have no Monte Carlo error.
FIXED = ("particles", "point")


@dataclass(frozen=True)
class Draws:
    """Draws of a posterior.

    Args:
        values: (chain, draw, D).
        labels: a name of each of the D columns, such as `w[0]`.
        kind: "particles", "independent" (draws of a density), "chains" (Markov chains), "agents" or "point"; "" if the
            result does not record it, which is treated like "chains".
    """

    values: np.ndarray
    labels: list[str]
    kind: str

    @classmethod
    def of(cls, idata: InferenceData, names: Sequence[str] | None = None) -> Draws:
        """The draws of the named variables of a result's group `posterior`, by default of all, by name."""
        posterior = idata["posterior"]
        blocks, labels = [], []
        for name in sorted(map(str, posterior.data_vars)) if names is None else names:
            values = np.asarray(posterior[name].transpose("chain", "draw", ...).values, dtype=float)
            blocks.append(values.reshape(*values.shape[:2], math.prod(values.shape[2:])))
            labels += entries_of(name, posterior[name])
        return cls(np.concatenate(blocks, 2), labels, str(idata.attrs.get("draws_are", "")))

    @property
    def flat(self) -> np.ndarray:
        """The draws as one matrix (S, D), chain after chain."""
        chains, each, dim = self.values.shape
        return self.values.reshape(chains * each, dim)

    @cached_property
    def fault(self) -> str:
        """A sentence on why no figures can be computed from the draws; "" if they can."""
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
    def all_equal(self) -> bool:
        """Whether all draws are the same point."""
        flat = self.flat
        return bool((flat == flat[:1]).all())

    @property
    def spreadless(self) -> str:
        """A sentence on draws that are a single point; "" if they vary, or if there are none."""
        if not self.flat.size:
            return ""
        if self.kind == "point":
            return "a point, without any uncertainty"
        if len(self.flat) == 1:
            return "a single draw, without any uncertainty"
        return f"all {len(self.flat)} draws are the same point, without any uncertainty" if self.all_equal else ""


def labels_of(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the entries of a variable of this shape: `w[0]`, `w[1]` for a vector, `w` for a scalar."""
    return [name] if not shape else [f"{name}[{', '.join(map(str, i))}]" for i in np.ndindex(shape)]


def entries_of(name: str, values: xr.DataArray) -> list[str]:
    """Names of the entries of a variable (chain, draw, ...): `w[0]`, or `w[Basel]` if the coordinate is text."""
    dims = [dim for dim in values.dims if dim not in ("chain", "draw")]
    entries = [
        values[dim].values if dim in values.coords and values[dim].dtype.kind in "UO" else range(values.sizes[dim])
        for dim in dims
    ]
    return [f"{name}[{', '.join(map(str, one))}]" for one in itertools.product(*entries)] if dims else [name]


def effective_draws(values: np.ndarray, kind: str) -> np.ndarray:
    """The effective number of draws (D,) for the mean of each column of finite draws (chain, draw, D).

    For particles and points infinity, since their mean has no Monte Carlo error. For independent draws S² / Σ r², with
    r the number of times that each distinct draw occurs (draws chosen by weights repeat): S if none repeats. For chains
    the effective sample size of Vehtari et al. (2021), which is small if chains disagree.
    """
    chains, each, dim = values.shape
    if kind in FIXED:
        return np.full(dim, np.inf)
    if kind in INDEPENDENT:
        repeats = np.bincount(distinct_draw_numbers(values.reshape(-1, dim)))
        return np.full(dim, repeats.sum() ** 2 / np.square(repeats).sum())
    if each < MIN_CHAIN_DRAWS:
        return np.full(dim, float(chains))
    found = ess(values, method="mean")
    constant = np.ptp(values.reshape(-1, dim), axis=0) == 0
    return np.where(constant, float(chains), np.nan_to_num(found, nan=float(chains)))


def distinct_draw_numbers(flat: np.ndarray) -> np.ndarray:
    """A number for each draw, (S, D) → (S,). Equal draws have the same number."""
    return np.unique(flat, axis=0, return_inverse=True)[1].reshape(-1)


def blocks(values: np.ndarray, kind: str) -> np.ndarray | None:
    """The block's number of each draw (S,), chain after chain, so that blocks are nearly independent of each other.

    Of independent draws, equal draws form a block; of a chain, each stretch of `BLOCK_TIMES` autocorrelation times
    does. None for particles and points, which are not random. `values` (chain, draw, D) are the draws and all
    quantities computed from them whose autocorrelation counts.
    """
    chains, each, dim = values.shape
    if kind in FIXED:
        return None
    if kind in INDEPENDENT:
        return distinct_draw_numbers(values.reshape(-1, dim))
    share = float(effective_draws(values, kind).min()) / (chains * each)
    length = 1 if share > INDEPENDENT_SHARE else int(np.ceil(BLOCK_TIMES / max(share, 1 / (chains * each))))
    within = np.arange(each) // min(length, each)
    return np.concatenate([chain * each + within for chain in range(chains)])
