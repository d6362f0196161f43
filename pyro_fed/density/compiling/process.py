"""How a model is compiled in a run: the level that works, and the steps that this process has traced of the same model.

A traced step holds no rows: they are its inputs. It holds everything else that the model reads: its code, its closure's
and globals' values, and the arguments that all clients share, as constants. So steps are kept under a digest of all of
these (`compiling.digest`), at the moment in which a run begins, and of the shapes of the rows. What cannot be followed
has no digest, and its steps stay with their federation.

Besides, the densities of a few kept rows are compared, bit for bit, with those at the time when the steps were kept.
That finds what no digest sees: a model that reads a file, the clock, or random numbers.
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
from pyro_fed.density.checks.points import SPREAD
from pyro_fed.density.compiling.compiler import LEVELS, choose_level, maps
from pyro_fed.density.compiling.digest import PLAIN, TORCH_PLAIN, digest
from pyro_fed.density.compiling.tracing import Step
from pyro_fed.density.problem import Problem
from pyro_fed.ops.batched import vmap


def trial(problem: RowDensities) -> tuple[Tensor, tuple[Any, ...]]:
    """The trial arguments of mapping and compiling: vectors (2, D), and two clients of two rows, each (2, 2, ...)."""
    generator = torch.Generator().manual_seed(0)
    vectors = SPREAD * torch.randn(2, problem.dim, generator=generator, dtype=problem.bound.dtype)
    clients = pytree.tree_map(lambda leaf: leaf[:2].expand(2, *leaf[:2].shape), problem.rows)
    return vectors.to(problem.rows[0].device), clients


def run_trial(problem: RowDensities) -> None:
    """Compute the densities of two clients at two vectors at once, or raise what the model cannot be mapped for."""
    vectors, clients = trial(problem)
    over_vectors = problem.vmap(problem.log_parts, (0, None))
    problem.vmap(lambda rows: over_vectors(vectors, rows))(clients)


#: Models whose steps are kept; the one that was not used for longest goes first.
MOST_MODELS = 32


class Probe(NamedTuple):
    """Densities of two rows at two vectors (2, D): of the prior (2,) and of the rows (2, 2)."""

    vectors: Tensor
    rows: tuple[Tensor, ...]
    values: tuple[Tensor, Tensor]


@dataclass
class Common:
    """What the runs of one model on rows of the same shapes share."""

    mark: bytes  # the digest that it is kept under
    level: str  # how the model is mapped, before anything is traced
    probe: Probe  # the model's densities of a few rows
    steps: dict[Any, Step] = field(default_factory=dict)  # traced steps, as in `Compiler.cache`
    calls: dict[Any, int] = field(default_factory=dict)  # how often each was called before it was traced
    levels: dict[str, str] = field(default_factory=dict)  # the level that works, by mode
    found: dict[Any, Any] = field(default_factory=dict)  # other facts about the model, as in `Compiler.found`

    def may_keep(self, function: Callable[..., Any] | None, problem: Any) -> bool:
        """Whether a fact (None), or a step that is the package's own, may be kept: the model is unchanged."""
        return (function is None or is_own_step(function)) and mark_of(problem, self.level) == self.mark


_MODELS: OrderedDict[bytes, Common] = OrderedDict()


def forget() -> None:
    """Drop everything that is kept."""
    _MODELS.clear()


def common_of(problem: Problem) -> Common | None:
    """The entry of this process for a model; None if the model cannot be identified."""
    level = problem.compiler.level
    mark = mark_of(problem, level)
    if mark is None:
        return None
    found = _MODELS.get(mark)
    if found is None or not _has_probe_values(problem, found.probe):
        found = Common(mark, level, _probe(problem))
        _MODELS[mark] = found
    _MODELS.move_to_end(mark)
    while len(_MODELS) > MOST_MODELS:
        _MODELS.popitem(last=False)
    return found


def with_process_cache(problem: Problem) -> Common | None:
    """The entry of this process for the model of a run that begins; traces of a model that has changed are dropped."""
    common, last = common_of(problem), problem.compiler.probe
    mark = None if common is None else common.mark
    known = "probe" in last and mark is not None and mark == last["mark"]
    if "probe" in last and not known and not _has_probe_values(problem, last["probe"]):
        problem.compiler.forget()
        last.clear()
    last["mark"] = mark
    if not known and "probe" not in last:
        last["probe"] = _probe(problem) if common is None else common.probe
    return common


