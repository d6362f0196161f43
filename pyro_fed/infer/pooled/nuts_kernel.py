"""Pyro's NUTS kernel with its leapfrog step as one compiled function, and chains of it.

    r½ = r - ε/2 ∇U(z),   z' = z + ε M⁻¹ r½,   r' = r½ - ε/2 ∇U(z'),   H' = U(z') + |p'|²/2,   p' = M^(-1/2) r'
    U(z) = -(w log p(z) + log p(y | z) / α)

The doubling, the adaptation and the random numbers are Pyro's. Two parts are replaced: the leaf above, with what Pyro
computes from H' (its weight, its acceptance probability, whether it diverges), and the recursion that builds the tree
of a doubling. The recursion works on flat vectors instead of dictionaries of sites, and makes the same choices by the
same random numbers. The potential U has the prior to the power w (1, or a share of it in consensus Monte Carlo) and the
likelihood to the power 1/α.

Letters as in Pyro: z unconstrained position (D,), r momentum, p `unscaled` momentum, M mass matrix, `root` M^(-1/2) (a
vector if M is diagonal), ε `step`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.infer.mcmc as mcmc
import torch
from numpy.typing import NDArray
from pyro.infer.mcmc.nuts import _TreeInfo
from torch import Tensor
from torch.func import grad_and_value
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.states import State
from pyro_fed.conventions import progress
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch
from pyro_fed.ops.hamiltonian import drifted, kicked

#: Statistics of a trajectory, under ArviZ's names.
STATISTICS = ("energy", "diverging", "acceptance_rate", "step_size", "tree_depth", "n_steps")
#: Name of the single site, the flat vector, and of its block of the mass matrix.
SITE, BLOCK = "z", ("z",)
#: Leapfrog steps of a tree of five doublings, a typical number.
LEAPFROGS_PER_DRAW = 31


class Leaf(NamedTuple):
    """End of a leapfrog step: z, r, p, ∇U (D,), U, H's error, acceptance probability (); a run adds an axis of one."""

    z: Tensor
    r: Tensor
    unscaled: Tensor
    gradient: Tensor
    potential: Tensor
    error: Tensor
    acceptance: Tensor


def leapfrog(
    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    z: Tensor,
    r: Tensor,
    gradient: Tensor,
    root: Tensor,
    step: Tensor,
    energy: Tensor,
) -> Leaf:
    """One step from z with momentum r, both (D,); `energy` is H at the beginning of the trajectory."""
    half = kicked(r, -gradient, 0.5 * step)
    z = drifted(z, root.square() * half if root.dim() == 1 else root.T @ (root @ half), step)
    gradient, potential = value_and_gradient(z)
    r = kicked(half, -gradient, 0.5 * step)
    unscaled = root * r if root.dim() == 1 else root @ r
    error = potential + 0.5 * unscaled @ unscaled - energy
    error = torch.where(error.isnan(), torch.inf, error)
    return Leaf(z, r, unscaled, gradient, potential, error, (-error).exp().clamp(max=1.0))


class Tree(NamedTuple):
    """Leaves in one direction of time."""

    first: NDArray[Any]  # p of the first leaf, (D,)
    last: Leaf  # the leaf at the other end
    proposal: Leaf  # one of the leaves, drawn by their weights
    momentum: NDArray[Any]  # the sum of all p, (D,)
    weight: Any  # log Σ exp -H, from H at the beginning of the trajectory
    turning: bool  # whether it has made a U-turn
    diverging: bool  # whether H has diverged
    acceptance: Any  # sum of the acceptance probabilities
    leaves: int  # number of leaves


def turning(first: NDArray[Any], last: NDArray[Any], momentum: NDArray[Any]) -> NDArray[Any]:
    """Whether trajectories make a U-turn (Betancourt 2017, A.4.2): p at their ends and sums of p, (..., D) → (...)."""
    along = momentum - (first + last) / 2
    turns: NDArray[Any] = ((first * along).sum(-1) <= 0) | ((last * along).sum(-1) <= 0)
    return turns


class Density(NamedTuple):
    """The compiled functions of a run: z → ∇U, U; and z, r, ∇U, root, step, energy → `Leaf`, with an axis of one."""

    value_and_gradient: Callable[[Tensor], tuple[Tensor, Tensor]]
    leapfrog: Callable[..., Leaf]


