"""Compilation of steps: mapped over clients, traced once to tensor operations, and compiled.

Levels; if a level fails for a model, the next one is used, with one warning that says why:

    inductor   graph of operations given to torch.compile
    trace      graph of operations, run by torch.fx
    off        torch.func.vmap of the Pyro model, every call
    loop       one particle and one client at a time (for example a model with a data-dependent `if`)

`auto` decides by the number of calls of each step. The first `TRACE_AFTER` calls run by vmap, at the cost of a trace.
Then the step is traced, and compiled by Inductor if the number of calls repays the compilation. Scans of at least
`TRACE_AFTER` steps are traced at once.

Decisions do not depend on a clock, so that a run can be repeated exactly. (A run with a time limit cannot; what it
compiles depends on the time that is left at the start of a phase.) The number of calls of a step depends on earlier
runs in the process, but its results must not: a trace agrees with vmap to the bit.

Traces are stored for later runs of the problem, and for other federations of the same model (`process`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.conventions.resources import tick
from pyro_fed.density.compiling.inductor import does_the_same, inductor
from pyro_fed.density.compiling.recording import record
from pyro_fed.density.compiling.tracing import Step, eager, trace
from pyro_fed.density.rows.files import is_mapped, let_go
from pyro_fed.errors import ContractError, SettingError, warn_user
from pyro_fed.ops.batched import leaf_dims, loop_map, vmap

#: Values of `run`'s `compile`, and the preferred level of each.
LEVELS = {"auto": "trace", "off": "off", "trace": "trace", "inductor": "inductor"}
MODES = tuple(LEVELS)

#: Exceptions of a model that cannot be mapped or traced.
FAILURES = (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError)
#: Seconds that Inductor saves per call and graph node, and seconds of a compilation, and more for each node (measured,
#: one thread).
SECONDS_SAVED_PER_NODE = 2.5e-6
SECONDS_TO_COMPILE, SECONDS_TO_COMPILE_NODE = 4.0, 0.02
#: Largest share of the remaining time of a run with a time limit for the compilation of one step: a run compiles
#: several steps, a new process first loads Inductor, and other processes may use the machine.
COMPILING_SHARE = 0.1
#: Calls by vmap that cost as much as a trace (measured, one thread: 4 to 9).
TRACE_AFTER = 4
#: Number of calls below which Inductor does not pay for any graph.
MIN_INDUCTOR_CALLS = SECONDS_TO_COMPILE_NODE / SECONDS_SAVED_PER_NODE


class SharedCache(Protocol):
    """Steps shared by runs of the same model in a process, see `process.Common`."""

    steps: dict[Any, Step]
    calls: dict[Any, int]
    levels: dict[str, str]
    found: dict[Any, Any]

    def may_keep(self, function: Callable[..., Any] | None, problem: Any) -> bool:
        """Whether a new step, or a fact about the model, may be stored for other runs."""


@dataclass(frozen=True)
class Compiler:
    """Compiles steps of one problem, at one level, by the shapes of their inputs; `replace` keeps the caches."""

    level: str  # "inductor", "trace", "off" or "loop"
    auto: bool = False  # choose between vmap, "trace" and "inductor" for each step by its number of calls
    rounds: int = 1  # number of remaining rounds, for an estimate of the number of calls
    seconds: float | None = None  # time for these rounds; None if time is not limited
    cache: dict[Any, Step] = field(default_factory=dict)  # the steps, shared by all compilers of the same model
    levels: dict[str, str] = field(default_factory=dict)  # the level that works for each mode, shared too
    # compilers of other forms of the same problem by name, shared too
    kin: dict[str, Compiler] = field(default_factory=dict)
    # number of calls of each step before it was traced, shared too
    calls: dict[Any, int] = field(default_factory=dict)
    # steps that other federations of the same model have traced; None if unknown
    common: SharedCache | None = None
    untraceable: list[str] = field(default_factory=list)  # the reason why steps of this run cannot be traced, if any
    found: dict[Any, Any] = field(default_factory=dict)  # facts about the model, by name, see `find_once`
    # densities of a few rows in the last run, see `process.with_process_cache`
    probe: dict[str, Any] = field(default_factory=dict)

    def at(
        self, mode: str, level: str, rounds: int, common: SharedCache | None = None, seconds: float | None = None
    ) -> Compiler:
        """The compiler of a run at a level; `common` has the steps of other federations."""
        auto = mode == "auto" and level == "trace"
        return replace(self, level=level, auto=auto, rounds=rounds, seconds=seconds, common=common, untraceable=[])

    def __reduce__(self) -> Any:
        """Pickle without compiled steps, which belong to their process."""
        return Compiler, (self.level, self.auto, self.rounds, self.seconds)

    def forget(self) -> None:
        """Drop the steps of a model that has changed, in all of its forms."""
        for cache in (self.cache, self.levels, self.calls, self.found):
            cache.clear()
        for other in self.kin.values():
            other.forget()

    def for_checks(self) -> Compiler:
        """A compiler for checks after a run, with the same steps and without Inductor."""
        return replace(self, level="trace" if self.level == "inductor" else self.level, rounds=1)

    def of_form(self, name: str) -> Compiler:
        """The compiler of another form of the problem, by name; every call returns the same object."""
        return self.kin.setdefault(name, Compiler(self.level))

    def find_once(self, name: Any, find: Callable[[], Any], problem: Any) -> Any:
        """A fact about the model's graph, by a hashable name; computed once, without rows, for all federations."""
        if name not in self.found:
            if self.common is not None and name in self.common.found:
                self.found[name] = self.common.found[name]
            else:
                self.found[name] = find()
                if self.common is not None and self.common.may_keep(None, problem):
                    self.common.found[name] = self.found[name]
        return self.found[name]

    def vmap(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`torch.func.vmap`, or a Python loop at level "loop"; axes are 0 or None."""
        return loop_map(function, in_dims) if self.level == "loop" else vmap(function, in_dims=in_dims)

    def mapped(self, function: Callable[..., Any], problem: Any, in_dims: Any, calls: int = 1) -> Callable[..., Any]:
        """`function(problem, *args)` mapped over clients and compiled; `calls` is its number of calls in a round."""

        def call(*args: Any) -> Any:
            tick()
            leaves = pytree.tree_leaves(args)
            step = self._compiled(function, problem, in_dims, args, calls, 1)
            return pytree.tree_unflatten(step.run(*leaves), step.spec())

        return call

    def flat(
        self, function: Callable[..., Any], problem: Any, in_dims: Any, args: Any, calls: int
    ) -> Callable[..., list[Tensor]]:
        """`mapped` for arguments of the structure of `args`, as a function of their leaves, with a single look-up."""
        run: Callable[..., list[Tensor]] = self._compiled(function, problem, in_dims, args, calls, calls).run

        def call(*leaves: Tensor) -> list[Tensor]:
            tick()
            return run(*leaves)

        return call

    def scan(
        self,
        function: Callable[..., Any],
        problem: Any,
        carry: Any,
        const: Any,
        xs: Any,
        length: int,
        const_dims: Any = 0,
    ) -> tuple[Any, Any]:
        """`length` compiled steps for all clients, see `Problem.scan`: last carry, outputs (length, C, ...)."""
        if length == 0:
            return carry, ()
        state, carried = _carry_leaves(carry)
        (fixed, const_spec), (inputs, xs_spec) = pytree.tree_flatten(const), pytree.tree_flatten(xs)
        if any(x.shape[:1] != (length,) for x in inputs):
            raise _other_steps(function, xs, length)
        unbound = [x.unbind() for x in inputs]
        per_step = list(zip(*unbound, strict=True)) if inputs else [()] * length
        leaves, specs = [*state, *fixed, *per_step[0]], (carried, const_spec, xs_spec)
        step = self._step(function, problem, (0, const_dims, 0), leaves, specs, length, length)
        state, outs = _run_steps(step, state, fixed, per_step)
        stacked = [torch.stack(parts) for parts in zip(*outs, strict=True)]
        result = pytree.tree_unflatten(state + stacked, step.spec())
        if not (isinstance(result, tuple) and len(result) == 2):
            raise ContractError(
                f"expected `{_name_of(function)}` to return (carry, out); received one {type(result).__name__}. A step "
                "without an `out` returns (carry, ())"
            )
        return result

    def scans(
        self,
        function: Callable[..., Any],
        problem: Any,
        carry: Any,
        const: Any,
        xs: Any,
        at: Tensor,
        const_dims: Any = 0,
        every: Any = 1,
    ) -> tuple[Any, Any]:
        """Successive scans, each with the constants of other clients, see `Problem.scans`.

        `at` (B, C) are the clients of each scan. Returns the carry after each scan, (B, C, ...), and the outputs of
        each `every`-th step, (B T, C, ...).
        """
        state, carried = _carry_leaves(carry)
        (fixed, const_spec), (inputs, xs_spec) = pytree.tree_flatten(const), pytree.tree_flatten(xs)
        dims = leaf_dims(const_dims, const)
        turns = _turns(fixed, dims, at)
        if turns is None:
            constants_of_scans = _client_constants(fixed, dims, at)
        else:
            constants_of_scans = repeat([leaf.contiguous() for leaf in fixed], len(at))
            inputs = [_in_order(x, turns.order) for x in inputs]
        unbound, specs = [x.unbind() for x in inputs], (carried, const_spec, xs_spec)
        per_step = list(zip(*unbound, strict=True))
        length = len(per_step) // len(at)
        carries, outs = list[list[Tensor]](), list[list[Tensor]]()
        for block, constants in enumerate(constants_of_scans):
            if turns is not None:
                state = [leaf.index_select(0, turns.moves[block]) for leaf in state]
            leaves = [*state, *constants, *per_step[block * length]]
            if not block:
                step = self._step(function, problem, (0, const_dims, 0), leaves, specs, length, length)
            state, block_outs = _run_steps(step, state, constants, per_step[block * length : (block + 1) * length])
            carries.append(state)
            outs += block_outs
        positions = pytree.tree_unflatten(range(len(state) + len(outs[0])), step.spec())
        strides = leaf_dims(every, positions[1])
        stacked = [torch.stack(parts) for parts in zip(*carries, strict=True)]
        for parts, stride in zip(zip(*outs, strict=True), strides, strict=True):
            stacked.append(torch.stack(parts[(stride or 1) - 1 :: stride]))
        if turns is not None:
            stacked = [_in_order(value, at) for value in stacked]
        last, outputs = pytree.tree_unflatten(stacked, step.spec())
        return last, outputs

    def _compiled(
        self, function: Callable[..., Any], problem: Any, in_dims: Any, args: Any, calls: int, now: int
    ) -> Step:
        """The step for these arguments, called `calls` times a round, and `now` times before the next look-up."""
        flat = [pytree.tree_flatten(part) for part in args]
        leaves = [leaf for part, _ in flat for leaf in part]
        return self._step(function, problem, in_dims, leaves, tuple(spec for _, spec in flat), calls, now)

    def _step(
        self,
        function: Callable[..., Any],
        problem: Any,
        in_dims: Any,
        leaves: list[Tensor],
        specs: tuple[pytree.TreeSpec, ...],
        calls: int,
        now: int,
    ) -> Step:
        """The step for the leaves of all arguments and the structure of each argument."""
        shapes = tuple((leaf.shape, leaf.stride(), leaf.dtype, leaf.device) for leaf in leaves)
        traced = self.level in ("trace", "inductor")
        without_inductor = self.auto and traced and calls * self.rounds <= MIN_INDUCTOR_CALLS
        level = "trace" if traced else self.level
        key = (_identity(function), problem.quadrature, level, _Forms(specs), shapes)
        step = self._known_step(key)
        if step is None:
            remaining = iter(leaves)
            parts = [pytree.tree_unflatten([next(remaining) for _ in range(part.num_leaves)], part) for part in specs]
            spec = pytree.tree_structure(tuple(parts))
            batched = self.vmap(partial(function, problem), in_dims)
            is_rare = without_inductor and self._seldom(key, now)
            traced_step = None if is_rare or not traced else self._traced(batched, spec, leaves)
            step = traced_step or eager(batched, spec)
            if traced_step is None and traced:
                return step
            self.cache[key] = step
            if traced and self.common is not None and self.common.may_keep(function, problem):
                self.common.steps[key] = step
        if self.level == "inductor" or (self.auto and traced):
            threads = torch.get_num_threads()  # is part of the code
            code, total_calls = step.inductor.get(threads), calls * self.rounds
            # The search for a C++ compiler reads the disk, so that it comes last.
            if (
                self.level == "inductor"
                or (code and repays(step.num_nodes, total_calls))
                or (in_time(step.num_nodes, self.seconds) and pays(step.num_nodes, total_calls))
            ):
                if code is None:
                    code = step.inductor[threads] = self._code(step, leaves)
                return replace(step, run=code)
        return step

    def _code(self, step: Step, leaves: list[Tensor]) -> Callable[..., Any]:
        """Inductor's code, or the graph itself if no code agrees with it."""
        try:
            code = inductor(step.unfolded_graph(), leaves)
            if does_the_same(code, step, leaves):
                return code
            reason = "gives other numbers than the step itself"
        except Exception as error:  # of any kind: the graph can be run without the compiler
            reason = f"cannot be compiled ({reason_of(error)})"
        if self.level == "inductor":
            warn_user(f"Inductor's code for a step {reason}; the traced step is run, which is slower and correct")
        run: Callable[..., Any] = step.run
        return run

    def _known_step(self, key: Any) -> Step | None:
        """A step that is already stored, by this problem or another one."""
        if key not in self.cache and self.common is not None and key in self.common.steps:
            self.cache[key] = self.common.steps[key]
        return self.cache.get(key)

    def _seldom(self, key: Any, now: int) -> bool:
        """Count a call of a step, and return whether it has been called too rarely to be traced."""
        counts = self.calls if self.common is None else self.common.calls
        counts[key] = counts.get(key, 0) + max(now, 1)
        return counts[key] < TRACE_AFTER

    def _traced(self, batched: Callable[..., Any], spec: Any, leaves: list[Tensor]) -> Step | None:
        """A traced step; None if it cannot be traced in mode `auto`, with one warning a run."""
        if self.untraceable:
            return None
        try:
            return trace(batched, spec, leaves)
        except FAILURES as error:
            if not self.auto:
                raise
            self.untraceable.append(reason_of(error))
        warn_untraceable(self.untraceable[0])
        return None


class _Forms(tuple[pytree.TreeSpec, ...]):
    """Structures of all arguments as a part of a key; torch 2.6 cannot hash structures of dicts, which hold lists."""

    def __hash__(self) -> int:
        return hash(tuple((form.type, form.num_nodes, form.num_leaves) for form in self))


def _identity(function: Any) -> Any:
    """The identity of a function: methods of equal objects are the same step."""
    return (function.__func__, function.__self__) if hasattr(function, "__self__") else function


def pays(num_nodes: int, calls: int) -> bool:
    """Whether Inductor is available and repays its compilation, for numbers of operations and of calls in the run."""
    return repays(num_nodes, calls) and has_cpp_compiler()


def repays(num_nodes: int, calls: int) -> bool:
    """Whether Inductor repays its compilation, from counts alone; arguments as for `pays`."""
    seconds_saved = SECONDS_SAVED_PER_NODE * num_nodes * calls
    return seconds_saved > SECONDS_TO_COMPILE + SECONDS_TO_COMPILE_NODE * num_nodes


def in_time(num_nodes: int, seconds: float | None) -> bool:
    """Whether Inductor compiles a step in its share of a time limit, see `COMPILING_SHARE`; None for no limit."""
    return seconds is None or SECONDS_TO_COMPILE + SECONDS_TO_COMPILE_NODE * num_nodes <= COMPILING_SHARE * seconds


def has_cpp_compiler() -> bool:
    """Whether Inductor can compile here."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def choose_level(mode: str, function: Callable[..., Any], example: tuple[Tensor, ...]) -> str:
    """The best level, up to `mode`, at which a function works: "inductor", "trace", "off" or "loop"."""
    if mode not in MODES:
        raise SettingError(f"compile must be one of {MODES}, received {mode!r}")
    if mode == "inductor" and not has_cpp_compiler():
        raise SettingError("compile='inductor' needs a C++ compiler on the path; install one or use 'trace'")
    preferred = LEVELS[mode]
    reason = "" if preferred == "off" else failure(lambda: record(function, example))
    if not reason and preferred != "off":
        return preferred
    if not maps(function, example):
        return "loop"
    if reason:
        warn_untraceable(reason)
    return "off"


def maps(function: Callable[..., Any], example: tuple[Tensor, ...]) -> bool:
    """Whether `vmap` can run a function of tensors; if not, a warning says that the model is slower."""
    reason = failure(lambda: function(*example))
    if reason:
        warn_user(f"the model cannot be vectorised ({reason}); it is run one particle at a time, many times slower")
    return not reason


def _carry_leaves(carry: Any) -> tuple[list[Tensor], Any]:
    """Copies of the carry's leaves, which may also be constants, and their structure."""
    state, spec = pytree.tree_flatten(carry)
    return [leaf.clone(memory_format=torch.contiguous_format) for leaf in state], spec


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))


