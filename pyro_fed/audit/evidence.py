"""What the audit looks at: a run's draws, and the model's densities there, each computed once and only if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.audit.census import LARGEST_DIM, Weighed, weighed_points
from pyro_fed.audit.chains.detour import Detour
from pyro_fed.audit.chains.groups import Looked, by_groups, groups
from pyro_fed.audit.chains.motion import CLEAR, NEARLY_CLEAR, Moments, judged, moved, wrong
from pyro_fed.audit.few_rows import on_few_rows
from pyro_fed.audit.quantities import Quantities
from pyro_fed.audit.tails import beyond
from pyro_fed.audit.target import Target
from pyro_fed.conventions import seeding
from pyro_fed.conventions.limits import Limits
from pyro_fed.density.checks.blame import Line
from pyro_fed.density.checks.slopes import steps
from pyro_fed.density.problem import Problem
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.entries import evenly

#: Draws that densities are computed at, at most; and at least, of a distribution that cannot be asked for more.
MOST_DRAWS, FEWEST_DRAWS = 1000, 500
#: Draws that the moments of a distribution are taken from where it can be asked for more, so that chance (an SD 1.1 %
#: off, the worst of sixty 3.5 %, and less by Sobol points) is not taken for its error; fewer, of many parameters, than
#: these make so many numbers (16 MB in double precision, of which a handful of copies are made).
MANY_DRAWS, MANY_NUMBERS = 4096, 2_000_000

#: Draws of the prior from which modes and other mass are looked for, and how many of them have to be numbers: half of
#: them stand for the prior still.
FROM_PRIOR, FEWEST_FROM_PRIOR = 64, 32


@dataclass(frozen=True)
class Unknown:
    """Stands for an algorithm of which nothing is known but what its draws are."""

    draws_are: str


@dataclass(frozen=True)
class Evidence:
    """A run's result and all that can be asked about it.

    Args:
        algorithm: what was run.
        federation: on what; it holds the rows.
        problem: its densities, as the run compiled them.
        shared: the server's last state; empty where it is not known.
        draws: (chain, draw, D), unconstrained.
        record: what happened.
        seed: the run's seed.
        aim: finer limits than those of a wrong answer, which the chains should tell too; None: none.
    """

    algorithm: Algorithm
    federation: Federation
    problem: Problem
    shared: State
    draws: Tensor
    record: Record
    seed: int
    aim: Limits | None = None

    @cached_property
    def flat(self) -> Tensor:
        """All draws, (S, D); of a distribution that can give more, `MANY_DRAWS` or as many as memory allows."""
        found = self.draws.flatten(0, 1)
        more = bool(self.shared) and self.algorithm.draws_are in ("independent", "agents")
        many = min(MANY_DRAWS, max(FEWEST_DRAWS, MANY_NUMBERS // max(1, self.problem.dim)))
        if len(found) >= many or not more:
            return found
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 2)
        return self.algorithm.sample(self.shared, many, generator).to(found).flatten(0, 1)

    @cached_property
    def points(self) -> Tensor:
        """Of these, evenly spaced, `MOST_DRAWS` at most: (S, D)."""
        return self.flat[evenly(len(self.flat), MOST_DRAWS)]

    @property
    def temperature(self) -> float:
        """Of the likelihood in what the algorithm approximates."""
        return float(getattr(self.algorithm, "temperature", 1.0))

    @cached_property
    def target(self) -> Target | None:
        """The posterior in coordinates that whiten the draws; None where these are too few, or not all numbers."""
        usable = self.algorithm.draws_are != "point" and len(self.flat) > 1
        usable = usable and bool(self.flat.double().var(0).isfinite().all())
        return Target.of(self.problem, self.flat, self.temperature) if usable else None

    @cached_property
    def stepped(self) -> dict[str, Line]:
        """Latents along which the log density jumps, and the lines of the model that make steps of them."""
        return steps(self.problem.doubled(), self.flat.double().mean(0))

    @cached_property
    def near(self) -> Target | None:
        """The same around the draws: of many rows by few of them, where these are found to stand for all."""
        if self.target is None:
            return None
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 4)
        return on_few_rows(self.target, self.target.white(self.points), generator)

    @cached_property
    def from_prior(self) -> Tensor | None:
        """Draws of the prior, (M, D), those that are numbers; None where it is improper, or so wide that few are."""
        if self.problem.layout.improper:
            return None
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 5)
        found = self.problem.init(FROM_PRIOR, generator, checked=False)
        found = found[found.isfinite().all(-1)]
        return found if len(found) >= FEWEST_FROM_PRIOR else None

    @cached_property
    def census(self) -> Weighed | None:
        """Weighted points from wherever the posterior may be; None where they cannot be trusted.

        They are looked for around the draws and the places that chains from these have come to. Of effects with a
        latent scale they are drawn in units of it: points of few Gaussians have none in a funnel's neck, and their
        weights do not show that.
        """
        near, chains = self.near, self.chains
        if near is None or chains is None or near.problem.dim > LARGEST_DIM:
            return None
        around = self.points.double()
        if chains.places is not None:
            around = torch.cat([around, chains.places[evenly(len(chains.places), MOST_DRAWS)]])
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 3)
        detour = Detour.of(near, self.flat, generator)
        if detour is None:
            return weighed_points(near, near.white(around), lambda: self.from_prior, generator)

        def from_prior() -> Tensor | None:
            return None if self.from_prior is None else detour.form.apart(self.from_prior)

        found = weighed_points(detour.target, detour.there(around), from_prior, generator)
        return None if found is None else replace(found, white=near.white(detour.back(found.white)))

    @cached_property
    def quantities(self) -> Quantities:
        """The numbers that the result is judged by."""
        return Quantities.of(self.problem, self.flat)

    @cached_property
    def by_weights(self) -> Moments | None:
        """Where the weighted points have the posterior's means and SDs; None where there are none."""
        if self.near is None or self.census is None:
            return None
        return beyond(self.near, self.quantities, self.flat, self.census)

    @cached_property
    def chains(self) -> Moments | None:
        """Where chains that begin at the draws have the posterior's means and SDs; None where there is no target."""
        if self.near is None:
            return None
        generator = seeding.torch_generator(self.seed, seeding.AUDIT)
        return moved(self.near, self.quantities, self.flat, generator, self.aim)

    @cached_property
    def looked(self) -> Looked | None:
        """Where the posterior's means and SDs are, None where there is no target.

        By weighted points, which have no memory of the draws, where these tell them, and by chains that begin at the
        draws; by chains where they find wrong what the points do not find right, and of a number that they have plainly
        taken further than the points have it; by many chains where neither tells; where they cannot move, and the draws
        are groups far apart, group by group.
        """
        found, near = self.chains, self.near
        if found is None or near is None:
            return None
        if found.stuck and (parts := groups(self.flat.double())):
            generator = seeding.torch_generator(self.seed, seeding.AUDIT, 6)

            def of_one(draws: Tensor) -> Moments:
                target = Target.of(self.problem, draws, self.temperature)
                own = on_few_rows(target, target.white(draws), generator)
                return moved(own, self.quantities, draws, generator, self.aim)

            return by_groups(parts, self.quantities.labels, of_one)
        weighed = None if found.stuck else self.by_weights
        if weighed is not None and bool(wrong(weighed).any()):
            found = weighed
        elif weighed is not None:
            both = weighed.where_told(found).unless_refuted(found)
            if judged(both) is None and bool((both.excess > CLEAR).any()):  # neither tells: by many chains
                generator = seeding.torch_generator(self.seed, seeding.AUDIT, 7)
                found = moved(near, self.quantities, self.flat, generator, self.aim, again=True)
                both = weighed.where_told(found).unless_refuted(found)
            found = found if bool(wrong(found).any()) and judged(both, NEARLY_CLEAR) is not False else both
        return Looked(found, self.quantities.labels)

    @property
    def moments(self) -> Moments | None:
        """Where the posterior's means and SDs are, None where there is no target: of all draws, or of each group."""
        return None if self.looked is None else self.looked.moments

    @property
    def labels(self) -> tuple[str, ...]:
        """What the numbers of `moments` are called."""
        return () if self.looked is None else self.looked.labels

    @property
    def measured(self) -> dict[str, np.ndarray]:
        """The same as figures by name, with the parameters' names; empty where there are no moments."""
        if self.moments is None or self.moments.stuck:
            return {}
        return measured(self.moments, self.labels)


def measured(moments: Moments, labels: Sequence[str]) -> dict[str, np.ndarray]:
    """Where the posterior's moments are, as figures by name, with the parameters' names.

    Args:
        moments: (F,) of each.
        labels: (F,) names.
    """
    ratio = moments.log_sd.exp()
    figures = {
        "mean_error": moments.mean,
        "mean_error_se": moments.mean_error,
        "sd_ratio": ratio,
        "sd_ratio_se": ratio * moments.log_sd_error,
    }
    return {"parameter": np.array(labels)} | {name: values.numpy() for name, values in figures.items()}
