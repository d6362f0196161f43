"""The server's part of Langevin chains: they are sent to clients, come back, and are stored.

    download    each chain goes to one client (`Reassign_chain` of el Mekkaoui et al., Algorithm 1)
    combine     where it ended, and those of its steps t > burn_in that are multiples of `thin`
    converged   R-hat is small, and there are `target_ess` effective draws of the slowest coordinate

`visits` has the steps of a chain at a client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.capabilities import Chains
from pyro_fed.algorithm.contract import Tempered
from pyro_fed.algorithm.schedule import Schedule, Shuffled
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_at_least
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_diagnostics import chains_converged
from pyro_fed.infer.langevin.chain_store import ChainStore, ServerState
from pyro_fed.infer.langevin.client_state import Arrival, Visit
from pyro_fed.infer.sites.records import as_entries, entries_as

#: Largest number of random numbers of rounds that are computed at once: 40 MB in single precision, and several times
#: that while visits are replayed.
NOISE_AHEAD = 10_000_000


@dataclass(frozen=True, kw_only=True)
class TravellingChains(Tempered, Chains):
    """Chains that each visit one client in a round.

    Args:
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        num_chains: M, chains that run at once.
        local_steps: T, steps a visit.
        burn_in: first steps of each chain, which are not kept.
        thin: one step in this many is kept.
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is small; None runs all rounds.
    """

    draws_are: ClassVar[str] = "chains"

    num_chains: int = 4
    local_steps: int = 40
    burn_in: int = 400
    thin: int = 10
    target_ess: int | None = 2000

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_chains", "local_steps", "thin")
        check_at_least(self, 0, "burn_in")
        check_at_least(self, 1, "target_ess", allow_none=True)

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
        """The number of visits in a round: one for each chain."""
        return self.num_chains

    # -- a round --------------------------------------------------------------------------------------------
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
        """A visit that failed: the chain stays where it was, and its draws are its position, with a norm of zero."""
        filled = {
            name: value.new_zeros(len(asked), *value.shape[1:]).index_copy(0, slots, value)
            for name, value in messages.items()
        }
        lost = torch.ones(len(asked), dtype=torch.bool).index_fill(0, slots, False)
        server = entries_as(ServerState, shared)
        position = server.chains.position
        start = position.repeat_interleave(len(asked) // len(position), 0)  # several clients a chain
        filled["client"][lost] = asked[lost]
        filled["position"][lost] = start[lost]
        filled["draws"][lost] = start[lost].unsqueeze(1)
        filled["step_size"][lost] = server.step_size
        return filled

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Store the received chains."""
        return self.combine_rounds(shared, {name: value.unsqueeze(0) for name, value in messages.items()})[-1]

    def combine_rounds(self, shared: State, messages: State) -> list[State]:
        """Store the chains of R rounds, (R, C, ...)."""
        visits = entries_as(Visit, messages)
        return self.states_after(shared, visits, visits)

    def states_after(self, shared: State, chains: Visit, visits: Visit) -> list[State]:
        """The server's state after each of R rounds, with kept chains (R, M, ...) and received visits (R, C, ...)."""
        server = entries_as(ServerState, shared)
        after = shared | as_entries(self.adapt_steps(server, visits))
        burn_in = int(server.burn_in)
        stores = server.chains.store(chains, self.local_steps, burn_in, self.thin, self.target_ess)
        return [after | as_entries(one) for one in stores]

    def adapt_steps(self, server: ServerState, visits: Visit) -> ServerState:
        """The server's state after further changes by visits (R, C, ...); unchanged by default."""
        return server

    # -- several rounds at once -----------------------------------------------------------------------------
    def rounds_ahead(self, shared: State) -> int:
        """Rounds until the chains are judged, or as many as the memory for their noise allows."""
        server = entries_as(ServerState, shared)
        chains, steps = server.chains, int(server.chains.steps)
        wanted = chains.next_look(self.target_ess) - int(chains.kept)
        first = max(steps, int(server.burn_in)) // self.thin
        ahead = -(-((first + wanted) * self.thin - steps) // self.local_steps)
        numbers = self.local_steps * self.visits_a_round(shared) * chains.position.shape[-1]
        return max(1, min(ahead, NOISE_AHEAD // numbers))

    def onward(self, received: State, messages: State, clients: Tensor) -> State:
        """The next visits of the chains, from their present positions."""
        steps = entries_as(Arrival, received).steps + self.local_steps
        return {**received, "position": messages["position"], "client": clients, "steps": steps}

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
        """At most `num_draws` kept draws of each chain, evenly spaced: (M, n, D)."""
        return entries_as(ChainStore, shared).sample(num_draws)

    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Client visited, gradient norm (in preconditioned coordinates) and step size of each draw."""
        chains = entries_as(ChainStore, shared)
        columns = {name: value for name, value in chains.buffers._asdict().items() if name != "draws"}
        return {name: chains.thinned(value, draws.shape[1]) for name, value in columns.items()}
