"""Chains at the server: where they are, which of their steps were kept, and what these say about convergence.

The draws live in buffers (chain, capacity, ...) that only ever grow at their end: a state of an earlier round shares
the buffer and knows by its own `kept` how much of it is its own.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.langevin.chain_diagnostics import rhat_and_ess
from pyro_fed.infer.langevin.client_state import Visit
from pyro_fed.ops.entries import evenly

#: Draws a chain that the buffers have room for at first.
FIRST_CAPACITY = 256
#: Numbers that they have room for at first, where that is fewer draws.
FIRST_NUMBERS = 10_000_000
#: Coordinates that are judged, evenly spaced, where there are more.
JUDGED_COORDINATES = 2000
#: R-hat and ESS are computed again when the number of draws has grown by this share,
GROWTH = 1.25
#: or, where the run ends at so many effective draws, when there should be as many by what there were, within these:
#: of few effective draws their number is not known well.
FORECAST = (1.05, 1.5)
#: As long as there should be so many times as many, they grow by this share: the end is not within reach.
DISTANT_END_FACTOR, FAR_GROWTH = 4.0, 2.0
#: Draws of all chains that are judged, evenly spaced, where there are more: the slowest coordinate, by which chains
#: are judged, is far from having as many effective draws.
JUDGED_DRAWS = 8_000
#: Of those, at least so many for each effective draw that the run ends at.
JUDGED_FOR_ONE = 4
#: Draws a chain before which R-hat and ESS say nothing.
FEWEST_JUDGED_DRAWS = 8


class Draws(NamedTuple):
    """Draws of M chains, with what is known of each.

    Attributes:
        draws: (M, n, D).
        client: the client that the chain was at; -1 where it was at all of them, (M, n).
        gradient_norm: of the preconditioned score, (M, n).
        step_size: h, (M, n).
    """

    draws: Tensor
    client: Tensor
    gradient_norm: Tensor
    step_size: Tensor


class ChainStore(NamedTuple):
    """The server's account of M chains.

    Attributes:
        position: where the chains are, (M, D).
        steps: how many each has made, ().
        kept: draws of each that are kept, ().
        buffers: kept draws at their beginning, and room for more.
        r_hat: the largest of all coordinates when the chains were last judged; NaN before.
        ess: the smallest then, of all chains together; NaN before.
        judged: draws of a chain that were kept then, ().
    """

    position: Tensor
    steps: Tensor
    kept: Tensor
    buffers: Draws
    r_hat: Tensor
    ess: Tensor
    judged: Tensor

    @classmethod
    def begin(cls, position: Tensor) -> ChainStore:
        """Chains at positions (M, D), with empty buffers."""
        number, dim = position.shape
        room = max(1, min(FIRST_CAPACITY, FIRST_NUMBERS // (number * dim)))
        buffers = Draws(position.new_zeros(number, room, dim), *(position.new_zeros(number, room) for _ in range(3)))
        none, unknown = torch.zeros((), dtype=torch.int64), torch.tensor(float("nan"))
        return cls(position, none, none.clone(), buffers, unknown, unknown.clone(), none.clone())

    @classmethod
    def of(cls, state: State) -> ChainStore:
        """From the server's state."""
        buffers = Draws(*(state[f"kept_{name}"] for name in Draws._fields))
        return cls(buffers=buffers, **{name: state[name] for name in cls._fields if name != "buffers"})

    def state(self) -> State:
        """As entries of the server's state."""
        entries = self._asdict()
        buffers: Draws = entries.pop("buffers")
        return entries | {f"kept_{name}": value for name, value in buffers._asdict().items()}

    def append(self, more: Draws, wanted: int | None = None) -> ChainStore:
        """With more draws at the end, (M, n, ...).

        Args:
            more: the draws.
            wanted: effective draws of all chains that the run ends at, which those that are judged must be able to
                show.
        """
        count = more.draws.shape[1]
        if count == 0:
            return self
        buffers = (_append_to_buffer(*both, int(self.kept)) for both in zip(self.buffers, more, strict=True))
        return self._replace(buffers=Draws(*buffers), kept=self.kept + count)._judge(wanted)

    def store(self, visits: Visit, local_steps: int, burn_in: int, thin: int, wanted: int | None) -> list[ChainStore]:
        """The chains after each of R rounds: of steps t > burn_in, those that are multiples of `thin` are kept.

        Args:
            visits: of M chains in R rounds, (R, M, ...).
            local_steps: T.
            burn_in: first steps that are not kept.
            thin: one step in so many is kept.
            wanted: as for `append`.
        """
        rounds, _, sent = visits.draws.shape[:3]
        taken = self.steps + local_steps // sent * torch.arange(1, rounds * sent + 1)
        keep = (taken > burn_in) & (taken % thin == 0)

        def in_order(value: Tensor) -> Tensor:
            """(R, M, n, ...) as (M, R n, ...), of the steps that are kept."""
            return value.transpose(0, 1).flatten(1, 2)[:, keep]

        client = visits.client.T.repeat_interleave(sent, 1)[:, keep]
        columns = in_order(visits.draws), client, in_order(visits.gradient_norm), in_order(visits.step_size)
        last = self.append(Draws(*columns), wanted)
        kept = self.kept + keep.reshape(rounds, sent).sum(1).cumsum(0)
        steps = self.steps + local_steps * torch.arange(1, rounds + 1)
        each = zip(visits.position, steps, kept, strict=True)
        states = [self._replace(buffers=last.buffers, position=at, steps=done, kept=had) for at, done, had in each]
        return [*states[:-1], states[-1]._replace(r_hat=last.r_hat, ess=last.ess, judged=last.judged)]

    def next_look(self, wanted: int | None) -> int:
        """How many draws a chain there are, an even number, when the chains are judged again."""
        from_last = _growth(float(self.ess), wanted) * int(self.judged)
        return 2 * math.ceil(max(FEWEST_JUDGED_DRAWS, from_last) / 2)

    def sample(self, num_draws: int) -> Tensor:
        """At most `num_draws` kept draws a chain, evenly spaced, (M, n, D); where they are if none is kept."""
        return self.thinned(self.buffers.draws, num_draws) if int(self.kept) else self.position[:, None]

    def thinned(self, buffer: Tensor, num_draws: int) -> Tensor:
        """What a buffer has of the draws that `sample` gives, (M, n, ...)."""
        kept = int(self.kept)
        if kept == 0:
            return buffer[:, :1]
        at = torch.linspace(0, kept - 1, min(num_draws, kept)).round().long()
        return buffer[:, at]

    def figures(self) -> dict[str, float]:
        """R-hat, the largest of all coordinates, ESS, the smallest, and draws that are kept of a chain."""
        return {"r_hat": float(self.r_hat), "ess": float(self.ess), "kept": float(self.kept)}

    def _judge(self, wanted: int | None) -> ChainStore:
        """R-hat (largest) and ESS (smallest) over the coordinates, where there are enough new draws."""
        kept = int(self.kept)
        if kept < self.next_look(wanted):
            return self
        most = max(FEWEST_JUDGED_DRAWS, max(JUDGED_DRAWS, JUDGED_FOR_ONE * (wanted or 0)) // len(self.position))
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
    """The buffer with values behind those that are kept, in twice the room where it is full."""
    more = value.shape[1]
    if kept + more > buffer.shape[1]:
        room = buffer.new_zeros(len(buffer), max(buffer.shape[1], more), *buffer.shape[2:])
        buffer = torch.cat([buffer, room], dim=1)
    buffer[:, kept : kept + more] = value.to(buffer.dtype)
    return buffer


def _growth(ess: float, wanted: int | None) -> float:
    """By what share the draws grow until they are judged again."""
    if wanted is None or not ess > 0:
        return GROWTH
    least, most = FORECAST
    times = wanted / ess
    return FAR_GROWTH if times > DISTANT_END_FACTOR else min(max(times, least), most)
