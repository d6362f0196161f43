"""fit(): the posterior of a federation, by as many algorithms as it takes."""

from __future__ import annotations

import inspect
from typing import Literal, TypedDict, Unpack

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.names import closest
from pyro_fed.conventions.progress import Show
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.infer.auto import Auto
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.context import Evaluate
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.run import OF_ONE_ALGORITHM, run


class RunOptions(TypedDict, total=False):
    """The arguments of `pyro_fed.run` that `fit` passes on to it."""

    graph: Graph | None
    executor: str | Executor
    num_draws: int | None
    seed: int
    compile: str
    progress: Show
    num_threads: int | Literal["auto"] | None
    log_likelihood: bool
    collect_local: bool
    audit: bool
    min_clients: int | None
    evaluate: Evaluate | None
    evaluate_every: int


@checked
def fit(
    federation: Federation,
    *,
    max_rounds: int | None = None,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    **options: Unpack[RunOptions],
) -> InferenceData:
    """The posterior of a federation, with reasons to trust it or not: `run` with `Auto`.

    It starts with `FedEP`. If there are doubts about that answer, it weights draws by `FedAIS`, and if that is not
    enough, or the answer misses a mode, which no weights bring back, it samples. It stops when an answer has no doubts
    and a second one agrees with it. If the first answer has no doubts, as for a posterior that is nearly Gaussian, it
    stops there.

    Args:
        federation: the model and its clients.
        max_rounds: limit of the rounds of communication of all algorithms together; None: no limit. When a limit is
            reached, the best answer so far is returned, with its doubts.
        max_bytes: limit of the bytes that all clients receive and send; None: no limit.
        max_seconds: limit of the seconds on the clock; None: no limit. An answer at a limit of time is not
            reproducible, see `pyro_fed.run`.
        **options: arguments of `pyro_fed.run`, such as `seed`, `graph` and `executor`; not `num_rounds`, `schedule`,
            `combination`, `start` and `checkpoint`, which belong to one algorithm.

    Returns:
        InferenceData as `run` returns it. `attrs["chosen"]` names the algorithm whose answer it is, `attrs["doubts"]`
        has the remaining doubts, and `pyro_fed.metrics.steps` tells what was tried and what each step cost.

    Raises:
        SettingError: an option out of its range, or one that belongs to a single algorithm.
        ModelError: the posterior is improper.
        DivergenceError: nothing that was tried stayed finite.
        QuorumError: too few clients replied.
        TimeLimitError: `max_seconds` were over before there was any answer.

    Example:
        >>> fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
        >>> idata = pf.fit(fed)
        >>> pf.metrics.steps(idata)
    """
    if "algorithm" in options:
        raise SettingError("fit chooses the algorithm: to run one that you name, pf.run(pf.FedEP(), federation)")
    known = {*inspect.signature(fit).parameters, *inspect.signature(run).parameters} - {"algorithm", "options"}
    if unknown := [name for name in options if name not in known]:
        offered = known - OF_ONE_ALGORITHM.keys() - {"resume"}
        raise SettingError(f"fit has no argument {unknown[0]!r}; {closest(unknown[0], offered)}")
    auto = Auto(max_rounds=max_rounds, max_bytes=max_bytes, max_seconds=max_seconds)
    return run(auto, federation, **options)
