"""Stochastic ascent of a bound of the evidence by Adam on a guide's parameters, and the average of its steps.

    z_s = g_φ(ε_s)                                                        ε_s from the run's seed and the step
    ∇_φ ELBO ≈ 1/S Σ_s [∇_φ (log p_0 - log q_φ)(x_s) + (∂z_s/∂φ)' Σ_k ∇_z log p_k(z_s)]
    φ ← φ + Adam(∇_φ ELBO)
    φ̄ = mean of φ over the second half of the steps                       the guide that is returned

Clients send only their scores at the draws (S, D). The gradient by the sum of these scores is that of
`pyro.infer.Trace_ELBO` on the pooled data at the same ε.

The IWAE bound E[log 1/S Σ_s p(x_s) / q_φ(x_s)] does not split over clients. Its gradient is the above with draw s
weighted by w_s ∝ p(x_s) / q_φ(x_s). So clients also send log p_k(z_s), and the weights follow from the sums.

The first half of the steps needs no rounds: the same steps move a guide of any family towards a known Gaussian, such as
FedEP's or P2PVI's, with ∇_z log (q_EP / p_0) in place of Σ_k ∇_z log p_k. The second half takes the rounds. Without
such a Gaussian there are twice as many rounds, from the guide's own start. So it is for flows: of their local optima
they then reach those of SVI on the pooled data, and from a Gaussian worse ones (`benchmarks/accuracy/GUIDES.md`).

A single φ has the noise of the few draws in Adam's last steps. φ̄ averages over the draws of half of all steps (Dhaka et
al., 2020).

If the steps have not converged, the average lags behind. As R̂ compares the halves of a chain, two guides are compared
at the same ε: at the means of the earlier and of the later half of the averaged steps. The comparison is by means and
SDs of their draws, since a flow's parameters may move while its distribution does not. The error of φ̄ is at least half
of the difference.

Latents inside the plate are integrated out of log p_k, as by the best of all local guides. If the guide has these
sites, and takes any rows, its local part is used instead: see `guides.program`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import torch
from pyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.algorithm.contract import Noise, Tempered
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State, prefixed, within
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import MATTERS, MIN_EFFECTIVE_DRAWS, SAME_SHARE, SD_MATTERS
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.derivatives import clients_likelihood_scores, clients_likelihood_scores_and_values, prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.guide_runs import KeptDraws
from pyro_fed.guides.program import GuideDraws, GuideProgram, guide_program, local_gradients
from pyro_fed.infer.averaging.optim import OPTIM, Adam
from pyro_fed.ops.gaussian import Gaussian

#: Adam, with a β₂ that forgets the steep gradients of a distant start within the rounds of a run.
ADAM = Adam(betas=(0.9, 0.99), eps=1e-8)


class Fit(NamedTuple):
    """A guide's parameters and Adam's state during the fit."""

    params: Tensor  # φ
    step: Tensor  # steps of Adam so far, ()
    seed: Tensor  # seed of the run's ε, ()
    adam: Annotated[State, f"{OPTIM}."]  # Adam's state by name

    @property
    def noise_seed(self) -> int:
        """The seed of this step's ε."""
        return int(self.seed) + int(self.step)


class Average(NamedTuple):
    """The mean of a guide's parameters over the second half of its steps, and their drift."""

    average: Tensor  # φ̄
    early: Annotated[Tensor, "early_average"]  # the mean over the first half of these steps
    drift: Tensor  # from the first to the second half: of means in SDs, and of log SDs, (2,); NaN until the end

    @classmethod
    def at(cls, params: Tensor) -> Self:
        """Before the first step."""
        return cls(params, params, torch.full((2,), torch.nan, dtype=torch.float64))