def mark_of(problem: Problem, level: str) -> bytes | None:
    """A digest of all that a trace of this problem at a level of mapping holds; None if that is unknown."""
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
        (bound.plate, bound.num_rows, bound.dtype, bound.constants, bound.in_double),
        (problem.num_rows, repr(problem.layout), repr(problem.quadrature), problem.writes, level),
        (torch.get_default_dtype(), torch.__version__),
    )


def _probe(problem: Problem) -> Probe:
    vectors, clients = trial(problem)
    # A nested plate's entry is several tensors.
    rows = pytree.tree_map(torch.clone, tuple(leaf[0] for leaf in clients))
    return Probe(vectors, rows, _densities(problem, vectors, rows))


def _densities(problem: Problem, vectors: Tensor, rows: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = problem.vmap(problem.log_parts, (0, None))(vectors, rows)
    return found


def _has_probe_values(problem: Problem, probe: Probe) -> bool:
    found = _densities(problem, probe.vectors, probe.rows)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(found, probe.values, strict=True))


def is_own_step(function: Callable[..., Any]) -> bool:
    """Whether a step is this package's own, with settings that are values: it cannot change in a process."""
    of = getattr(function, "__self__", None)
    plain = getattr(function, "__func__", function)
    ours = _is_ours(plain) and "<locals>" not in getattr(plain, "__qualname__", "<locals>")
    return ours and (of is None or _is_value(of))


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "pyro_fed"


def _is_value(value: Any) -> bool:
    """Whether a setting is a value, or a setting of this package made of values."""
    if type(value) in PLAIN or isinstance(value, TORCH_PLAIN):
        return True
    if type(value) in (tuple, frozenset):
        return all(_is_value(part) for part in value)
    if isinstance(value, FunctionType):
        return is_own_step(value)
    if isinstance(value, type):
        return _is_ours(value) or value.__module__.partition(".")[0] in ("pyro", "torch")
    if getattr(value, "is_traced", False):  # it is kept beside the steps that are made of it
        return True
    return (
        _is_ours(type(value))
        and is_dataclass(value)
        and all(_is_value(getattr(value, one.name)) for one in fields(value))
    )


def with_known_structure(problem: Problem, mode: str) -> Problem:
    """The problem with all that this process knows of its model, also from the rows of another federation.

    Where nothing is traced, no trace can be out of date: facts about the model are all that is taken over.
    """
    kept, common = problem.compiler, None
    if kept.level == "off":
        common = common_of(problem) if LEVELS.get(mode) == "off" else with_process_cache(problem)
    return replace(problem, compiler=replace(kept, common=common))


def compile_problem(problem: Problem, mode: str, rounds: int, progress: bool, seconds: float | None = None) -> Problem:
    """The problem as a run compiles it; compiled steps, and the level that works, are kept for the next run."""
    known = problem if problem.compiler.common is not None else with_known_structure(problem, mode)
    kept, common = known.compiler, known.compiler.common
    levels = kept.levels if common is None else common.levels
    if mode not in levels:
        particles, clients = trial(problem)

        def log_density(z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, rows)
            return log_prior + pointwise.sum()

        def scores(z: Tensor, *rows: Tensor) -> Tensor:
            """Scores mapped as in a step: over the particles of each client, and over the clients."""
            found: Tensor = vmap(lambda one: vmap(grad(log_density), (0, None))(z, one))(rows)
            return found

        example = (particles, *clients)
        if mode == "auto":  # whether it can be traced is seen once anything is
            level = "trace" if maps(scores, example) else "loop"
        else:
            level = choose_level(mode, scores, example)
        if level != LEVELS[mode]:  # with a warning, which the next run gives again
            return replace(problem, compiler=kept.at(mode, level, rounds, None, seconds), progress=progress)
        levels[mode] = level
    return replace(problem, compiler=kept.at(mode, levels[mode], rounds, common, seconds), progress=progress)
