"""The No-U-Turn Sampler on many densities at once: each call takes one leapfrog step of every chain.

Sources: Hoffman & Gelman (2014), *The No-U-Turn Sampler*; Betancourt (2017), A.3.2 and A.4.2; Phan, Pradhan & Jankowiak
(2019), *Composable effects for flexible and accelerated probabilistic programming in NumPyro*, Algorithm 2.

Each chain is a lane that proceeds independently: when its trajectory ends, it begins the next, so that no lane waits.
The tree of a doubling grows leaf by leaf: the n-th leaf is checked for a U-turn against the first leaf of each subtree
that it completes, and a lane stores one such leaf per level. Weights, adaptation and their settings are those of Pyro's
kernel (and Stan's): multinomial proposals, biased towards the new half; windows in which variances are estimated, with
a new search for the step size at the end of each; dual averaging. A lane has its own random numbers, so that its draws
do not depend on other lanes.

Letters as in `pooled.nuts_kernel`: z position, r momentum, p `unscaled` momentum, `root` M^(-1/2), ε `step`; L lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pyro.infer.mcmc.adaptation import WarmupAdapter
from pyro.ops.dual_averaging import DualAveraging
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.states import State
from pyro_fed.conventions import progress
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.infer.pooled.nuts import NUTS
from pyro_fed.infer.pooled.nuts_kernel import LEAPFROGS_PER_DRAW, STATISTICS, Chains, Leaf, turning
from pyro_fed.ops.hamiltonian import MAX_ENERGY_ERROR

Array = NDArray[Any]
#: Number of leapfrog steps for which a lane draws random numbers at once.
RANDOM_BLOCK = 512
#: Number of ones in binary numbers of 16 digits.
ONES = np.array([number.bit_count() for number in range(1 << 16)])
#: Pyro's settings of dual averaging: `t0` damps early iterations, `kappa` is the decay of the averages' weights, and
#: `gamma` the scale of the steps.
AVERAGING: Any = DualAveraging()
#: Weight, in draws, of the target towards which an estimated covariance is shrunk, and the target, as in Stan.
SHRINKAGE_DRAWS, SHRINKAGE_VARIANCE = 5.0, 1e-3


@dataclass(frozen=True)
class Lanes:
    """All chains at once."""

    how: Chains  # settings of the chains
    watch: Callable[[Array], None] = lambda z: None  # called with the positions (L, D) after each step; may raise

    def run(self, problem: Problem, batch: Batch, points: Tensor, seeds: Tensor, label: str) -> State:
        """Run n chains of each of K clients from `points` (K, n, D): `draws` (K, n, S, D) and statistics (K, n, S)."""
        shape, how = points.shape[:2], self.how
        begun = problem.mapped(self.values_and_gradients, (0, BATCHES))
        vector, root = problem.dim, 2 * (problem.dim,) if how.full_mass else (problem.dim,)
        like = [points.new_zeros(*shape, *size) for size in ((vector,), (vector,), (vector,), root, (), ())]
        calls = LEAPFROGS_PER_DRAW * (how.warmup_steps + how.num_samples)
        step = problem.flat(self.leapfrogs, (*[0] * 6, BATCHES), (*like, batch), calls)
        rows = pytree.tree_leaves(batch)

        def leapfrog(*state: Array) -> Leaf:
            given = (torch.from_numpy(part).reshape(*shape, *part.shape[1:]) for part in state)
            return Leaf._make(part.flatten(0, 1).numpy() for part in step(*given, *rows))

        gradient, value = (part.detach().flatten(0, 1).numpy() for part in begun(points, batch))
        total = (how.warmup_steps + how.num_samples) * shape.numel()
        with progress.begin(label, total, "draw", shown=problem.progress, inner=True) as bar, np.errstate(all="ignore"):
            start = points.flatten(0, 1).numpy()
            chains = Walk(how, start, gradient, value, seeds.flatten().tolist())
            while chains.has_unfinished_lanes:
                chains.step(leapfrog, bar.advance)
                self.watch(chains.z)
        kept = {name: torch.from_numpy(value).unflatten(0, shape) for name, value in chains.kept.items()}
        return {name: value.to(points.dtype) for name, value in kept.items()}

    def values_and_gradients(self, problem: Problem, z: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∇U and U of a client's chains: z (n, D) → (n, D), (n,)."""
        both: tuple[Tensor, Tensor]
        both = problem.vmap(lambda one: self.how.potential.value_and_gradient(problem, one, batch))(z)
        return both

    def leapfrogs(self, problem: Problem, *state_and_batch: Any) -> tuple[Tensor, ...]:
        """A leapfrog step of a client's chains."""
        *state, batch = state_and_batch
        leapfrog = self.how.potential.leapfrog
        leaves: tuple[Tensor, ...] = problem.vmap(lambda *one: leapfrog(problem, *one, batch))(*state)
        return leaves


