"""One algorithm under test: its short runs, shared by the checks, and records of its methods' calls in them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed import graph
from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import Chains, OnGraph
from pyro_fed.algorithm.states import State
from pyro_fed.errors import OURS, ContractError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.run import run
from pyro_fed.testing import problems

#: The contract's methods whose calls are recorded; all of them are pure.
METHODS = (
    *("init", "prepare", "download", "draw_noise", "local_step", "objections", "combine", "refine", "feedback"),
    *("settle", "monitor", "converged", "sample"),
)
#: Seed of torch's global generator for the second of two calls that should return the same. With the same seed a method
#: that draws from this generator, and then restores it, would return the same.
OTHER_SEED = 987_654_321
#: Tolerance of sums in another order, in units of rounding errors of an entry's largest number, or of 1.
ROUNDINGS = 1e6
#: Modules that read every setting, to copy, check, show or store it.
READS_ALL = tuple(f"{name}." for name in ("dataclasses", "copy")) + tuple(
    f"{OURS}.{name}." for name in ("conventions", "recipes", "results", "runtime")
)

#: Options of every short run.
OPTIONS: dict[str, Any] = {"num_draws": 8, "progress": False, "compile": "off", "log_likelihood": False, "audit": False}
#: Number of rounds of a short run.
NUM_ROUNDS = 4
#: Number of rounds of runs of which only forms are checked.
NUM_FORM_ROUNDS = 2


class Call(NamedTuple):
    """One call of a method: its name, its positional arguments before the call, and its result."""

    method: str
    args: tuple[Any, ...]
    result: Any


@dataclass
class Observation:
    """Records of an algorithm in a run."""

    calls: list[Call] = field(default_factory=list)
    changed: dict[str, str] = field(default_factory=dict)
    global_draws: set[str] = field(default_factory=set)
    unrepeatable: set[str] = field(default_factory=set)
    ordered: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    error: Exception | None = None
    busy: bool = False

    def of(self, method: str) -> list[Call]:
        """The calls of a method."""
        return [call for call in self.calls if call.method == method]

    def ended(self) -> None:
        """Raise the error that ended the run, if there was one."""
        if self.error is not None:
            raise self.error


def with_recorded_calls(algorithm: Algorithm, *, thorough: bool) -> tuple[Algorithm, Observation]:
    """A copy of the algorithm that records its calls (and repeats them if `thorough`), and the observation."""
    kind, observation = type(algorithm), Observation()
    methods = {
        name: _recording_method(name, getattr(kind, name), observation, thorough)
        for name in METHODS
        if hasattr(kind, name)
    }
    methods["__getattribute__"] = _recording_reads(kind, {one.name for one in fields(algorithm)}, observation)
    identity = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    meta: Any = type(kind)
    twin: Algorithm = object.__new__(meta(kind.__name__, (kind,), {**methods, **identity}))
    twin.__dict__.update(vars(algorithm))
    return twin, observation


def _recording_reads(kind: Any, names: set[str], observation: Observation) -> Callable[..., Any]:
    """A `__getattribute__` that records reads of settings, except by code that reads all settings or checks them."""

    def __getattribute__(self: Algorithm, name: str) -> Any:
        if name in names and name not in observation.read:
            frame = sys._getframe(1)
            code, module = frame.f_code, f"{frame.f_globals.get('__name__')}."
            written = code.co_filename != "<string>"  # generated methods, such as `__eq__` of a dataclass, have no file
            if written and code.co_name != "__post_init__" and not module.startswith(READS_ALL):
                observation.read.add(name)
        return kind.__getattribute__(self, name)

    return __getattribute__


def _recording_method(
    name: str, original: Callable[..., Any], observation: Observation, thorough: bool
) -> Callable[..., Any]:
    """A method that records its calls, except those within another method's."""

    def method(self: Algorithm, *args: Any, **keywords: Any) -> Any:
        if observation.busy:
            return original(self, *args, **keywords)
        observation.busy = True
        try:
            before = _copy_tree((args, keywords))
            rng_state = torch.random.get_rng_state()
            result = original(self, *args, **keywords)
            observation.calls.append(Call(name, before[0], result))
            if thorough:
                _compare(self, name, original, before, ((args, keywords), result, rng_state), observation)
            return result
        finally:
            observation.busy = False

    return method


