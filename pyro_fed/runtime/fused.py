"""Several rounds at once, where the server decides nothing between them.

The numbers are the same as those of the round loop, since clients, noise and states are functions of the round. What
the loop asks between two rounds, such as whether the algorithm has converged, is asked once, after all of them. If a
reply is not finite or meets an objection, none of these rounds counts, and the loop does them one by one. It also does
so where something has to happen between rounds: a checkpoint, an evaluation, a budget of rounds or bytes, a
combination, or a schedule of the user's.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch

from pyro_fed.algorithm.capabilities import Chains, SiteKeeping
from pyro_fed.algorithm.contract import overrides
from pyro_fed.algorithm.contributions import SentMessages
from pyro_fed.algorithm.record import Round, figure_array
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.kinds import cast_checked
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.ops.entries import all_finite
from pyro_fed.runtime.context import Context, Phase
from pyro_fed.runtime.executors import Work
from pyro_fed.runtime.executors.local import Vectorised, owner
from pyro_fed.runtime.messages import encoded_size, spec_of_one
from pyro_fed.runtime.network import Network, Server
from pyro_fed.runtime.one_round import client_shifts_of_rounds
from pyro_fed.runtime.replies import refuse_divergence

#: The most rounds that are done at once: Ctrl-C is heard between them.
MOST_ROUNDS = 100
#: The most numbers in the messages of these rounds.
MOST_NUMBERS = 10_000_000


#: A method for one round, and the method that does the same for several. A class that overrides the first without the
#: second has its rounds done one at a time.
SAME = {"combine": "combine_rounds", "download": "onward"}


class Fused(NamedTuple):
    """Rounds that were done at once: the record of each, and the server's state after it."""

    rounds: list[Round]
    states: list[State]


def rounds_at_once(phase: Phase, context: Context, network: Network, left: int) -> int:
    """The number of next rounds, of `left`, that may be done at once; 1 if they have to be done one by one."""
    algorithm = phase.algorithm
    if not isinstance(algorithm, Chains) or type(context.executor) is not Vectorised:
        return 1
    if not all(issubclass(owner(algorithm, several), owner(algorithm, one)) for one, several in SAME.items()):
        return 1
    between = (phase.given, context.checkpoint, context.combination, context.evaluation)
    budget = context.budget
    if any(part is not None for part in (*between, budget.max_rounds, budget.max_bytes)) or phase.ledger:
        return 1
    if type(network) is not Server or algorithm.pooled or isinstance(algorithm, SiteKeeping):
        return 1
    if overrides(algorithm, "prepare", "refine"):
        return 1
    dim = max(1, context.problem.dim)
    numbers, in_time = MOST_NUMBERS // (10 * dim), int(min(MOST_ROUNDS, budget.at_once(context.record)))
    return max(1, min(left, in_time, algorithm.rounds_ahead(phase.shared), numbers))


def run_fused_rounds(phase: Phase, context: Context, data: ClientData, clients: list[list[int]]) -> Fused | None:
    """Do several rounds at once; None, with nothing changed, if a reply is not finite or meets an objection."""
    algorithm, executor = cast_checked(phase.algorithm, Chains), cast_checked(context.executor, Vectorised)
    began = time.perf_counter()
    numbers = torch.from_numpy(np.array(clients))
    received = phase.algorithm.download(phase.shared, numbers[0])
    first = Work(len(context.record.rounds), context.seed, clients[0], received)
    try:
        made, noise = executor.rounds(first, numbers, algorithm.onward, phase.algorithm.contributions().replayed_noise)
    except KeyboardInterrupt:
        executor.undo()
        raise
    messages = made.messages
    seconds = (time.perf_counter() - began) / sum(map(len, clients))
    if not _honest(phase, made.received, messages):
        executor.undo()
        return None
    states = algorithm.combine_rounds(phase.shared, messages)
    refuse_divergence(phase.algorithm, context, phase.shared, states[-1], first.round + len(clients) - 1)
    info = {name: figure_array(value) for name, value in made.figures.items()}
    known = (first.round, context.seed, data.num_rows, context.problem, context.graph)
    sent = SentMessages(messages, numbers, *known, noise)
    if (how_far := client_shifts_of_rounds(phase, context, [phase.shared, *states[:-1]], sent)) is not None:
        info["moved"] = figure_array(how_far)
    one = {name: value[0] for name, value in messages.items()}
    down, up = (encoded_size(spec_of_one(state)) for state in (received, one))
    name = type(algorithm).__name__
    rounds = [
        Round(name, chosen, down, up, seconds, {key: value[i] for key, value in info.items()})
        for i, chosen in enumerate(clients)
    ]
    return Fused(rounds, states)


def _honest(phase: Phase, received: State, messages: State) -> bool:
    """Whether all replies (R, C, ...) are finite, and the algorithm has no objection to any of them."""
    if not all(all_finite(value) for value in messages.values()):
        return False
    flat = [{name: value.flatten(0, 1) for name, value in state.items()} for state in (received, messages)]
    return not any(bool(holds.any()) for holds in phase.algorithm.objections(*flat).values())
