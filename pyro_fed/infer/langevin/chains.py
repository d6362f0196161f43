"""Chains at the server: their positions, the draws that are kept, when these are judged, and warnings about them.

The draws are in buffers (chain, capacity, ...) that only grow at their end: the state of an earlier round shares the
buffer, and its own `kept` is the length of its part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import NONCENTRED, Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chain_diagnostics import chains_converged, fewest_effective, r_hat_limit, rhat_and_ess
from pyro_fed.infer.langevin.visits import Arrival, StepSizes, Visit
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.surrogates.local_sgld import tempered_clients
from pyro_fed.ops.entries import evenly
from pyro_fed.ops.memory import count_in_memory

#: Largest number of coordinates that are judged; of more, evenly spaced ones are.
JUDGED_COORDINATES = 2000
#: R-hat and ESS are computed again after 25 % more draws, or near the predicted end of a run that has a number of
#: effective draws as its target. Few effective draws predict it badly, so that the growth of the draws has limits; it
#: is a factor of two while the end is at more than four times as many draws.
JUDGING_GROWTH = 1.25
FORECAST_GROWTH = (1.05, 1.5)
DISTANT_END_FACTOR, DISTANT_END_GROWTH = 4.0, 2.0
#: Largest number of draws of all chains that are judged; of more, evenly spaced ones are. The slowest coordinate, which
#: decides, has far fewer effective draws.
JUDGED_DRAWS = 8_000
#: Draws for each effective draw: as many are judged where a run ends at a number of these.
DRAWS_PER_EFFECTIVE = 4
#: Number of draws of a chain below which R-hat and ESS are not computed.
MIN_JUDGED_DRAWS = 8


class Draws(NamedTuple):
    """Draws of M chains, with the client, gradient norm and step size of each."""

    draws: Tensor  # (M, n, D)
    client: Tensor  # the client that the chain was at; -1 if it was at all of them, (M, n)
    gradient_norm: Tensor  # of the preconditioned score, (M, n)
    step_size: Tensor  # h, (M, n)


class ChainStore(NamedTuple):
    """The server's record of M chains."""

    position: Tensor  # where the chains are, (M, D)
    steps: Tensor  # number of steps of each chain, ()
    kept: Tensor  # number of draws of each that are kept, ()
    buffers: Annotated[Draws, "kept_"]  # kept draws at their beginning, and room for more
    r_hat: Tensor  # the largest of all coordinates when the chains were last judged; NaN before
    ess: Tensor  # the smallest at that time, of all chains together; NaN before
    judged: Tensor  # draws of a chain that were kept at that time, ()

    @classmethod
    def begin(cls, position: Tensor) -> ChainStore:
        """Chains at positions (M, D), with empty buffers."""
        column = position.new_zeros(len(position), 1)
        buffers = Draws(torch.zeros_like(position)[:, None], *(column.clone() for _ in range(3)))
        none, unknown = torch.zeros((), dtype=torch.int64), torch.tensor(float("nan"))
        return cls(position, none, none.clone(), buffers, unknown, unknown.clone(), none.clone())

    def append(self, more: Draws, wanted: int | None = None) -> ChainStore:
        """The chains with more draws (M, n, ...) at the end; the run ends at `wanted` effective draws of all chains."""
        count = more.draws.shape[1]
        if count == 0:
            return self
        buffers = (_append_to_buffer(*both, int(self.kept)) for both in zip(self.buffers, more, strict=True))
        return self._replace(buffers=Draws(*buffers), kept=self.kept + count)._with_rhat_and_ess(wanted)

    def with_visits(
        self, visits: Visit, local_steps: int, burn_in: int, thin: int, wanted: int | None
    ) -> list[ChainStore]:
        """The chains after each of R rounds of visits (R, M, ...), of whose steps one in `thin` is kept."""
        rounds, _, sent = visits.draws.shape[:3]
        taken = self.steps + local_steps // sent * torch.arange(1, rounds * sent + 1)
        keep = (taken > burn_in) & (taken % thin == 0)

        def in_order(value: Tensor) -> Tensor:
            """The kept steps of (R, M, n, ...) as (M, R n, ...)."""
            return value.transpose(0, 1).flatten(1, 2)[:, keep]

        client = visits.client.T.repeat_interleave(sent, 1)[:, keep]
        columns = in_order(visits.draws), client, in_order(visits.gradient_norm), in_order(visits.step_size)
        last = self.append(Draws(*columns), wanted)
        kept = self.kept + keep.reshape(rounds, sent).sum(1).cumsum(0)
        steps = self.steps + local_steps * torch.arange(1, rounds + 1)
        each = zip(visits.position, steps, kept, strict=True)
        states = [self._replace(buffers=last.buffers, position=at, steps=done, kept=had) for at, done, had in each]
        return [*states[:-1], states[-1]._replace(r_hat=last.r_hat, ess=last.ess, judged=last.judged)]

    def draws_at_next_check(self, wanted: int | None) -> int:
        """Number of draws in a chain, an even number, at which the chains are judged again."""
        after_growth = _growth_until_next_check(float(self.ess), wanted) * int(self.judged)
        return 2 * math.ceil(max(MIN_JUDGED_DRAWS, after_growth) / 2)

    def sample(self, num_draws: int) -> Tensor:
        """At most `num_draws` kept draws of each chain, evenly spaced, (M, n, D); the positions if none is kept."""
        return self.thinned(self.buffers.draws, num_draws) if int(self.kept) else self.position[:, None]

    def thinned(self, buffer: Tensor, num_draws: int) -> Tensor:
        """The entries of a buffer for the draws of `sample`, (M, n, ...)."""
        kept = int(self.kept)
        if kept == 0:
            return buffer[:, :1]
        at = torch.linspace(0, kept - 1, min(num_draws, kept)).round().long()
        return buffer[:, at]

    def columns(self, num_draws: int) -> dict[str, Tensor]:
        """What is kept beside the draws of `sample`, (M, n)."""
        beside = {name: value for name, value in self.buffers._asdict().items() if name != "draws"}
        return {name: self.thinned(value, num_draws) for name, value in beside.items()}

    def figures(self) -> dict[str, float]:
        """The largest R-hat and the smallest ESS of the coordinates, and the number of kept draws of a chain."""
        return {"r_hat": float(self.r_hat), "ess": float(self.ess), "kept": float(self.kept)}

    def _with_rhat_and_ess(self, wanted: int | None) -> ChainStore:
        """Compute R-hat (largest) and ESS (smallest) over the coordinates, if there are enough new draws."""
        kept = int(self.kept)
        if kept < self.draws_at_next_check(wanted):
            return self
        most = max(MIN_JUDGED_DRAWS, max(JUDGED_DRAWS, DRAWS_PER_EFFECTIVE * (wanted or 0)) // len(self.position))
        stride = -(-kept // most)
        number = kept // stride // 2 * 2
        draws = self.buffers.draws
        draws = draws[:, kept - number * stride : kept : stride, evenly(draws.shape[-1], JUDGED_COORDINATES)].double()
        moving = draws.var(1).sum(0) > 0
        if not bool(moving.all()):
            return self
        values = draws.cpu().numpy()
        r_hat, ess = rhat_and_ess(values)
        largest = float(r_hat.max()) if len(values) > 1 else math.nan
        return self._replace(r_hat=torch.tensor(largest), ess=torch.tensor(float(ess.min())), judged=self.kept)


def _append_to_buffer(buffer: Tensor, value: Tensor, kept: int) -> Tensor:
    """The buffer with values after those that are kept, with its capacity doubled if it is full."""
    more = value.shape[1]
    if kept + more > buffer.shape[1]:
        room = buffer.new_zeros(len(buffer), max(buffer.shape[1], more), *buffer.shape[2:])
        buffer = torch.cat([buffer, room], dim=1)
    buffer[:, kept : kept + more] = value.to(buffer.dtype)
    return buffer


def _growth_until_next_check(ess: float, wanted: int | None) -> float:
    """The factor by which the draws grow until they are judged again."""
    if wanted is None or not ess > 0:
        return JUDGING_GROWTH
    least, most = FORECAST_GROWTH
    times = wanted / ess
    return DISTANT_END_GROWTH if times > DISTANT_END_FACTOR else min(max(times, least), most)


@dataclass(frozen=True, kw_only=True)
class StoredChains(Algorithm):
    """Chains that a server keeps, until they agree and have enough effective draws.

    Args:
        num_chains: M, chains that run at once.
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is at most 1.01 (1.025 of ten chains); None runs all rounds.
    """

    draws_are: ClassVar[str] = "chains"

    num_chains: int = 4
    target_ess: int | None = 2000

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """R-hat, the largest of all coordinates, and ESS, the smallest, as last computed; and a chain's kept draws."""
        return entries_as(ChainStore, after).figures()

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether the chains agree and have as many effective draws as wanted."""
        last = figures[-1]
        return chains_converged(self.num_chains, last["r_hat"], last["ess"], self.target_ess)

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        return entries_as(ChainStore, shared).sample(num_draws)


def longer_burn_in(burn_in: int, factor: float, max_burn_in: int) -> int:
    """A burn-in `factor` times as long, but at most `max_burn_in` if that is not shorter."""
    return max(burn_in, min(math.ceil(burn_in * factor), max_burn_in))


def require_one_client_each(name: str, num_chains: int, clients: Tensor) -> None:
    """Refuse a schedule that does not send each chain to one client."""
    if len(clients) != num_chains:
        raise SettingError(
            f"{name}: each of the {num_chains} chains visits one client a round, but the schedule named {len(clients)} "
            "in all: use a schedule of one client, such as schedule.Categorical()"
        )


class ServerState(NamedTuple):
    """The server's state that all samplers share."""

    chains: ChainStore  # the chains' positions and draws
    burn_in: Tensor  # first steps of each that are not kept, ()
    step_size: Tensor  # h of their steps, before they fall or are shortened, ()
    visit_share: Tensor  # f_s, the share of a chain's visits to each client, (K,)
    visited: Tensor | None = None  # which clients have had a visit, (K,); None if it is not used

    def arrivals(self, clients: Tensor) -> Arrival:
        """The chains, each for the client in its place, (M,), or for as many in a row, (M K,)."""
        steps, step_size = (value.expand(len(clients)) for value in (self.chains.steps, self.step_size))
        position = self.chains.position
        return Arrival(position.repeat_interleave(len(clients) // len(position), 0), clients, steps, step_size)

    def after_visits(self, visits: Visit, sizes: StepSizes, max_burn_in: int) -> ServerState:
        """The state after visits (R, C, ...): h as short as any needed, longer burn-in, visited clients."""
        if self.visited is None:
            return self
        visited = self.visited | torch.isin(torch.arange(len(self.visit_share)), visits.client)
        factor = sizes.smallest_step_ratio(self.chains.steps, self.step_size, visits.step_size)
        if factor == 1:
            return self._replace(visited=visited)
        burn_in = torch.tensor(longer_burn_in(int(self.burn_in), 1 / factor, max_burn_in))
        return self._replace(visited=visited, step_size=factor * self.step_size, burn_in=burn_in)

    def with_failed_visits_filled(self, messages: State, slots: Tensor, asked: Tensor) -> State:
        """The messages of visits to clients `asked` (C,), from the received ones (A, ...) and their places `slots`.

        Where a visit failed the chain stays where it was, and its draws are its position, with a norm of zero.
        """
        filled = {
            name: value.new_zeros(len(asked), *value.shape[1:]).index_copy(0, slots, value)
            for name, value in messages.items()
        }
        lost = torch.ones(len(asked), dtype=torch.bool).index_fill(0, slots, False)
        position = self.chains.position
        start = position.repeat_interleave(len(asked) // len(position), 0)  # several clients a chain
        filled["client"][lost] = asked[lost]
        filled["position"][lost] = start[lost]
        filled["draws"][lost] = start[lost].unsqueeze(1)
        filled["step_size"][lost] = self.step_size
        return filled

    def rounds_until_check(self, local_steps: int, thin: int, wanted: int | None, visits: int) -> int:
        """Rounds of so many visits until the chains are judged again, as memory allows, for `wanted` effective draws.

        It is one until all clients have had a visit, which finds their longest steps.
        """
        if self.visited is not None and not bool(self.visited.all()):
            return 1
        steps = int(self.chains.steps)
        draws = self.chains.draws_at_next_check(wanted) - int(self.chains.kept)
        first = max(steps, int(self.burn_in)) // thin
        ahead = -(-((first + draws) * thin - steps) // local_steps)
        return max(1, min(ahead, count_in_memory(local_steps * visits * self.chains.position.shape[-1])))


#: Why chains whose steps are derived have no R-hat.
TOO_NARROW = (
    "steps are scaled by the Gaussian's SDs, which are narrower there than the dtype can tell, as in "
    "the neck of a funnel, where a Gaussian says nothing of the rest. float64 and more rounds do not help: give "
    "parameters whose scale is itself unknown a form in which it is not (fed.noncentred)"
)


def chain_findings(
    record: Record, problem: Problem, num_chains: int, end: str, step_size: float | None, cure: str
) -> list[Finding]:
    """Warnings about chains that disagree, too few effective draws, and poor surrogates.

    `end` is when a run without draws ended; `step_size` is None if it is derived.
    """
    tempered, last, cures = tempered_clients(record), record.latest, [cure]
    if last.get("kept", 0) == 0:
        return [sentences.no_draw_kept(end=f"the run ended {end}", cures=cures), *tempered]
    if math.isnan(last["ess"]):
        why = TOO_NARROW if step_size is None else f"a step of size={step_size:.3g} is too small for its numbers"
        still = last["kept"] >= MIN_JUDGED_DRAWS
        few = sentences.too_few_draws_of_a_chain
        none = sentences.chains_stood_still(why=why) if still else few(draws=round(last["kept"]), cures=cures)
        return [none, *_hint(record, problem), *tempered]
    notes, r_hat, ess = list[Finding](), last["r_hat"], last["ess"]
    limit, fewest = r_hat_limit(num_chains), fewest_effective(num_chains)
    if num_chains > 1 and not r_hat <= limit:
        disagree = sentences.chains_disagree(chains=num_chains, r_hat=r_hat, limit=f"{limit:.3g}", cures=cures)
        notes += [disagree, *_hint(record, problem)]
    if not ess >= fewest:
        notes.append(sentences.too_few_effective_draws(effective=ess, needed=fewest, cures=cures))
    return notes + tempered


def _hint(record: Record, problem: Problem) -> list[Finding]:
    """Advice to use the non-centred form for a funnel, unless a plan tries it."""
    hints = [] if NONCENTRED in record.planned else problem.traits.funnel_hint
    return [sentences.funnel_is_likely(hint=hint) for hint in hints]
