"""fit(): the posterior of a federation, by as many algorithms as necessary."""

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
    """The arguments of `pyro_fed.run` that `fit` accepts."""

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

    The first algorithm is `FedEP`. If its result has doubts, `FedAIS` weights draws. If that is not sufficient, or if
    the result misses a mode, which importance weights cannot restore, samplers follow. The function stops when a result
    has no doubts and a second one agrees with it. If the first result has no doubts, as for a nearly Gaussian
    posterior, it stops there.

    Args:
        federation: the model and its clients.
        max_rounds: limit on the communication rounds of all algorithms together; None is no limit. When a limit is
            reached, the best result so far is returned, with its doubts.
        max_bytes: limit on the bytes that all clients receive and send; None is no limit.
        max_seconds: limit on the time, in seconds; None is no limit. A result at a time limit is not reproducible, see
            `pyro_fed.run`.
        **options: arguments of `pyro_fed.run`, such as `seed`, `graph` and `executor`; not `num_rounds`, `schedule`,
            `combination`, `start` and `checkpoint`, which belong to one algorithm.

    Returns:
        InferenceData as from `run`. `attrs["chosen"]` names the algorithm of the result, `attrs["doubts"]` has the
        remaining doubts, and `pyro_fed.metrics.steps` lists the algorithms that were tried, with their costs.

    Raises:
        SettingError: an option out of its range, or one that belongs to a single algorithm.
        ModelError: the posterior is improper.
        DivergenceError: all algorithms diverged.
        QuorumError: too few clients replied.
        TimeLimitError: `max_seconds` was reached before there was a result.

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
