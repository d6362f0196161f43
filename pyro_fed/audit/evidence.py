"""The evidence that the audit judges: a run's draws, and what is computed from them once and on demand.

**Groups.** The moments of all draws do not show those within modes that are far apart, and no common coordinates fit
narrow ones: even short steps leave a mode, and no chain moves. Such draws are split into groups. A parameter's sorted
values are cut in the middle of their longest gaps, if these are `GROUP_GAP_SDS` times as long as the SD of any part
between two cuts. Each group is judged like a result of its own, by the weighted points between the same cuts or by
chains; `modes.missed_modes` judges whether the groups have their modes' shares of the mass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.audit.hmc import Detour
from pyro_fed.audit.moments import Moments, Quantities, moments_verdict, wrong_moments
from pyro_fed.audit.motion import moments_by_chains, planned_walks
from pyro_fed.audit.target import Target, for_checks, near_draws, on_few_rows
from pyro_fed.audit.weighted_points import (
    WeightedPoints,
    moments_by_weights,
    moments_of_group,
    sample_weighted_points,
)
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.limits import MIN_DRAWS, MIN_EFFECTIVE_DRAWS, NEAR_LIMIT_SHARE, Limits
from pyro_fed.density.checks.slopes import steps
from pyro_fed.density.checks.source import Line
from pyro_fed.density.problem import Problem
from pyro_fed.density.symmetry import spread
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.entries import CANDIDATES, SAMPLED_ENTRIES, evenly
from pyro_fed.ops.memory import count_in_memory
from pyro_fed.policy.audit import CLIMBS, may_round

#: Largest number of groups, and smallest gap between two of them, in SDs of the values on either side.
MAX_GROUPS, GROUP_GAP_SDS = 16, 4.0
#: Smallest share of all draws that lies in the judged groups together.
MIN_GROUPED_SHARE = 0.9
#: Kinds of draws (`Algorithm.draws_are`) from a distribution that can be sampled again.
DRAWN_ANEW = ("independent", "agents")
#: Number of draws that moments are computed from if the distribution can be sampled again. By chance an SD of so many
#: draws is 1.1 % off, the worst of sixty SDs 3.5 %, and less with Sobol points: chance is not mistaken for an error.
#: With many parameters there are fewer draws, as many as fit into memory with their copies.
DISTRIBUTION_DRAWS, COPIES_OF_DRAWS = 4096, 4
#: Number of draws of the prior among which the starts of climbs are chosen; at least half of them have to be finite.
PRIOR_DRAWS = CANDIDATES * CLIMBS[0]


def groups(draws: Tensor) -> list[Tensor]:
    """The groups of draws (S, D), float64; none if there is one group, or too many, or too many draws lie outside."""
    return [draws[mask] for mask, _ in _group_masks(draws, draws)]


def _group_masks(draws: Tensor, points: Tensor) -> list[tuple[Tensor, Tensor]]:
    """For each of the `groups` of draws (S, D): masks of its draws (S,) and of the points (N, D) between its cuts."""
    cuts = [_cuts(column) for column in draws.T]
    of_draws, of_points = (
        torch.stack([torch.bucketize(column.contiguous(), cut) for column, cut in zip(z.T, cuts, strict=True)], 1)
        for z in (draws, points)
    )
    keys, number, counts = of_draws.unique(dim=0, return_inverse=True, return_counts=True)
    judged = (counts >= MIN_DRAWS).nonzero()[:, 0]
    enough = int(counts[judged].sum()) >= MIN_GROUPED_SHARE * len(draws)
    if not 1 < len(judged) <= MAX_GROUPS or not enough:
        return []
    return [(number == one, (of_points == keys[one]).all(1)) for one in judged]


def _cuts(values: Tensor) -> Tensor:
    """The middles of the gaps between groups of a parameter's values (S,), in rising order."""
    ordered = values.sort().values
    longest = ordered.diff().sort(descending=True, stable=True)
    for count in range(min(MAX_GROUPS - 1, len(longest.values)), 0, -1):
        ends = (longest.indices[:count] + 1).sort().values
        wide = [float(part.std()) for part in ordered.tensor_split(ends.tolist()) if len(part) >= MIN_DRAWS]
        if wide and float(longest.values[count - 1]) > GROUP_GAP_SDS * max(wide):
            return (ordered[ends - 1] + ordered[ends]) / 2
    return ordered[:0]


