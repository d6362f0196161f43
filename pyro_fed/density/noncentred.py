"""The same model with its hierarchies' effects in units of their own scale, which has no funnel's neck.

If the scale of a latent x depends on another latent, x ~ (loc, scale), the flat vector holds e in place of x,

    x = loc + scale e,      log p(e, rest) = log p(x, rest) + log scale             (for a matrix L: log |det L|)

with loc and scale as the model computes them from the latents before x (Papaspiliopoulos, Roberts and Sköld 2007). Any
other latent's coordinate is unchanged. It is a change of coordinates, in which the same distribution is easier to
explore if there are few data on x.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.checks.funnels import latent_scales
from pyro_fed.density.joint import JointProblem
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.location_scale import LocationScale
from pyro_fed.density.running.trace_sites import Message
from pyro_fed.density.traits.record import Traits


class FromVector(Protocol):
    """`Problem.from_vector`, of one form or another."""

    def __call__(self, z: Tensor, rows: tuple[Tensor, ...], /) -> Source:
        """The latents' values from a flat vector."""


@dataclass(frozen=True, eq=False)
class NonCentred(Problem):
    """A problem whose flat vector has e in place of x; made by `noncentred_form`.

    Attributes:
        effects: names of the sites that are in units of their scale.
        model_form: the problem in the model's own form.
    """

    effects: tuple[str, ...] = field(default=())
    model_form: Problem | None = field(default=None, repr=False)

    @property
    def in_units_of_scale(self) -> tuple[str, ...]:
        """`effects`."""
        return self.effects

    def _centred_traits(self) -> Traits | None:
        """The traits of the model as it is written."""
        return None if self.model_form is None else self.model_form.traits

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,), with e, of the values that `source` gives to each latent site."""
        return self.to_noncentred(super().collect(source)[None])[0]

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,) with e, for `effects` loc + scale e; see `Problem.from_vector`."""
        plain = super().from_vector(z, rows, local)

        def source(msg: Message, transform: Any) -> Tensor:
            value = plain(msg, transform)
            return _pair(msg).from_standard(value) if msg["name"] in self.effects else value

        return source

    def _plate_terms(
        self, execution: Execution, rows: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
        """The terms of any form, and the logarithms of the scales beside the transforms' Jacobians."""
        for name in self.effects:
            msg = execution.trace.nodes[name]
            execution.filler.keep_jacobian(msg, _pair(msg).log_size)
        return super()._plate_terms(execution, rows)

    def centred(self, points: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of unconstrained points (S, D) with e in place of x."""
        return self._read(points, self.from_vector)

    def to_noncentred(self, points: Tensor) -> Tensor:
        """Points (S, D) with e in place of x, from points (S, D) in the model's own coordinates."""
        return self._read(points, super().from_vector, divided=True)

    def _read(self, points: Tensor, from_vector: FromVector, *, divided: bool = False) -> Tensor:
        """Each latent's unconstrained value in a run of the model at points (S, D); e in place of x if `divided`."""
        rows = self.fewest_rows

        def noncentred_point(z: Tensor) -> Tensor:
            source, parts = from_vector(z, rows), {}

            def recording(msg: Message, transform: Any) -> Tensor:
                x = source(msg, transform)
                standard = divided and msg["name"] in self.effects
                parts[msg["name"]] = _pair(msg).standard(x) if standard else x
                return x

            with self._written((z, *rows)):
                self.execute(recording, rows)
            return torch.cat([parts[name].reshape(-1) for name in self.sites])

        found: Tensor = self.vmap(noncentred_point)(points)
        return found


@dataclass(frozen=True, eq=False)
class NonCentredJoint(NonCentred, JointProblem):
    """The non-centred form of the joint densities, whose flat vector has the rows' own latents."""


def noncentred_form(problem: Problem) -> NonCentred | None:
    """The non-centred form of a problem, joint or not, with a compiler of its own.

    None if no latent of the flat vector has a scale that depends on another latent.
    """
    effects = effects_of(problem)
    if not effects:
        return None
    parts = {part.name: getattr(problem, part.name) for part in fields(problem)}
    form = NonCentredJoint if isinstance(problem, JointProblem) else NonCentred
    return form(
        **parts | {"compiler": problem.compiler.of_form("non-centred"), "effects": effects, "model_form": problem}
    )


def effects_of(problem: Problem) -> tuple[str, ...]:
    """Names of the flat vector's latents whose scale depends on another latent."""
    return tuple(
        name for name, pair, _ in latent_scales(problem) if pair.loc.shape == problem.sites[name].unconstrained_shape
    )


def _pair(msg: Message) -> LocationScale:
    """The loc and scale of a site that has them."""
    return cast_checked(LocationScale.of(msg["fn"]), LocationScale)
