"""Consensus Monte Carlo: every client samples its subposterior, and the server averages the draws.

Sources: Scott et al. (2016), *Bayes and big data: the consensus Monte Carlo algorithm*; Neiswanger, Wang & Xing (2014),
*Asymptotically exact, embarrassingly parallel MCMC*.

    p(θ | y) ∝ Π_k p_k(θ),      p_k(θ) ∝ p(θ)^(1/K) p(y_k | θ)

There is one round. Each client runs NUTS on p_k and sends its draws θ_k,s. Everything is on the unconstrained scale,
where the Jacobians are part of p(θ) and of its share p(θ)^(1/K). With V_k the covariance of the draws of p_k and
W_k = V_k⁻¹ (or I), the setting `rule` determines the draws of the product:

    weighted, uniform    θ_s = (Σ_k W_k)⁻¹ Σ_k W_k θ_k,s                       Scott et al., Section 3
    gaussian             draws of Π_k N(mean_k, V_k)                            Neiswanger et al., Section 3.1
    nonparametric        draws of Π_k KDE_k, with kernels N(· | θ_k, h² V_k)    the same, Algorithm 1

The last is a mixture of S^K Gaussians. Metropolis steps change one t_k of a component t = (t_1 ... t_K) at a time, with
h = i^(-1/(4 + D)) in pass i, as published:

    weight(t) ∝ exp(-Σ_k (θ_k,t_k - θ̄_t)' W_k (θ_k,t_k - θ̄_t) / 2h²),      θ | t ~ N(θ̄_t, h² (Σ_k W_k)⁻¹)

The default is exact if every p_k is Gaussian. Otherwise it has an error that cannot be seen from the draws: a skewed
p_k (few rows, one label) moves the mean, because its tails have the same weight as its centre. If a client's rows are
uninformative, its draws follow its share of the prior, which must then be proper. If a client has only a few groups,
whose levels are integrated out, neither they nor its share of the prior exclude a scale of zero. The run ends with an
error if the scale falls below the rounding of a level.

Deviations: draws are combined in the order of the chains (as in Scott et al.), chain by chain, so that R-hat and ESS
keep their meaning; NUTS replaces the papers' Gibbs and random-walk samplers; the paper's kernels are N(· | θ_k, h² I),
whereas kernels with V_k do not depend on units and give the exact mean if all p_k are Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_fed.algorithm.combination import Bounded
from pyro_fed.algorithm.contract import LocalResult, Noise, Start
from pyro_fed.algorithm.contributions import BoundedMessages, Contributions, SentMessages
from pyro_fed.algorithm.states import State, concatenate, select
from pyro_fed.codes import cures
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import ModelError
from pyro_fed.infer.pooled.nuts import TreeChains, trajectory_figures
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.subposteriors.lanes import Lanes
from pyro_fed.ops.gaussian import FullGaussian, Gaussian

#: Added to the diagonal of the draws' correlations, for fewer draws than parameters: well above the rounding error of
#: hundreds of eigenvalues.
CORRELATION_JITTER = 1e-12


def average_draws(draws: Tensor, *, weighted: bool = True) -> Tensor:
    """Averages over clients of draws (K, S, D), (S, D), weighted by inverse covariances or equally."""
    if not weighted:
        return draws.mean(0)
    precisions = _precisions(draws)
    averages: Tensor = torch.linalg.solve(precisions.sum(0), torch.einsum("kde,kse->ds", precisions, draws)).T
    return averages


def draw_gaussian_product(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the product of Gaussians with the moments of the draws (K, S, D)."""
    precisions = _precisions(draws)
    covariance: Tensor = torch.linalg.inv(precisions.sum(0))
    mean = covariance @ torch.einsum("kde,ke->d", precisions, draws.mean(1))
    factor = torch.linalg.cholesky((covariance + covariance.T) / 2)
    product: Tensor = mean + torch.randn(draws.shape[1:], generator=generator, dtype=draws.dtype) @ factor.T
    return product