def _other_steps(function: Callable[..., Any], xs: Any, length: int) -> ContractError:
    """The error for inputs of another number of steps than `length`."""
    shapes = {pytree.keystr(path): tuple(leaf.shape) for path, leaf in pytree.tree_flatten_with_path(xs)[0]}
    received = ", ".join(f"xs{place} {shape}" for place, shape in shapes.items() if shape[:1] != (length,))
    return ContractError(
        f"expected inputs of {length} steps of `{_name_of(function)}`, (steps, C, ...); received "
        f"{received}. `draw_noise` returns one client's tensors, (steps, ...): steps on the first axis, without an "
        "axis of clients, which the run adds as the second"
    )


def _run_steps(
    step: Step, state: list[Tensor], constants: Sequence[Tensor], inputs: Sequence[Sequence[Tensor]]
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The carry's leaves after steps with these inputs, and the outputs of each step."""
    outs = []
    in_files = [leaf for leaf in constants if is_mapped(leaf)]
    for step_inputs in inputs:
        tick()
        out = step.run(*state, *constants, *step_inputs)
        for leaf in in_files:
            let_go(leaf)
        state = list(out[: len(state)])
        outs.append(list(out[len(state) :]))
    return state, outs


class _Turns(NamedTuple):
    """Permutations of the carry of C clients: `order` in each scan (B, C), and `moves` from the previous scan."""

    order: Tensor
    moves: tuple[Tensor, ...]


def _turns(leaves: list[Tensor], dims: list[int | None], at: Tensor) -> _Turns | None:
    """Permutations of the carry, cheaper than a selection of constants; None unless each scan has each client once."""
    count = at.shape[1]
    if any(dim is not None and len(leaf) != count for leaf, dim in zip(leaves, dims, strict=True)):
        return None
    clients, order = at.sort(1)
    if not bool((clients == torch.arange(count, device=at.device)).all()):
        return None
    return _Turns(order, torch.cat([order[:1], at[:-1].gather(1, order[1:])]).unbind())


def _in_order(value: Tensor, order: Tensor) -> Tensor:
    """The entries along the second axis of (B T, C, ...), reordered by (B, C) in each of the B scans."""
    steps, count = len(value) // len(order), order.shape[1]
    first = count * torch.arange(len(value), device=value.device).unsqueeze(1)
    rows = first + order.repeat_interleave(steps, 0)
    reordered: Tensor = value.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, (len(value), count))
    return reordered


def _client_constants(leaves: list[Tensor], dims: list[int | None], at: Tensor) -> Iterator[list[Tensor]]:
    """The constants of each scan's clients (B, C); constants that are equal for all clients are selected once."""
    is_equal = [None if dim is None else bool((leaf == leaf[:1]).all()) for leaf, dim in zip(leaves, dims, strict=True)]
    selected = [
        leaf if same is None else leaf.index_select(0, at[0]) if same else None
        for leaf, same in zip(leaves, is_equal, strict=True)
    ]
    for clients in at:
        yield [
            leaf.index_select(0, clients) if selected_leaf is None else selected_leaf
            for leaf, selected_leaf in zip(leaves, selected, strict=True)
        ]


def warn_untraceable(reason: str) -> None:
    """Warn that a model is run by vmap, and why."""
    warn_user(f"the model cannot be traced ({reason}); it is run by vmap, several times slower")


def failure(attempt: Callable[[], Any]) -> str:
    """The reason why an attempt failed, in one line; empty if it succeeded."""
    try:
        attempt()
    except FAILURES as error:
        return reason_of(error)
    return ""


def reason_of(error: Exception) -> str:
    """The message of an error, in one line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Run with `count` torch threads (None leaves them unchanged), and restore the former number."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
