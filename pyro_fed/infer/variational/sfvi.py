"""Structured federated variational inference: any Pyro guide that can be reparametrised, fitted to clients' rows.

Source: Hassan, Salomone & Mengersen (2023), *Federated variational inference methods for structured latent variable
models*, Algorithms 1 (SFVI) and 2 (SFVI-Avg).

    ELBO(φ) = E_q[log p_0(x) - log q_φ(x)]     the server's
              + Σ_k E_q[log p_k(x)]            client k's
    φ ← φ + Adam(∇_φ ELBO)                                                                           local_steps = 1
    φ_k ← φ after m steps of Adam on log p_0 - log q_φ + (N / N_k) log p_k,   φ ← Σ_k (N_k / N) φ_k  local_steps = m
    φ̄ = mean of φ over the second half of the steps                          the guide that is returned

With one step per round a client's part of the gradient is ∂z/∂φ, which the server knows, times the scores at the draws:
a client receives z (S, D) and sends its scores there (S, D). It does not run the guide, and messages do not grow with
φ. `guide_ascent` defines the step. For the IWAE bound clients also send log p_k(z_s), and the server weights the sums.
Several local steps, or parameters of a client's own, are excluded there: clients would need the weights before the sums
are known.

With several steps, clients run the guide and send their change of φ. This saves rounds if the clients' rows are
similar. Otherwise it converges to another point: the mean of the clients' best guides is not the best guide.

The steps before the first round use the Gaussian of `surrogates`.

Letters: φ `params`, z `points`, ε's seed `noise_seed`, S `num_particles`, m `local_steps`. A message's `delta` are a
client's scores per row at the draws, or its change of φ in m steps.

Deviation: φ itself is averaged, weighted by rows; the paper takes Wasserstein barycentres of Gaussians, and unweighted
means over clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro.infer.autoguide import AutoDelta
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown, shared_settings
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.density.derivatives import clients_likelihood_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.averaging.local_sgd import StepContributions
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.surrogates import Surrogates, check_surrogates, fitted_surrogates, surrogate_phase
from pyro_fed.infer.variational.guide_ascent import Average, Fit, GuideAscent, is_kind


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SFVI(GuideAscent):
    """Structured federated variational inference with any Pyro guide that can be reparametrised.

    For a Gaussian or another exponential family `FedEP(guide=...)` finds the best member in a handful of rounds. This
    algorithm takes about a thousand, for flows, low-rank normals, guides with dependent sites, and others.

    Args:
        guide: an automatic guide, class or instance, a function of the model's arguments, or a `PyroModule`. The answer
            of `AutoDelta` is a point, the MAP estimate.
        num_steps: number of Adam's steps; a round has `local_steps` of them, and the first half needs no rounds if
            there are `surrogates`.
        local_steps: m; with more than one, clients move the guide's parameters, and the server takes their mean.
        surrogates: an algorithm that leaves a Gaussian, `Given`, or one of the names "fedep", "laplace" and
            "local_sgld". The guide is fitted to that Gaussian before the first round. With None it begins at its own
            start. "auto" is FedEP or FedLaplace, by the number of parameters, if they run on the model; for an
            `AutoNormalizingFlow` it is None.

    Raises:
        SettingError: a setting out of its range, or unknown; a guide without the model's sites, with values outside of
            their supports, or with a distribution that cannot be reparametrised.

    References:
        Hassan, Salomone & Mengersen (2023), Algorithms 1 and 2; Dhaka et al. (2020), Robust, accurate stochastic
        optimization for variational inference.

    Example:
        >>> from pyro.infer.autoguide import AutoIAFNormal
        >>> idata = pf.run(pf.infer.SFVI(guide=AutoIAFNormal), fed)
        >>> idata = pf.run(pf.infer.SFVI(guide=AutoIAFNormal, local_steps=10, surrogates=None), fed)
    """

    additive: ClassVar[bool] = True
    by_sums: ClassVar[Mapping[str, Any]] = {"local_steps": 1, "bound": "elbo"}

    local_steps: int = 1
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "local_steps")
        if self.bound == "iwae" and self.local_steps > 1:
            raise SettingError(
                f"{type(self).__name__}: bound='iwae' weights draws by all clients' likelihoods, which are not known "
                f"within local_steps={self.local_steps}: leave one of the two out"
            )
        check_surrogates(self, allow_none=True)

    def delegate(self) -> Algorithm:
        """This algorithm, or `PointSFVI` if the guide is a point, because its result must be labelled a point."""
        if not is_kind(self.guide, AutoDelta) or isinstance(self, PointSFVI):
            return self
        return PointSFVI(**shared_settings(self, PointSFVI))

    def default_rounds(self, num_clients: int) -> int:
        """The rounds for `num_steps` steps, without the steps towards the surrogates."""
        return -(-(self.num_steps - self.steps_without_rounds) // self.local_steps)

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that fits the surrogates, if any; an unsuitable guide is refused before it runs."""
        self.program(problem)
        return surrogate_phase(self.surrogates, self.temperature) if self.steps_without_rounds else None

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the guide's initial parameters, or from those fitted to the surrogates."""
        fit, local = self.first_states(problem, num_clients, generator)
        if self.steps_without_rounds:
            target = fitted_surrogates(problem, self.surrogates, start)[1]
            fit = self.fitted_to(problem, target, fit, self.steps_without_rounds)
        points, message = self.empty_round(problem)
        shared = {
            **as_entries(fit),
            **as_entries(Average.at(fit.params)),
            "num_rows": torch.tensor(float(problem.num_rows), dtype=torch.float64),
            "points": points,
            "delta": fit.params if self.local_steps > 1 else message,
        }
        return shared, local

    def prepare(self, problem: Problem, shared: State) -> State:
        """Draw the round's points."""
        if self.local_steps > 1:
            return shared
        return {**shared, "points": self.points(problem, entries_as(Fit, shared))}

    def download(self, shared: State, clients: Tensor) -> State:
        """The round's draws, or the guide's parameters, which clients receive."""
        names = ("points", "step") if self.local_steps == 1 else ("params", "step", "seed", "num_rows")
        return super().download({name: shared[name] for name in names}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Compute the scores per row at the draws, or the parameters' change in m steps."""
        rows = data.num_rows.double().clamp_min(1).unsqueeze(-1)
        if self.local_steps > 1:
            return {"delta": self._parameter_changes(problem, shared, data, shared["num_rows"] / rows[:, 0])}, {}, {}
        scores, after = self.scores_at_points(problem, shared, local, data, noise)
        return {"delta": scores / rows}, after, {}

    def _parameter_changes(self, problem: Problem, shared: State, data: ClientData, weight: Tensor) -> Tensor:
        """The changes of φ by m steps of each client, (C, P), with likelihoods weighted by `weight` N / N_k, (C,)."""
        each = zip(*(shared[name] for name in ("params", "step", "seed")), strict=True)
        fits = [Fit(params, step, seed, self.adam_at(params)) for params, step, seed in each]
        for _ in range(self.local_steps):
            points = torch.stack([self.points(problem, fit) for fit in fits])
            scores = clients_likelihood_scores(problem, points, data) * weight[:, None, None]
            fits = [self.ascended(problem, fit, own) for fit, own in zip(fits, scores, strict=True)]
        return torch.stack([fit.params for fit in fits]) - shared["params"]

    def contributions(self) -> Contributions:
        return StepContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average the clients' messages over rows; `refine` moves the guide by the mean."""
        return {**shared, "delta": (weights.unsqueeze(-1) * messages["delta"]).sum(0)}

    def refine(self, problem: Problem, shared: State) -> State:
        """Take one step of Adam on the ELBO, or add the clients' mean change, and update the average."""
        fit = entries_as(Fit, shared)
        if self.local_steps > 1:
            change = shared["delta"]
            fit = fit._replace(params=fit.params + change, step=fit.step + self.local_steps)
        else:
            scores = shared["delta"].reshape(self.num_particles, -1)
            fit = self.ascended(problem, fit, shared["num_rows"] * scores)
        average = self.averaged(problem, entries_as(Average, shared), fit, self.local_steps)
        return {**shared, **as_entries(fit), **as_entries(average)}

    def conclude(self, problem: Problem, shared: State) -> State:
        """Draw from the guide."""
        return {**shared, "draws": self.final_draws(problem, shared["average"], shared["seed"])}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        return {"change": float((after["params"] - before["params"]).norm()), **self.drift_figures(after)}


@dataclass(frozen=True, kw_only=True)
class PointSFVI(SFVI):
    """`SFVI(guide=AutoDelta)`: the MAP estimate, a point and no posterior."""

    draws_are: ClassVar[str] = "point"

    @property
    def kept_draw_count(self) -> int:
        """One draw, the point."""
        return 1