@dataclass(frozen=True)
class Unknown:
    """A stand-in for an algorithm of which only the kind of its draws is known."""

    draws_are: str
    remedy: str = ""


@dataclass(frozen=True)
class Evidence:
    """A run's result, and what the checks of the audit compute from it."""

    algorithm: Algorithm
    federation: Federation
    problem: Problem  # as the run compiled it
    shared: State  # the server's last state; empty if it is not known
    draws: Tensor  # (chain, draw, D), unconstrained
    record: Record
    seed: int
    aim: Limits | None = None  # limits finer than `WRONG`, to which chains should measure errors

    @cached_property
    def flat(self) -> Tensor:
        """All draws (S, D); of a distribution that can give more, `DISTRIBUTION_DRAWS` or as many as memory allows."""
        run_draws = self.draws.flatten(0, 1)
        more = bool(self.shared) and self.algorithm.draws_are in DRAWN_ANEW
        wanted = min(DISTRIBUTION_DRAWS, max(MIN_EFFECTIVE_DRAWS, count_in_memory(COPIES_OF_DRAWS * self.problem.dim)))
        if len(run_draws) >= wanted or not more:
            return run_draws
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 2)
        drawn = self.algorithm.sample(self.shared, wanted, generator).to(run_draws)
        if self.record.spread:
            drawn = spread(self.problem, self.record.symmetries, drawn, self.seed)
        return drawn.flatten(0, 1)

    @cached_property
    def points(self) -> Tensor:
        """The draws at which densities are computed, evenly spaced among `flat`, at most `SAMPLED_ENTRIES` (S, D)."""
        return self.flat[evenly(len(self.flat), SAMPLED_ENTRIES)]

    @property
    def temperature(self) -> float:
        """The temperature of the likelihood in the posterior that the algorithm approximates."""
        return float(getattr(self.algorithm, "temperature", 1.0))

    @cached_property
    def target(self) -> Target | None:
        """The posterior in coordinates that whiten the draws; None for a point, one draw, or an infinite variance."""
        usable = self.algorithm.draws_are != "point" and len(self.flat) > 1
        usable = usable and bool(self.flat.double().var(0).isfinite().all())
        return near_draws(Target.of(self.problem, self.flat, self.temperature), self.points) if usable else None

    @cached_property
    def jump_lines(self) -> dict[str, Line]:
        """The lines of the model at which the log density jumps, by the latent along which it does."""
        return steps(self.problem.doubled(), self.flat.double().mean(0))

    @cached_property
    def few_rows_target(self) -> Target | None:
        """`target`, by few rows around the draws if these agree with all rows; None without a target."""
        return None if self.target is None else on_few_rows(self.target, self.target.white(self.points))

    @cached_property
    def from_prior(self) -> Tensor | None:
        """Finite draws of the prior (M, D); None if it is improper, or if fewer than half of its draws are finite."""
        if self.problem.traits.improper:
            return None
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 5)
        draws = self.problem.init(PRIOR_DRAWS, generator, checked=False)
        draws = draws[draws.isfinite().all(-1)]
        return draws if 2 * len(draws) >= PRIOR_DRAWS else None

    @cached_property
    def weighted_points(self) -> WeightedPoints | None:
        """Weighted points of the posterior, wherever it may have mass; None if they cannot be trusted.

        If there are none around these draws, those of an earlier stage are used.
        """
        near, own_points = self.few_rows_target, self._own_weighted_points
        earlier_points = self.record.posterior_points
        if near is None:
            return None
        if near.few is not None:  # the density by few rows holds only around these draws
            return own_points
        if own_points is not None:
            earlier_points[:] = [(own_points.weights, near.model(own_points.white))]
        elif earlier_points:
            return WeightedPoints(earlier_points[-1][0], near.white(earlier_points[-1][1]))
        return own_points

    @cached_property
    def _own_weighted_points(self) -> WeightedPoints | None:
        """Weighted points drawn around these draws; None if they cannot be trusted."""
        if self._decided_alone is not None:
            return self._points_alone
        if self.chains is None or self.chains is self._few_chains:
            return self._points_of_few_chains
        return self._points_around(self.chains)

    @cached_property
    def _points_alone(self) -> WeightedPoints | None:
        """Weighted points drawn around the draws, before any chain is run; None if they cannot be trusted.

        A few rows replace all only near the draws: points that are drawn only there do not tell enough by themselves.
        """
        target = self.few_rows_target
        return None if target is None or target.few is not None else self._points_around(None)

    @cached_property
    def _decided_alone(self) -> Moments | None:
        """The moments by these points, if they judge every number, and one is wrong, or none is near the limits.

        Points that miss a part of a tail have too small an error of an SD: near the limits they do not tell.
        """
        found = self._weighed(self._points_alone)
        if found is None or not bool((found.mean_error > 0).all()):
            return None
        within = self._weighed_groups(self._points_alone) or found
        for moments in (found, within):
            if bool(wrong_moments(moments).any()):
                return moments
        right = all(moments_verdict(moments, NEAR_LIMIT_SHARE) is False for moments in (found, within))
        return found if right and bool((within.mean_error > 0).all()) else None

    @cached_property
    def _points_of_few_chains(self) -> WeightedPoints | None:
        """Weighted points drawn around the draws and the places that few chains have visited."""
        return None if self._few_chains is None else self._points_around(self._few_chains)

    def _points_around(self, chains: Moments | None) -> WeightedPoints | None:
        """Weighted points drawn around the draws, and the places of chains; None if they cannot be trusted."""
        near = cast_checked(self.few_rows_target, Target)
        points = self._by_importance(near, chains)
        if points is not None or near.few is not None or not may_round(near.problem.traits):
            return points
        # In float32 a difference of two probabilities may be rounded to mass far out, where the posterior has none.
        return self._by_importance(replace(near, problem=for_checks(near.problem.doubled()), near=None), chains)

    def _by_importance(self, near: Target, chains: Moments | None) -> WeightedPoints | None:
        """Weighted points by a target's densities, around the draws and the places that chains have visited."""
        around = self.points.double()
        if chains is not None and chains.places is not None:
            around = torch.cat([around, chains.places[evenly(len(chains.places), SAMPLED_ENTRIES)]])
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 3)
        detour = Detour.of(near, self.flat, generator)
        if detour is None:
            return sample_weighted_points(near, near.white(around), lambda: self.from_prior, generator)

        # A mixture of a few Gaussians puts no points in the neck of a funnel, and the weights do not show that.
        def from_prior() -> Tensor | None:
            return None if self.from_prior is None else detour.form.to_noncentred(self.from_prior)

        points = sample_weighted_points(detour.target, detour.white_noncentred(around), from_prior, generator)
        return None if points is None else replace(points, white=near.white(detour.back(points.white)))

    @cached_property
    def quantities(self) -> Quantities:
        """The functions of a draw whose means and SDs are judged."""
        return Quantities.of(self.problem, self.flat)

    @cached_property
    def by_weights(self) -> Moments | None:
        """The posterior's means and SDs by the weighted points; None without weighted points."""
        points = self.weighted_points
        if self._decided_alone is not None:
            return self._decided_alone
        return self._weighed_by_few_chains if points is self._points_of_few_chains else self._weighed(points)

    @cached_property
    def _weighed_by_few_chains(self) -> Moments | None:
        """The same by the weighted points around few chains."""
        return self._weighed(self._points_of_few_chains)

    def _weighed(self, points: WeightedPoints | None) -> Moments | None:
        """The posterior's means and SDs by weighted points; None without points."""
        target = self.few_rows_target
        return (
            None if target is None or points is None else moments_by_weights(target, self.quantities, self.flat, points)
        )

    def _weighed_groups(self, points: WeightedPoints | None) -> Moments | None:
        """The same of each group of draws in turn, by the points between the same cuts; None without points or groups.

        A group has fewer draws than the result: their chance is part of the errors.
        """
        target, draws = self.few_rows_target, self.flat.double()
        if target is None or points is None:
            return None
        places = target.model(points.white)
        masks = _group_masks(draws, places)
        if not masks:
            return None
        of_draws, of_points = self.quantities(draws), self.quantities(places)
        return Moments.in_turn(
            [
                moments_of_group(points.weights[inside], of_points[inside], of_draws[mask], draws.shape[1])
                for mask, inside in masks
            ]
        )

    @cached_property
    def chains(self) -> Moments | None:
        """The posterior's means and SDs by chains that begin at the draws; None without a target.

        Where few chains do not decide, and the weighted points around them do not find the result wrong, many are run.
        """
        few = self._few_chains
        if few is None or not few.undecided:
            return few
        by_weights = None if few.stuck else self._weighed_by_few_chains
        if by_weights is not None and bool(wrong_moments(by_weights).any()):
            return few
        return self._by_chains(0, slice(1, None)) or few

    @cached_property
    def _few_chains(self) -> Moments | None:
        """The moments by the first planned walk."""
        return self._by_chains(0, slice(1))

    @cached_property
    def _chain_generators(self) -> dict[int, torch.Generator]:
        """The random numbers of chains, by stream; a later walk continues its stream."""
        return {}

    def _by_chains(self, stream: int, which: slice) -> Moments | None:
        """The moments by some of the planned walks, with the random numbers of a stream; None without such walks."""
        target = self.few_rows_target
        planned = [] if target is None else planned_walks(target)[which]
        if target is None or not planned:
            return None
        new = seeding.torch_generator(self.seed, seeding.AUDIT, stream)
        generator = self._chain_generators.setdefault(stream, new)
        return moments_by_chains(target, self.quantities, self.flat, generator, self.aim, planned)

    @cached_property
    def moments(self) -> Moments | None:
        """The best estimate of the posterior's means and SDs against the draws'; None without a target.

        - If weighted points around the draws decide: their estimates, and no chain is run.
        - If chains cannot move and the draws form groups far apart: the chains' estimates, for each group by itself.
        - Without weighted points: the chains' estimates.
        - If weighted points find an error, of all draws or within a group: their estimates, which have no memory of the
          draws.
        - Else the points' estimates, combined with the chains' for numbers that the points do not determine or that
          chains have plainly moved further. If the combined estimates do not decide, many chains are run.
        - The chains' estimates alone, if they find an error that the combined estimates do not refute.
        """
        if self._decided_alone is not None:
            return self._decided_alone
        by_chains = self.chains
        if by_chains is None:
            return None
        if by_chains.stuck and (parts := groups(self.flat.double())):
            return self._by_groups(parts)
        by_weights = None if by_chains.stuck else self.by_weights
        if by_weights is None:
            return by_chains
        for moments in (by_weights, self._weighed_groups(self.weighted_points)):
            if moments is not None and bool(wrong_moments(moments).any()):
                return moments
        combined = by_weights.completed_by(by_chains).corrected_by(by_chains)
        if moments_verdict(combined) is None:
            by_chains = self._by_chains(7, slice(-1, None)) or by_chains
            combined = by_weights.completed_by(by_chains).corrected_by(by_chains)
        chains_decide = (
            bool(wrong_moments(by_chains).any()) and moments_verdict(combined, NEAR_LIMIT_SHARE) is not False
        )
        return by_chains if chains_decide else combined

    def _by_groups(self, parts: list[Tensor]) -> Moments:
        """The moments of each group in turn, by chains in coordinates that whiten its draws (S_g, D)."""
        generator = seeding.torch_generator(self.seed, seeding.AUDIT, 6)
        group_moments = []
        for draws in parts:
            target = near_draws(Target.of(self.problem, draws, self.temperature), draws)
            group_target = on_few_rows(target, target.white(draws))
            group_moments.append(moments_by_chains(group_target, self.quantities, draws, generator, self.aim))
        return Moments.in_turn(group_moments)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the numbers of `moments`, (F,), with the group of draws if there are several."""
        if self.moments is None:
            return ()
        labels = self.quantities.labels
        count = len(self.moments.mean) // len(labels)
        which = [f" (mode {i + 1} of {count})" for i in range(count)] if count > 1 else [""]
        return tuple(f"{label}{group}" for group in which for label in labels)

    @property
    def moment_figures(self) -> dict[str, np.ndarray]:
        """The figures of the moments of all draws by name, with the parameters' names; empty without any."""
        moments, labels = self.moments, self.quantities.labels
        if moments is not None and len(moments.mean) > len(labels):  # those of groups, which are wrong
            moments = self._weighed(self.weighted_points)
        return {} if moments is None or moments.stuck else moments.figures(labels)
