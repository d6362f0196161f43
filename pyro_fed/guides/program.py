"""Any Pyro guide as a function of one flat vector of its parameters and of a seed.

    z_s = g_φ(ε_s),    log q_φ(x_s),    s = 1..S        with x the sites' values, z the same on the unconstrained scale

φ contains the guide's `pyro.param` values and its modules' parameters on their unconstrained scales, as Pyro's own
optimisers move them. The guide runs in a param store of its own, whose tensors hold φ during a run. The same seed gives
the same ε for any φ.

The part inside the plate, q(u_k | y_k, x) of a client's own latents, has parameters ψ_k that never leave the client:

    A_k(z, ψ_k) = E[log p(y_k, u_k | x) - log q_ψk(u_k | y_k, x)]       u_k by ε_k of the client, x the values at z

The gradient of A_k in z replaces the score of log p_k, and its gradient in ψ_k moves the client's own parameters. This
part is amortised: a function of the rows, such as a network. A guide with parameters for each row would have to know
which rows a client has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.compiling.compiler import failure
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running.handlers import for_pyro, run_by_pyro, run_model
from pyro_fed.density.running.trace_sites import Message, frame_of, innermost, sum_to_rows
from pyro_fed.density.starts import mapped_draws
from pyro_fed.errors import SettingError
from pyro_fed.guides.guide_runs import check_names, check_support, model_sites, own_params, sampled_sites

#: End of the message that refuses a guide's names.
CURE = "give it these sites, or take an automatic guide such as AutoMultivariateNormal"


class GuideDraws(NamedTuple):
    """Draws of a guide, differentiable in `leaves`."""

    z: Tensor  # (S, D) on the model's unconstrained scale
    log_density: Tensor  # log q_φ of the sites' own values, (S,)
    leaves: list[Tensor]  # the guide's parameters, whose flat vector is φ


@dataclass(frozen=True, eq=False)
class GuideProgram:
    """A guide of one problem."""

    guide: Callable[..., Any]
    problem: Problem
    store: Any  # the state of Pyro's param store during a run
    start: Tensor  # the initial φ, (P,), float64
    own_start: Tensor  # the initial ψ, the parameters of sites inside the plate
    mappable: bool = True  # whether `vmap` can draw several times at once
    is_own: tuple[bool, ...] = ()  # whether each parameter belongs to ψ
    amortised: bool = False  # whether the guide's sites inside the plate are used, which needs that they take any rows

    @property
    def leaves(self) -> list[Tensor]:
        """The parameters φ, unconstrained."""
        return [leaf for leaf, own in zip(_leaves(self.store), self.is_own, strict=True) if not own]

    @property
    def own_leaves(self) -> list[Tensor]:
        """The parameters ψ, unconstrained."""
        return [leaf for leaf, own in zip(_leaves(self.store), self.is_own, strict=True) if own]

    @contextmanager
    def draws(self, params: Tensor, count: int, seed: int) -> Iterator[GuideDraws]:
        """S = `count` draws at φ (P,), with ε from `seed`; within the context they can be differentiated."""
        with self.at(params, seed, self.own_start):
            if self.mappable:
                values, log_density = mapped_draws(self._draw, torch.zeros(count))
            else:
                each = map(self._draw, torch.zeros(count))
                values, log_density = pytree.tree_map(lambda *parts: torch.stack(parts), *each)
            yield GuideDraws(self.problem.vmap(self.problem.unconstrain)(values), log_density, self.leaves)

    def _draw(self, _: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Values of the model's global sites, and the log density of all sites outside the plate."""
        args, kwargs = _one_row(self.problem) if self.amortised else self.problem.arguments.call_arguments()
        trace: Any = poutine.trace(self.guide).get_trace(*args, **kwargs)
        return {name: trace.nodes[name]["value"] for name in self.problem.sites}, self._log_density(trace)

    def _log_density(self, trace: Any) -> Tensor:
        """log q_φ of a trace's sites outside the plate, auxiliary ones included."""
        trace.compute_log_prob()
        nodes = [node for node in sampled_sites(trace).values() if frame_of(node, self.problem.plate) is None]
        return torch.stack([torch.as_tensor(node["log_prob_sum"]) for node in nodes]).sum()

    def points(self, params: Tensor, count: int, seed: int) -> Tensor:
        """z of `draws`, (S, D), without derivatives."""
        with torch.no_grad(), self.draws(params, count, seed) as draws:
            return draws.z.detach()

    def gradient(self, params: Tensor, count: int, seed: int, objective: Callable[[GuideDraws], Tensor]) -> Tensor:
        """∇_φ (P,), float64, of the 0-d `objective` of draws; other arguments as for `draws`."""
        with torch.enable_grad(), self.draws(params, count, seed) as draws:
            value = objective(draws)
            if not value.requires_grad:
                return torch.zeros_like(params)
            slopes = torch.autograd.grad(value, draws.leaves, allow_unused=True, materialize_grads=True)
        return flat(slopes)

    @contextmanager
    def at(self, params: Tensor, seed: int, own: Tensor) -> Iterator[None]:
        """A context in which the guide's parameters are φ (P,) and ψ, `own`, and random numbers come from `seed`."""
        with own_params(seed), run_by_pyro(self.problem.dtype, self.problem.bound.constants):
            pyro.get_param_store().set_state(self.store)
            _write(self.leaves, params)
            _write(self.own_leaves, own)
            try:
                yield
            finally:
                _write(self.leaves, self.start)
                _write(self.own_leaves, self.own_start)


