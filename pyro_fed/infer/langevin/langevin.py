"""Langevin samplers: chains that visit clients, whose scores are estimated from minibatches.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Algorithm 1.

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1), (3), (5)

A sampler is composed of

    the estimate v of the score       `gradients`: Eq. (4), a control variate, SAGA's table, conducive gradients (7)
    the step                          `integrator`: Eq. (1), its preconditioner, the midpoint rule
    the step sizes h_t                `step_sizes`, and `curvature` for the longest stable one
    T steps of a visit                `visits`
    the chains at the server          `travelling`, with `chain_store`
    where chains begin                `start`: the surrogates' Gaussian, its mode θ* and a root A of its covariance

`Langevin` joins them: `build_gradient` returns the sampler's estimate, `local_step` makes T steps with it.

Letters: θ `position`, h `step_size`, v `score`, f_s `probabilities`, m `batch_size`, T `local_steps`, q_s
`surrogates`, S clients. Several chains run at once, each at its own client.

Deviations, all settings, all off in the papers' recipes, and those of `gradients` and `integrator`:

* `step.precondition`: G = A A' in place of I, the covariance of the Gaussian p(θ) Π_s q_s(θ), so that one step size
  serves posteriors of any scale: in the coordinates A⁻¹θ the posterior is about N(0, I).
* the default step size, in preconditioned coordinates: min(`step.largest`, t / T), for visits of time t,
  at most `visit_time`. During a visit the score has an error of its own, that of one client's surrogate, so that a
  visit must be short against the chain's own relaxation time, which is 2 there; `FSGLD` measures these errors and
  chooses t by them. SGLD has no clients and takes `step.largest`. If the step is shorter than for t = `visit_time`,
  burn-in is longer by the same factor.
* `sweeps`: if f_s is uniform, clients in random sweeps (`schedule.Shuffled`) instead of drawn anew for each visit:
  the errors of one client and the others cancel, see `ops.langevin`.
* `target_ess`: the run ends when the slowest coordinate has this many effective draws and R-hat is small.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import LocalRounds
from pyro_fed.algorithm.contract import Algorithm, Noise, Start
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, Minibatch
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin import findings
from pyro_fed.infer.langevin.chain_store import ChainStore, ServerState
from pyro_fed.infer.langevin.client_state import Arrival, ClientState, Visit
from pyro_fed.infer.langevin.gradients import MinibatchScore, Score
from pyro_fed.infer.langevin.integrator import Integrator
from pyro_fed.infer.langevin.minibatches import no_picks
from pyro_fed.infer.langevin.start import Beginning, at_prior, at_surrogates, new_clients
from pyro_fed.infer.langevin.step import Derived, Fixed, Step
from pyro_fed.infer.langevin.step_sizes import StepSizes, check_step, largest_curvature, longest_steps
from pyro_fed.infer.langevin.travelling import TravellingChains
from pyro_fed.infer.langevin.visits import Visits
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.phase import Surrogates, check_surrogates, surrogate_phase
from pyro_fed.infer.surrogates.surrogates import shares


@dataclass(frozen=True, kw_only=True)
class Langevin(TravellingChains):
    """Chains of Langevin steps: what all samplers of this family share.

    Args:
        batch_size: m, rows a step; None takes all of a client's rows.
        step: a `pf.infer.step`; a derived one makes burn-in longer where it is short, up to half a run by default.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites, "laplace", "fedep",
            "local_sgld", "auto", or `Given`; None runs without.

    The others are those of `TravellingChains`.
    """

    #: The kinds of steps that have an effect.
    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, Derived)

    batch_size: int | None = 100
    step: Step | str = Derived()
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "temperature")
        check_surrogates(self, allow_none=True)
        resolve(self, "step", Step)
        name = type(self).__name__
        if type(self.step) not in self.steps:
            allowed = " or ".join(f"pf.infer.step.{kind.__name__}" for kind in self.steps)
            raise SettingError(f"{name}: step must be {allowed}, received {self.step!r}")
        if self.surrogates is None and self.rule.given_size is None:
            raise SettingError(
                f"{name}: without surrogates the step has no scale: give step=pf.infer.step.Fixed(size=..., "
                "precondition=False)"
            )
        if self.surrogates is None and (self.rule.preconditions or self.needs_surrogates):
            raise SettingError(
                f"{name}: precondition, control_variate at the mode and conducive gradients need surrogates, "
                "received None"
            )

    @property
    def rule(self) -> Step:
        """The setting `step` as an instance."""
        return cast(Step, self.step)

    # -- the estimate of the score --------------------------------------------------------------------------
    @property
    def needs_surrogates(self) -> bool:
        """Whether the estimate uses surrogates."""
        return False

    def build_gradient(self, client: ClientState, anchor: Tensor | None = None) -> Score:
        """v: that of Eq. (4), unless a sampler overrides it.

        `client` are the clients' states; `anchor` is θ*, where a control variate is taken, None for none.
        """
        return MinibatchScore(client.inverse_f)

    @abstractmethod
    def draw_picks(self, num_rows: int, batch_size: int, generator: torch.Generator, dtype: torch.dtype) -> Minibatch:
        """The minibatches of a visit to a client with more rows than one minibatch, (T, m)."""

    # -- the step sizes -------------------------------------------------------------------------------------
    @property
    def step_sizes(self) -> StepSizes:
        """The rule by which steps fall."""
        return StepSizes(self.local_steps, self.rule.decay, self.rule.decay_offset)

    def derived_step(self, num_clients: int, start: Start | None) -> tuple[float, float]:
        """The derived h in preconditioned coordinates, and the step of full length, to which burn-in refers."""
        largest = cast(Derived, self.step).largest
        return largest, largest

    def longer_burn_in(self, burn_in: int, times: float, num_clients: int) -> int:
        """A burn-in `times` as long, but no more than half a run by default, so that draws remain to be judged."""
        half = self.default_rounds(num_clients) * self.local_steps // 2
        return max(burn_in, min(math.ceil(burn_in * times), half))

    def adapt_steps(self, server: ServerState, visits: Visit) -> ServerState:
        """The server's state after visits (R, C, ...): h as short as any needed, longer burn-in, visited clients."""
        if server.visited is None:
            return server
        num_clients, done = len(server.share), server.chains.steps
        visited = server.visited | torch.isin(torch.arange(num_clients), visits.client)
        share = self.step_sizes.shortest_share(done, server.step_size, self.stride, visits.step_size)
        if share == 1:
            return server._replace(visited=visited)
        burn_in = torch.tensor(self.longer_burn_in(int(server.burn_in), 1 / share, num_clients))
        return server._replace(visited=visited, step_size=share * server.step_size, burn_in=burn_in)

    # -- start ----------------------------------------------------------------------------------------------
    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The algorithm that fits the surrogates, if they have to be fitted."""
        return surrogate_phase(self.surrogates, self.temperature)

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64: the share of a chain's visits to each client."""
        return shares(None, num_clients)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of p(θ) Π q_s(θ), or of the prior if there are no surrogates."""
        share = self.client_shares(num_clients).to(problem.dtype)
        if self.surrogates is None:
            begin = at_prior(problem, self.num_chains, generator)
        else:
            begin = at_surrogates(problem, self.surrogates, start, self.num_chains, self.rule.preconditions, generator)
        clients, visited = self.equip(new_clients(begin, share), begin, share), None
        step, burn_in = self.rule.given_size, self.burn_in
        if step is None:
            step, full = self.derived_step(num_clients, start)
            burn_in = self.longer_burn_in(burn_in, full / step, num_clients)
            clients = clients._replace(longest_step=torch.full_like(share, torch.inf))
            visited = torch.zeros(num_clients, dtype=torch.bool)
        chains, h = ChainStore.begin(begin.position), begin.position.new_tensor(step)
        return as_entries(ServerState(chains, torch.tensor(burn_in), h, share, visited)), as_entries(clients)

    def equip(self, clients: ClientState, begin: Beginning, share: Tensor) -> ClientState:
        """The clients' states with what their estimate of the score needs; `share` is f_s, (K,)."""
        return clients

    # -- a visit --------------------------------------------------------------------------------------------
    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal noise (T, D) and the minibatches of a visit."""
        normal = torch.randn(self.local_steps, problem.dim, generator=generator, dtype=problem.dtype)
        if self.batch_size is None:
            return {"normal": normal}
        if num_rows <= self.batch_size:
            return {"normal": normal, **no_picks(self.batch_size, problem.dtype)}
        picks = self.draw_picks(num_rows, self.batch_size, generator, problem.dtype)
        return {"normal": normal, "position": picks.position, "weight": picks.weight}

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Make T steps of each chain at its client (`Update` of Algorithm 1)."""
        arrival = entries_as(Arrival, shared)
        client, news = self.after_first_visit(problem, arrival, entries_as(ClientState, local), data)
        score = self.score_of_visit(problem, client, arrival.position, data)
        _, visit, figures = self.visits(data).one_round(problem, arrival, client, score, data, noise)
        return visit._asdict(), news, figures

    def after_first_visit(
        self, problem: Problem, arrival: Arrival, client: ClientState, data: ClientData
    ) -> tuple[ClientState, State]:
        """The clients' states after their first visits, which find the longest step, and the new entries.

        Raises:
            SettingError: a given step is beyond stability.
        """
        if bool(client.ready.all()):
            return client, {}
        batch = data.full_batch()
        gradient = self.build_gradient(client)
        curvature = largest_curvature(problem, arrival.position, gradient, client.factor, batch)
        news = {"ready": torch.ones_like(client.ready), **self.first_gradients(problem, client, batch)}
        if client.longest_step is not None:
            news["longest_step"] = longest_steps(arrival.step_size, curvature).to(client.longest_step.dtype)
        else:
            check_step(type(self).__name__, arrival.step_size, curvature, arrival.client)
        return client._replace(**news), news

    def first_gradients(self, problem: Problem, client: ClientState, batch: Batch) -> State:
        """Entries of a client's state that are computed once, from all of its rows."""
        return {}

    def score_of_visit(self, problem: Problem, client: ClientState, position: Tensor, data: ClientData) -> Score:
        """The estimate that visits of chains at these positions use."""
        return self.build_gradient(client)

    def takes_all_rows(self, data: ClientData) -> bool:
        """Whether every step takes all rows of these clients."""
        return self.batch_size is None or data.row_index.shape[-1] <= self.batch_size

    def visits(self, data: ClientData) -> Visits:
        """T steps of chains at these clients."""
        size = None if self.takes_all_rows(data) else self.batch_size
        return Visits(Integrator(self.rule.midpoint), self.step_sizes, self.stride, size)

    # -- several rounds at once -----------------------------------------------------------------------------
    def rounds_ahead(self, shared: State) -> int:
        """The rounds until the chains are judged; one as long as clients have not found their longest derived steps."""
        visited = entries_as(ServerState, shared).visited
        return 1 if visited is not None and not bool(visited.all()) else super().rounds_ahead(shared)

    def draw_noises(self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]) -> Noise | None:
        """The draws of `draw_noise` for many visits, in one tensor, if clients take all of their rows."""
        size = self.batch_size
        if size is not None and int(num_rows.max()) > size:
            return None
        normal = torch.empty(len(num_rows), self.local_steps, problem.dim, dtype=problem.dtype)
        for visit, generator in zip(normal, generators, strict=True):
            visit.normal_(generator=generator)
        none = {} if size is None else no_picks(size, problem.dtype)
        picks = {name: value.new_empty(0, len(num_rows), value.shape[-1]) for name, value in none.items()}
        return {"normal": normal.transpose(0, 1), **picks}

    def local_rounds(
        self,
        problem: Problem,
        received: State,
        local: State,
        data: ClientData,
        clients: Tensor,
        at: Tensor,
        noise: Noise,
    ) -> LocalRounds | None:
        """R visits of each chain, if all clients have been visited before, so that only steps are left."""
        arrival, client = entries_as(Arrival, received), entries_as(ClientState, local)
        if not bool(client.ready.all()):
            return None
        score = self.score_of_visit(problem, client, arrival.position, data)
        visits = self.visits(data)
        return visits.several_rounds(problem, arrival, client, score, data, noise, clients, at)

    # -- warnings about the draws ---------------------------------------------------------------------------
    def advice(self, problem: Problem, before: State) -> str:
        """The cure of a chain that became non-finite: a smaller step, or less noise from minibatches."""
        return findings.step_advice(float(before["step_size"]), self.rule.given_size is not None)

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about chains that disagree, too few effective draws, and clients whose surrogates are poor."""
        return findings.chain_findings(record, problem, self.num_chains, self.burn_in, self.rule.given_size)
