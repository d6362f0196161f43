"""The No-U-Turn Sampler on the pooled data: Pyro's own kernel on the compiled density.

It is the reference for federated results (Hoffman & Gelman 2014, with the multinomial sampling, the windows of
adaptation and the step-size search of Stan). Chains run one after the other, each from its own start and with its own
seed, so that a chain's draws do not depend on the number of chains.

Deviations from Pyro: one site "z" contains all sites, so that `full_mass=True` is one dense matrix over all of them.
`energy` is H at the beginning of a trajectory, which equals H at its end up to the integrator's error. `tree_depth`
counts a last, incomplete doubling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import cures, sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import PartialWork
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.pooled.nuts_kernel import STATISTICS, Chains, Potential, Stopped
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.arviz_versions import bfmi, ess, rhat

#: Largest R-hat of mixed chains (Vehtari et al. 2021); smallest BFMI of well explored energies.
MAX_RHAT = 1.01
MIN_BFMI = 0.3
#: Largest share of draws with the deepest tree: above it a run warns.
MAX_DEEPEST_SHARE = 0.05
#: Smallest number of draws per chain for which R-hat, ESS and BFMI are meaningful.
MIN_DIAGNOSED_DRAWS = 50


def trajectory_figures(message: State, max_tree_depth: int) -> State:
    """Divergences, saturated trees, and the worst R-hat, ESS and BFMI, each (1,), of chains (1, chains, S, ...)."""
    figures = {
        "divergences": message["diverging"].sum().double(),
        "deepest_trees": (message["tree_depth"] >= max_tree_depth).double().mean(),
    }
    draws = message["draws"][0].double().numpy()
    num_chains, num_samples = draws.shape[:2]
    if num_samples >= MIN_DIAGNOSED_DRAWS:
        energy = message["energy"][0].double().numpy()
        figures["bfmi_min"] = torch.tensor(float(bfmi(energy).min()))
        figures["ess_min"] = torch.tensor(float(ess(draws).min()))
        if num_chains > 1:
            figures["rhat_max"] = torch.tensor(float(rhat(draws).max()))
    return {name: value.reshape(1) for name, value in figures.items()}


def trajectory_warnings(record: Record, problem: Problem) -> list[Finding]:
    """Warnings, with cures, about divergences, saturated trees, chains that have not mixed and unexplored energies."""

    def last(name: str, default: float) -> float:
        values = record.last(name)
        return float(values[0]) if len(values) else default

    divergences, deepest = last("divergences", 0), last("deepest_trees", 0)
    rhat, bfmi = last("rhat_max", 1.0), last("bfmi_min", 1.0)
    struggled = divergences > 0 or rhat > MAX_RHAT or bfmi < MIN_BFMI
    hints = problem.traits.funnel_hint if struggled else []
    return [
        *([sentences.trajectories_diverged(trajectories=divergences)] if divergences > 0 else []),
        *([sentences.trees_saturated(share=deepest)] if deepest > MAX_DEEPEST_SHARE else []),
        *([sentences.chains_not_mixed(r_hat=rhat, limit=MAX_RHAT)] if rhat > MAX_RHAT else []),
        *([sentences.energies_badly_explored(bfmi=bfmi, limit=MIN_BFMI)] if bfmi < MIN_BFMI else []),
        *(sentences.funnel_is_likely(hint=hint) for hint in hints),
    ]


@dataclass(frozen=True, kw_only=True)
class TreeChains(Algorithm):
    """Base of algorithms whose one round is chains of the No-U-Turn Sampler.

    Args:
        num_samples: number of draws of each chain after warm-up.
        warmup_steps: number of warm-up draws, in which the step size and the mass matrix are adapted.
        target_accept_prob: target of the step size's adaptation; raise it if trajectories diverge.
        max_tree_depth: a draw takes at most 2^max_tree_depth - 1 leapfrog steps.
        full_mass: whether to adapt a dense mass matrix instead of a diagonal one.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
    """

    on_cpu: ClassVar[bool] = True
    draws_are: ClassVar[str] = "chains"

    num_samples: int = 1000
    warmup_steps: int = 1000
    num_chains: int = 4
    target_accept_prob: float = 0.8
    max_tree_depth: int = 10
    full_mass: bool = False
    radius: float = 2.0
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_samples", "num_chains", "max_tree_depth")
        check_at_least(self, 0, "warmup_steps")
        check_positive(self, "radius", "temperature")
        check_between(self, "target_accept_prob", 0.0, 1.0)

    def default_rounds(self, num_clients: int) -> int:
        """One round, in which all chains run."""
        return 1

    def uniform_starts(self, problem: Problem, count: int, generator: torch.Generator) -> Tensor:
        """Starting points (count, D), uniform on (-radius, radius)."""
        unit = torch.rand(count, problem.dim, generator=generator, dtype=problem.dtype)
        return (2 * unit - 1) * self.radius

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """A seed for each chain, (chains,)."""
        return torch.randint(2**62, (self.num_chains,), generator=generator)

    def chains(self, prior_power: float = 1.0) -> Chains:
        """The chains of a density with the prior to a power."""
        return Chains(
            num_samples=self.num_samples,
            warmup_steps=self.warmup_steps,
            target_accept_prob=self.target_accept_prob,
            max_tree_depth=self.max_tree_depth,
            full_mass=self.full_mass,
            potential=Potential(self.temperature, prior_power),
        )

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The draws, (chains, num_samples, D); `num_draws` is ignored."""
        return shared["draws"]

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about divergences, saturated trees, chains that have not mixed, and badly explored energies."""
        return trajectory_warnings(record, problem)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class NUTS(TreeChains):
    """Markov chains on the pooled data by Pyro's NUTS.

    Args:
        num_chains: number of chains, which run one after the other.
        start: "uniform" on (-radius, radius) of the unconstrained scale, as in Stan; "prior", draws of the prior
            (uniform for improper sites); or "laplace", draws of the Laplace approximation with 1.5 times its SDs.
        radius: half width of the uniform start, on the unconstrained scale; without effect with "laplace".

    References:
        Hoffman & Gelman (2014), The No-U-Turn Sampler, Algorithm 6. Betancourt (2017), A conceptual introduction to
        Hamiltonian Monte Carlo.

    Example:
        >>> reference = pf.run(pf.NUTS(), fed)
        >>> reference = pf.run(pf.NUTS(num_chains=2, target_accept_prob=0.95), fed)
    """

    pooled: ClassVar[bool] = True
    remedy: ClassVar[str] = cures.OF_TRAJECTORIES
    joint: ClassVar[bool] = True

    start: Literal["uniform", "prior", "laplace"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "start", ("uniform", "prior", "laplace"))
        if self.start == "laplace":
            refuse_unused(self, "start='laplace' takes draws of that", "radius")

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """Laplace's approximation, for `start="laplace"`."""
        return FedLaplace() if self.start == "laplace" else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the starting points, (chains, 1, D), in place of draws."""

        def drawn(count: int) -> Tensor:
            if start is not None:
                q = gaussian(start.shared)
                mean = q.mean()
                return (mean + 1.5 * (q.sample(count, generator) - mean)).to(problem.dtype)
            if self.start == "uniform":
                return self.uniform_starts(problem, count, generator)
            return problem.init(count, generator, radius=self.radius)

        points = problem.feasible(drawn(self.num_chains), lambda: drawn(1)[0])
        none = {name: points.new_zeros(self.num_chains, 1) for name in STATISTICS}
        return {"draws": points[:, None], **none}, {}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Run all chains from their starting points, one after the other.

        Raises:
            PartialWork: Ctrl-C after some draws; contains the complete chains, or else the draws of the first.
        """
        try:
            draws = self.chains().run(problem, data.full_batch(), shared["draws"][0, :, -1], noise[:, 0])
        except Stopped as stop:
            message, info = self._message(stop.chain)
            raise PartialWork(message, info) from stop
        message, info = self._message(draws)
        return message, {}, info

    def _message(self, draws: State) -> tuple[State, State]:
        """The chains (1, chains, S, ...) and their diagnostics, (1,)."""
        message = {name: value[None] for name, value in draws.items()}
        return message, trajectory_figures(message, self.max_tree_depth)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take the chains from the one client that has all rows."""
        return {name: value[0] for name, value in messages.items()}

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """The statistics of trajectories under ArviZ's names, each (chains, num_samples)."""
        stats = {name: shared[name] for name in STATISTICS}
        whole = {name: stats[name].long() for name in ("tree_depth", "n_steps")}
        return {**stats, **whole, "diverging": stats["diverging"].bool()}