def _compare(
    algorithm: Algorithm, name: str, original: Callable[..., Any], before: Any, after: Any, observation: Observation
) -> None:
    """Record whether a call changed its arguments, drew from the global generator, or is not repeatable."""
    args_after, result, rng_state = after
    if not torch.equal(rng_state, torch.random.get_rng_state()):
        observation.global_draws.add(name)
    leaves = zip(_tensors(before), _tensors(args_after), strict=False)
    if (changed := next((where for (where, old), (_, new) in leaves if not _same_trees(old, new)), None)) is not None:
        observation.changed.setdefault(name, changed)
    state = torch.random.get_rng_state()
    torch.manual_seed(OTHER_SEED)
    try:
        args, keywords = _copy_tree(before)
        if not _same_trees(result, original(algorithm, *args, **keywords)):
            observation.unrepeatable.add(name)
        elif name == "combine" and not isinstance(algorithm, Chains):
            observation.ordered |= _order_dependent_entries(algorithm, original, _copy_tree(before)[0], result)
    finally:
        torch.random.set_rng_state(state)


def _order_dependent_entries(
    algorithm: Algorithm, combine: Callable[..., Any], args: tuple[Any, ...], result: State
) -> set[str]:
    """Entries of `combine`'s result that differ if the messages come in the opposite order."""
    shared, messages, weights = args
    count = len(next(iter(messages.values()), ()))
    reversed_messages = {name: value.flip(0) for name, value in messages.items()}
    if isinstance(algorithm, OnGraph):
        if not sparse.issparse(weights) or weights.shape[0] != count:
            return set()
        other = combine(
            algorithm,
            {name: value.flip(0) for name, value in shared.items()},
            reversed_messages,
            weights[::-1, ::-1].tocsr(),
        )
        return {name for name, value in other.items() if not _close(result[name], value.flip(0))}
    other = combine(algorithm, shared, reversed_messages, weights.flip(0))
    return {
        name
        for name, value in other.items()
        if not _close(result[name], value)
        # The server's replies to the clients are in the order of the messages.
        and not (value.dim() and len(value) == count and _close(result[name], value.flip(0)))
    }


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    tolerance = ROUNDINGS * torch.finfo(one.dtype).eps
    scale = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 0.0
    return torch.allclose(one, other, tolerance, tolerance * max(scale, 1.0), equal_nan=True)


def _copy_tree(tree: Any) -> Any:
    """A tree with its own tensors and generators."""

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.clone() if 0 not in leaf.stride() else leaf.contiguous().clone()
        if isinstance(leaf, torch.Generator):
            twin = torch.Generator(leaf.device)
            twin.set_state(leaf.get_state())
            return twin
        return leaf

    return pytree.tree_map(copy, tree)


