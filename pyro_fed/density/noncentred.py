"""The same model with its hierarchies' effects in units of their own scale: what a funnel's neck is not.

Where the scale of a latent x is itself a latent's, x ~ (loc, scale), the flat vector holds e in place of x,

    x = loc + scale e,      log p(e, rest) = log p(x, rest) + log scale             (for a matrix L: log |det L|)

with loc and scale as the model computes them from the latents before x (Papaspiliopoulos, Roberts and Sköld 2007). Any
other latent's coordinate is as it was. It is a change of coordinates, in which the same distribution is easier to walk
through where the data say little of x.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.checks.dependence import derivatives, run_at_zero
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.trace_sites import Message, without_event_dims
from pyro_fed.errors import ModelError


@dataclass(frozen=True, eq=False)
class NonCentred(Problem):
    """A problem whose flat vector has e in place of x; made by `NonCentred.of`.

    Attributes:
        effects: names of the sites that are in units of their scale.
    """

    effects: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, problem: Problem) -> NonCentred:
        """The non-centred form of a problem, with a compiler of its own.

        Args:
            problem: with the effects as the model has them.

        Raises:
            ModelError: no latent outside the plate has a scale that is a latent's.
        """
        effects = effects_of(problem)
        if not effects:
            raise ModelError(
                f"the model has no non-centred form: of its latents {list(problem.sites)} none has a scale that "
                "depends on another latent"
            )
        parts = {part.name: getattr(problem, part.name) for part in fields(Problem)}
        return cls(**parts | {"compiler": problem.compiler.of_form("non-centred"), "effects": effects})

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,), with e, of what `source` says of each latent site.

        Args:
            source: gives a latent site's unconstrained value from its message and transform.
        """
        return self.apart(super().collect(source)[None])[0]

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values, of `effects` loc + scale e.

        Args:
            z: (D,) with e.
            rows: row tensors, each (m, ...).
            local: (m, local_dim) unconstrained latents of the rows.
        """
        plain = super().from_vector(z, rows, local)

        def source(msg: Message, transform: Any) -> Tensor:
            value = plain(msg, transform)
            if msg["name"] not in self.effects:
                return value
            loc, scale = _pair(msg)
            return loc + (scale * value if scale.dim() <= loc.dim() else (scale @ value[..., None])[..., 0])

        return source

    def _plate_terms(
        self, execution: Execution, rows: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
        """As of any problem, and the logarithms of the scales in the Jacobian's term."""
        outside, inside = super()._plate_terms(execution, rows)
        for name in self.effects:
            loc, scale = _pair(execution.trace.nodes[name])
            widths = scale if scale.dim() <= loc.dim() else scale.diagonal(dim1=-2, dim2=-1)
            outside[""] = outside[""] + widths.expand(loc.shape).log().sum()
        return outside, inside

    def centred(self, points: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of points (S, D) with e.

        Args:
            points: unconstrained, e in place of x.
        """
        return self._read(points, self.from_vector)

    def apart(self, points: Tensor) -> Tensor:
        """The other way round.

        Args:
            points: (S, D), the model's own coordinates.
        """
        return self._read(points, super().from_vector, divided=True)

    def _read(self, points: Tensor, from_vector: Any, *, divided: bool = False) -> Tensor:
        """Each latent's unconstrained value in a run of the model at points (S, D); e in place of x if `divided`."""
        rows = self.fewest_rows

        def one(z: Tensor) -> Tensor:
            source, parts = from_vector(z, rows), {}

            def recording(msg: Message, transform: Any) -> Tensor:
                x: Tensor = source(msg, transform)
                parts[msg["name"]] = x
                if divided and msg["name"] in self.effects:
                    loc, scale = _pair(msg)
                    away = (x - loc)[..., None] if scale.dim() > loc.dim() else x - loc
                    parts[msg["name"]] = (
                        torch.linalg.solve_triangular(scale, away, upper=False)[..., 0]
                        if scale.dim() > loc.dim()
                        else away / scale
                    )
                return x

            with self._written((z, *rows)):
                self.execute(recording, rows)
            return torch.cat([parts[name].reshape(-1) for name in self.sites])

        found: Tensor = self.vmap(one)(points)
        return found


def effects_of(problem: Problem) -> tuple[str, ...]:
    """Names of the latents outside the plate whose scale depends on another latent.

    Args:
        problem: the model's densities.
    """
    execution, places = run_at_zero(problem.bound)
    found = []
    for name, site in problem.sites.items():
        pair = _affine(without_event_dims(execution.trace.nodes[name]["fn"]))
        if pair is None or pair[0].shape != site.unconstrained_shape:
            continue
        # A scale to the power of zero depends on its base by name alone: its derivative is zero.
        if any(bool(slope.any()) for slope in derivatives(pair[1], places).values()):
            found.append(name)
    return tuple(found)


def _pair(msg: Message) -> tuple[Tensor, Tensor]:
    """A site's loc and scale; the site has them."""
    pair = _affine(without_event_dims(msg["fn"]))
    assert pair is not None
    return pair


def _affine(fn: Any) -> tuple[Tensor, Tensor] | None:
    """loc and scale of a distribution, of one shape, or a Cholesky factor with one dimension more; else None."""
    if {"loc", "scale"} <= set(fn.arg_constraints):
        loc, scale = torch.broadcast_tensors(torch.as_tensor(fn.loc), torch.as_tensor(fn.scale))
        return loc, scale
    if {"loc", "scale_tril"} <= set(fn.arg_constraints):
        shape = fn.batch_shape + fn.event_shape
        return fn.loc.expand(shape), fn.scale_tril.expand(shape + fn.event_shape)
    return None
