"""fit(): the posterior of a federation, by whatever it takes."""

from __future__ import annotations

import inspect
from typing import Literal, TypedDict, Unpack

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.progress import Show
from pyro_fed.conventions.spelling import closest
from pyro_fed.errors import SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.infer.auto.auto import Auto
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.evaluation import Evaluate
from pyro_fed.runtime.executors import Executor
from pyro_fed.runtime.run import run
from pyro_fed.runtime.run_checks import OF_ONE_ALGORITHM


class RunOptions(TypedDict, total=False):
    """Arguments of `pyro_fed.run` that whatever `fit` tries takes, as they are there."""

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
    """The posterior of a federation, and reasons to trust it or not: `run` with `Auto`.

    It starts with `FedEP`; where the checks of its answer object, it weighs draws by `FedAIS`, and where that is not
    enough, it samples, until an answer has no doubts and one that it should agree with does. A posterior that is
    near a Gaussian is done after the first.

    Args:
        federation: the model and its clients.
        max_rounds: rounds of communication, of all that is tried together; None: as many as it takes.
        max_bytes: bytes that the clients receive and send, likewise.
        max_seconds: on the clock, likewise: then the best answer so far is returned, with its doubts. An answer at a
            limit of time is not reproducible; see `pyro_fed.run`.
        **options: arguments of `pyro_fed.run`, such as `seed`, `graph` and `executor`; not `num_rounds`, `schedule`,
            `combination`, `start` and `checkpoint`, which belong to one algorithm.

    Returns:
        InferenceData as `run` returns it. `attrs["chosen"]` names the algorithm whose answer it is, `attrs["doubts"]`
        says what is left to doubt, and `pyro_fed.steps` tells what was tried and what each step cost.

    Raises:
        SettingError: an option out of its range, or one that belongs to a single algorithm.
        ModelError: the posterior is improper.
        DivergenceError: nothing that was tried stayed finite.
        QuorumError: too few clients replied.
        TimeLimitError: `max_seconds` were over before there was any answer.

    Example:
        >>> fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
        >>> idata = pf.fit(fed)
        >>> pf.steps(idata)
    """
    if "algorithm" in options:
        raise SettingError("fit chooses the algorithm: to run one that you name, pf.run(pf.FedEP(), federation)")
    known = {*inspect.signature(fit).parameters, *inspect.signature(run).parameters} - {"algorithm", "options"}
    if unknown := [name for name in options if name not in known]:
        offered = known - OF_ONE_ALGORITHM.keys() - {"resume"}
        raise SettingError(f"fit has no argument {unknown[0]!r}; {closest(unknown[0], offered)}")
    auto = Auto(max_rounds=max_rounds, max_bytes=max_bytes, max_seconds=max_seconds)
    return run(auto, federation, **options)
