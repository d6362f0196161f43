"""Two other forms of the same model: with the rows' own latents in the flat vector, and without funnels.

*Joint*: latents inside the plate are part of the flat vector, one value a row of the pooled data,

    z = (θ, x_1 ... x_N),    log_prior(z) = log p(θ),    log_lik(z, row i) = log p(x_i | θ) + log p(y_i | θ, x_i)

as algorithms on pooled data may have them, and results hold them. Rows carry their number, so that any of them, in any
order, find their own latents.

*Non-centred*: if the scale of a latent x depends on another latent, x ~ (loc, scale), the posterior narrows with the
scale where there are few data on x, to the neck of a funnel that no step size fits. The flat vector has e for x,

    x = loc + scale e,      log p(e, rest) = log p(x, rest) + log scale             (for a matrix L: log |det L|)

with loc and scale as the model computes them from the latents before x (Papaspiliopoulos, Roberts and Sköld 2007). Any
other latent's coordinate is unchanged: it is a change of coordinates, of the same distribution.
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
from pyro_fed.density.traits import Neck, Traits
from pyro_fed.ops.batched import vmap


@dataclass(frozen=True, eq=False)
class JointProblem(Problem):
    """A problem whose flat vector is (θ, all rows' latents); made by `JointProblem.of`.

    Attributes:
        numbers: (m,) its rows' numbers among all `num_rows` of the flat vector; None: they are all of them.
    """

    numbers: Tensor | None = None

    @classmethod
    def of(cls, problem: Problem, numbers: Tensor | None = None) -> JointProblem:
        """The joint form, with a compiler of its own, of a problem whose rows' own latents are integrated out.

        `numbers` (m,) are as in the attribute, for a problem that has some of the rows alone.
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
        """All deterministic sites whose values the flat vector determines."""
        hidden = self.layout.depends_on_discrete
        return {name: site for name, site in self.layout.reported.items() if name not in hidden}

    @property
    def local_dim(self) -> int:
        """Zero, since no latents are integrated out."""
        return 0

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """The row tensors, and last the rows' numbers."""
        rows = super().rows
        numbers = torch.arange(len(rows[0])) if self.numbers is None else self.numbers
        return (*rows, numbers.to(rows[0].device))

    @property
    def all_rows(self) -> tuple[Any, ...]:
        """All rows as the model takes them at once, and last their numbers."""
        return (*super().all_rows[: len(self.rows) - 1], self.rows[-1])

    @property
    def fewest_rows(self) -> tuple[Tensor, ...]:
        """All rows: each carries latents of the flat vector."""
        return self.rows

    def from_vector(self, z: Tensor, rows: tuple[Tensor, ...], local: Tensor | None = None) -> Source:
        """The latents' values from z (D,), for those inside the plate the values of these rows; `local` is not used."""
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


def _pair(msg: Message) -> LocationScale:
    """The loc and scale of a site that has them."""
    return cast_checked(LocationScale.of(msg["fn"]), LocationScale)


def latent_scales(problem: Problem) -> Iterator[tuple[str, LocationScale, list[str]]]:
    """Location-scale sites of the flat vector whose scale is latent, at zero, and the latents that it depends on."""
    execution, places = run_at_zero(problem.bound)
    for name in problem.sites:
        with torch.enable_grad():  # a matrix's scale is expanded here, also in a run without derivatives
            pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is not None:
            # A scale to the power of zero depends on its base by name alone: its derivative is zero.
            on = [other for other, slope in derivatives(pair.scale, places).items() if bool(slope.any())]
            if on:
                yield name, pair, on


def funnels(problem: Problem) -> dict[str, list[str]]:
    """The sites whose scale is a number, which `LocScaleReparam` takes, and the latents that it depends on."""
    return {name: on for name, pair, on in latent_scales(problem) if not pair.is_matrix}


def necks_of_rows(problem: Problem) -> list[Neck]:
    """The necks of the rows' own latents, which are integrated out, if their scale is latent in the flat vector."""
    if not problem.layout.local:
        return []
    execution, places = run_at_zero(problem.bound)
    found = []
    for name in problem.layout.local:
        pair = LocationScale.of(execution.trace.nodes[name]["fn"])
        if pair is None:
            continue
        with torch.enable_grad():
            size = pair.log_size.mean()
        slopes = derivatives(size, places)
        on = [other for other, slope in slopes.items() if other in problem.sites and bool(slope.any())]
        if on:
            parts = [slopes.get(other, torch.zeros_like(places[other])).reshape(-1) for other in problem.sites]
            found.append(Neck(name, on, float(size.detach()), torch.cat(parts)))
    return found


def funnel_hint(problem: Problem) -> list[str]:
    """A sentence on the sites to reparameterise if chains do not mix, and how; none for sites in that form already."""
    sites = {name: on for name, on in funnels(problem).items() if name not in problem.in_units_of_scale}
    if not sites:
        return []
    scales = "; ".join(
        f"the scale of '{name}' depends on {' and '.join(map(repr, on))}, itself latent" for name, on in sites.items()
    )
    config = ", ".join(f"'{name}': LocScaleReparam(0.0)" for name in sites)
    here = "run on fed.noncentred (fit(fed) tries that by itself), or "  # which leaves rows' own latents as they are
    return [
        f"a funnel is likely: {scales}. Where the data say little about it, use the non-centred form: "
        f"{'' if sites.keys() <= problem.layout.local.keys() else here}rewrite the model: from pyro.infer.reparam "
        f"import LocScaleReparam; model = pyro.poutine.reparam(model, config={{{config}}})"
    ]


def with_hint(said: str, problem: Problem) -> str:
    """The sentences `said`, without the last full stop, followed by the hint if there is one."""
    return ". ".join([said, *(hint[0].upper() + hint[1:] for hint in funnel_hint(problem))])