class CompiledNUTS(mcmc.NUTS):
    """Pyro's NUTS on compiled functions, with statistics of each trajectory; `options` are those of Pyro's `NUTS`."""

    def __init__(self, density: Density, **options: Any) -> None:
        untyped: Any = super()
        untyped.__init__(potential_fn=self._potential, **options)
        self.density = density
        self.steps = self._warmup = 0

    def _potential(self, params: dict[str, Tensor]) -> Tensor:
        apply: Callable[..., Tensor] = _WithGradient.apply
        value = apply(params[SITE], self.density.value_and_gradient)
        return value

    def _build_tree(
        self,
        z: dict[str, Tensor],
        r: dict[str, Tensor],
        z_grads: dict[str, Tensor],
        log_slice: Tensor,
        direction: int,
        tree_depth: int,
        energy_current: Tensor,
    ) -> _TreeInfo:
        """The tree that a doubling adds; both ends are set to the new one, since Pyro uses no other."""
        step = energy_current.new_tensor([self.step_size * (1 if direction == 1 else -1)])
        root = self.mass_matrix_adapter._mass_matrix_sqrt_inverse[BLOCK].contiguous()
        self._along = root[None], step, energy_current.detach()[None]
        with torch.no_grad(), np.errstate(all="ignore"):
            tree = self._grow(z[SITE].detach()[None], r[SITE][None], z_grads[SITE][None], tree_depth)
        last, proposal = tree.last, tree.proposal
        end = ({SITE: last.z[0]}, {SITE: last.r[0]}, {BLOCK: last.unscaled[0]}, {SITE: last.gradient[0]})
        return _TreeInfo(
            *end,
            *end,
            {SITE: proposal.z[0]},
            proposal.potential[0],
            {SITE: proposal.gradient[0]},
            {BLOCK: torch.from_numpy(tree.momentum)},
            torch.as_tensor(tree.weight),
            tree.turning,
            tree.diverging,
            torch.as_tensor(tree.acceptance),
            tree.leaves,
        )

    def _grow(self, z: Tensor, r: Tensor, gradient: Tensor, depth: int) -> Tree:
        """A tree of `depth` doublings from z with momentum r, (1, D) each (Algorithm 6, `BuildTree`)."""
        if not depth:
            self.steps += 1
            leaf = self.density.leapfrog(z, r, gradient, *self._along)
            momentum, error = leaf.unscaled.numpy()[0], leaf.error.numpy()[0]
            diverging = bool(error > self._max_sliced_energy)
            acceptance = leaf.acceptance.numpy()[0]
            return Tree(momentum, leaf, leaf, momentum, -error, False, diverging, acceptance, 1)
        half = self._grow(z, r, gradient, depth - 1)
        if half.turning or half.diverging:
            return half
        other = self._grow(half.last.z, half.last.r, half.last.gradient, depth - 1)
        weight = np.logaddexp(half.weight, other.weight)
        from_other = torch.bernoulli(torch.as_tensor(np.exp(other.weight - weight))).item() == 1
        momentum = half.momentum + other.momentum
        return Tree(
            half.first,
            other.last,
            other.proposal if from_other else half.proposal,
            momentum,
            weight,
            other.turning or bool(turning(half.first, other.last.unscaled.numpy()[0], momentum)),
            other.diverging,
            half.acceptance + other.acceptance,
            half.leaves + other.leaves,
        )

    def _sample_r(self, name: str) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
        untyped: Any = super()
        r, unscaled = untyped._sample_r(name)
        self._kinetic: Tensor = untyped._kinetic_energy(unscaled)
        return r, unscaled

    def _draw(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """The next position, by Pyro's kernel."""
        untyped: Any = self
        position: dict[str, Tensor] = untyped.sample(params)
        return position

    def transition(self, params: dict[str, Tensor]) -> dict[str, Any]:
        """One draw after warm-up, (D,), with its statistics."""
        potential: Any = self._potential_energy_last
        past = self._mean_accept_prob
        count = self._t - self._warmup
        steps, diverged = self.steps, len(self._divergences)
        z = self._draw(params)[SITE]
        steps = self.steps - steps
        acceptance = past + (count + 1) * (self._mean_accept_prob - past)  # from Pyro's running mean
        return {
            "draws": z.detach(),
            "energy": float(potential + self._kinetic),
            "diverging": float(len(self._divergences) > diverged),
            "acceptance_rate": min(1.0, max(0.0, acceptance)),
            "step_size": float(self.step_size),
            "tree_depth": float(math.ceil(math.log2(steps + 1))),
            "n_steps": float(steps),
        }

    def run(self, start: Tensor, warmup: int, samples: int, tick: Callable[[], Any]) -> dict[str, Tensor]:
        """Run a chain from `start` (D,): `draws` (samples, D) and its statistics; Ctrl-C raises `Stopped`."""
        params = self.initial_params = {SITE: start}
        self._warmup = warmup
        untyped: Any = self
        untyped.setup(warmup)
        for _ in range(warmup):
            params = self._draw(params)
            tick()
        transitions = []
        try:
            for _ in range(samples):
                transitions.append(self.transition(params))
                params = {SITE: transitions[-1]["draws"]}
                tick()
        except KeyboardInterrupt as stop:
            raise Stopped(_columns(start, transitions)) from stop
        return _columns(start, transitions)


class Stopped(KeyboardInterrupt):
    """Ctrl-C after warm-up, with the draws of the chain so far."""

    def __init__(self, chain: dict[str, Tensor]) -> None:
        super().__init__("a chain was interrupted")
        self.chain = chain


def _columns(start: Tensor, transitions: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Draws (n, D) and their statistics, each (n,)."""
    columns = {name: start.new_tensor([one[name] for one in transitions]) for name in STATISTICS}
    draws = torch.stack([one["draws"] for one in transitions]) if transitions else start.new_zeros(0, len(start))
    return {"draws": draws, **columns}


class _WithGradient(torch.autograd.Function):
    """A value with a given gradient, for the parts of Pyro's kernel that use autograd."""

    @staticmethod
    def forward(context: Any, z: Tensor, evaluate: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        gradient, value = evaluate(z.detach())
        context.save_for_backward(gradient)
        return value.clone()

    @staticmethod
    def backward(context: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        return upstream[0] * context.saved_tensors[0], None


@dataclass(frozen=True)
class Potential:
    """U and its gradient, with α `temperature` and w `prior_power`."""

    temperature: float = 1.0
    prior_power: float = 1.0

    def value_and_gradient(self, problem: Problem, z: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∇U(z) and U(z): z (D,) → (D,), ()."""

        def potential(one: Tensor) -> Tensor:
            if self.prior_power == 1.0:
                log_density = problem.log_joint(one, batch, self.temperature)
            else:
                log_prior, pointwise = problem.log_parts(one, batch.rows)
                log_density = self.prior_power * log_prior + (pointwise * batch.weight).sum() / self.temperature
            # A float64 constant in the model changes the dtype, and Pyro's kernel does not mix dtypes.
            return -log_density.to(one.dtype)

        return grad_and_value(potential)(z)

    def leapfrog(self, problem: Problem, *state_and_batch: Any) -> tuple[Tensor, ...]:
        """A leapfrog step, see `nuts_kernel.leapfrog`; the last argument is a batch."""
        *state, batch = state_and_batch
        return tuple(leapfrog(lambda z: self.value_and_gradient(problem, z, batch), *state))


@dataclass(frozen=True)
class Chains:
    """Settings of chains."""

    num_samples: int  # draws of each chain after warm-up
    warmup_steps: int  # warm-up draws
    target_accept_prob: float  # acceptance to which the step size is adapted
    max_tree_depth: int  # at most 2^max_tree_depth - 1 leapfrog steps for each draw
    full_mass: bool  # adapt a dense mass matrix instead of a diagonal one
    potential: Potential  # U

    def run(self, problem: Problem, batch: Batch, points: Tensor, seeds: Tensor, label: str = "NUTS") -> State:
        """Run chains one after the other from `points` (chains, D): `draws` (chains, S, D) and `STATISTICS`.

        `batch` has a client axis of one. Ctrl-C raises `Stopped` with the complete chains, or else the first's draws.
        """
        density = self._density(problem, batch, len(points))
        total = (self.warmup_steps + self.num_samples) * len(points)
        bar = progress.begin(label, total, "draw", shown=problem.progress, inner=True)
        with bar, pyro.validation_enabled(False), torch.random.fork_rng(devices=[]):
            chains: list[State] = []
            try:
                for chain, (point, seed) in enumerate(zip(points, seeds.tolist(), strict=True)):
                    where = f"chain {chain + 1} of {len(points)}"
                    torch.manual_seed(seed)
                    chains.append(self._chain(density, point, partial(bar.advance, where)))
            except KeyboardInterrupt as stop:
                interrupted = [stop.chain] if isinstance(stop, Stopped) and len(stop.chain["draws"]) else []
                if not (chains or interrupted):
                    raise
                raise Stopped(_stack_chains(chains or interrupted)) from stop
        return _stack_chains(chains)

    def _chain(self, density: Density, point: Tensor, tick: Callable[[], None]) -> State:
        kernel = CompiledNUTS(
            density,
            target_accept_prob=self.target_accept_prob,
            max_tree_depth=self.max_tree_depth,
            full_mass=self.full_mass,
        )
        with torch.enable_grad():
            return kernel.run(point.clone(), self.warmup_steps, self.num_samples, tick)

    def _density(self, problem: Problem, batch: Batch, num_chains: int) -> Density:
        gradient = problem.mapped(self.potential.value_and_gradient, (0, BATCHES))
        vector = (problem.dim,)
        shapes = (vector, vector, vector, 2 * vector if self.full_mass else vector, (), ())
        state = (torch.zeros(1, *shape, dtype=problem.dtype) for shape in shapes)
        calls = LEAPFROGS_PER_DRAW * num_chains * (self.warmup_steps + self.num_samples)
        step = problem.flat(self.potential.leapfrog, (*[0] * 6, BATCHES), (*state, batch), calls)
        rows = pytree.tree_leaves(batch)

        def value_and_gradient(z: Tensor) -> tuple[Tensor, Tensor]:
            slope, value = gradient(z[None], batch)
            return slope[0], value[0]

        def leapfrog_step(*state: Tensor) -> Leaf:
            return Leaf(*step(*state, *rows))

        return Density(value_and_gradient, leapfrog_step)


def _stack_chains(chains: list[State]) -> State:
    return {name: torch.stack([chain[name] for chain in chains]) for name in chains[0]}
