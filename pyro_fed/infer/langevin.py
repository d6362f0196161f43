"""What the Langevin samplers share: chains at a server, visits of T steps at a client, kept draws.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Algorithm 1.

    θ_{t+1} = θ_t + h_t/2 (d_s + α g_s)(θ_t) + η_t,    η_t ~ N(0, h_t I)                              (5), (7)
    d_s = ∇ log p(θ) + N_s/(f_s m) ∇ log p(x_s^(m) | θ)                                          (4)
    g_s = ∇ log q(θ) - 1/f_s ∇ log q_s(θ)

Letters: θ `position`, h `step_size`, d_s + α g_s `score` (see `infer.conducive`), f_s `probabilities`, m
`batch_size`, T `local_steps`, q_s `surrogates`, S clients. Several chains run at once, each at its own client.

Deviations, all settings, all off in the papers' recipes, and those of `infer.conducive`:

* `precondition`: G = A A' in place of I, the covariance of the Gaussian p(θ) Π_s q_s(θ), so that one step size
  serves posteriors of any scale: in the coordinates A⁻¹θ the posterior is about N(0, I).
* `midpoint`: the score is taken, and the draw kept, half a noise further, at θ + η/2 (Leimkuhler & Matthews,
  2013, in the form of Vilmart, 2015). With exact scores the variance at a Gaussian target is then exact for every
  stable h, where Eq. (1) is too wide by 1/(1 - hλ/4).
* the step size where none is given, in preconditioned coordinates: min(`largest_step`, `visit_time` / T). During a
  visit the score has a constant error, that of one client's surrogate, so that a visit must be short against the
  chain's own relaxation time, which is 2 there, while its T steps last h T. SGLD has no clients and takes
  `largest_step`.
* `target_ess`: the run ends when the slowest coordinate has so many effective draws and R-hat is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm import Algorithm, Noise, Start, State
from pyro_fed.data import BATCHES, ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.chain_store import start_chains
from pyro_fed.infer.chains import ChainAlgorithm
from pyro_fed.infer.conducive import anchor_score, linear_pull, score, times_transposed
from pyro_fed.infer.curvature import check_step, largest_curvature
from pyro_fed.infer.fedep import FedEP
from pyro_fed.infer.fedlaplace import FedLaplace
from pyro_fed.infer.local_sgld import LocalSGLD, tempered_clients
from pyro_fed.infer.surrogates import Given, fitted
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.langevin import factor_of_mass, langevin_step
from pyro_fed.ops.step_sizes import polynomial_step
from pyro_fed.problem import Problem
from pyro_fed.record import Record
from pyro_fed.schedule import Categorical, Schedule
from pyro_fed.settings import check_at_least, check_between, check_choice, check_positive

BY_NAME: dict[str, Algorithm] = {"laplace": FedLaplace(), "fedep": FedEP(), "local_sgld": LocalSGLD()}


@dataclass(frozen=True, kw_only=True)
class LangevinAlgorithm(ChainAlgorithm):
    """Chains of Langevin steps that visit clients.

    Args: as for `ChainAlgorithm`, and
        batch_size: m, rows a step; None takes all of a client's rows.
        step_size: h_0, the variance of the injected noise; None: see above, for preconditioned chains.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ; 0 keeps the step constant.
        decay_offset: steps after which the step has fallen to 2^-γ.
        probabilities: f_s; uniform by default.
        surrogates: where the Gaussians q_s come from: an algorithm that leaves Gaussian sites (see
            `infer.surrogates`), "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors
            better, "local_sgld" for `LocalSGLD()`, or `Given`; None runs without (a step size is then needed).
        precondition: use the covariance of p(θ) Π q_s(θ) as preconditioner.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π q_s(θ).
        midpoint: evaluate and keep the chain at θ + η/2.
        largest_step: largest h where none is given; stability ends at 4.
        visit_time: h T where no step is given.
        trust: the conducive gradient is bounded beyond √D + trust posterior SDs from the mode; None: never.
    """

    batch_size: int | None = 100
    step_size: float | None = None
    decay: float = 0.0
    decay_offset: float = 1.0
    probabilities: tuple[float, ...] | None = None
    surrogates: Algorithm | Given | Literal["laplace", "fedep", "local_sgld"] | None = "laplace"
    precondition: bool = True
    control_variate: bool = True
    midpoint: bool = True
    largest_step: float = 0.5
    visit_time: float = 1.0
    trust: float | None = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", "trust", allow_none=True)
        check_positive(self, "decay_offset", "visit_time")
        check_between(self, "largest_step", 0, 1)
        if isinstance(self.surrogates, str):
            check_choice(self, "surrogates", tuple(BY_NAME))
        if not 0 <= self.decay <= 1:
            raise SettingError(f"{self._name}: decay must lie in [0, 1], received {self.decay}")
        if self.step_size is None and not (self.precondition and self.surrogates):
            raise SettingError(f"{self._name}: without preconditioner the step has no scale: give step_size")
        if self.surrogates is None and (self.precondition or self.control_variate or self.conducive_weight):
            raise SettingError(
                f"{self._name}: precondition, control_variate and conducive gradients need surrogates, received None"
            )
        self._check_probabilities()

    def _check_probabilities(self) -> None:
        f = self.probabilities
        if f is not None and not (min(f, default=0) > 0 and math.isclose(sum(f), 1, rel_tol=1e-9)):
            raise SettingError(f"{self._name}: probabilities must be positive and sum to one, received {f}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def conducive_weight(self) -> float:
        """α of Eq. (7); zero without conducive gradients."""
        return 0.0

    @property
    def derived_step(self) -> float:
        """The step where none is given, in preconditioned coordinates."""
        return min(self.largest_step, self.visit_time / self.local_steps)

    def default_schedule(self) -> Schedule:
        """One client a chain, drawn with probabilities f_s."""
        return Categorical(self.probabilities)

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What fits the surrogates."""
        if isinstance(self.surrogates, str):
            return BY_NAME[self.surrogates]
        return self.surrogates if isinstance(self.surrogates, Algorithm) else None

    # -- start ----------------------------------------------------------------------------------------------
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Chains at draws of p(θ) Π q_s(θ), or of the prior where there are no surrogates."""
        share = self._shares(num_clients, problem)
        local = {"inverse_f": 1 / share, "ready": torch.zeros(num_clients, dtype=torch.bool)}
        if self.surrogates is None:
            position = problem.init(self.num_chains, generator)
            factor = torch.ones(problem.dim, dtype=problem.dtype)
            anchor = torch.zeros(problem.dim, dtype=problem.dtype)
        else:
            sites, target = fitted(problem, self.surrogates, start)
            position = target.sample(self.num_chains, generator).to(problem.dtype)
            anchor = target.mean().to(problem.dtype)
            mass = target.precision if self.precondition else torch.ones_like(target.eta)
            factor = factor_of_mass(mass).to(problem.dtype)
            local |= self._pull(sites, target, share, anchor)
        local |= {
            name: value.expand(num_clients, *value.shape)
            for name, value in {"anchor": anchor, "factor": factor}.items()
        }
        if self.control_variate and self.batch_size is not None:
            local["anchor_score"] = position.new_zeros(num_clients, problem.dim)
        step = self.derived_step if self.step_size is None else self.step_size
        return start_chains(position) | {"step_size": position.new_tensor(step), "share": share}, local

    def _shares(self, num_clients: int, problem: Problem) -> Tensor:
        """f_s, (K,)."""
        if self.probabilities is None:
            return torch.full((num_clients,), 1 / num_clients, dtype=problem.dtype)
        if len(self.probabilities) != num_clients:
            raise SettingError(f"{self._name}: {len(self.probabilities)} probabilities for {num_clients} clients")
        return torch.tensor(self.probabilities, dtype=problem.dtype)

    def _pull(self, sites: Gaussian, target: Gaussian, share: Tensor, anchor: Tensor) -> State:
        """What the clients keep of the conducive gradient."""
        if not self.conducive_weight:
            return {}
        if len(sites.eta) != len(share):
            raise SettingError(f"{self._name}: {len(sites.eta)} surrogates for {len(share)} clients")
        pull = linear_pull(sites, share, anchor, self.conducive_weight)
        if self.trust is None:
            return pull
        metric = target.precision.to(anchor.dtype)
        radius = torch.full_like(share, math.sqrt(len(anchor)) + self.trust)
        return pull | {"metric": metric.expand(len(share), *metric.shape), "trust_radius": radius}

    # -- a visit --------------------------------------------------------------------------------------------
    def download(self, shared: State, clients: Tensor) -> State:
        """Slot i gets the end of chain i; kept draws stay at the server."""
        if len(clients) != self.num_chains:
            raise SettingError(
                f"{self._name}: each of the {self.num_chains} chains visits one client a round, but the schedule "
                f"named {len(clients)} in all: use a schedule of one client, such as schedule.Categorical()"
            )
        every = {name: shared[name].expand(len(clients)) for name in ("steps", "step_size")}
        return {"position": shared["position"], "client": clients, **every}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal noise (T, D) and the minibatches of a visit."""
        normal = torch.randn(self.local_steps, problem.dim, generator=generator, dtype=problem.dtype)
        if self.batch_size is None:
            return {"normal": normal}
        picks = draw_minibatches(num_rows, self.batch_size, self.local_steps, generator, problem.dtype)
        return {"normal": normal, "picks": picks}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """T steps of each chain at its client (`Update` of Algorithm 1)."""
        news = self._first_visit(problem, shared, local, data)
        steps = shared["steps"] + torch.arange(self.local_steps).unsqueeze(-1)
        scale = shared["step_size"] * self.decay_offset**self.decay
        decay = polynomial_step(steps.to(scale.dtype), 1.0, self.decay_offset, self.decay)
        xs = {**noise, "step_size": scale * decay}
        whole = self.batch_size is None or data.row_index.shape[-1] <= self.batch_size
        rows, dims = with_batches(data, None if whole else self.batch_size)
        const = local | {name: value for name, value in news.items() if name in local}
        if whole:  # no minibatch, nothing to correct
            const.pop("anchor_score", None)
            xs.pop("picks", None)
        axes = (dict.fromkeys(const, 0), dims)
        position, (path, norms) = problem.scan(
            self._step, shared["position"], (const, rows), xs, self.local_steps, axes
        )
        sent = slice(self.stride - 1, None, self.stride)
        message = {
            "position": position,
            "client": shared["client"],
            "draws": path[sent].transpose(0, 1),
            "gradient_norm": norms[sent].T,
            "step_size": xs["step_size"][sent].T,
        }
        return message, news, {"gradient_norm": norms.mean(0)}

    def _first_visit(self, problem: Problem, shared: State, local: State, data: ClientData) -> State:
        """What a client computes once: its gradient at the anchor, and whether the step is stable."""
        if bool(local["ready"].all()):
            return {}
        batch = data.full_batch()
        curvature = largest_curvature(problem, shared["position"], local, batch)
        check_step(self._name, shared["step_size"], curvature, shared["client"])
        news = {"ready": torch.ones_like(local["ready"])}
        if "anchor_score" in local:
            axes = (dict.fromkeys(local, 0), BATCHES)
            news["anchor_score"] = problem.mapped(anchor_score, axes, calls=0)(local, batch)
        return news

    def _step(self, problem: Problem, position: Tensor, const: Any, x: Any) -> tuple[Tensor, Any]:
        local, rows = const
        h, normal, factor = x["step_size"], x["normal"], local["factor"]
        batch = batch_of(rows, x.get("picks"))
        where = position
        if self.midpoint:
            where = langevin_step(position, torch.zeros_like(position), h / 4, normal, factor)
        drift = score(problem, where, local, batch)
        after = langevin_step(position, drift, h, normal, factor)
        return after, (where if self.midpoint else after, times_transposed(factor, drift).norm())

    def advice(self, problem: Problem, before: State) -> str:
        """A smaller step."""
        return f"reduce step_size below its present {float(before['step_size']):.3g}, or raise batch_size"

    def warnings(self, record: Record) -> list[str]:
        """What the chains say, and clients whose surrogates are poor."""
        return super().warnings(record) + tempered_clients(record)
