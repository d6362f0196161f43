"""Comparison of a guide's sites with those of the model: names, and supports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.trace_sites import innermost, unconstraining
from pyro_fed.errors import SettingError, warn_user

#: Unconstrained values, which together cover a support, up to rounding.
REACHING = (-16.0, -4.0, -1.0, 0.0, 1.0, 4.0, 16.0)


def sampled_sites(trace: Any) -> dict[str, Any]:
    """The messages of the sampled sites in Pyro's trace of a guide, by name."""
    return {
        name: node
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and not node["is_observed"] and type(node["fn"]).__name__ != "_Subsample"
    }


def check_names(guide: str, found: set[str], problem: Problem, cure: str, warn: bool = True) -> None:
    """Refuse a guide whose global sites are not the model's; warn about those inside the plate.

    `found` are the names of the guide's sites, without auxiliary ones; `cure` ends the message, and `warn` says whether
    the sites inside the plate are not used.

    Raises:
        SettingError: lists the sites.
    """
    expected, local = set(problem.sites), set(problem.layout.local)
    unknown, missing = sorted(found - expected - local), sorted(expected - found)
    if unknown or missing:
        inside = f" and, inside plate '{problem.plate}', {sorted(local)}" if local else ""
        raise SettingError(
            f"guide {guide} lacks the sites {missing} and has {unknown} besides: the model's are "
            f"{sorted(expected)}{inside}; {cure}"
        )
    if found & local and warn:
        warn_user(
            f"guide {guide}: its sites {sorted(found & local)}, inside plate '{problem.plate}', are not used: clients "
            "integrate these latents out and draw them given the others at the end. A guide without them does as well"
        )


def check_support(guide: str, msg: Any, support: Any) -> None:
    """Refuse a site, with its message `msg`, whose distribution reaches beyond the model's support.

    Raises:
        SettingError: names the site and both supports.
    """
    kind, value = type(innermost(msg["fn"])).__name__, msg["value"]
    points = [value] if kind == "Delta" else _points_of(unconstraining(msg), value)
    if not all(bool(support.check(point).all()) for point in points):
        raise SettingError(
            f"guide {guide}: site '{msg['name']}' ({kind}) draws values outside the model's support {support}: its own "
            f"support is {msg['fn'].support}; give it a family of the model's support"
        )


def _points_of(transform: Any, value: Tensor) -> list[Tensor]:
    """Values that cover a support: those that a transform gives at points that are far away, and near."""
    shape = transform.inverse_shape(value.shape)
    signs = (1 - 2 * (torch.arange(shape.numel()) % 2)).reshape(shape).to(value.dtype)
    return [transform(size * part) for size in REACHING for part in (torch.ones_like(signs), signs)]


def model_sites(problem: Problem) -> dict[str, tuple[Any, Any]]:
    """Each latent site's support and transform."""
    found = {}

    def source(msg: Any, transform: Any) -> Tensor:
        found[msg["name"]] = (msg["fn"].support, transform)
        return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=problem.dtype)

    problem.collect(source)
    return found
