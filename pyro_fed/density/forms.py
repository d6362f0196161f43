"""Two other forms of a model: joint, with the rows' own latents in the flat vector, and non-centred, without funnels.

*Joint*: latents inside the plate are part of the flat vector, one value a row of the pooled data,

    z = (θ, x_1 ... x_N),    log_prior(z) = log p(θ),    log_lik(z, row i) = log p(x_i | θ) + log p(y_i | θ, x_i)

for algorithms on pooled data and for results. Each row carries its number, which selects its latents.

*Non-centred*: if the scale of a latent x ~ (loc, scale) depends on another latent and there are few data on x, the
posterior narrows with the scale, to the neck of a funnel that no step size fits. The flat vector has e in place of x,

    x = loc + scale e,      log p(e, rest) = log p(x, rest) + log scale             (for a matrix L: log |det L|)

where the model computes loc and scale from the latents before x (Papaspiliopoulos, Roberts and Sköld 2007). Coordinates
of other latents are unchanged. The distribution is the same in other coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from pyro_fed.conventions.calls import cast_checked
from pyro_fed.density.bound import derivatives, run_at_zero
from pyro_fed.density.layout import Site
from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.trace_sites import LocationScale, Message
from pyro_fed.density.traits import Neck
from pyro_fed.ops.batched import vmap


@dataclass(frozen=True, eq=False)
class JointProblem(Problem):
    """A problem whose flat vector is (θ, all rows' latents); made by `JointProblem.of`.

    Attributes:
        numbers: (m,) numbers of its rows among the `num_rows` rows of the flat vector; None if it has all rows.
    """

    numbers: Tensor | None = None

    @classmethod
    def of(cls, problem: Problem, numbers: Tensor | None = None) -> JointProblem:
        """The joint form of a problem that integrates out the rows' own latents, with a compiler of its own.

        `numbers` (m,) is the attribute, for a problem with a part of the rows.
        """
        parts = {part.name: getattr(problem, part.name) for part in fields(Problem)}
        return cls(**parts | {"compiler": problem.compiler.of_form("joint"), "numbers": numbers})

    @property
    def sites(self) -> dict[str, Site]:
        """Latent sites outside the plate, then those inside it, each in its own shape over all rows."""
        sites = dict(self.layout.latents)
        start = sum(site.size for site in sites.values())
        for name, site in self.layout.local.items():
            site = site if self.numbers is None else site.over(self.num_rows)
            sites[name] = replace(site, start=start)
            start += site.size
        return sites

    @property
    def reported(self) -> dict[str, Site]:
        """Deterministic sites whose values the flat vector determines."""
        hidden = self.layout.depends_on_discrete
        return {name: site for name, site in self.layout.reported.items() if name not in hidden}

    @property
    def local_dim(self) -> int:
        """Zero, since no latents are integrated out."""
        return 0

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The row tensors, followed by the rows' numbers."""
        rows = super().rows
        numbers = torch.arange(len(rows[0])) if self.numbers is None else self.numbers
        return (*rows, numbers.to(rows[0].device))

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows in one call of the model, followed by their numbers."""
        return (*super().all_rows[: len(self.rows) - 1], self.rows[-1])

    @property
    def fewest_rows(self) -> tuple[Tensor, ...]:
        """All rows, since each row has latents in the flat vector."""
        return self.rows

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,); inside the plate, those of these rows. `local` is not used."""
        sites, numbers = self.sites, rows[-1]

        def source(msg: Message, _transform: Any) -> Tensor:
            site = sites[msg["name"]]
            whole = z[site.start : site.start + site.size].reshape(site.unconstrained_shape)
            return whole if site.axis is None else whole.index_select(site.axis, numbers)

        return source

    def join(self, theta: Tensor, local: Tensor) -> Tensor:
        """Flat vectors (S, D + N d) from θ (S, D) and all rows' unconstrained latents (S, N, d)."""
        sites = self.layout.local.values()
        flat = vmap(lambda block: torch.cat([site.of_rows(block).flatten() for site in sites]))
        return torch.cat([theta, flat(local)], -1)


class FromVector(Protocol):
    """The type of `Problem.from_vector`."""

    def __call__(self, z: Tensor, rows: tuple[Tensor, ...], /) -> Source:
        """The latents' values from a flat vector."""


@dataclass(frozen=True, eq=False)
class NonCentred(Problem):
    """A problem whose flat vector has e in place of x, from `noncentred_form`.

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

    def collect(self, source: Source) -> Tensor:
        """The flat vector (D,), with e, of the values that `source` gives to each latent site."""
        return self.to_noncentred(super().collect(source)[None])[0]

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,) with e, for `effects` loc + scale e; see `Problem.from_vector`."""
        plain = super().from_vector(z, rows, local)

        def source(msg: Message, transform: Any) -> Tensor:
            value = plain(msg, transform)
            return _location_scale(msg).from_standard(value) if msg["name"] in self.effects else value

        return source

    def _plate_terms(
        self, execution: Execution, rows: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
        """The terms of the problem, with the logarithms of the scales added to the transforms' log-Jacobians."""
        for name in self.effects:
            msg = execution.trace.nodes[name]
            execution.filler.keep_jacobian(msg, _location_scale(msg).log_size)
        return super()._plate_terms(execution, rows)

    def centred(self, points: Tensor) -> Tensor:
        """The model's own coordinates (S, D) of unconstrained points (S, D) with e in place of x."""
        return self._read_coordinates(points, self.from_vector)

    def to_noncentred(self, points: Tensor) -> Tensor:
        """Points (S, D) with e in place of x, from points (S, D) in the model's own coordinates."""
        return self._read_coordinates(points, super().from_vector, standardise=True)

    def _read_coordinates(self, points: Tensor, from_vector: FromVector, *, standardise: bool = False) -> Tensor:
        """Each latent's unconstrained value in runs at points (S, D); e in place of x if `standardise`."""
        rows = self.fewest_rows

        def noncentred_point(z: Tensor) -> Tensor:
            source, parts = from_vector(z, rows), {}

            def recording(msg: Message, transform: Any) -> Tensor:
                x = source(msg, transform)
                is_standardised = standardise and msg["name"] in self.effects
                parts[msg["name"]] = _location_scale(msg).standard(x) if is_standardised else x
                return x

            with self._written((z, *rows)):
                self.execute(recording, rows)
            return torch.cat([parts[name].reshape(-1) for name in self.sites])

        values: Tensor = self.vmap(noncentred_point)(points)
        return values


@dataclass(frozen=True, eq=False)
class NonCentredJoint(NonCentred, JointProblem):
    """The non-centred form of the joint densities, whose flat vector has the rows' own latents."""


def noncentred_form(problem: Problem) -> NonCentred | None:
    """The non-centred form of a problem, joint or not; None if no latent's scale depends on another latent."""
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


def _location_scale(msg: Message) -> LocationScale:
    """The loc and scale of a site that has them."""
    return cast_checked(LocationScale.of(msg["fn"]), LocationScale)


def latent_scales(problem: Problem) -> Iterator[tuple[str, LocationScale, list[str]]]:
    """Location-scale sites of the flat vector whose scale depends on latents, at zero, with these latents."""
    execution, places = run_at_zero(problem.bound)
    for name in problem.sites:
        with torch.enable_grad():  # the scale of a matrix is expanded here
            pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is not None:
            # The derivative is zero for a scale to the power of zero, which does not depend on its base.
            scale_latents = [other for other, slope in derivatives(pair.scale, places).items() if bool(slope.any())]
            if scale_latents:
                yield name, pair, scale_latents


def funnels(problem: Problem) -> dict[str, list[str]]:
    """Sites with a scalar scale, for `LocScaleReparam`, and the latents on which the scale depends."""
    return {name: scale_latents for name, pair, scale_latents in latent_scales(problem) if not pair.is_matrix}


def necks_of_rows(problem: Problem) -> list[Neck]:
    """Necks of the rows' integrated latents whose scale depends on the flat vector."""
    if not problem.layout.local:
        return []
    execution, places = run_at_zero(problem.bound)
    necks = []
    for name in problem.layout.local:
        pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is None:
            continue
        with torch.enable_grad():
            size = pair.log_size.mean()
        slopes = derivatives(size, places)
        scale_latents = [other for other, slope in slopes.items() if other in problem.sites and bool(slope.any())]
        if scale_latents:
            parts = [slopes.get(other, torch.zeros_like(places[other])).reshape(-1) for other in problem.sites]
            necks.append(Neck(name, scale_latents, float(size.detach()), torch.cat(parts)))
    return necks


def funnel_hint(problem: Problem) -> list[str]:
    """A sentence on the sites to reparameterise if chains do not mix; none for sites that are non-centred already."""
    sites = {
        name: scale_latents for name, scale_latents in funnels(problem).items() if name not in problem.in_units_of_scale
    }
    if not sites:
        return []
    scales = "; ".join(
        f"the scale of '{name}' depends on {' and '.join(map(repr, scale_latents))}, itself latent"
        for name, scale_latents in sites.items()
    )
    config = ", ".join(f"'{name}': LocScaleReparam(0.0)" for name in sites)
    run_cure = "run on fed.noncentred (fit(fed) tries that by itself), or "  # without effect on rows' own latents
    return [
        f"a funnel is likely: {scales}. Where the data say little about it, use the non-centred form: "
        f"{'' if sites.keys() <= problem.layout.local.keys() else run_cure}rewrite the model: from pyro.infer.reparam "
        f"import LocScaleReparam; model = pyro.poutine.reparam(model, config={{{config}}})"
    ]


def with_hint(sentences: str, problem: Problem) -> str:
    """The `sentences`, without the last full stop, followed by the hint if there is one."""
    return ". ".join([sentences, *(hint[0].upper() + hint[1:] for hint in funnel_hint(problem))])
