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
* the step size where none is given, in preconditioned coordinates: min(`largest_step`, t / T), for visits of time t,
  at most `visit_time`. During a visit the score has an error of its own, that of one client's surrogate, so that a
  visit must be short against the chain's own relaxation time, which is 2 there; `FSGLD` measures these errors and
  chooses t by them. SGLD has no clients and takes `largest_step`. Where the step is shorter than for t = `visit_time`
  burn-in has as many steps more.
* `sweeps`: where f_s is uniform, clients in random sweeps (`schedule.Shuffled`) instead of drawn anew for each visit:
  what one client's error does the others undo, see `ops.visits`.
* `target_ess`: the run ends when the slowest coordinate has so many effective draws and R-hat is small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import Advice
from pyro_fed.algorithm.contract import Noise, Start, State
from pyro_fed.algorithm.record import Record
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, ClientData, batch_of, draw_minibatches, with_batches
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_store import start_chains
from pyro_fed.infer.langevin.conducive import anchor_score, linear_pull, score
from pyro_fed.infer.langevin.curvature import check_step, largest_curvature
from pyro_fed.infer.langevin.settings import LangevinSettings
from pyro_fed.infer.surrogates.local_sgld import tempered_clients
from pyro_fed.infer.surrogates.surrogates import fitted, one_each, shares
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.ops.langevin import langevin_step
from pyro_fed.ops.matrices import times_transposed
from pyro_fed.ops.step_sizes import polynomial_step


@dataclass(frozen=True, kw_only=True)
class LangevinAlgorithm(LangevinSettings, Advice):
    """Chains of Langevin steps that visit clients. Args: as for `LangevinSettings`."""

    # -- start ----------------------------------------------------------------------------------------------
    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Chains at draws of p(θ) Π q_s(θ), or of the prior where there are no surrogates."""
        share = shares(self.probabilities, num_clients).to(problem.dtype)
        local = {"inverse_f": 1 / share, "ready": torch.zeros(num_clients, dtype=torch.bool)}
        if self.surrogates is None:
            position = problem.init(self.num_chains, generator)
            factor = torch.ones(problem.dim, dtype=problem.dtype)
            anchor = torch.zeros(problem.dim, dtype=problem.dtype)
        else:
            sites, target = fitted(problem, self.surrogates, start)
            position = target.sample(self.num_chains, generator).to(problem.dtype)
            anchor = target.mean().to(problem.dtype)
            factor = (target.root() if self.precondition else torch.ones_like(target.eta)).to(problem.dtype)
            local |= self._pull(sites, target, share, anchor)
        local |= {
            name: value.expand(num_clients, *value.shape)
            for name, value in {"anchor": anchor, "factor": factor}.items()
        }
        if self.control_variate and self.batch_size is not None:
            local["anchor_score"] = position.new_zeros(num_clients, problem.dim)
        step, burn_in = self._step_and_burn_in(num_clients, start)
        chains = start_chains(position) | {"burn_in": torch.tensor(burn_in)}
        return chains | {"step_size": position.new_tensor(step), "share": share}, local

    def _step_and_burn_in(self, num_clients: int, start: Start | None) -> tuple[float, int]:
        """h, and the steps that are not kept."""
        if self.step_size is not None:
            return self.step_size, self.burn_in
        step = self.step_for(self.visit_length(num_clients, start))
        return step, math.ceil(self.burn_in * self.step_for(self.visit_time) / step)

    def step_for(self, visit: float) -> float:
        """h of visits of time h T, in preconditioned coordinates."""
        return min(self.largest_step, visit / self.local_steps)

    def visit_length(self, num_clients: int, start: Start | None) -> float:
        """h T where no step is given."""
        return self.visit_time

    def _pull(self, sites: Gaussian, target: Gaussian, share: Tensor, anchor: Tensor) -> State:
        """What the clients keep of the conducive gradient."""
        if not self.conducive_weight:
            return {}
        pull = linear_pull(one_each(sites, len(share)), share, anchor, self.conducive_weight)
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

    def warnings(self, record: Record, problem: Problem) -> list[str]:
        """What the chains say, and clients whose surrogates are poor."""
        return super().warnings(record, problem) + tempered_clients(record)
