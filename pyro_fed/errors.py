"""Exceptions of the package, and how it warns.

Every message says what was expected, what was received, where (site, client, round) and the cure.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable
from typing import Any

__all__ = [
    "CheckpointError",
    "ContractError",
    "DataError",
    "DivergenceError",
    "GraphError",
    "InterruptedRun",
    "ModelError",
    "PolicyError",
    "ProtocolError",
    "PyroFedError",
    "QuorumError",
    "SettingError",
    "StoppedError",
    "TimeLimitError",
]


def __dir__() -> list[str]:
    return __all__


#: The package.
OURS = __name__.partition(".")[0]
#: Names that a message lists.
LISTED = 10
#: Characters of a value that a message shows.
SHOWN = 100
#: Characters without a blank, and of a whole message, beyond which it is cut.
LONGEST_WORD, LONGEST_TEXT = 500, 4000
#: What Pyro begins its drawing of a trace with, at the end of the text of an error that it raises again.
SHAPES = "Trace Shapes:"


class PyroFedError(Exception):
    """Base class of everything this package raises on purpose.

    Its text is cut where it echoes a value that is too long to read, see `brief`.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(), fed)
        ... except pf.PyroFedError as error:
        ...     print("no result:", error)
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*(brief(arg) if isinstance(arg, str) else arg for arg in args))


class DataError(PyroFedError, ValueError):
    """Data that cannot be used: NaN or infinity, disagreeing shapes, values outside a support.

    Example:
        >>> try:
        ...     fed = pf.Federation(model, (x / 0, y), plate="data", num_clients=10)
        ... except pf.errors.DataError as error:
        ...     print(error)
    """


class ModelError(PyroFedError, ValueError):
    """A model that cannot be split over the partitioned plate, or that needs a feature not supported.

    Example:
        >>> try:
        ...     fed = pf.Federation(model, (x, y), plate="rows", num_clients=10)
        ... except pf.errors.ModelError as error:
        ...     print(error)
    """


class SettingError(PyroFedError, ValueError):
    """A setting out of its range, or an unknown one.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(damping=-1.0), fed)
        ... except pf.errors.SettingError as error:
        ...     print(error)
    """


class ProtocolError(PyroFedError, ValueError):
    """Foreign bytes that are not what was expected: a message, a client's id, a checkpoint.

    Example:
        >>> try:
        ...     clients = {"no/slashes": (x1, y1), "south": (x2, y2)}
        ...     fed = pf.Federation.from_clients(model, clients, plate="data")
        ... except pf.errors.ProtocolError as error:
        ...     print(error)
    """


class PolicyError(PyroFedError):
    """A message that a site's own rules do not let out, or a run that the site has not approved.

    The text has the rule and what whoever asks knows already; nothing in it follows from the site's rows.

    Attributes:
        rule: name of the rule.

    Example:
        >>> from pyro_fed.errors import PolicyError
        >>> PolicyError("its 40 numbers are more than 0.1 for each of the site's rows", "max_numbers_per_row").rule
        'max_numbers_per_row'
    """

    def __init__(self, message: str, rule: str = "") -> None:
        super().__init__(message)
        self.rule = rule


class CheckpointError(ProtocolError, RuntimeError):
    """A checkpoint that cannot be written or read, or that belongs to another run.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(), fed, checkpoint="state", resume=True)
        ... except pf.errors.CheckpointError as error:
        ...     print(error)
    """


class ContractError(PyroFedError, AssertionError):
    """An algorithm that does not do what every algorithm has to, see `pyro_fed.testing`.

    Example:
        >>> try:
        ...     pf.testing.check_algorithm(MyAlgorithm())
        ... except pf.errors.ContractError as error:
        ...     print(error)
    """


class StoppedError(PyroFedError):
    """A run that could not go on.

    Attributes:
        round: the round (from 0) in which it stopped.
        algorithm: the algorithm that stopped: the one asked for, or one that it starts from.
        state: the server's last good state.
        result: InferenceData of that state, or None where there is none.
    """

    def __init__(self, message: str, *, round: int | None = None, algorithm: Any = None, state: Any = None) -> None:
        super().__init__(message)
        self.round, self.algorithm, self.state = round, algorithm, state
        self.result: Any = None


