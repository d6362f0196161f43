"""Structured federated variational inference: any Pyro guide that can be reparametrised, fitted to clients' rows.

Source: Hassan, Salomone & Mengersen (2023), *Federated variational inference methods for structured latent variable
models*, Algorithms 1 (SFVI) and 2 (SFVI-Avg).

    ELBO(φ) = E_q[log p_0(x) - log q_φ(x)]     the server's
              + Σ_k E_q[log p_k(x)]            client k's
    z_s = g_φ(ε_s)                             the same ε_s at the server and all clients, from the round's seed
    ∇_φ ELBO ≈ 1/S Σ_s [∇_φ (log p_0 - log q_φ)(x_s) + (∂z_s/∂φ)' Σ_k ∇_z log p_k(z_s)]
    φ ← φ + Adam(∇_φ ELBO)                                                                           local_steps = 1
    φ_k ← φ after m steps of Adam on log p_0 - log q_φ + (N / N_k) log p_k,   φ ← Σ_k (N_k / N) φ_k  local_steps = m
    φ̄ = mean of φ over the second half of the steps                          the guide that is returned

With one step a round a client's part of the gradient is ∂z/∂φ, which the server knows, times the scores at the draws:
a client gets z (S, D) and sends its scores there (S, D). It does not run the guide, and messages do not grow with φ.
The sum over clients is the gradient of `pyro.infer.Trace_ELBO` on the pooled data at the same ε.

The IWAE bound E[log 1/S Σ_s p(x_s) / q_φ(x_s)] does not split over clients, but its gradient is the above with draw s
weighted by w_s ∝ p(x_s) / q_φ(x_s): clients also send log p_k(z_s), and the server weights the sums. What moves at a
client before the sums are known, as in several local steps or parameters of its own, would need others' weights.

With several steps, clients run the guide, and send their change of φ. Where clients' rows are alike this needs fewer
rounds. It ends elsewhere where they are not: the mean of the clients' best guides is not the best guide.

The first half of the steps needs no rounds: a guide of any family approaches the Gaussian of `surrogates`, such as
FedEP's, by the same steps at the server, with ∇_z log (q_EP / p_0) in place of Σ_k ∇_z log p_k. The rounds are those of
the second half. Without surrogates there are twice as many, from the guide's own start.

One φ carries the noise of the few draws behind Adam's last steps. φ̄ averages over S draws of half of all steps (Dhaka
et al., 2020), and errs half as much as the φ at the end of a rate that falls a hundredfold.

Latents inside the plate are integrated out of log p_k, which is what the best of all local guides would give. Where the
guide has these sites, and takes any rows, its local part is used in place: see `guides.program`.

Letters: φ `params`, z `points`, ε's seed `noise_seed`, S `num_particles`, m `local_steps`.

Deviation: φ is averaged as it is, by rows; the paper takes Wasserstein barycentres of Gaussians, and means of clients.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from pyro.infer.autoguide import AutoDelta, AutoLaplaceApproximation, AutoMultivariateNormal
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.contract import Algorithm, Noise, Start, Tempered
from pyro_fed.algorithm.contributions import Contributions
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores, clients_likelihood_scores_and_values, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.guide_runs import KeptDraws
from pyro_fed.guides.program import GuideDraws, GuideProgram, guide_program, local_gradients
from pyro_fed.infer.averaging.contributions import StepContributions
from pyro_fed.infer.averaging.optim import OPTIM, Adam
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.phase import Surrogates, check_surrogates, surrogate_phase
from pyro_fed.infer.surrogates.surrogates import fitted_surrogates
from pyro_fed.ops.gaussian import Gaussian

#: Adam's β₂: steep gradients of a distant start are forgotten within the rounds of a run.
ADAM = Adam(betas=(0.9, 0.99), eps=1e-8)


class Fit(NamedTuple):
    """A guide on its way to the largest ELBO, at the server or at a client that moves it.

    Args:
        params: φ.
        step: steps of Adam so far, ().
        seed: of the run's ε, ().
        adam: Adam's state by name.
    """

    params: Tensor
    step: Tensor
    seed: Tensor
    adam: Annotated[State, f"{OPTIM}."]

    @property
    def noise_seed(self) -> int:
        """The seed of this step's ε."""
        return int(self.seed) + int(self.step)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SFVI(KeptDraws, Tempered):
    """Structured federated variational inference with any Pyro guide that can be reparametrised.

    Where the guide is a Gaussian or another exponential family, `FedEP(guide=...)` finds its best member in a handful
    of rounds. This takes some thousand, for flows, low-rank normals, guides with dependent sites, and others.

    Args:
        guide: an automatic guide, class or instance, a function of the model's arguments, or a `PyroModule`. The answer
            of `AutoDelta` is a point, the MAP estimate.
        num_steps: steps of Adam; a round has `local_steps` of them, and the first half needs no rounds if there are
            `surrogates`.
        local_steps: m; with more than one, clients move the guide's parameters, and the server takes their mean.
        num_particles: S, draws of the guide a step.
        bound: "elbo", or "iwae" with its S draws in one logarithm, which is tighter and makes guides wider. Its weights
            need all clients: in rounds of some of them they are biased.
        step_size: Adam's learning rate at the beginning, in the guide's own unconstrained units.
        final_share: what share of the learning rate is left after `num_steps`; from their half on it falls
            geometrically, and the guide's parameters are averaged.
        num_guide_draws: draws of the fitted guide that are kept, each returned once by `run`; None keeps as many
            as it is asked for, and 4,000 at least.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        surrogates: an algorithm that leaves a Gaussian, `Given`, or one of the names "fedep", "laplace" and
            "local_sgld": the guide is fitted to that Gaussian before the first round. With None it begins at its own
            start. "auto" is FedEP or FedLaplace, by the number of parameters, if they run on the model.

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

    on_cpu: ClassVar[bool] = True
    additive: ClassVar[bool] = True

    guide: Any = AutoMultivariateNormal
    num_steps: int = 2000
    local_steps: int = 1
    num_particles: int = 8
    step_size: float = 0.02
    final_share: float = 0.1
    bound: Literal["elbo", "iwae"] = "elbo"
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_steps", "local_steps", "num_particles")
        check_positive(self, "step_size", "temperature")
        check_between(self, "final_share", 0, 1)
        if self.bound == "iwae" and self.local_steps > 1:
            raise SettingError(
                f"{type(self).__name__}: bound='iwae' weights draws by all clients' likelihoods, which are not known "
                f"within local_steps={self.local_steps}: leave one of the two out"
            )
        check_choice(self, "bound", ("elbo", "iwae"))
        check_surrogates(self, allow_none=True)
        if _is_kind(self.guide, AutoLaplaceApproximation):
            raise SettingError(f"{type(self).__name__}: guide AutoLaplaceApproximation is fitted by FedLaplace()")

    def delegate(self) -> Algorithm:
        """This algorithm, or `PointSFVI` if the guide is a point, because its result must be labelled a point."""
        if not _is_kind(self.guide, AutoDelta) or isinstance(self, PointSFVI):
            return self
        return PointSFVI(**{field.name: getattr(self, field.name) for field in fields(self)})

    def default_rounds(self, num_clients: int) -> int:
        """As many rounds as make `num_steps` steps, or those after the steps towards the surrogates."""
        return -(-(self.num_steps - self.steps_without_rounds) // self.local_steps)

    @property
    def steps_without_rounds(self) -> int:
        """The number of steps that the server makes by surrogates before the first round."""
        return 0 if self.surrogates is None else self.num_steps // 2

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that fits the surrogates, if they have to be fitted; a guide is refused before it runs."""
        self.program(problem)
        return surrogate_phase(self.surrogates, self.temperature) if self.steps_without_rounds else None

    def program(self, problem: Problem) -> GuideProgram:
        """The guide as a function of its parameters.

        Raises:
            SettingError: a guide that cannot be fitted, or not by several local steps.
        """
        program = guide_program(self.guide, problem)
        for setting in ("local_steps", "bound"):
            value, default = getattr(self, setting), getattr(SFVI, setting)
            if program.amortised and value != default:
                raise SettingError(
                    f"{type(self).__name__}: {setting}={value!r} moves parameters of global sites alone, and this "
                    f"guide has sites inside the plate: leave {setting} out, or leave these sites out of the guide"
                )
        return program

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start from the guide's initial parameters, or from those fitted to the surrogates."""
        program = self.program(problem)
        zero = torch.zeros(self.num_particles, problem.dim, dtype=problem.dtype)
        sent = zero if self.bound == "elbo" else self._with_values(zero, zero[:, 0])
        seed = torch.randint(2**31, (), generator=generator)
        fit = Fit(program.start, torch.tensor(0), seed, self._adam_at(program.start))
        if self.steps_without_rounds:
            fit = self._fitted_to(problem, fitted_surrogates(problem, self.surrogates, start)[1], fit)
        shared = {
            **as_entries(fit),
            "num_rows": torch.tensor(float(problem.num_rows), dtype=torch.float64),
            "average": fit.params,
            "points": zero,
            "delta": fit.params if self.local_steps > 1 else sent.flatten(),
        }
        if not program.amortised:
            return shared, {}
        local = {"params": program.own_start, **prefixed(OPTIM, self._adam_at(program.own_start))}
        return shared, {name: value.expand(num_clients, *value.shape) for name, value in local.items()}

    def _fitted_to(self, problem: Problem, target: Gaussian, fit: Fit) -> Fit:
        """The guide after steps towards a Gaussian in place of the posterior."""
        for _ in range(self.steps_without_rounds):
            points = self._points(problem, fit)
            fit = self._ascended(problem, fit, target.score(points) - prior_scores(problem, points))
        return fit

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """A seed for draws of the client's own latents, if the guide has these."""
        return torch.randint(2**31, (1,), generator=generator) if self.program(problem).amortised else ()

    def prepare(self, problem: Problem, shared: State) -> State:
        """Draw the round's points."""
        if self.local_steps > 1:
            return shared
        return {**shared, "points": self._points(problem, entries_as(Fit, shared))}

    def download(self, shared: State, clients: Tensor) -> State:
        """The round's draws, or the guide's parameters, which clients receive."""
        names = ("points", "step") if self.local_steps == 1 else ("params", "step", "seed", "num_rows")
        return super().download({name: shared[name] for name in names}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """The scores of a row at the draws, or the parameters' change in m steps."""
        rows = data.num_rows.double().clamp_min(1).unsqueeze(-1)
        if self.local_steps > 1:
            return {"delta": self._parameter_changes(problem, shared, data, shared["num_rows"] / rows[:, 0])}, {}, {}
        if not local:
            if self.bound == "elbo":
                scores = clients_likelihood_scores(problem, shared["points"], data)
            else:
                scores = self._with_values(*clients_likelihood_scores_and_values(problem, shared["points"], data))
            return {"delta": scores.double().flatten(1) / rows}, {}, {}
        found = [self._own_step(problem, shared, local, data, noise, k) for k in range(len(rows))]
        scores = torch.stack([score.flatten() for score, _ in found])
        after = {name: torch.stack([own[name] for _, own in found]) for name in local}
        return {"delta": scores / rows}, after, {}

    def _parameter_changes(self, problem: Problem, shared: State, data: ClientData, weight: Tensor) -> Tensor:
        """The changes of φ by m steps of each client, (C, P), whose likelihood counts with `weight` N / N_k, (C,)."""
        each = zip(*(shared[name] for name in ("params", "step", "seed")), strict=True)
        fits = [Fit(params, step, seed, self._adam_at(params)) for params, step, seed in each]
        for _ in range(self.local_steps):
            points = torch.stack([self._points(problem, fit) for fit in fits])
            scores = clients_likelihood_scores(problem, points, data) * weight[:, None, None]
            fits = [self._ascended(problem, fit, own) for fit, own in zip(fits, scores, strict=True)]
        return torch.stack([fit.params for fit in fits]) - shared["params"]

    def _own_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise, k: int
    ) -> tuple[Tensor, State]:
        """Scores (S, D) of client k, whose latents have a guide of their own, and its state after a step of it."""
        batch = Batch(*pytree.tree_map(lambda part: part[k], tuple(data.full_batch())))
        state = {name: value[k] for name, value in local.items()}
        own, points, rate = state["params"], shared["points"][k], self._rate(shared["step"][k])
        scores, gradient = local_gradients(self.program(problem), own, points, batch, int(noise[0, k]))
        move, after = ADAM.step({"params": own}, {"params": gradient}, within(state, OPTIM), rate)
        return scores, {"params": own + move["params"], **prefixed(OPTIM, after)}

    def contributions(self) -> Contributions:
        """The clients' steps."""
        return StepContributions(self)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The mean over rows of what the clients sent; `refine` moves the guide by it."""
        return {**shared, "delta": (weights.unsqueeze(-1) * messages["delta"]).sum(0)}

    def refine(self, problem: Problem, shared: State) -> State:
        """Make one step of Adam on the ELBO, or take the mean of the clients' parameters; and average."""
        delta, fit = shared["delta"], entries_as(Fit, shared)
        if self.local_steps > 1:
            fit = fit._replace(params=fit.params + delta, step=fit.step + self.local_steps)
        else:
            sums = shared["num_rows"] * delta.reshape(len(shared["points"]), -1)
            fit = self._ascended(problem, fit, *sums.split(problem.dim, -1))
        averaged = (int(fit.step) - self.num_steps // 2) / self.local_steps  # number of rounds in the second half
        average = shared["average"].lerp(fit.params, 1 / max(averaged, 1.0))
        return {**shared, **as_entries(fit), "average": average}

    def conclude(self, problem: Problem, shared: State) -> State:
        """Draw from the guide."""
        seed = int(shared["seed"]) - 1
        return {**shared, "draws": self.program(problem).points(shared["average"], self.kept_draw_count, seed)}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Length of the step of the guide's parameters."""
        return {"change": float((after["params"] - before["params"]).norm())}

    def advice(self, problem: Problem, before: State) -> str:
        """Advise shorter steps."""
        return f"take a shorter step_size ({self.step_size:g} was taken), or a guide that begins nearer"

    def _adam_at(self, params: Tensor) -> State:
        """Adam's state before the first step."""
        return ADAM.init({"params": params}, self.step_size)

    def _points(self, problem: Problem, fit: Fit) -> Tensor:
        """The points z of the step's ε."""
        return self.program(problem).points(fit.params, self.num_particles, fit.noise_seed)

    def _rate(self, step: Tensor) -> float:
        """Adam's rate at a step."""
        share: float = self.final_share ** max(0.0, 2 * int(step) / self.num_steps - 1)
        return self.step_size * share

    @staticmethod
    def _with_values(scores: Tensor, values: Tensor) -> Tensor:
        """Scores (..., S, D) and log-likelihoods (..., S) in one tensor (..., S, D + 1)."""
        return torch.cat([scores, values.unsqueeze(-1)], -1)

    def _ascended(self, problem: Problem, fit: Fit, scores: Tensor, values: Tensor | None = None) -> Fit:
        """The guide after one step of Adam along the bound's gradient, see `elbo`."""
        objective = partial(elbo, problem, scores, values=values)
        gradient = self.program(problem).gradient(fit.params, self.num_particles, fit.noise_seed, objective)
        move, adam = ADAM.step({"params": fit.params}, {"params": gradient}, fit.adam, self._rate(fit.step))
        return Fit(fit.params + move["params"], fit.step + 1, fit.seed, adam)


@dataclass(frozen=True, kw_only=True)
class PointSFVI(SFVI):
    """`SFVI(guide=AutoDelta)`: the MAP estimate, a point and no posterior."""

    draws_are: ClassVar[str] = "point"

    @property
    def kept_draw_count(self) -> int:
        """One draw, the point."""
        return 1


def _is_kind(guide: Any, kind: type) -> bool:
    """Whether a guide, class or instance, is of a kind."""
    return issubclass(guide if inspect.isclass(guide) else type(guide), kind)


def elbo(problem: Problem, scores: Tensor, draws: GuideDraws, values: Tensor | None = None) -> Tensor:
    """A scalar whose gradient in the guide's parameters is the ELBO's: the likelihood enters by its scores (S, D).

    With its `values` (S, 1) too, the gradient is that of the IWAE bound.
    """
    log_ratio: Tensor = problem.vmap(partial(_log_prior, problem))(draws.z).double() - draws.log_density.double()
    log_lik = (draws.z * scores.to(draws.z)).sum(-1).double()
    if values is None:
        return (log_ratio + log_lik).mean()
    weights = (log_ratio.detach() + values[:, 0].double()).softmax(0)
    return (weights * (log_ratio + log_lik)).sum()


def _log_prior(problem: Problem, z: Tensor) -> Tensor:
    """log p_0 of the sites' own values at z (D,), without the transforms' Jacobian, as the guide's densities are."""
    outside, _ = problem.log_terms(z, problem.fewest_rows)
    return sum((value for site, value in outside.items() if site), torch.zeros((), dtype=problem.dtype))
