"""A posterior of the benchmark: a Pyro model, its data, how they are split, and how its reference is found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import pyro_fed as pf


@dataclass(frozen=True)
class Quadratic:
    """The log density is quadratic on the unconstrained scale: mean and covariance from gradient and Hessian."""


@dataclass(frozen=True)
class Grid:
    """Tensor-product trapezoidal sums over the unconstrained space, of at most four dimensions.

    Args:
        box: where the mass lies for sure, by site: (low, high) for all of its entries; else `default`.
        model: another Pyro model of the same posterior, with the latents of rows integrated out, say.
        loop: evaluate point by point, for models that cannot be mapped.
        points: along each dimension; by the number of dimensions where it is left out.
    """

    box: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    default: tuple[float, float] = (-12.0, 12.0)
    model: Callable[..., Any] | None = None
    loop: bool = False
    points: int | None = None


@dataclass(frozen=True)
class LongRun:
    """Four long chains of NUTS on the pooled data, in double precision.

    Args:
        model: another Pyro model of the same posterior, non-centred, say, which reports the sites of the first.
        draws: of each chain.
        accept: target of the step size.
    """

    model: Callable[..., Any] | None = None
    draws: int = 1000
    accept: float = 0.8


@dataclass(frozen=True)
class Nested:
    """Moments by nested quadrature, written for this posterior.

    Args:
        moments: from the data to `{site: (means, SDs)}` on the unconstrained scale.
    """

    moments: Callable[..., dict[str, tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Undefined:
    """There is no posterior (the model draws noise, say): the only right answer is a refusal."""


Reference = Quadratic | Grid | LongRun | Nested | Undefined


@dataclass(frozen=True)
class Posterior:
    """A model on data.

    Args:
        name: unique.
        kind: the kind of failure that it invites.
        model: the ordinary Pyro model.
        data: makes its positional arguments, from fixed seeds.
        reference: how mean and SD of its sites are found.
        clients: how many.
        partition: from the arguments; at random by default.
        options: more arguments of `Federation`.
    """

    name: str
    kind: str
    model: Callable[..., Any]
    data: Callable[[], tuple[Any, ...]]
    reference: Reference
    clients: int = 4
    partition: Callable[..., pf.partition.Partition] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def federation(self, model: Callable[..., Any] | None = None, **changes: Any) -> pf.Federation:
        """The federation, or that of another model on the same data."""
        args = self.data()
        options: dict[str, Any] = {"plate": "data", "num_clients": self.clients, "seed": 0, **self.options}
        options["partition"] = self.partition(*args) if self.partition else None
        return pf.Federation(model or self.model, args, **options | changes)

    def fingerprint(self) -> str:
        """Changes with the data, so that a reference of other data is noticed."""
        digest = hashlib.sha256()
        for leaf in self.data():
            array = leaf.detach().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
            # Rounded: a library that draws the same numbers may differ in the last digit.
            digest.update(np.round(array.astype(np.float64), 5).tobytes() + str(array.shape).encode())
        return digest.hexdigest()[:16]
