"""Compilation of a model in a run: the level that works, and a cache of steps traced in this process.

Rows are inputs of a traced step. The step contains everything else that the model reads as constants: values of its
closure and of globals, and the arguments that all clients share. Steps are stored under a digest of these and of the
model's code (`compiling.digest`), at the start of a run, and of the shapes of the rows. A model without a digest keeps
its steps in its federation.

The densities of a few stored rows are also compared, bit for bit, with those at the time when the steps were stored.
This detects changes without an effect on the digest: a model that reads a file, the clock, or random numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import FunctionType
from typing import Any, NamedTuple

import torch
from pyro.poutine import runtime
from torch import Tensor
from torch.func import grad
from torch.utils import _pytree as pytree

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.points import points_near_zero
from pyro_fed.density.compiling.compiler import LEVELS, choose_level, maps
from pyro_fed.density.compiling.digest import PLAIN, TORCH_PLAIN, digest
from pyro_fed.density.compiling.tracing import Step
from pyro_fed.density.problem import Problem
from pyro_fed.ops.batched import vmap


def trial(problem: RowDensities) -> tuple[Tensor, tuple[Any, ...]]:
    """The trial arguments of mapping and compiling: vectors (2, D), and two clients of two rows, each (2, 2, ...)."""
    vectors = points_near_zero(2, problem.dim).to(problem.bound.dtype)
    clients = pytree.tree_map(lambda leaf: leaf[:2].expand(2, *leaf[:2].shape), problem.rows)
    return vectors.to(problem.rows[0].device), clients


def run_trial(problem: RowDensities) -> None:
    """Compute the densities of two clients at two vectors at once; raises the error of a failed mapping."""
    vectors, clients = trial(problem)
    over_vectors = problem.vmap(problem.log_parts, (0, None))
    problem.vmap(lambda rows: over_vectors(vectors, rows))(clients)


#: Number of models whose steps are stored; the least recently used model is dropped first.
MAX_MODELS = 32


class Probe(NamedTuple):
    """Densities of two rows at two vectors (2, D): of the prior (2,) and of the rows (2, 2)."""

    vectors: Tensor
    rows: tuple[Tensor, ...]
    values: tuple[Tensor, Tensor]


@dataclass
class Common:
    """Steps and facts that runs of one model on rows of the same shapes share."""

    mark: bytes  # digest of the model, the key of the entry
    level: str  # level of mapping before steps are traced
    probe: Probe  # the model's densities of a few rows
    steps: dict[Any, Step] = field(default_factory=dict)  # traced steps, as in `Compiler.cache`
    calls: dict[Any, int] = field(default_factory=dict)  # number of calls of each step before it was traced
    levels: dict[str, str] = field(default_factory=dict)  # the level that works, by mode
    found: dict[Any, Any] = field(default_factory=dict)  # other facts about the model, as in `Compiler.found`

    def may_keep(self, function: Callable[..., Any] | None, problem: Any) -> bool:
        """Whether a fact (None), or a step of this package, may be stored: the model must be unchanged."""
        return (function is None or is_own_step(function)) and mark_of(problem, self.level) == self.mark


_MODELS: OrderedDict[bytes, Common] = OrderedDict()


def forget() -> None:
    """Drop all stored entries."""
    _MODELS.clear()


def common_of(problem: Problem) -> Common | None:
    """The entry of this process for a model; None if the model cannot be identified."""
    level = problem.compiler.level
    mark = mark_of(problem, level)
    if mark is None:
        return None
    entry = _MODELS.get(mark)
    if entry is None or not _has_probe_values(problem, entry.probe):
        entry = Common(mark, level, _probe(problem))
        _MODELS[mark] = entry
    _MODELS.move_to_end(mark)
    while len(_MODELS) > MAX_MODELS:
        _MODELS.popitem(last=False)
    return entry


def with_process_cache(problem: Problem) -> Common | None:
    """The entry of this process for the model at the start of a run; traces of a changed model are dropped."""
    common, probe_state = common_of(problem), problem.compiler.probe
    mark = None if common is None else common.mark
    is_unchanged = "probe" in probe_state and mark is not None and mark == probe_state["mark"]
    if "probe" in probe_state and not is_unchanged and not _has_probe_values(problem, probe_state["probe"]):
        problem.compiler.forget()
        probe_state.clear()
    probe_state["mark"] = mark
    if not is_unchanged and "probe" not in probe_state:
        probe_state["probe"] = _probe(problem) if common is None else common.probe
    return common


def mark_of(problem: Problem, level: str) -> bytes | None:
    """A digest of the content of traces of this problem at a level of mapping; None if it is unknown."""
    bound, arguments = problem.bound, problem.arguments
    if arguments.nested_plates or runtime._PYRO_STACK:  # groups are read while tracing; handlers of the user's
        return None
    split = set(arguments.split)
    shared = [leaf for place, leaf in enumerate(arguments.leaves) if place not in split]
    rows = [(leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in problem.rows]
    return digest(
        type(problem).__name__,
        bound.model,
        (shared, arguments.names, arguments.sharded, repr(arguments.spec)),
        [(name, list(labels), labels.ordered) for name, labels in sorted(arguments.labels.items())],
        rows,
        (bound.plate, bound.num_rows, bound.dtype, bound.constants, bound.in_double, bool(bound.forward_mode)),
        (problem.num_rows, repr(problem.layout), repr(problem.quadrature), problem.writes, level),
        (torch.get_default_dtype(), torch.__version__),
    )


def _probe(problem: Problem) -> Probe:
    vectors, clients = trial(problem)
    # A nested plate's entry is several tensors.
    rows = pytree.tree_map(torch.clone, tuple(leaf[0] for leaf in clients))
    return Probe(vectors, rows, _densities(problem, vectors, rows))


def _densities(problem: Problem, vectors: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    values: tuple[Tensor, Tensor] = problem.vmap(problem.log_parts, (0, None))(vectors, rows)
    return values


def _has_probe_values(problem: Problem, probe: Probe) -> bool:
    values = _densities(problem, probe.vectors, probe.rows)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(values, probe.values, strict=True))


def is_own_step(function: Callable[..., Any]) -> bool:
    """Whether a step belongs to this package and its settings are values, so that it cannot change in a process."""
    owner = getattr(function, "__self__", None)
    function_of_step = getattr(function, "__func__", function)
    is_ours = _is_ours(function_of_step) and "<locals>" not in getattr(function_of_step, "__qualname__", "<locals>")
    return is_ours and (owner is None or _is_value(owner))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "pyro_fed"


def _is_value(value: Any) -> bool:
    """Whether a setting is a value, or an object of this package that consists of values."""
    if type(value) in PLAIN or isinstance(value, TORCH_PLAIN):
        return True
    if type(value) in (tuple, frozenset):
        return all(_is_value(part) for part in value)
    if isinstance(value, FunctionType):
        return is_own_step(value)
    if isinstance(value, type):
        return _is_ours(value) or value.__module__.partition(".")[0] in ("pyro", "torch")
    if getattr(value, "is_traced", False):  # stored with the steps that use it
        return True
    return (
        _is_ours(type(value))
        and is_dataclass(value)
        and all(_is_value(getattr(value, one.name)) for one in fields(value))
    )


def with_known_structure(problem: Problem, mode: str) -> Problem:
    """The problem with the entry of this process for its model, also from another federation.

    Without tracing, no trace can be out of date: only facts about the model are reused.
    """
    compiler, common = problem.compiler, None
    if compiler.level == "off":
        common = common_of(problem) if LEVELS.get(mode) == "off" else with_process_cache(problem)
    return replace(problem, compiler=replace(compiler, common=common))


def compile_problem(problem: Problem, mode: str, rounds: int, progress: bool, seconds: float | None = None) -> Problem:
    """The problem with the compiler of a run; compiled steps, and the level that works, are stored for the next run."""
    known_problem = problem if problem.compiler.common is not None else with_known_structure(problem, mode)
    compiler, common = known_problem.compiler, known_problem.compiler.common
    levels = compiler.levels if common is None else common.levels
    if mode not in levels:
        particles, clients = trial(problem)

        def log_density(z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, rows)
            return log_prior + pointwise.sum()

        def scores(z: Tensor, *rows: Tensor) -> Tensor:
            """Scores mapped as in a step: over the particles of each client, and over the clients."""
            mapped_scores: Tensor = vmap(lambda one: vmap(grad(log_density), (0, None))(z, one))(rows)
            return mapped_scores

        example = (particles, *clients)
        if mode == "auto":  # the first trace shows whether the model can be traced
            level = "trace" if maps(scores, example) else "loop"
        else:
            level = choose_level(mode, scores, example)
        if level != LEVELS[mode]:  # with a warning, which the next run repeats
            return replace(problem, compiler=compiler.at(mode, level, rounds, None, seconds), progress=progress)
        levels[mode] = level
    return replace(problem, compiler=compiler.at(mode, levels[mode], rounds, common, seconds), progress=progress)