def _leaves(store: Any) -> list[Tensor]:
    """The distinct tensors of a param store's state, sorted by name, since the order of their use may change."""
    return list({id(leaf): leaf for _, leaf in sorted(store["params"].items())}.values())


def _write(leaves: list[Tensor], values: Tensor) -> None:
    for leaf, part in zip(leaves, values.split([leaf.numel() for leaf in leaves]), strict=True):
        leaf.data.copy_(part.reshape(leaf.shape))


def flat(parts: Any) -> Tensor:
    """Tensors as one vector, float64."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(part.detach().double().flatten() for part in parts)])


@lru_cache(maxsize=8)
def guide_program(guide: Any, problem: Problem) -> GuideProgram:
    """The program of a guide: an automatic one, class or instance, a function of the model's arguments or a module.

    Sites inside the plate are used if the guide runs on any rows; otherwise a warning says that they are unused. A
    SettingError names sites that cannot be reparametrised, that only the guide or the model has, or whose values are
    outside the model's support.
    """
    name = getattr(guide, "__name__", type(guide).__name__)
    args, kwargs = problem.arguments.call_arguments()
    constants = problem.bound.constants
    with own_params(0), run_by_pyro(problem.dtype, constants), torch.enable_grad():
        if inspect.isclass(guide):
            model, kind = for_pyro(problem.model, constants, problem.arguments.incomplete), cast(Any, guide)
            guide = kind(poutine.block(model, hide=list(problem.layout.local)))
        trace = poutine.trace(guide).get_trace(*args, **kwargs)
        store = pyro.get_param_store().get_state()
    local = sampled_sites(trace).keys() & problem.layout.local.keys()
    leaves, no_parameters = _leaves(store), torch.zeros(0, dtype=torch.float64)
    program = GuideProgram(
        guide, problem, store, flat(leaves), no_parameters, False, (False,) * len(leaves), bool(local)
    )
    if local and (isinstance(guide, AutoGuide) or not _takes_any_rows(program)):
        program = replace(program, amortised=False)
    _check_sites(name, trace, problem, isinstance(guide, AutoGuide), program.amortised)
    if program.amortised:
        with torch.enable_grad(), program.draws(program.start, 1, 0) as draws:
            total = draws.z.sum() + draws.log_density.sum()
            slopes = torch.autograd.grad(total, draws.leaves, allow_unused=True)
        program = replace(program, is_own=tuple(slope is None for slope in slopes))
        program = replace(program, start=flat(program.leaves), own_start=flat(program.own_leaves))
    if not isinstance(guide, AutoGuide):
        _check_rows(name, program)
    with torch.enable_grad(), program.at(program.start, 0, program.own_start):
        mappable = mapped_draws(program._draw, torch.zeros(2)) is not None
    return replace(program, mappable=mappable)


def _one_row(problem: Problem) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The model's arguments with the smallest number of rows that it can run on."""
    return problem.arguments.rebuild(problem.fewest_rows if problem.arguments.rows else ())


def _takes_any_rows(program: GuideProgram) -> bool:
    """Whether the sites inside the plate are as many as the rows that the guide receives, whatever their number."""
    problem, sizes = program.problem, set[int]()

    def one_row() -> None:
        args, kwargs = _one_row(problem)
        for node in sampled_sites(poutine.trace(program.guide).get_trace(*args, **kwargs)).values():
            if (frame := frame_of(node, problem.plate)) is not None:
                sizes.add(node["fn"].batch_shape[frame.dim])

    with torch.no_grad(), program.at(program.start, 0, program.own_start):
        return not failure(one_row) and sizes == {1}


