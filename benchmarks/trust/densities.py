"""A Pyro model's log density on the unconstrained scale, through Pyro alone: no part of the package that is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.distributions import ImproperUniform
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to


@dataclass(frozen=True)
class Coordinates:
    """A latent site's place in the flat unconstrained vector.

    Attributes:
        start: first entry.
        shape: of the unconstrained value.
        transform: to the constrained value.
    """

    start: int
    shape: torch.Size
    transform: Any

    @property
    def size(self) -> int:
        """Entries of the vector."""
        return self.shape.numel()


def double(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments in double precision."""
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


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
        trace = poutine.trace(model).get_trace(*double(args))
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
    args = double(args)
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