def draw_density_product(draws: Tensor, generator: torch.Generator) -> Tensor:
    """Draws (S, D) of the product of density estimates of the draws (K, S, D): a Markov chain of passes over k."""
    number, count, dim = draws.shape
    precisions = _precisions(draws)
    joint_covariance = torch.linalg.inv(precisions.sum(0))
    factor = torch.linalg.cholesky((joint_covariance + joint_covariance.T) / 2)
    pulls = torch.einsum("kde,kse->ksd", precisions, draws)  # W_k θ_k,s
    sizes = (pulls * draws).sum(-1)  # θ' W θ

    def spread(indices: Tensor) -> tuple[float, Tensor]:
        """Σ_k (θ_k - θ̄)' W_k (θ_k - θ̄), and θ̄ (D,), of one draw each (K,)."""
        pull = pulls[clients, indices].sum(0)
        middle = joint_covariance @ pull
        return float(sizes[clients, indices].sum() - pull @ middle), middle

    clients = torch.arange(number)
    indices = torch.randint(count, (number,), generator=generator)
    value, middle = spread(indices)
    samples = []
    for i in range(1, count + 1):
        width = float(i) ** (-1 / (4 + dim))
        proposals = torch.randint(count, (number,), generator=generator)
        chances = torch.rand(number, generator=generator).log().tolist()
        for k, chance in enumerate(chances):
            trial = indices.clone()
            trial[k] = proposals[k]
            # A Metropolis step between components: log weight(new) - log weight(old).
            trial_value, trial_middle = spread(trial)
            if (value - trial_value) / (2 * width**2) > chance:
                indices, value, middle = trial, trial_value, trial_middle
        noise = torch.randn(dim, generator=generator, dtype=draws.dtype)
        samples.append(middle + width * factor @ noise)
    return torch.stack(samples)


def gaussians_of_draws(draws: Tensor) -> FullGaussian:
    """Gaussians (K,) with the means and covariances of draws (K, S, D)."""
    precision = _precisions(draws)
    return FullGaussian(precision, torch.einsum("kde,ke->kd", precision, draws.mean(1)))


def stretch_draws(draws: Tensor, before: FullGaussian, after: Gaussian) -> Tensor:
    """Draws (K, ..., D) of Gaussians `before` (K,), shifted and scaled to Gaussians `after`."""
    shape = (len(draws), *[1] * (draws.dim() - 2), -1)
    away = draws - before.mean().reshape(shape)
    white = torch.einsum("kde,k...e->k...d", torch.linalg.inv(before.root()), away)
    return after.mean().reshape(shape) + torch.einsum("kde,k...e->k...d", after.root(), white)


def _precisions(draws: Tensor) -> Tensor:
    """Inverse covariances (K, D, D)."""
    away = draws - draws.mean(1, keepdim=True)
    covariance = away.mT @ away / (draws.shape[1] - 1)
    sd = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    correlation = covariance / sd[:, :, None] / sd[:, None, :]
    least = CORRELATION_JITTER * torch.eye(draws.shape[2], dtype=draws.dtype)
    precision: Tensor = torch.linalg.inv(correlation + least) / sd[:, :, None] / sd[:, None, :]
    return precision


@dataclass(frozen=True)
class DrawContributions(Contributions):
    """Contributions to `ConsensusMC`."""

    def bounding_obstacle(self) -> str | None:
        """An empty string: contributions can be bounded."""
        return ""

    def bounded_messages(self, limits: Bounded, shared: State, ledger: State, sent: SentMessages) -> BoundedMessages:
        """Draws shifted and scaled so that their Gaussian is within the limits."""
        draws = sent.messages["draws"]
        p = gaussians_of_draws(draws.double().flatten(1, 2))
        nothing = type(p).zeros((), p.dim, device=p.eta.device)
        limited = limits.sites(nothing, p, p.mean().quantile(0.5, 0), sent.own_rows)
        moved = stretch_draws(draws.double(), p, limited.sites).to(draws.dtype)
        cut = (limited.limit_excess > 0).reshape(-1, *[1] * (draws.dim() - 1))
        return BoundedMessages(
            shared, {**sent.messages, "draws": torch.where(cut, moved, draws)}, {}, limited.limit_excess
        )

    def substitute_messages(self, shared: State, ledger: State, messages: State, clients: Tensor) -> State | None:
        """An empty dictionary: the product contains the other clients alone, without these shares of the prior."""
        return {}

    def client_shift_sds(self, shared: State, ledger: State, sent: SentMessages) -> Tensor:
        """Shifts of the Gaussian product of the draws' moments if one client is left out."""
        p = gaussians_of_draws(sent.messages["draws"].double().flatten(1, 2))
        whole = p.product_over(0)
        others = type(p)(whole.precision - p.precision, whole.eta - p.eta)
        spread = others.moments()[1].diagonal(dim1=-2, dim2=-1) if p.dense else others.moments()[1]
        return ((whole.mean() - others.mean()) * spread.rsqrt()).abs().amax(-1)