class DivergenceError(StoppedError, ArithmeticError):
    """An update left the finite numbers.

    Attributes:
        client: index of the client whose update diverged, or None.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedAvg(step_size=1e6), fed)
        ... except pf.errors.DivergenceError as error:
        ...     print(error.client, error.round, error.result)
    """

    def __init__(self, message: str, *, client: int | None = None, **stopped: Any) -> None:
        super().__init__(message, **stopped)
        self.client = client


class QuorumError(StoppedError, RuntimeError):
    """Fewer clients replied than the run needs.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(), fed, min_clients=5)
        ... except pf.errors.QuorumError as error:
        ...     print(error.round, error.result)
    """


class TimeLimitError(StoppedError, TimeoutError):
    """A run whose seconds were over before there was a posterior to return.

    `result` is the posterior of the algorithm that it was to start from, if that one has one.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(), fed, max_seconds=10.0)
        ... except pf.errors.TimeLimitError as error:
        ...     print(error.result)
    """


class InterruptedRun(KeyboardInterrupt):
    """Ctrl-C before there was a posterior to return; a `KeyboardInterrupt` as any other, and no `PyroFedError`.

    Attributes:
        algorithm: the algorithm that was interrupted: the one asked for, or one that it starts from.
        state: the server's state.

    Example:
        >>> try:
        ...     idata = pf.run(pf.FedEP(), fed)
        ... except pf.errors.InterruptedRun as error:
        ...     print(error.algorithm, error.state)
    """

    def __init__(self, message: str, algorithm: Any = None, state: Any = None) -> None:
        super().__init__(message)
        self.algorithm, self.state = algorithm, state


class PartialWork(KeyboardInterrupt):
    """Ctrl-C in a piece of work that has something to show for it all the same, such as a chain with some draws.

    Attributes:
        messages: what the clients of the round have to say so far, (C, ...).
        info: their figures, likewise.
    """

    def __init__(self, messages: Any, info: Any) -> None:
        super().__init__("interrupted with a part of the work done")
        self.messages, self.info = messages, info


class GraphError(SettingError):
    """A graph or mixing matrix that cannot carry a consensus: not stochastic, not connected, periodic.

    Example:
        >>> try:
        ...     graph = pf.graph.from_matrix([[1.0, 0.0], [0.0, 1.0]])
        ... except pf.errors.GraphError as error:
        ...     print(error)
    """


def warn_user(said: str) -> None:
    """Warn at the line of the user's code that has called the package, however deep within it the cause is found."""
    said, frame = brief(said), sys._getframe()
    caller = frame
    while frame is not None and frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == OURS:
            caller = frame.f_back
        frame = frame.f_back
    known, module = caller.f_globals, caller.f_globals.get("__name__", "")
    registry = known.setdefault("__warningregistry__", {})
    warnings.warn_explicit(said, UserWarning, caller.f_code.co_filename, caller.f_lineno, module, registry)


def brief(text: str) -> str:
    """A message without most of a long value that it echoes; its beginning and its end, with the cure, stay."""
    text = re.sub(rf"\S{{{LONGEST_WORD},}}", lambda word: f"{word[0][:SHOWN]}...", text)
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters are left out) ... {text[-half:]}"


def listed(names: Iterable[Any]) -> str:
    """Names for a message: the first of them, and how many more there are."""
    all_names = [str(name) for name in names]
    more = len(all_names) - LISTED
    return ", ".join(all_names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def shown(value: Any) -> str:
    """A value for a message, in one line: its text and its type; the shape of arrays, tensors and frames."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"values of shape {tuple(shape)} ({type(value).__name__})"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a user's own class may not even have a text
        text = "something"
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return f"{text} ({type(value).__name__})"


def without_shapes(error: Exception) -> Exception:
    """The error that a model raised, where Pyro has raised it again with a drawing of the trace so far; else itself."""
    while SHAPES in str(error):
        cause = error.__cause__
        if type(cause) is type(error) and str(error).startswith(str(cause)):
            error = cause
        else:  # of a text that Pyro has written as a whole
            error.args = (str(error).partition(SHAPES)[0].rstrip(),)
    return error