def _tensors(tree: Any) -> list[tuple[str, Tensor]]:
    """A tree's tensors with their paths."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return [(pytree.keystr(path[1:]), leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]


def _same_trees(one: Any, other: Any) -> bool:
    """Whether two trees agree to the bit; NaN equals NaN."""
    first, form = pytree.tree_flatten(one)
    second, other_form = pytree.tree_flatten(other)
    return form == other_form and all(_same_leaf(a, b) for a, b in zip(first, second, strict=True))


def _same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and bool(torch.all((one == other) | ((one != one) & (other != other))))
        )
    if sparse.issparse(one):
        return bool(abs(one - other).nnz == 0)
    if isinstance(one, float | int | bool | str) or one is None:
        return type(one) is type(other) and bool(one == other or (one != one and other != other))
    return True


@dataclass(eq=False)
class Case:
    """An algorithm, the federation of its short runs, and these runs."""

    algorithm: Algorithm
    given: Federation | None = None
    num_rounds: int | None = None

    @property
    def federation(self) -> Federation:
        """The federation of the short runs."""
        return problems.lines() if self.given is None else self.given

    @cached_property
    def rounds(self) -> int:
        """Rounds of a short run."""
        if self.num_rounds is not None:
            return self.num_rounds
        return 1 if self.done_in_one_round else NUM_ROUNDS

    @property
    def done_in_one_round(self) -> bool:
        """Whether an algorithm is done in a single round, so that another would repeat its work."""
        return self.algorithm.default_rounds(3) == 1

    @property
    def draws_by_chance(self) -> bool:
        """Whether draws depend on the seed; a point does if its clients receive random numbers."""
        noise = [leaf for call in self.observation.of("draw_noise") for leaf in pytree.tree_leaves(call.result)]
        return self.algorithm.draws_are != "point" or any(leaf.numel() for leaf in noise)

    def run(self, federation: Federation | None = None, **options: Any) -> InferenceData:
        """A run of a new copy of the algorithm, without warnings."""
        run_federation = self.federation if federation is None else federation
        algorithm = options.pop("algorithm", None) or replace(self.algorithm)
        fixed = OPTIONS | {"num_rounds": self.rounds} | graph_of(algorithm, run_federation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(algorithm, run_federation, **(fixed | options))

    def observe(self, federation: Federation | None = None, *, thorough: bool = False, **options: Any) -> Observation:
        """Arguments and results of the algorithm's methods in a short run, one client after the other."""
        twin, observation = with_recorded_calls(replace(self.algorithm).delegate(), thorough=thorough)
        options = {"executor": "sequential"} | options
        try:
            self.run(federation, algorithm=twin, **options)
        except Exception as error:  # a check may find the cause of any error in the records so far
            observation.error = error
        return observation

    @cached_property
    def untraced(self) -> InferenceData:
        """A run with all clients at once, nothing compiled."""
        return self.run()

    @cached_property
    def traced(self) -> InferenceData:
        """A run with traced steps: the reference for runs that must agree to the bit."""
        return self.run(compile="trace")

    @cached_property
    def one_by_one(self) -> InferenceData:
        """A run with one client after the other, nothing compiled."""
        return self.run(executor="sequential")

    @cached_property
    def integrated(self) -> InferenceData:
        """A run on groups whose effects are integrated out; traced if this is faster, since integrals take long."""
        return self.run(problems.groups(), compile="auto")

    @cached_property
    def observation(self) -> Observation:
        """Each method's calls in a short run; each call is repeated to test whether it returns the same."""
        return self.observe(thorough=True)

    @cached_property
    def observed_one_row(self) -> Observation:
        """The calls in a run of two rounds over clients of one row."""
        return self.observe(
            problems.one_row_each(), num_rounds=min(NUM_FORM_ROUNDS, self.rounds), executor="vectorised"
        )


def graph_of(algorithm: Algorithm, federation: Federation) -> dict[str, Any]:
    """Further arguments of `run`: a ring for an algorithm without a server."""
    return {"graph": graph.ring(federation.num_clients)} if isinstance(algorithm, OnGraph) else {}


def values(idata: InferenceData) -> NDArray[np.float64]:
    """All draws of a result, one after the other."""
    return np.concatenate(
        [idata["posterior"][name].values.ravel() for name in sorted(map(str, idata["posterior"].data_vars))]
    )


def require(condition: bool, expected: str, received: str, cure: str) -> None:
    """Raise a ContractError with what was expected, what was received and the cure, unless `condition` holds."""
    if not condition:
        raise ContractError(f"expected {expected}; received {received}. {cure}")
