"""Value, score and curvature of log densities, averaged over points, for Gaussian sites.

    E_q[f],   E_q[∇f],   E_q[-∇²f]      with q's expectation as a mean over given points

at C clients at once, in float64 sums. The curvature is the negative Hessian (`"hessian"`, by reverse mode over
reverse mode), or the Fisher information of the likelihood (`"fisher"`). `structure` "diag" computes only the diagonal.

Points at which a density or a derivative is not finite, beyond an edge of its domain, are left out, and the logarithm
of the share of the other points is added to the value: E_q[f] + H(q) is then a bound for q restricted to the domain.

A row's curvature costs as many gradients as there are parameters, or values of its observation. If all rows at all
points exceed `MAX_CURVATURE_NUMBERS`, value and score use all points, and the curvature of each row uses its own share
of the points,

    E_q[-∇² log p] ≈ Σ_b Σ_(rows i ≡ b mod B) 1/s Σ_(points of share b) -∇² log p_i        B shares of s points

so that errors of different rows cancel. This is exact for a constant curvature. Models with linear predictors are cheap
and use all points. From `NETWORK_NUMBERS` on, a network's curvature is computed in the units of its first layer and in
the parameters after it.

If rows' scores jump and there are no linear predictors, curvatures at points are not informative. With the points' mean
m and covariance S the curvature follows from scores, without noise for a linear score:

    E_q[-∇² f] = -E_q[∇f (z - m)'] S⁻¹                                              (Price's theorem)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.predictors import CHECK_ROWS, predictors
from pyro_fed.density.derivatives.composed_rows import at_each_composed, means_at, means_of_parabola, shares
from pyro_fed.density.derivatives.integrated import integrated
from pyro_fed.density.derivatives.nodes import (
    FEWEST_POINTS,
    MANY_ROWS_A_PARAMETER,
    as_many_as_needed,
    finite_or,
    where_settled,
    where_straight,
)
from pyro_fed.density.derivatives.other_curvatures import fisher_information, with_kinks
from pyro_fed.density.derivatives.rowwise import (
    at_points,
    deal_rows,
    expected_sums,
    shared_curvature,
)
from pyro_fed.density.latents.ascent_starts import from_modes
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData
from pyro_fed.density.traits import FULL_DIM, NETWORK_NUMBERS
from pyro_fed.ops.batched import FiniteSums, Moments, hessian_product, second_order
from pyro_fed.ops.memory import count_in_memory, count_of_densities

Structure = Literal["full", "diag"]
Kind = Literal["hessian", "fisher"]

#: Rows × points × parameters × values of an observation, or parameters again for Hessians: 2 to 10 s a round. What has
#: more and no linear predictors has its rows share the points.
MAX_CURVATURE_NUMBERS = 150_000_000
#: The same of rows whose own latents are integrated out: a node's density is one of all that the row has, as the eight
#: answers of a person, and the curvature is that of a logarithm of sums besides. 1 to 5 s a round.
MAX_INTEGRATED_NUMBERS = MAX_CURVATURE_NUMBERS // 8
#: Of a network's rows so many times fewer: values and scores, which the steps are judged by, are at all points all the
#: same. Of 60 to 90 parameters and 240 rows a run takes 3 to 6 s in place of 6 to 11, and log densities of test rows
#: are within 0.02 of those with all points (`benchmarks/networks/kinds.py`).
LAYERED_DIVISOR = 10


@dataclass(frozen=True)
class Derivatives:
    """Derivatives of the likelihoods and of the prior.

    Args:
        structure: "full" or "diag".
        kind: curvature of the likelihood, "hessian" or "fisher".

    Up to `FULL_DIM` parameters the prior's diagonal is read off its full Hessian. Above, it is by random signs, one
    vector a point and latent site, which is exact where no two numbers of a site have to do with one another given
    the other sites, as weights and their scales, and unbiased otherwise.
    """

    structure: Structure
    kind: Kind

    def exact(self, dim: int) -> Derivatives:
        """These derivatives with full Hessians if the number of parameters allows."""
        return replace(self, structure="full") if dim <= FULL_DIM and self.kind == "hessian" else self

    def of_likelihood(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """Means over points (S, C, D) of the log-likelihoods of C clients' batches."""
        compute = partial(self._of_likelihood, problem, points)
        return from_modes(problem, points.transpose(0, 1), batch, compute, where_settled)

    def _of_likelihood(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """`of_likelihood` with the starts of mode searches in the batch."""
        if self.kind == "hessian" and len(points) > 1 and problem.traits.non_smooth_rows:
            return self._by_scores(problem, points, batch)
        if self.kind == "hessian":
            found = at_points(problem, points, batch, self.structure == "diag")
            if found is not None:
                return finite_or(found, lambda: self._at_all(problem, points, batch))
            if self.structure == "full" and not self._in_groups(batch) and shares(problem):
                return self._by_shared(problem, points, batch)
        if self._in_groups(batch) and self._numbers(problem, len(points)) > self._max_rowwise_numbers(problem):
            return as_many_as_needed(points, lambda some: self._at_all(problem, some, batch))
        if self._may_be_straight(problem, len(points), batch):
            return where_straight(
                points,
                batch.weight.sum(1) / problem.num_rows,
                lambda some: self._at_all(problem, some, batch),
                lambda pairs: self._in_shares(problem, pairs, batch, len(pairs) // 2),
                lambda: self._at_many(problem, points, batch),
            )
        return self._at_many(problem, points, batch)

    def _by_shared(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """`of_likelihood` of rows with linear predictors in shared numbers; at few points if these suffice."""

        def means(some: Tensor) -> Moments:
            found = means_at(problem, some, batch)
            return finite_or(found, lambda: self._at_all(problem, some, batch))

        if problem.num_rows < MANY_ROWS_A_PARAMETER * problem.dim or len(points) == 1:
            return means(points)
        parabola = means_of_parabola(problem, points, batch, batch.weight.sum(1) / problem.num_rows)
        if parabola is not None and bool(parabola[1].all()):
            return parabola[0]
        cuts = self.shares(problem, len(points), batch)
        found = means(points) if cuts == 1 else self._in_shares(problem, points, batch, cuts)
        return found if parabola is None else where_settled(parabola[1], parabola[0], found)

    def _by_scores(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """`of_likelihood` with curvatures from the scores over the points; of a diagonal, coordinate by coordinate."""
        away = points.double() - points.double().mean(0)
        both = torch.stack([points.double(), away], 2)  # (S, C, 2, D)
        blocks = in_blocks(both, count_of_densities(points.shape[1] * batch.width() * problem.num_nodes))
        zero = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
        dim, full = points.shape[2], self.structure == "full"
        carry = Moments(
            zero, zero.new_zeros(points.shape[1:]), zero.new_zeros(len(zero), dim, *([dim] if full else []))
        )
        found, _ = problem.scan(self._scores_step, carry, batch, blocks, len(blocks), BATCHES)
        value, score, product = (part / len(points) for part in found)
        if not full:
            return Moments(value, score, -product / away.square().mean(0))
        spread = torch.einsum("sci,scj->cij", away, away) / len(points)
        slope = torch.linalg.solve(spread, product)  # S⁻¹ E[(z - m) ∇f']
        return Moments(value, score, -(slope + slope.mT) / 2)

    def _scores_step(self, problem: Problem, total: Moments, batch: Batch, block: Tensor) -> tuple[Moments, Any]:
        """Sums over a block of points of value, score, and the product of the centred point and its score."""

        def log_lik(z: Tensor) -> Tensor:
            return problem.log_lik(z, batch)

        points, away = block[:, 0], block[:, 1]
        score, value = problem.vmap(grad_and_value(log_lik))(points.to(problem.dtype))
        score = score.double()
        product = away.mT @ score if self.structure == "full" else (away * score).sum(0)
        return Moments(total.value + value.double().sum(0), total.score + score.sum(0), total.curvature + product), ()

    def _at_many(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """`of_likelihood` with curvatures of rows at all points or at a share of the points."""
        shares = self.shares(problem, len(points), batch)
        if shares == 1 and not self._has_units(problem, len(points), batch):
            return self._at_all(problem, points, batch)
        return self._in_shares(problem, points, batch, shares)

    def _in_shares(self, problem: Problem, points: Tensor, batch: Batch, shares: int) -> Moments:
        """Value and score of every row at every point, and its curvature at its share of the points."""
        blocks = in_blocks(points, count_of_densities(points.shape[1] * batch.width() * problem.num_nodes))
        zero = torch.zeros(points.shape[1], dtype=torch.float64, device=points.device)
        carry = (zero, zero.new_zeros(points.shape[1:]))
        means, _ = problem.scan(_score_step, carry, batch, blocks.to(problem.dtype), len(blocks), BATCHES)
        value, score = (part / len(points) for part in means)
        return Moments(value, score, self._shared_curvature(problem, points, batch, shares))

    def _at_all(self, problem: Problem, points: Tensor, batch: Batch) -> Moments:
        """`of_likelihood` with derivatives of every row at every point."""
        width = points.shape[-1] if self.kind == "hessian" else 1
        blocks = in_blocks(points, count_in_memory(points.shape[1] * batch.width() * width * problem.num_nodes))
        step = self._likelihood_step
        if problem.local_dim and self.structure == "full" and self.kind == "hessian":
            found = integrated(problem, pytree.tree_map(lambda leaf: leaf[0], batch.rows))
            step = step if found is None else found.add
        return self._mean(problem, step, blocks, batch, BATCHES, len(points))

    def _may_be_straight(self, problem: Problem, count: int, batch: Batch) -> bool:
        """Whether there are enough rows per parameter that a few points may suffice, at a fraction of the cost."""
        if self.structure != "full" or self.kind != "hessian" or self._in_groups(batch):
            return False
        many = problem.num_rows >= MANY_ROWS_A_PARAMETER * problem.dim and 1 + 2 * problem.dim <= count // 2
        return many and self._numbers(problem, count) > self._max_rowwise_numbers(problem)

    def _in_groups(self, batch: Batch) -> bool:
        """Whether rows are groups of nested rows, without a common shape."""
        return not all(isinstance(leaf, Tensor) for leaf in batch.rows)

    def _max_rowwise_numbers(self, problem: Problem) -> int:
        """Largest number of numbers for derivatives of every row at every point."""
        if problem.local_dim:
            return MAX_INTEGRATED_NUMBERS
        return MAX_CURVATURE_NUMBERS // LAYERED_DIVISOR if problem.traits.layers else MAX_CURVATURE_NUMBERS

    def shares(self, problem: Problem, count: int, batch: Batch) -> int:
        """Number of shares of the points, a power of two; a row's curvature uses one share."""
        if self._in_groups(batch):
            return 1
        numbers, most = self._numbers(problem, count), self._max_rowwise_numbers(problem)
        if numbers <= most or problem.traits.linear_predictors:
            return 1
        shares = 1
        while numbers > shares * most and count % (FEWEST_POINTS * 2 * shares) == 0:
            shares *= 2
        return shares

    def _numbers(self, problem: Problem, count: int) -> int:
        """Rows × points × parameters × directions of differentiation; the same for all executors."""
        numbers = problem.evaluations * count * problem.dim
        return numbers * (problem.dim if self.kind == "hessian" else problem.traits.observed_values)

    def _has_units(self, problem: Problem, count: int, batch: Batch) -> bool:
        """Whether rows are those of a network, and so costly that a search for its structure pays."""
        if self.structure != "full" or self.kind != "hessian" or self._numbers(problem, count) <= NETWORK_NUMBERS:
            return False
        if self._in_groups(batch) or problem.traits.linear_predictors:
            return False
        return predictors(problem, CHECK_ROWS, wide=True) is not None

    def _shared_curvature(self, problem: Problem, points: Tensor, batch: Batch, shares: int) -> Tensor:
        """The mean curvature (C, D[, D]), float64, from each row's at its share of the points."""
        clients, dim = points.shape[1:]
        order = torch.arange(len(points)).unsqueeze(0)
        if shares > 1:  # the second half are the opposites of the first
            order = order.reshape(2, shares, -1).transpose(0, 1).reshape(shares, -1)
        cut = points[order.to(points.device)].transpose(1, 2).to(problem.dtype)  # (B, C, s, D)
        if self.structure == "full" and self.kind == "hessian":
            summed = shared_curvature(problem, cut, batch)
            if summed is not None:
                return summed / cut.shape[2]
            summed = self._summed_by_share(problem, cut, batch)
            if summed is not None:
                return summed / cut.shape[2]
        total = torch.zeros(clients, dim, *([dim] if self.structure == "full" else []), dtype=torch.float64)
        dealt = Batch(tuple(deal_rows(leaf, shares) for leaf in batch.rows), deal_rows(batch.weight, shares, 0.0))
        found, _ = problem.scan(self._curvature_step, total.to(points.device), (), (cut, dealt), shares, 0)
        mean: Tensor = found / cut.shape[2]
        return mean

    def _summed_by_share(self, problem: Problem, cut: Tensor, batch: Batch) -> Tensor | None:
        """`_shared_curvature` of rows with linear predictors in what they share; None without these."""
        if not shares(problem):
            return None
        dealt = [deal_rows(leaf, len(cut)) for leaf in batch.rows], deal_rows(batch.weight, len(cut), 0.0)
        total = torch.zeros(1, dtype=torch.float64, device=cut.device)
        for number, points in enumerate(cut):
            own = Batch(tuple(leaf[number] for leaf in dealt[0]), dealt[1][number])
            found = at_each_composed(problem, points, own)
            if found is None:
                return None
            total = total + found.curvature.sum(1)
        return total

    def under(self, problem: Problem, mean: Tensor, root: Tensor | None, data: ClientData | Batch) -> Moments | None:
        """Means under N(mean, R R') of C clients' log-likelihoods by the structure of their rows, see `rowwise`.

        Derivatives are at the mean if the root is None. None if rows have no such structure. Beyond an edge of a
        row's domain they are not finite: `finite_or` then uses derivatives over points.
        """
        full = self.structure == "full" and self.kind == "hessian"
        return expected_sums(problem, mean, root, data) if full else None

    def of_prior(self, problem: Problem, points: Tensor) -> Moments:
        """Means over points (S, 1, D) of the log prior."""
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, points.shape, generator=generator).to(points) * 2 - 1
        both = torch.stack([points, signs.to(points.device)], 2)
        found = self._mean(
            problem, self._prior_step, in_blocks(both, count_in_memory(points.shape[-1])), (), 0, len(points)
        )
        return with_kinks(problem, points, found)

    def _mean(self, problem: Problem, step: Any, blocks: Tensor, const: Any, dims: Any, count: int) -> Moments:
        clients, dim = blocks.shape[1], blocks.shape[-1]
        zero = torch.zeros(clients, dtype=torch.float64, device=blocks.device)
        shape = (clients, dim, dim) if self.structure == "full" else (clients, dim)
        carry = FiniteSums(Moments(zero, zero.new_zeros(clients, dim), zero.new_zeros(shape)), zero)
        (sums, finite), _ = problem.scan(step, carry, const, blocks.to(problem.dtype), len(blocks), dims)
        value, *others = (part / finite.reshape(-1, *[1] * (part.dim() - 1)) for part in sums)
        return Moments(value + (finite / count).log(), *others)

    def _likelihood_step(
        self, problem: Problem, total: FiniteSums, batch: Batch, points: Tensor
    ) -> tuple[FiniteSums, Any]:
        def at(z: Tensor) -> Moments:
            if self.kind == "fisher":
                score, value = grad_and_value(lambda t: problem.log_lik(t, batch))(z)
                return Moments(value, score, fisher_information(problem, z, batch, self.structure))
            return self._hessian(problem, lambda t: problem.log_lik(t, batch), z)

        return total.add(problem.vmap(at)(points)), ()

    def _curvature_step(self, problem: Problem, total: Tensor, _: Any, share: Any) -> tuple[Tensor, Any]:
        """The sum over a share's points of the curvature of its rows."""
        points, batch = share

        def at(z: Tensor) -> Tensor:
            if self.kind == "fisher":
                return fisher_information(problem, z, batch, self.structure)
            return self._hessian(problem, lambda t: problem.log_lik(t, batch), z).curvature

        return total + problem.vmap(at)(points).double().sum(0), ()

    def _prior_step(self, problem: Problem, total: FiniteSums, _: Any, pairs: Tensor) -> tuple[FiniteSums, Any]:
        def at(pair: Tensor) -> Moments:
            z, signs = pair[0], pair[1]
            if self.structure == "full" or len(z) <= FULL_DIM:
                return self._hessian(problem, problem.log_prior, z)
            value, score, product = hessian_product(problem.log_prior, z, problem.forward_mode)
            apart = _site_by_site(problem, signs)
            return Moments(value, score, -(apart * problem.vmap(product)(apart)).sum(0))

        return total.add(problem.vmap(at)(pairs)), ()

    def _hessian(self, problem: Problem, log_density: Any, z: Tensor) -> Moments:
        found = second_order(log_density, z, problem.vmap, problem.forward_mode)
        return found if self.structure == "full" else found._replace(curvature=found.curvature.diagonal())


def _site_by_site(problem: Problem, signs: Tensor) -> Tensor:
    """Signs (sites, D) of one latent site each, zero elsewhere, from signs (D,)."""
    # With all sites at once, a weight's diagonal entry would include entries between the weight and its scale.
    sizes = torch.tensor([site.size for site in problem.sites.values()], device=signs.device)
    site = torch.repeat_interleave(torch.arange(len(sizes), device=signs.device), sizes)
    return signs * (site == torch.arange(len(sizes), device=signs.device).unsqueeze(-1)).to(signs)


def _score_step(problem: Problem, total: Any, batch: Batch, points: Tensor) -> tuple[Any, Any]:
    """Sums of value and score over a block of points."""

    def log_lik(z: Tensor) -> Tensor:
        return problem.log_lik(z, batch)

    score, value = problem.vmap(grad_and_value(log_lik))(points)
    return (total[0] + value.double().sum(0), total[1] + score.double().sum(0)), ()


def in_blocks(points: Tensor, most: int) -> Tensor:
    """(S, C, ...) → (blocks, C, s, ...), s the largest divisor of S that is no more than `most`."""
    count = len(points)
    size = max(s for s in range(1, count + 1) if count % s == 0 and s <= most)
    blocks: Tensor = points.unflatten(0, (count // size, size))
    return blocks.transpose(1, 2)
