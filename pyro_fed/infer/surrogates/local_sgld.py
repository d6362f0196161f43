"""Surrogates from local draws: each client samples its own likelihood by SGLD (el Mekkaoui et al., Section 3.1).

    θ ← θ + h_s/2 ∇ log p(x_s | θ) + η,    q_s = N(mean, covariance of the draws)

The paper gives no step size. By default h_s = 0.05 × 4/λ_s, with λ_s the largest curvature of the client's
log-likelihood, which is recomputed in each of `stages` parts of burn-in.

A likelihood that is flat or unbounded in some direction (separable classes, fewer rows than parameters) is improper.
Its draws drift, and their covariance depends on the length of the chain. If the curvature at the mean of the draws, in
units of their covariance, is below 0.1 in some direction (it is 1 for a Gaussian), the surrogate's precision is the
positive part of the curvature instead, which is zero along flat directions: a tempered factor. A warning names the
client. FSGLD is unbiased with every surrogate.

Letters: h_s `step`, λ_s `curvature`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State, Tempered
from pyro_fed.algorithm.record import Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import chosen_setting, explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_choice, check_positive
from pyro_fed.density.derivatives import Derivatives, Structure, clients_likelihood_curves
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_site, gaussian, where
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.entries import choose, with_trailing_axes
from pyro_fed.ops.gaussian import STRUCTURES, Gaussian
from pyro_fed.ops.langevin import STABLE, langevin_step
from pyro_fed.ops.matrices import positive_part, power_iteration, times


class Moments(NamedTuple):
    """Mean (D,) and squares about it, (D, D) or their diagonal (D,), of `number` positions (Welford's recursion)."""

    mean: Tensor
    squares: Tensor
    number: Tensor

    def of_one_more(self, position: Tensor) -> Moments:
        """The moments with one more position, (D,)."""
        number = self.number + 1
        before = position - self.mean
        mean = self.mean + before / number
        after = position - mean
        own = before.unsqueeze(-1) * after if self.squares.ndim == 2 else before * after
        return Moments(mean, self.squares + own, number)


class Server(NamedTuple):
    """The server's state: the point (D,) where all clients' chains start, and the product of the surrogates."""

    position: Tensor
    product: Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class LocalSGLD(Tempered):
    """One Gaussian a client from draws of its own likelihood, in one round.

    Args:
        num_samples: draws a client.
        burn_in: steps before them.
        stages: number of parts of burn-in; a derived step size is recomputed in each.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        step_size: h_s, the variance of the injected noise; None derives it from the client's largest curvature.
        covariance: "full", "diag", or "auto": full up to 100 parameters.

    References:
        El Mekkaoui et al., Federated stochastic gradient Langevin dynamics, Section 3.1.

    Example:
        >>> idata = pf.run(pf.FSGLD(surrogates=pf.infer.LocalSGLD(num_samples=5000)), fed)
    """

    needs_all: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    num_samples: int = 3000
    burn_in: int = 1000
    stages: int = 10
    batch_size: int | None = None
    step_size: float | None = None
    covariance: Literal["auto", "full", "diag"] = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_samples")
        check_at_least(self, 1, "burn_in", "stages")
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", allow_none=True)
        check_positive(self, "temperature")
        check_choice(self, "covariance", ("auto", "full", "diag"))

    @property
    def _stage_steps(self) -> int:
        return -(-self.burn_in // self.stages)

    @property
    def structure(self) -> Structure:
        """The structure of the surrogates' covariances, "full" or "diag"."""
        return cast(Structure, chosen_setting(self, "covariance"))

    def default_rounds(self, num_clients: int) -> int:
        """One round, with all clients."""
        return 1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start all clients at the same draw from the prior."""
        structure = self.structure
        server = Server(problem.init(1, generator)[0], flat_site(problem, structure))
        return as_entries(server), as_state(flat_site(problem, structure, num_clients))

    def download(self, shared: State, clients: Tensor) -> State:
        return super().download({"position": entries_as(Server, shared).position}, clients)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The noise and the minibatches of all steps, those of burn-in first."""
        steps = self.stages * self._stage_steps + self.num_samples
        normal = torch.randn(steps, problem.dim, generator=generator, dtype=problem.dtype)
        if self.batch_size is None:
            return {"normal": normal}
        picks = draw_minibatches(num_rows, self.batch_size, steps, generator, problem.dtype)
        return {"normal": normal, "picks": picks}

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Burn in, sample, and take the moments."""
        position = self._after_burn_in(problem, shared["position"], data, noise)
        mean, spread = self._sampled_moments(problem, position, data, noise)
        curvature = (
            Derivatives(self.structure, "hessian").of_likelihood(problem, mean[None], data.full_batch()).curvature
        )
        site, tempered = self._surrogate(mean.double(), spread.double(), curvature)
        return as_state(site), as_state(site), {"tempered": tempered.double()}

    def _after_burn_in(self, problem: Problem, position: Tensor, data: ClientData, noise: Noise) -> Tensor:
        """The positions (C, D) of the chains after burn-in, with new step sizes in each stage."""
        for stage in range(self.stages):
            first = stage * self._stage_steps
            position, _ = self._chains(problem, position, data, noise, first, self._stage_steps)
        return position

    def _sampled_moments(
        self, problem: Problem, position: Tensor, data: ClientData, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Means (C, D) and covariances of the draws after burn-in."""
        first = self.stages * self._stage_steps
        _, moments = self._chains(problem, position, data, noise, first, self.num_samples)
        return moments.mean, moments.squares / with_trailing_axes(moments.number - 1, moments.squares)

    def _chains(
        self, problem: Problem, position: Tensor, data: ClientData, noise: Noise, first: int, steps: int
    ) -> tuple[Tensor, Moments]:
        """The last positions of the chains after steps of fixed size, and the moments of all positions."""
        step = self._step_sizes(problem, position, data)
        picks = noise.get("picks")
        xs: dict[str, Any] = {"normal": noise["normal"][first : first + steps]}
        if picks is not None:
            xs["picks"] = type(picks)(*(part[first : first + steps] for part in picks))
        rows, dims = with_batches(data, self.batch_size)
        wide = self.structure == "full"
        zeros = position.new_zeros(*position.shape, *position.shape[1:] if wide else ())
        begin = (position, Moments(torch.zeros_like(position), zeros, position.new_zeros(len(position))))
        end: tuple[Tensor, Moments] = problem.scan(self._step, begin, (step, rows), xs, steps, (0, dims))[0]
        return end

    def _step_sizes(self, problem: Problem, position: Tensor, data: ClientData) -> Tensor:
        if self.step_size is not None:
            return position.new_full((len(position),), self.step_size)
        curvature = largest_likelihood_curvature(problem, position, data).abs()
        return 0.05 * STABLE / curvature.clamp_min(torch.finfo(position.dtype).eps)

    def _step(self, problem: Problem, carry: tuple[Tensor, Moments], const: Any, x: Any) -> tuple[Any, tuple[()]]:
        """Take a step, θ' = θ + h/2 ∇ log p(x_s | θ) + √h ξ, and add θ' to the moments."""
        (position, moments), (step, rows) = carry, const
        batch = batch_of(rows, x.get("picks"))
        position = langevin_step(position, grad(lambda z: problem.log_lik(z, batch))(position), step, x["normal"])
        return (position, moments.of_one_more(position)), ()

    def _surrogate(self, mean: Tensor, spread: Tensor, curvature: Tensor) -> tuple[Gaussian, Tensor]:
        """The site of each client, and whether it is tempered."""
        full = spread.dim() > mean.dim()
        structure = STRUCTURES["full" if full else "diag"]
        site = structure.from_moments(mean, spread)
        usable = mean.isfinite().all(-1) & curvature.flatten(1).isfinite().all(-1)
        curvature = choose(usable, curvature, 0.0)
        mean = choose(usable, mean, 0.0)
        least = site.relative_change(structure(curvature, site.eta)).amin(-1)
        tempered = ~(least >= 0.1)
        soft = positive_part(curvature) if full else curvature.clamp_min(0)
        return where(tempered, structure(soft, times(soft, mean)), site), tempered

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return as_entries(entries_as(Server, shared)._replace(product=gaussian(messages).product_over()))

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """Draws of the surrogates' product, without the prior: (1, num_draws, D)."""
        product = entries_as(Server, shared).product.require_proper("LocalSGLD: the product of the surrogates")
        return product.sample(num_draws, generator)[None]

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        return tempered_clients(record)


def tempered_clients(record: Record) -> list[Finding]:
    """A warning that names the clients with tempered surrogates, if there are any."""
    names = [
        record.client_names[client]
        for r in record.rounds
        if "tempered" in r.info
        for client, tempered in zip(r.clients, r.info["tempered"], strict=True)
        if tempered
    ]
    if not names:
        return []
    return [sentences.surrogates_tempered(clients=names)]


def largest_likelihood_curvature(problem: Problem, position: Tensor, data: ClientData) -> Tensor:
    """Largest curvature (C,) in size of each client's log-likelihood at `position` (C, D), positive if concave."""

    def product(directions: Tensor) -> Tensor:
        return -clients_likelihood_curves(problem, position[:, None], directions[:, None], data)[:, 0]

    return power_iteration(product, position)