@dataclass(frozen=True, kw_only=True)
class GuideAscent(KeptDraws, Tempered):
    """Steps of Adam on a guide by the clients' scores at its draws.

    Args:
        guide: an automatic guide, class or instance, a function of the model's arguments, or a `PyroModule`.
        num_steps: number of Adam's steps.
        num_particles: S, draws of the guide per step.
        bound: "elbo", or "iwae" with its S draws in one logarithm, which is tighter and makes guides wider. Its weights
            need all clients: in rounds of some of them they are biased.
        step_size: Adam's learning rate at the beginning, in the guide's own unconstrained units.
        final_share: ratio of the last learning rate to the first. In the second half of the steps the rate falls
            geometrically, and the guide's parameters are averaged.
        surrogates: source of the Gaussian to which the guide is fitted before the first round, or None.
    """

    on_cpu: ClassVar[bool] = True
    #: Settings that may need more than sums of the clients' scores, with the values that do not.
    by_sums: ClassVar[Mapping[str, Any]] = {"bound": "elbo"}

    guide: Any = AutoMultivariateNormal
    surrogates: Any = "auto"
    num_steps: int = 2000
    num_particles: int = 8
    step_size: float = 0.02
    final_share: float = 0.1
    bound: Literal["elbo", "iwae"] = "elbo"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_steps", "num_particles")
        check_positive(self, "step_size", "temperature")
        check_between(self, "final_share", 0, 1)
        check_choice(self, "bound", ("elbo", "iwae"))
        if is_kind(self.guide, AutoLaplaceApproximation):
            raise SettingError(f"{type(self).__name__}: guide AutoLaplaceApproximation is fitted by FedLaplace()")

    @property
    def steps_without_rounds(self) -> int:
        """The number of steps towards the surrogates before the first round."""
        return 0 if self.surrogates is None else self.num_steps // 2

    def program(self, problem: Problem) -> GuideProgram:
        """The guide as a function of its parameters; an amortised guide takes only settings that need sums."""
        program = guide_program(self.guide, problem)
        for setting, default in self.by_sums.items():
            value = getattr(self, setting)
            if program.amortised and value != default:
                raise SettingError(
                    f"{type(self).__name__}: {setting}={value!r} moves parameters of global sites alone, and this "
                    f"guide has sites inside the plate: leave {setting} out, or leave these sites out of the guide"
                )
        return program

    def first_states(self, problem: Problem, num_clients: int, generator: torch.Generator) -> tuple[Fit, State]:
        """The guide at its own start, and the clients' parts of an amortised guide, (K, ...)."""
        program = self.program(problem)
        seed = torch.randint(2**31, (), generator=generator)
        fit = Fit(program.start, torch.tensor(0), seed, self.adam_at(program.start))
        if not program.amortised:
            return fit, {}
        local = {"params": program.own_start, **prefixed(OPTIM, self.adam_at(program.own_start))}
        return fit, {name: value.expand(num_clients, *value.shape) for name, value in local.items()}

    def empty_round(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Zeros in place of draws (S, D) and of the clients' flat messages, of the shapes that rounds have."""
        zero = torch.zeros(self.num_particles, problem.dim, dtype=problem.dtype)
        return zero, (zero if self.bound == "elbo" else with_values(zero, zero[:, 0])).flatten()

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        return torch.randint(2**31, (1,), generator=generator) if self.program(problem).amortised else ()

    def scores_at_points(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[Tensor, State]:
        """The clients' scores at the draws, flat, (C, S D), with their log-likelihoods for IWAE; and their states."""
        if local:
            scores_and_states = [
                self._local_guide_scores(problem, shared, local, data, noise, k) for k in range(len(data.num_rows))
            ]
            after = {name: torch.stack([own[name] for _, own in scores_and_states]) for name in local}
            return torch.stack([score.flatten() for score, _ in scores_and_states]), after
        if self.bound == "elbo":
            scores = clients_likelihood_scores(problem, shared["points"], data)
        else:
            scores = with_values(*clients_likelihood_scores_and_values(problem, shared["points"], data))
        return scores.double().flatten(1), {}

    def _local_guide_scores(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise, k: int
    ) -> tuple[Tensor, State]:
        """Scores (S, D) of client k, whose latents have a guide of their own, and its state after a step of that."""
        batch = Batch(*pytree.tree_map(lambda part: part[k], tuple(data.full_batch())))
        state = {name: value[k] for name, value in local.items()}
        params, points, rate = state["params"], shared["points"][k], self.rate(shared["step"][k])
        scores, gradient = local_gradients(self.program(problem), params, points, batch, int(noise[0, k]))
        move, after = ADAM.step({"params": params}, {"params": gradient}, within(state, OPTIM), rate)
        return scores, {"params": params + move["params"], **prefixed(OPTIM, after)}

    def points(self, problem: Problem, fit: Fit) -> Tensor:
        """The draws z (S, D) of the step's ε."""
        return self.program(problem).points(fit.params, self.num_particles, fit.noise_seed)

    def ascended(self, problem: Problem, fit: Fit, sums: Tensor) -> Fit:
        """The guide after one step of Adam; `sums` (S, D) or (S, D + 1) are the clients' scores and log-likelihoods."""
        scores, *values = sums.split(problem.dim, -1)
        objective = partial(elbo, problem, scores, values=values[0] if values else None)
        gradient = self.program(problem).gradient(fit.params, self.num_particles, fit.noise_seed, objective)
        move, adam = ADAM.step({"params": fit.params}, {"params": gradient}, fit.adam, self.rate(fit.step))
        return Fit(fit.params + move["params"], fit.step + 1, fit.seed, adam)

    def fitted_to(self, problem: Problem, target: Gaussian, fit: Fit, steps: int) -> Fit:
        """The guide after steps towards a Gaussian in place of the posterior, without rounds."""
        for _ in range(steps):
            points = self.points(problem, fit)
            fit = self.ascended(problem, fit, target.score(points) - prior_scores(problem, points))
        return fit

    def averaged(self, problem: Problem, before: Average, fit: Fit, steps_a_round: int = 1) -> Average:
        """φ̄ with another round's φ, `early` as φ̄ of the first half of these steps, and at the end the drift."""
        steps, half = int(fit.step) - self.num_steps // 2, self.num_steps - self.num_steps // 2
        average = before.average.lerp(fit.params, 1 / max(steps / steps_a_round, 1.0))
        early = average if 2 * steps <= half else before.early
        if steps < half:
            return Average(average, early, before.drift)
        late = average + (average - early) * half / (2 * steps - half)
        return Average(average, early, self._drift(problem, early, late, fit.seed))

    def _drift(self, problem: Problem, early: Tensor, late: Tensor, seed: Tensor) -> Tensor:
        """The largest difference of two guides' means, in SDs, and of their log SDs, (2,); NaN if both are points."""
        program = self.program(problem)
        guide_draws = [program.points(params, MIN_EFFECTIVE_DRAWS, int(seed) - 1).double() for params in (early, late)]
        means, sds = torch.stack([one.mean(0) for one in guide_draws]), torch.stack([one.std(0) for one in guide_draws])
        spread = (sds > SAME_SHARE * means.abs()).all(0)
        if not bool(spread.any()):
            return torch.full((2,), torch.nan, dtype=torch.float64)
        means, sds = means[:, spread], sds[:, spread]
        shift = means.diff(dim=0) / sds.square().mean(0).sqrt()
        return torch.stack([shift.abs().amax(), sds.log().diff(dim=0).abs().amax()])

    def drift_figures(self, after: State) -> dict[str, float]:
        """The guide's drift from the earlier to the later half of the averaged steps, once these are complete."""
        mean, log_sd = after["drift"].reshape(-1, 2).amax(0).tolist()
        return {"mean_drift": mean, "log_sd_drift": log_sd} if math.isfinite(mean + log_sd) else {}

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """A warning if the guide had not converged at the end."""
        mean, log_sd = (record.latest.get(name, 0.0) for name in ("mean_drift", "log_sd_drift"))
        if mean <= MATTERS and log_sd <= math.log(SD_MATTERS):
            return []
        return [sentences.guide_still_moves(steps=self.num_steps, sds=mean, factor=math.exp(log_sd))]

    def final_draws(self, problem: Problem, average: Tensor, seed: Tensor) -> Tensor:
        """Draws (S, D) of the guide at φ̄ that are stored, at an ε of no step."""
        return self.program(problem).points(average, self.kept_draw_count, int(seed) - 1)

    def advice(self, problem: Problem, before: State) -> str:
        return f"take a smaller step_size (now {self.step_size:g}), or a guide that begins nearer"

    def adam_at(self, params: Tensor) -> State:
        """Adam's state before the first step."""
        return ADAM.init({"params": params}, self.step_size)

    def rate(self, step: Tensor) -> float:
        """Adam's rate at a step."""
        share: float = self.final_share ** max(0.0, 2 * int(step) / self.num_steps - 1)
        return self.step_size * share


def is_kind(guide: Any, kind: type) -> bool:
    """Whether a guide, class or instance, is of a kind."""
    return issubclass(guide if inspect.isclass(guide) else type(guide), kind)


def with_values(scores: Tensor, values: Tensor) -> Tensor:
    """Scores (..., S, D) and log-likelihoods (..., S) in one tensor (..., S, D + 1)."""
    return torch.cat([scores, values.unsqueeze(-1)], -1)


def elbo(problem: Problem, scores: Tensor, draws: GuideDraws, values: Tensor | None = None) -> Tensor:
    """A scalar whose gradient in the guide's parameters is that of the bound, by the likelihood's scores (S, D)."""
    log_ratio: Tensor = problem.vmap(partial(_log_prior, problem))(draws.z).double() - draws.log_density.double()
    log_lik = (draws.z * scores.to(draws.z)).sum(-1).double()
    if values is None:
        return (log_ratio + log_lik).mean()
    weights = (log_ratio.detach() + values[:, 0].double()).softmax(0)
    return (weights * (log_ratio + log_lik)).sum()


def _log_prior(problem: Problem, z: Tensor) -> Tensor:
    """log p_0 of the sites' own values at z (D,), without the transforms' Jacobian, like the guide's densities."""
    outside, _ = problem.log_terms(z, problem.fewest_rows)
    return sum((value for site, value in outside.items() if site), torch.zeros((), dtype=problem.dtype))