class Walk:
    """L lanes in progress; all arrays have a leading axis of lanes, and matrices are D by D if mass is dense."""

    ENDS: ClassVar = ("z", "r", "gradient")

    def __init__(self, how: Chains, start: Array, gradient: Array, potential: Array, seeds: list[int]) -> None:
        (lanes, dim), numbers = start.shape, partial(np.zeros, dtype=start.dtype)
        self.how, self.every = how, np.arange(lanes)
        self.random = [np.random.Generator(np.random.Philox(seed)) for seed in seeds]
        adapter: Any = WarmupAdapter()
        adapter._warmup_steps = how.warmup_steps
        self.windows = [(w.start, w.end) for w in adapter._build_adaptation_schedule()] if how.warmup_steps else []
        self.z, self.gradient, self.potential = start.copy(), gradient.copy(), potential.copy()
        self.root = numbers((lanes, dim, dim) if how.full_mass else (lanes, dim))
        self.root[:] = np.eye(dim) if how.full_mass else 1.0
        self.squares, self.mean, self.seen = np.zeros(self.root.shape), np.zeros((lanes, dim)), np.zeros(lanes)
        self.size, self.done = np.ones(lanes), np.zeros(lanes, int)
        self.pull, self.count, self.slack, self.log_mean = (np.zeros(lanes) for _ in range(4))
        self.searching, self.trend = np.full(lanes, bool(how.warmup_steps)), np.zeros(lanes)
        # The end that is to go on, the two ends, the proposals of the tree and of its new half.
        self.end = {name: numbers((lanes, dim)) for name in self.ENDS}
        self.far = {name: numbers((lanes, 2, dim)) for name in (*self.ENDS, "unscaled")}
        self.proposal = {"z": self.z.copy(), "gradient": self.gradient.copy(), "potential": self.potential.copy()}
        self.new = {name: value.copy() for name, value in self.proposal.items()}
        self.momentum, self.new_momentum = numbers((lanes, dim)), numbers((lanes, dim))
        self.weight, self.new_weight, self.energy = (numbers(lanes) for _ in range(3))
        self.depth, self.leaf, self.forward = (np.zeros(lanes, int) for _ in range(3))
        self.first = numbers((lanes, how.max_tree_depth + 1, dim))
        self.before = numbers((lanes, how.max_tree_depth + 1, dim))
        self.acceptance, self.leaves = np.zeros(lanes), np.zeros(lanes, int)
        self.kept = {name: np.zeros((lanes, how.num_samples)) for name in STATISTICS}
        self.kept["draws"] = np.zeros((lanes, how.num_samples, dim))
        self.uniforms = self._uniforms()
        self._begin(self.every)

    @property
    def has_unfinished_lanes(self) -> bool:
        """Whether a lane has not finished."""
        return bool((self.done < self.how.warmup_steps + self.how.num_samples).any())

    def step(self, leapfrog: Callable[..., Leaf], drawn: Callable[[str], Any]) -> None:
        """Take one leapfrog step of all lanes, and update each."""
        for_leaf, for_tree, for_direction = next(self.uniforms).T
        size = np.where(self.searching | (self.forward == 1), self.size, -self.size)
        leaf: Any = leapfrog(*self.end.values(), self.root, size.astype(self.energy.dtype), self.energy)
        looked = np.flatnonzero(self.searching)
        diverged = leaf.error > MAX_ENERGY_ERROR
        grown = self._add(leaf, for_leaf)
        ended = diverged | grown | (self.leaf == 1 << self.depth)
        ended[looked] = False
        whole = ended & ~diverged & ~grown
        over = ended & ~whole
        merged = np.flatnonzero(whole)
        over[merged] = self._merge(merged, leaf, for_tree[merged])
        self._turn(np.flatnonzero(whole & ~over), for_direction)
        if over.any():
            self._draw(np.flatnonzero(over), diverged)
            drawn("")
        if len(looked):
            self._look(looked, leaf.error[looked])

    def _uniforms(self) -> Iterator[Array]:
        """Each step's uniform numbers, (L, 3): for the leaf, the tree and the direction."""
        while True:
            yield from np.stack([own.random((RANDOM_BLOCK, 3)) for own in self.random]).swapaxes(0, 1)

    def _add(self, leaf: Any, chance: Array) -> Array:
        """Add the leaf to its tree; return whether the tree has made a U-turn, (L,)."""
        weight = np.logaddexp(self.new_weight, -leaf.error)
        taken = chance < np.exp(-leaf.error - weight)
        for name, value in self.new.items():
            value[taken] = getattr(leaf, name)[taken]
        self.new_weight = weight
        before = self.new_momentum.copy()
        self.new_momentum += leaf.unscaled
        for name, value in self.end.items():
            value[:] = getattr(leaf, name)
        self.acceptance += leaf.acceptance
        self.leaves += 1
        n, at = self.leaf, _ones(self.leaf >> 1)
        even = np.flatnonzero(n & 1 == 0)
        self.first[even, at[even]], self.before[even, at[even]] = leaf.unscaled[even], before[even]
        level = np.arange(int(at.max()) + 1)
        least = at - _ones(n & ~(n + 1)) + 1  # by the ones at the end of n, which adding one turns over
        lane, complete = np.nonzero((n & 1 == 1)[:, None] & (level <= at[:, None]) & (level >= least[:, None]))
        sums = self.new_momentum[lane] - self.before[lane, complete]
        turned = np.zeros(len(n), bool)
        turned[lane[turning(self.first[lane, complete], leaf.unscaled[lane], sums)]] = True
        self.leaf = n + 1
        return turned

    def _merge(self, at: Array, leaf: Any, chance: Array) -> Array:
        """Merge complete new halves into their trees; return whether the trajectory ends, for each lane of `at`."""
        taken = at[chance < np.exp(self.new_weight[at] - self.weight[at])]
        for name, value in self.proposal.items():
            value[taken] = self.new[name][taken]
        self.weight[at] = np.logaddexp(self.weight[at], self.new_weight[at])
        self.momentum[at] += self.new_momentum[at]
        for name, value in self.far.items():
            value[at, self.forward[at]] = getattr(leaf, name)[at]
        self.depth[at] += 1
        ends = self.far["unscaled"][at]
        over: Array = turning(ends[:, 0], ends[:, 1], self.momentum[at]) | (self.depth[at] == self.how.max_tree_depth)
        return over

    def _turn(self, at: Array, chance: Array) -> None:
        """Begin the next doubling at one of the two ends."""
        self.forward[at] = chance[at] < 0.5
        for name, value in self.end.items():
            value[at] = self.far[name][at, self.forward[at]]
        self.leaf[at], self.new_weight[at], self.new_momentum[at] = 0, -np.inf, 0.0

    def _draw(self, at: Array, diverged: Array) -> None:
        """Store the draws of complete trajectories, adapt to them, and begin the next trajectories."""
        self.z[at], self.gradient[at] = self.proposal["z"][at], self.proposal["gradient"][at]
        self.potential[at] = self.proposal["potential"][at]
        accepted, number = self.acceptance[at] / self.leaves[at], self.done[at] - self.how.warmup_steps
        now = (number >= 0) & (number < self.how.num_samples)
        lane, place = at[now], number[now]
        self.kept["draws"][lane, place] = self.z[lane]
        said = {
            "energy": self.energy[lane],
            "diverging": diverged[lane],
            "acceptance_rate": accepted[now],
            "step_size": self.size[lane],
            "tree_depth": np.ceil(np.log2(self.leaves[lane] + 1)),
            "n_steps": self.leaves[lane],
        }
        for name, value in said.items():
            self.kept[name][lane, place] = value
        self._adapt(at[number < 0], accepted[number < 0])
        self.done[at] += 1
        self._begin(at)

    def _begin(self, at: Array) -> None:
        """Begin trajectories at the lanes' positions, with new momenta."""
        unscaled = np.stack([self.random[lane].standard_normal(self.z.shape[1]) for lane in at])
        root = self.root[at]
        unscaled = unscaled.astype(root.dtype)
        r = np.linalg.solve(root, unscaled[..., None])[..., 0] if self.how.full_mass else unscaled / root
        here = {"z": self.z[at], "r": r, "gradient": self.gradient[at], "unscaled": unscaled}
        for name, value in self.far.items():
            value[at] = here[name][:, None]
        for name, value in self.end.items():
            value[at] = here[name]
        self.proposal["z"][at], self.proposal["gradient"][at] = here["z"], here["gradient"]
        self.proposal["potential"][at] = self.potential[at]
        self.energy[at] = self.potential[at] + np.square(unscaled).sum(-1) / 2
        self.momentum[at], self.weight[at], self.depth[at] = unscaled, 0.0, 0
        self.new_momentum[at], self.new_weight[at], self.leaf[at] = 0.0, -np.inf, 0
        self.acceptance[at], self.leaves[at] = 0.0, 0
        self.forward[at] = [self.random[lane].random() < 0.5 for lane in at]

    # -- adaptation -----------------------------------------------------------------------------------------
    def _look(self, at: Array, error: Array) -> None:
        """Double or halve the step size until the acceptance crosses the target; then continue the chain."""
        trend = np.where(-error > np.log(NUTS.target_accept_prob), 1.0, -1.0)
        crossed = (self.trend[at] != 0) & (self.trend[at] != trend)
        other = at[~crossed]
        self.trend[other] = trend[~crossed]
        self.size[other] *= 2.0 ** trend[~crossed]
        there = at[crossed]
        self.searching[there], self.trend[there] = False, 0.0
        self.pull[there] = np.log(10 * self.size[there])
        self.count[there] = self.slack[there] = self.log_mean[there] = 0.0
        self._begin(at)

    def _adapt(self, at: Array, accepted: Array) -> None:
        """Adapt the step size by dual averaging, a window's covariance, and the mass matrix at the window's end."""
        if not len(at):
            return
        self.count[at] += 1
        count, share = self.count[at], 1 / (self.count[at] + AVERAGING.t0)
        self.slack[at] = (1 - share) * self.slack[at] + share * (self.how.target_accept_prob - accepted)
        log_size = self.pull[at] - np.sqrt(count) / AVERAGING.gamma * self.slack[at]
        weight = count**-AVERAGING.kappa
        self.log_mean[at] = (1 - weight) * self.log_mean[at] + weight * log_size
        self.size[at] = np.exp(log_size)
        for number, (first, last) in enumerate(self.windows):
            inside = at[(self.done[at] >= first) & (self.done[at] <= last)]
            ending = inside[self.done[inside] == last]
            if number == len(self.windows) - 1:
                self.size[ending] = np.exp(self.log_mean[ending])
            elif number:
                self._observe(inside)
                self._rescale(ending)

    def _observe(self, at: Array) -> None:
        """Add a draw to the covariance (Welford)."""
        self.seen[at] += 1
        before = self.z[at] - self.mean[at]
        self.mean[at] += before / self.seen[at, None]
        after = self.z[at] - self.mean[at]
        self.squares[at] += before[:, :, None] * after[:, None] if self.how.full_mass else before * after

    def _rescale(self, at: Array) -> None:
        """Set the mass matrix to a window's covariance, and restart the search for a step size."""
        if not len(at):
            return
        shape = (-1, *[1] * (self.root.ndim - 1))
        seen = self.seen[at].reshape(shape)
        covariance = self.squares[at] / np.maximum(seen - 1, 1) * seen / (seen + SHRINKAGE_DRAWS)
        floor = SHRINKAGE_VARIANCE * SHRINKAGE_DRAWS / (seen + SHRINKAGE_DRAWS)
        if self.how.full_mass:
            covariance = covariance + floor * np.eye(covariance.shape[-1])
            self.root[at] = np.linalg.cholesky(covariance).swapaxes(-1, -2)
        else:
            self.root[at] = np.sqrt(covariance + floor)
        self.seen[at], self.mean[at], self.squares[at] = 0.0, 0.0, 0.0
        self.searching[at] = True


def _ones(n: Array) -> Array:
    """Number of ones in binary numbers below 2^32."""
    count: Array = ONES[n & 0xFFFF] + ONES[n >> 16]
    return count