def _check_rows(guide: str, program: GuideProgram) -> None:
    """Refuse global sites that depend on the rows, since no process has all rows."""
    draws: list[Tensor] = []
    for one_row in (True, False):
        variant = replace(program, amortised=one_row)
        if failure(lambda: draws.append(variant.points(program.start, 1, 0))):  # noqa: B023  # called at once
            return
    if not torch.equal(*draws):
        raise SettingError(
            f"guide {guide}: its draws of {list(program.problem.sites)} change with the rows that it is given, and no "
            "client has all of them: let them depend on parameters alone"
        )


def _check_sites(guide: str, trace: Any, problem: Problem, automatic: bool, amortised: bool) -> None:
    nodes = sampled_sites(trace)
    names = {name for name, node in nodes.items() if not node["infer"].get("is_auxiliary")}
    check_names(guide, names, problem, CURE, warn=not amortised)
    for name, node in nodes.items():
        kind = innermost(node["fn"])
        if not (node["fn"].has_rsample or type(kind).__name__ == "Delta"):
            raise SettingError(
                f"guide {guide}: site '{name}' ({type(kind).__name__}) cannot be reparametrised, which gradients of "
                "its draws need; give it a distribution that has rsample"
            )
    if not automatic:  # an automatic guide draws on the model's own unconstrained scale
        for name, (support, _) in model_sites(problem).items():
            check_support(guide, nodes[name], support)


class _Substituted(Messenger):
    """Substitute values for global sites, and draw the sites inside the plate."""

    def __init__(self, values: Mapping[str, Tensor], plate: str, constants: dict[str, Any]) -> None:
        super().__init__()
        self.values, self.plate, self.constants = values, plate, constants

    def _pyro_sample(self, msg: Message) -> None:
        if msg["name"] in self.values:
            msg["value"], msg["done"] = self.values[msg["name"]], True


def local_gradients(
    program: GuideProgram, own: Tensor, points: Tensor, batch: Batch, seed: int
) -> tuple[Tensor, Tensor]:
    """Gradients (float64) of one client's A_k, averaged over draws z (S, D): in z, times S, and in ψ_k, `own`."""
    with program.at(program.start, seed, own), torch.enable_grad():
        z = points.detach().clone().requires_grad_()

        def value(one: Tensor) -> Tensor:
            return local_bound(program, one, batch)

        bounds = mapped_draws(value, z) if program.mappable else None
        if bounds is None:
            bounds = torch.stack([value(one) for one in z])
        by_point, *by_leaf = torch.autograd.grad(
            bounds.sum(), [z, *program.own_leaves], allow_unused=True, materialize_grads=True
        )
    return by_point.double(), flat(by_leaf) / len(points)


def local_bound(program: GuideProgram, z: Tensor, batch: Batch) -> Tensor:
    """log p(y_k, u_k | x) - log q(u_k | y_k, x) of one draw of u_k, summed over rows, (), within `at`; z is (D,)."""
    problem, rows = program.problem, batch.rows
    guide_trace = drawn_inside(program, problem.execute_at(z, rows).filler.values, rows)
    values = {name: guide_trace.nodes[name]["value"] for name in problem.layout.local}
    global_value = problem.from_vector(z, rows)

    def source(msg: Message, transform: Any) -> Tensor:
        if msg["name"] not in values:
            return global_value(msg, transform)
        unconstrained: Tensor = transform.inv(values[msg["name"]])
        return unconstrained

    _, inside = problem.terms_of(problem.execute(source, rows, densities=True), rows)
    guide_trace.compute_log_prob()
    frames = [(node, frame_of(node, problem.plate)) for node in sampled_sites(guide_trace).values()]
    log_q = [sum_to_rows(node, frame.dim) for node, frame in frames if frame is not None]
    terms = torch.stack([term for site, term in inside.items() if site]).sum(0) - torch.stack(log_q).sum(0)
    return (terms * batch.weight).sum()


def drawn_inside(program: GuideProgram, values: Mapping[str, Tensor], rows: tuple[Tensor, ...]) -> Any:
    """The trace of a guide on some rows (m, ...), given its global sites' `values`; within the program's `at`."""
    problem = program.problem
    sharded = bool(problem.arguments.rows)
    args, kwargs = problem.arguments.rebuild(rows if sharded else ())
    return run_model(
        program.guide,
        args,
        kwargs,
        _Substituted({name: values[name] for name in problem.sites}, problem.plate, problem.bound.constants),
        indices=torch.arange(len(rows[0])) if sharded else rows[0],
        dtype=problem.dtype,
        members=problem.arguments.members(rows),
    ).trace
