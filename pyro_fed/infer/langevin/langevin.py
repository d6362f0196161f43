"""Langevin samplers: chains that visit clients, whose scores are estimated from minibatches.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Algorithm 1.

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1), (3), (5)

`Langevin` joins the estimate v of the score (`gradients`), where chains begin and T steps of a visit (`visits`), and
the store of the chains at the server (`chains`). In a round each chain goes to one client, comes back, and is stored.

Letters: θ `position`, h `step_size`, v `score`, f_s `probabilities`, m `batch_size`, T `local_steps`, q_s
`surrogates`, S clients. Several chains run at once, each at its own client.

Deviations, all settings, all off in the papers' recipes, and those of `gradients` and `visits`:

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

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Chains, LocalRounds
from pyro_fed.algorithm.contract import Algorithm, Noise, Start, State, Tempered
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule, Shuffled
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, Minibatch
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_diagnostics import chains_converged
from pyro_fed.infer.langevin.chains import ChainStore, ServerState, chain_findings
from pyro_fed.infer.langevin.gradients import MinibatchScore, Score
from pyro_fed.infer.langevin.step import Derived, Fixed, Step
from pyro_fed.infer.langevin.visits import (
    Arrival,
    Beginning,
    ClientState,
    Integrator,
    StepSizes,
    Visit,
    Visits,
    at_prior,
    at_surrogates,
    check_step,
    largest_curvature,
    longest_steps,
    new_clients,
    no_picks,
)
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.surrogates import Surrogates, check_surrogates, shares, surrogate_phase
from pyro_fed.ops.memory import count_in_memory


@dataclass(frozen=True, kw_only=True)
class Langevin(Tempered, Chains):
    """Chains of Langevin steps: what all samplers of this family share."""

    draws_are: ClassVar[str] = "chains"
    #: The kinds of steps that have an effect.
    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, Derived)

    num_chains: int = 4  # M, chains that run at once
    local_steps: int = 40  # T, steps a visit
    burn_in: int = 400  # first steps of each chain, which are not kept
    thin: int = 10  # one step in this many is kept
    # the run ends when the slowest coordinate has this many effective draws (all chains together) and R-hat is small;
    # None runs all rounds
    target_ess: int | None = 2000
    batch_size: int | None = 100  # m, rows a step; None takes all of a client's rows
    # a `pf.infer.step`; a derived one makes burn-in longer where it is short, up to half a run by default
    step: Step | str = Derived()
    # the source of the Gaussians q_s: an algorithm that leaves Gaussian sites, "laplace", "fedep", "local_sgld",
    # "auto", or `Given`; None runs without
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_chains", "local_steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", "batch_size", allow_none=True)
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

    def default_schedule(self) -> Schedule:
        """One client for each chain, in random sweeps."""
        return Shuffled()

    def default_rounds(self, num_clients: int) -> int:
        """At most 10,000 visits of each chain; the run ends at `target_ess` effective draws."""
        return 10_000

    @property
    def num_slots(self) -> int:
        """The number of chains: the schedule is asked once for each."""
        return self.num_chains

    @property
    def stride(self) -> int:
        """Steps between positions that are sent: all that `thin` may ask for."""
        return math.gcd(self.thin, self.local_steps)

    def visits_a_round(self, shared: State) -> int:
        """The number of visits in a round: one for each chain; FALD has one for each client of a chain."""
        return self.num_chains

    # -- the estimate of the score --------------------------------------------------------------------------
    @property
    def needs_surrogates(self) -> bool:
        """Whether the estimate uses surrogates."""
        return False

    @property
    def scores_every_visit(self) -> bool:
        """Whether a visit computes a gradient of its own before its steps."""
        return False

    def build_gradient(self, client: ClientState, anchor: Tensor | None = None) -> Score:
        """v, that of Eq. (4) unless a sampler overrides it; a control variate is taken at the `anchor`, if any."""
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
        """The derived h in preconditioned coordinates, which some shorten, and its full length, the unit of burn-in."""
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
        """The clients' states after first visits, which find the longest step or check it, and new entries."""
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
        """The estimate in the visits that begin at these positions, on which control variates depend."""
        return self.build_gradient(client)

    def takes_all_rows(self, data: ClientData) -> bool:
        """Whether every step takes all rows of these clients."""
        return self.batch_size is None or data.row_index.shape[-1] <= self.batch_size

    def visits(self, data: ClientData) -> Visits:
        """T steps of chains at these clients."""
        size = None if self.takes_all_rows(data) else self.batch_size
        return Visits(Integrator(self.rule.midpoint), self.step_sizes, self.stride, size)

    # -- chains at the server -------------------------------------------------------------------------------
    def download(self, shared: State, clients: Tensor) -> State:
        """Slot i receives the end of chain i; kept draws stay at the server."""
        if len(clients) != self.num_chains:
            raise SettingError(
                f"{type(self).__name__}: each of the {self.num_chains} chains visits one client a round, but the "
                f"schedule named {len(clients)} in all: use a schedule of one client, such as schedule.Categorical()"
            )
        return entries_as(ServerState, shared).arrivals(clients)._asdict()

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to ends, or draws on the way, that have grown far beyond where the chain was."""
        start = {**received, "draws": received["position"].unsqueeze(1)}
        return message_limits.grown(start, messages)

    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        return entries_as(ServerState, shared).with_failed_visits(messages, slots, asked)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return self.combine_rounds(shared, {name: value.unsqueeze(0) for name, value in messages.items()})[-1]

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """Store the chains of R rounds, (R, C, ...)."""
        visits = entries_as(Visit, messages)
        return self.states_after(shared, visits, visits)

    def states_after(self, shared: State, chains: Visit, visits: Visit) -> list[State]:
        """The server's state after each of R rounds: chains (R, M, ...) to keep, and visits (R, C, ...)."""
        server = entries_as(ServerState, shared)
        after = shared | as_entries(self.adapt_steps(server, visits))
        burn_in = int(server.burn_in)
        stores = server.chains.store(chains, self.local_steps, burn_in, self.thin, self.target_ess)
        return [after | as_entries(one) for one in stores]

    # -- several rounds at once -----------------------------------------------------------------------------
    def rounds_ahead(self, shared: State) -> int:
        """Rounds until chains are judged, as memory allows; one until clients have found their longest steps."""
        server = entries_as(ServerState, shared)
        if server.visited is not None and not bool(server.visited.all()):
            return 1
        ahead = server.rounds_to_look(self.local_steps, self.thin, self.target_ess)
        numbers = self.local_steps * self.visits_a_round(shared) * server.chains.position.shape[-1]
        return max(1, min(ahead, count_in_memory(numbers)))

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """The next visits of the chains, from their present positions."""
        steps = entries_as(Arrival, received).steps + self.local_steps
        return {**received, "position": messages["position"], "client": clients, "steps": steps}

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
        if self.scores_every_visit or not bool(client.ready.all()):
            return None
        score = self.score_of_visit(problem, client, arrival.position, data)
        visits = self.visits(data)
        return visits.several_rounds(problem, arrival, client, score, data, noise, clients, at)

    # -- the draws ------------------------------------------------------------------------------------------
    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat, the largest of all coordinates, and ESS, the smallest."""
        return entries_as(ChainStore, after).figures()

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the chains agree and have as many effective draws as wanted."""
        last = figures[-1]
        return self.target_ess is not None and chains_converged(
            self.num_chains, last["r_hat"], last["ess"], self.target_ess
        )

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return entries_as(ChainStore, shared).sample(num_draws)

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Client visited, gradient norm (in preconditioned coordinates) and step size of each draw."""
        return entries_as(ChainStore, shared).columns(draws.shape[1])

    def advice(self, problem: Problem, before: State) -> str:
        """The cure of a chain that became non-finite: a smaller step, or less noise from minibatches."""
        present = "derived" if self.rule.given_size is None else "present"
        step = f"{float(before['step_size']):.3g}"
        return f"give a step=pf.infer.step.Fixed(size=...) below the {present} {step}, or raise batch_size"

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        return chain_findings(record, problem, self.num_chains, self.burn_in, self.rule.given_size)
