"""A posterior of the benchmark: a Pyro model, its data, how they are split, and how its reference is found.

Its log density on the unconstrained scale is computed through Pyro alone: no part of the package that is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

import pyro_fed as pf
from pyro_fed.analysis.bench.cases.analytic import in_double_precision
from pyro_fed.analysis.bench.cases.library import fingerprint


@dataclass(frozen=True)
class Coordinates:
    """A latent site's place in the flat unconstrained vector."""

    start: int
    shape: torch.Size
    transform: Any

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.shape.numel()


class ZeroWhereImproper(Messenger):
    """Zero for a site whose distribution cannot be drawn from."""

    def _pyro_sample(self, msg: Any) -> None:
        if isinstance(msg["fn"], ImproperUniform) and not msg["done"]:
            msg["value"], msg["done"] = torch.zeros(msg["fn"].shape()), True


@contextmanager
def in_double() -> Iterator[None]:
    """Tensors that a model makes are double, and Pyro checks nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pyro.validation_enabled(False):
            yield
    finally:
        torch.set_default_dtype(before)


def coordinates(model: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Coordinates]:
    """Latent continuous sites outside the plate of rows "data", by name."""
    pyro.set_rng_seed(0)
    found: dict[str, Coordinates] = {}
    start = 0
    with in_double(), ZeroWhereImproper():
        trace = poutine.trace(model).get_trace(*in_double_precision(args))
    sites: dict[str, Any] = trace.nodes
    for name, site in sites.items():
        if site["type"] != "sample" or site["is_observed"] or type(site["fn"]).__name__ == "_Subsample":
            continue
        if any(frame.name == "data" for frame in site["cond_indep_stack"]) or site["fn"].has_enumerate_support:
            continue
        transform = biject_to(site["fn"].support)
        shape = torch.Size(transform.inverse_shape(site["value"].shape))
        found[name] = Coordinates(start, shape, transform)
        start += shape.numel()
    return found


def log_density(model: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """Log joint density with Jacobians, of one unconstrained vector (D,); latents inside the plate are not allowed."""
    args = in_double_precision(args)
    sites = coordinates(model, args)

    def density(z: Tensor) -> Tensor:
        total = z.new_zeros(())
        values = {}
        for name, site in sites.items():
            u = z[site.start : site.start + site.size].reshape(site.shape)
            values[name] = site.transform(u)
            total = total + site.transform.log_abs_det_jacobian(u, values[name]).sum()
        with in_double():
            trace = poutine.trace(poutine.condition(model, data=values)).get_trace(*args)
            trace.compute_log_prob()
        nodes: dict[str, Any] = trace.nodes
        for name, node in nodes.items():
            if node["type"] != "sample" or type(node["fn"]).__name__ == "_Subsample":
                continue
            if not node["is_observed"]:
                raise ValueError(f"site '{name}' has no value: give the reference a model without it")
            total = total + node["log_prob"].sum()
        return total

    return density


def constrained(sites: dict[str, Coordinates], z: Tensor) -> dict[str, Tensor]:
    """Constrained values (n, numbers) of unconstrained vectors (n, D), site by site."""
    return {
        name: site.transform(z[:, site.start : site.start + site.size].reshape(-1, *site.shape)).reshape(len(z), -1)
        for name, site in sites.items()
    }


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
    """Four long chains of NUTS on the pooled data, of another model with the same sites if there is one."""

    model: Callable[..., Any] | None = None
    draws: int = 1000
    accept: float = 0.8


@dataclass(frozen=True)
class Nested:
    """Moments by nested quadrature: from the data to `{site: (means, SDs)}` on the unconstrained scale."""

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
        return fingerprint(self.data(), 5)