Rule = Literal["weighted", "uniform", "gaussian", "nonparametric"]


class Server(NamedTuple):
    """The server's state: draws (chains, S, D), before the round the starting points (chains, 1, D); K; its seed."""

    draws: Tensor
    num_clients: Tensor
    seed: Tensor


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class ConsensusMC(TreeChains):
    """Consensus Monte Carlo: in one round, NUTS at every client on its share of the posterior, and averages of draws.

    Args:
        num_samples: draws kept of each chain, and of the result's.
        num_chains: chains a client; the result has as many.
        rule: how the draws θ_k of the clients become draws of their product: "weighted" averages by the inverse
            covariances (Scott et al.), "uniform" averages, draws of the product of "gaussian"s with their moments, or
            a walk over the product of density estimates ("nonparametric"; Neiswanger et al.).
        radius: chains start uniformly on (-radius, radius) of the unconstrained scale.

    References:
        Scott et al. (2016), Bayes and big data. Neiswanger, Wang & Xing (2014), Algorithm 1.

    Example:
        >>> idata = pf.run(pf.infer.ConsensusMC(), fed)
        >>> idata = pf.run(pf.infer.ConsensusMC(rule="nonparametric", num_chains=4), fed)
    """

    remedy: ClassVar[str] = cures.OF_AVERAGED_DRAWS

    needs_all: ClassVar[bool] = True

    num_samples: int = 500
    warmup_steps: int = 500
    num_chains: int = 2
    rule: Rule = "weighted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "num_samples")
        check_choice(self, "rule", get_args(Rule))

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start with the chains' starting points in place of draws."""
        points = self.uniform_starts(problem, self.num_chains, generator)
        seed = torch.randint(2**62, (), generator=generator)
        return Server(points[:, None], torch.tensor(num_clients), seed)._asdict(), {}

    def download(self, shared: State, clients: Tensor) -> State:
        """The starting points and the number of clients."""
        server = entries_as(Server, shared)
        return super().download({"draws": server.draws[:, -1:], "num_clients": server.num_clients}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Run all clients' chains at once.

        Raises:
            ModelError: a client's groups do not determine the scale of their levels.
        """
        count = int(shared["num_clients"][0])
        lanes = Lanes(self.chains(prior_power=1.0 / count), _place_watcher(problem, count))
        points = shared["draws"][:, :, -1].contiguous()
        chains = lanes.run(problem, data.full_batch(), points, noise.T, type(self).__name__)
        clients = (select(chains, slice(k, k + 1)) for k in range(len(points)))
        figures = concatenate([trajectory_figures(client, self.max_tree_depth) for client in clients])
        return {"draws": chains["draws"]}, {}, figures

    def contributions(self) -> Contributions:
        """The clients' draws."""
        return DrawContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Draw from the product of the clients' densities."""
        server, draws = entries_as(Server, shared), messages["draws"].double()  # (K, chains, S, D)
        if self.rule in ("weighted", "uniform"):
            means = average_draws(draws.flatten(1, 2), weighted=self.rule == "weighted")
            product = means.unflatten(0, draws.shape[1:3])
        else:
            generator = torch.Generator().manual_seed(int(server.seed))
            draw = draw_gaussian_product if self.rule == "gaussian" else draw_density_product
            product = torch.stack([draw(chain, generator) for chain in draws.unbind(1)])
        return server._replace(draws=product.to(server.draws.dtype))._asdict()


def _place_watcher(problem: Problem, clients: int) -> Callable[[NDArray[Any]], None]:
    """A check of the positions (L, D) of chains, which raises if all levels of groups are equal up to rounding."""
    least = math.log(torch.finfo(problem.dtype).eps)
    slopes = [(neck, neck.slope.numpy()) for neck in problem.traits.necks_of_rows]

    def look(z: NDArray[Any]) -> None:
        for neck, slope in slopes:
            smallest = neck.log_scale + float(np.min(z @ slope))
            if smallest < least:
                raise ModelError(
                    f"ConsensusMC: a client's chain has come to a scale of '{neck.site}' of {math.exp(smallest):.1g}, "
                    f"where its groups' levels are the same but for rounding. A client's own groups do not keep "
                    f"{neck.scales} away from there, and its share of the prior, 1/{clients} of it, hardly does: "
                    "averages of such draws are no posterior. Give the groups to fewer clients, so that each has many, "
                    "or take what does not sample shares of a posterior: FedEP, FedAIS, DSVGD or FSGLD"
                )

    return look
