"""Kept draws of several Markov chains, and what they say about convergence.

The draws live at the server in buffers (chain, capacity, ...) that only ever grow at their end: a state of an
earlier round shares the buffer and knows by its own `kept` how much of it is its own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.langevin.chain_diagnostics import rhat_and_ess
from pyro_fed.ops.entries import evenly

#: Draws a chain that the buffers have room for at first.
FIRST_CAPACITY = 256
#: Numbers that they have room for at first, where that is fewer draws.
FIRST_NUMBERS = 10_000_000
#: Coordinates that are judged, evenly spaced, where there are more.
JUDGED = 2000
#: R-hat and ESS are computed again when the number of draws has grown by this share,
GROWTH = 1.25
#: or, where the run ends at so many effective draws, when there should be as many by what there were, within these:
#: of few effective draws their number is not known well.
FORECAST = (1.05, 1.5)
#: As long as there should be so many times as many, they grow by this share: the end is not within reach.
FAR, FAR_GROWTH = 4.0, 2.0
#: Draws of all chains that are judged, evenly spaced, where there are more: the slowest coordinate, by which chains
#: are judged, is far from having as many effective draws.
JUDGED_DRAWS = 8_000
#: Of those, at least so many for each effective draw that the run ends at.
JUDGED_FOR_ONE = 4
#: Draws a chain before which R-hat and ESS say nothing.
FEWEST = 8
#: What a kept draw consists of.
COLUMNS = ("draws", "client", "gradient_norm", "step_size")


def start_chains(position: Tensor) -> State:
    """The server's state of chains at positions (M, D), with empty buffers."""
    number, dim = position.shape
    room = max(1, min(FIRST_CAPACITY, FIRST_NUMBERS // (number * dim)))
    return {
        "position": position,
        "steps": torch.zeros((), dtype=torch.int64),
        "kept": torch.zeros((), dtype=torch.int64),
        "kept_draws": position.new_zeros(number, room, dim),
        **{f"kept_{name}": position.new_zeros(number, room) for name in COLUMNS[1:]},
        "r_hat": torch.tensor(float("nan")),
        "ess": torch.tensor(float("nan")),
        "judged": torch.zeros((), dtype=torch.int64),
    }


def append(shared: State, columns: dict[str, Tensor], wanted: int | None = None) -> State:
    """The state with more draws at the end.

    Args:
        shared: from `start_chains`.
        columns: `draws` (M, n, D); `client`, `gradient_norm` and `step_size`, each (M, n).
        wanted: effective draws of all chains that the run ends at, which those that are judged must be able to show.
    """
    kept, more = int(shared["kept"]), columns["draws"].shape[1]
    if more == 0:
        return shared
    out = dict(shared)
    for name, value in columns.items():
        buffer = out[f"kept_{name}"]
        if kept + more > buffer.shape[1]:
            room = buffer.new_zeros(len(buffer), max(buffer.shape[1], more), *buffer.shape[2:])
            buffer = out[f"kept_{name}"] = torch.cat([buffer, room], dim=1)
        buffer[:, kept : kept + more] = value.to(buffer.dtype)
    out["kept"] = shared["kept"] + more
    return _judge(out, wanted)


def _judge(shared: State, wanted: int | None) -> State:
    """R-hat (largest) and ESS (smallest) over the coordinates, where there are enough new draws."""
    kept = int(shared["kept"])
    if kept < next_look(shared, wanted):
        return shared
    most = max(FEWEST, max(JUDGED_DRAWS, JUDGED_FOR_ONE * (wanted or 0)) // len(shared["position"]))
    stride = -(-kept // most)
    number = kept // stride // 2 * 2
    draws = shared["kept_draws"]
    draws = draws[:, kept - number * stride : kept : stride, evenly(draws.shape[-1], JUDGED)].double()
    moving = draws.var(1).sum(0) > 0
    if not bool(moving.all()):
        return shared
    values = draws.cpu().numpy()
    r_hat, ess = rhat_and_ess(values)
    found = {"r_hat": r_hat.max() if len(values) > 1 else math.nan, "ess": ess.min()}
    return shared | {name: torch.tensor(float(value)) for name, value in found.items()} | {"judged": shared["kept"]}


def next_look(shared: State, wanted: int | None) -> int:
    """How many draws a chain there are, an even number, when the chains are judged again."""
    from_last = _growth(float(shared["ess"]), wanted) * int(shared["judged"])
    return 2 * math.ceil(max(FEWEST, from_last) / 2)


def _growth(ess: float, wanted: int | None) -> float:
    """By what share the draws grow until they are judged again."""
    if wanted is None or not ess > 0:
        return GROWTH
    least, most = FORECAST
    times = wanted / ess
    return FAR_GROWTH if times > FAR else min(max(times, least), most)


def thinned(shared: State, column: str, num_draws: int) -> Tensor:
    """At most `num_draws` kept values a chain, evenly spaced, (M, n, ...); the last position where none is kept."""
    kept = int(shared["kept"])
    if kept == 0:
        return shared["position"][:, None] if column == "draws" else shared[f"kept_{column}"][:, :1]
    at = torch.linspace(0, kept - 1, min(num_draws, kept)).round().long()
    return shared[f"kept_{column}"][:, at]
