"""Langevin samplers: chains that visit clients, whose scores are estimated from minibatches.

Source: el Mekkaoui et al., *Federated stochastic gradient Langevin dynamics*, Algorithm 1.

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1), (3), (5)

`Langevin` combines the estimate v of the score (`gradients`), the start and the T steps of a visit (`visits`), and the
server's record of the chains (`chains`). In a round each chain visits one client, returns, and is stored.

Letters: θ `position`, h `step_size`, v `score`, f_s `probabilities`, m `batch_size`, T `local_steps`, q_s
`surrogates`, S clients. Several chains run at once, each at its own client.

Deviations, in addition to those of `gradients` and `visits`; all are settings, and off in the papers' recipes:

* `step.precondition`: G = A A' in place of I, the covariance of the Gaussian p(θ) Π_s q_s(θ), so that one step size
  serves posteriors of any scale: in the coordinates A⁻¹θ the posterior is about N(0, I).
* the default step size, in preconditioned coordinates, is `step.largest`; samplers whose chains travel between clients
  shorten it (`dsgld`).
* `target_ess`: the run ends when the slowest coordinate has this many effective draws and R-hat is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Chains, LocalRounds
from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start, State, Tempered
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.schedule import Schedule, Shuffled
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.nested_settings import resolve
from pyro_fed.conventions.setting_checks import check_at_least, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, draw_independent_minibatches
from pyro_fed.infer.langevin.chains import (
    ChainStore,
    ServerState,
    StoredChains,
    chain_findings,
    longer_burn_in,
    require_one_client_each,
)
from pyro_fed.infer.langevin.gradients import Score
from pyro_fed.infer.langevin.step import Derived, Fixed, Step, check_scale_known, check_step_fits
from pyro_fed.infer.langevin.visits import (
    Arrival,
    Beginning,
    ClientState,
    Integrator,
    PickRows,
    StepSizes,
    Visit,
    VisitNoise,
    Visits,
    longest_step_or_error,
    new_clients,
    starting_points,
)
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.infer.surrogates.surrogates import Surrogates, check_surrogates, surrogate_phase, visit_shares


class DerivedStep(NamedTuple):
    """A step size that is not set but derived."""

    size: float  # h
    full_size: float  # h before it was shortened for the clients' errors or curvature; `burn_in` counts such steps


@dataclass(frozen=True, kw_only=True)
class Langevin(StoredChains, Tempered, Chains):
    """Chains of Langevin steps: the base of all samplers of this family.

    Args:
        local_steps: T, steps of a chain in a round, a visit to a client.
        burn_in: first steps of each chain, which are not kept. With a derived step shorter than the longest, burn-in
            grows by the same factor, up to half a run by default.
        thin: one step in this many is kept.
        batch_size: m, rows a step, weighted to all of the client's; None takes all of a client's rows.
        step: the step's size and rule: a `pf.infer.step.Derived`, or a `pf.infer.step.Fixed`.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None runs without: then give
            `step=pf.infer.step.Fixed(precondition=False)`, and turn off `control_variate` and `conducive` where the
            sampler has them.
    """

    #: The kinds of steps that have an effect.
    steps: ClassVar[tuple[type[Step], ...]] = (Fixed, Derived)

    local_steps: int = 40
    burn_in: int = 400
    thin: int = 10
    batch_size: int | None = 100
    step: Step | str = Derived()
    surrogates: Surrogates = "auto"

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_chains", "local_steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", "batch_size", allow_none=True)
        check_positive(self, "temperature")
        check_surrogates(self, allow_none=True)
        resolve(self, "step", Step)
        check_step_fits(self, self.rule, self.steps)
        if self.surrogates is None:
            check_scale_known(self, self.rule, self.needs_surrogates)

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

    def visits_a_round(self, shared: State) -> int:
        """The number of visits in a round: one for each chain; FALD has one for each client of a chain."""
        return self.num_chains

    # -- the estimate of the score --------------------------------------------------------------------------
    @property
    def needs_surrogates(self) -> bool:
        """Whether the estimate uses surrogates."""
        return False

    @property
    def needs_visit_gradient(self) -> bool:
        """Whether a visit computes a gradient before its steps, which depends on where it begins."""
        return False

    @property
    def pick_rows(self) -> PickRows:
        """How minibatches are drawn: independently."""
        return draw_independent_minibatches

    # -- the step sizes -------------------------------------------------------------------------------------
    @property
    def step_sizes(self) -> StepSizes:
        """The steps of a visit: the rule by which they fall, and which of them are sent."""
        return StepSizes(self.local_steps, self.thin, self.rule.decay, self.rule.decay_offset)

    def derived_step(self, num_clients: int, start: Start | None) -> DerivedStep:
        """The derived h in preconditioned coordinates."""
        largest = cast(Derived, self.step).largest
        return DerivedStep(largest, largest)

    def max_burn_in(self, num_clients: int) -> int:
        """The longest burn-in of short steps: half of the steps of a default run, so that draws remain to be judged."""
        return self.default_rounds(num_clients) * self.local_steps // 2

    # -- start ----------------------------------------------------------------------------------------------
    def warm_start(self, problem: Problem) -> Algorithm | None:
        return surrogate_phase(self.surrogates, self.temperature)

    def client_shares(self, num_clients: int) -> Tensor:
        """f_s, (K,), float64: the share of a chain's visits to each client."""
        return visit_shares(None, num_clients)

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains at draws of p(θ) Π q_s(θ), or of the prior if there are no surrogates."""
        visit_share = self.client_shares(num_clients).to(problem.dtype)
        begin = starting_points(problem, self.surrogates, start, self.num_chains, self.rule.preconditions, generator)
        clients, visited = self.with_score_terms(new_clients(begin, visit_share), begin, visit_share), None
        step, burn_in = self.rule.given_size, self.burn_in
        if step is None:
            step, full_step = self.derived_step(num_clients, start)
            burn_in = longer_burn_in(burn_in, full_step / step, self.max_burn_in(num_clients))
            clients = clients._replace(longest_step=torch.full_like(visit_share, torch.inf))
            visited = torch.zeros(num_clients, dtype=torch.bool)
        chains, h = ChainStore.begin(begin.position), begin.position.new_tensor(step)
        return as_entries(ServerState(chains, torch.tensor(burn_in), h, visit_share, visited)), as_entries(clients)

    def with_score_terms(self, clients: ClientState, begin: Beginning, visit_share: Tensor) -> ClientState:
        """The clients' states with what their estimate of the score needs; `visit_share` is f_s, (K,)."""
        return clients

    # -- a visit --------------------------------------------------------------------------------------------
    @property
    def visit_noise(self) -> VisitNoise:
        """The randomness of a visit."""
        return VisitNoise(self.local_steps, self.batch_size, self.pick_rows)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """Standard normal noise (T, D) and the minibatches of a visit."""
        return self.visit_noise.draw(problem, num_rows, generator)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take T steps of each chain at its client (`Update` of Algorithm 1)."""
        arrival = entries_as(Arrival, shared)
        client, news = self.with_entries_of_first_visit(problem, arrival, entries_as(ClientState, local), data)
        score = self.score_of_visit(problem, client, arrival.position, data)
        _, visit, figures = self.visits(data).one_round(problem, arrival, client, score, data, noise)
        return visit._asdict(), news, figures

    def with_entries_of_first_visit(
        self, problem: Problem, arrival: Arrival, client: ClientState, data: ClientData
    ) -> tuple[ClientState, State]:
        """The clients' states after first visits, which find the longest step or check it, and new entries."""
        if bool(client.ready.all()):
            return client, {}
        name, batch = type(self).__name__, data.full_batch()
        limits = longest_step_or_error(name, problem, arrival, client, client.score(), batch)
        news = {"ready": torch.ones_like(client.ready), **self.first_gradients(problem, client, data), **limits}
        return client._replace(**news), news

    def first_gradients(self, problem: Problem, client: ClientState, data: ClientData) -> State:
        """Entries of a client's state that are computed once, from all of its rows."""
        return {}

    def score_of_visit(self, problem: Problem, client: ClientState, position: Tensor, data: ClientData) -> Score:
        """The estimate in the visits that begin at these positions, on which control variates depend."""
        return client.score()

    def takes_all_rows(self, data: ClientData) -> bool:
        """Whether every step takes all rows of these clients."""
        return self.batch_size is None or data.row_index.shape[-1] <= self.batch_size

    def visits(self, data: ClientData) -> Visits:
        """T steps of chains at these clients."""
        size = None if self.takes_all_rows(data) else self.batch_size
        return Visits(Integrator(self.rule.midpoint), self.step_sizes, size)

    # -- chains at the server -------------------------------------------------------------------------------
    def download(self, shared: State, clients: Tensor) -> State:
        """Slot i receives the end of chain i; kept draws stay at the server."""
        require_one_client_each(type(self).__name__, self.num_chains, clients)
        return entries_as(ServerState, shared).arrivals(clients)._asdict()

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Objections to positions or draws that have grown far beyond the start of a visit."""
        start = {**received, "draws": received["position"].unsqueeze(1)}
        return message_limits.grown(start, messages)

    def stand_in(self, shared: State, messages: State, slots: Tensor, asked: Tensor) -> State:
        """Messages with the failed visits filled in."""
        return entries_as(ServerState, shared).with_failed_visits_filled(messages, slots, asked)

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        return self.combine_rounds(shared, {name: value.unsqueeze(0) for name, value in messages.items()})[-1]

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """Store the chains of R rounds, (R, C, ...)."""
        visits = entries_as(Visit, messages)
        return self.stored_states(shared, visits, visits)

    def stored_states(self, shared: State, chains: Visit, visits: Visit) -> list[State]:
        """The server's state after each of R rounds: chains (R, M, ...) to keep, and visits (R, C, ...)."""
        server = entries_as(ServerState, shared)
        max_burn_in = self.max_burn_in(len(server.visit_share))
        after = shared | as_entries(server.after_visits(visits, self.step_sizes, max_burn_in))
        burn_in = int(server.burn_in)
        stores = server.chains.with_visits(chains, self.local_steps, burn_in, self.thin, self.target_ess)
        return [after | as_entries(one) for one in stores]

    # -- several rounds at once -----------------------------------------------------------------------------
    def rounds_ahead(self, shared: State) -> int:
        """Rounds until chains are judged, as memory allows; one until clients have found their longest steps."""
        visits = self.visits_a_round(shared)
        return entries_as(ServerState, shared).rounds_until_check(self.local_steps, self.thin, self.target_ess, visits)

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """The next visits of the chains, from their present positions."""
        steps = entries_as(Arrival, received).steps + self.local_steps
        return {**received, "position": messages["position"], "client": clients, "steps": steps}

    def draw_noises(self, problem: Problem, num_rows: Tensor, generators: Iterator[torch.Generator]) -> Noise | None:
        """The draws of `draw_noise` for many visits, in one tensor, if clients take all of their rows."""
        return self.visit_noise.noise_of_visits(problem, num_rows, generators)

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
        if self.needs_visit_gradient or not bool(client.ready.all()):
            return None
        score = self.score_of_visit(problem, client, arrival.position, data)
        visits = self.visits(data)
        return visits.several_rounds(problem, arrival, client, score, data, noise, clients, at)

    # -- the draws ------------------------------------------------------------------------------------------
    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Client visited, gradient norm (in preconditioned coordinates) and step size of each draw."""
        return entries_as(ChainStore, shared).columns(draws.shape[1])

    def advice(self, problem: Problem, before: State) -> str:
        """The cure for a chain that became infinite or NaN: a smaller step, or less minibatch noise."""
        present = "derived" if self.rule.given_size is None else "present"
        step = f"{float(before['step_size']):.3g}"
        return f"give a step=pf.infer.step.Fixed(size=...) below the {present} {step}, or raise batch_size"

    def warnings(self, record: Record, problem: Problem) -> list[Finding]:
        end = f"within burn_in={self.burn_in} steps of full length"
        return chain_findings(record, problem, self.num_chains, end, self.rule.given_size, "run more rounds")
