"""Any Pyro guide as a function of one flat vector of its parameters and of a seed.

    z_s = g_φ(ε_s),    log q_φ(x_s),    s = 1..S        with x the sites' values, z the same on the unconstrained scale

φ are the guide's `pyro.param` values and the parameters of its modules on their unconstrained scales, as Pyro's own
optimisers move them, so that constraints are kept. The guide runs in a param store of its own, whose tensors get the
values of φ for the time of a run. Random numbers come from the seed: the same seed gives the same ε, whatever φ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.problem import Problem
from pyro_fed.density.running.handlers import for_pyro, run_by_pyro
from pyro_fed.density.running.trace_sites import innermost
from pyro_fed.density.starts import mapped_draws
from pyro_fed.errors import SettingError
from pyro_fed.infer.guides.guide_sites import check_names, check_support, model_sites, sampled_sites
from pyro_fed.infer.guides.param_store import own_params

#: What a refusal of a guide's names ends in.
CURE = "give it these sites, or take an automatic guide such as AutoMultivariateNormal"


class GuideDraws(NamedTuple):
    """Draws of a guide, differentiable in `leaves`.

    Attributes:
        z: (S, D) on the model's unconstrained scale.
        log_density: log q_φ of the sites' own values, (S,).
        leaves: the guide's parameters, whose flat vector is φ.
    """

    z: Tensor
    log_density: Tensor
    leaves: list[Tensor]


@dataclass(frozen=True, eq=False)
class GuideProgram:
    """A guide of one problem.

    Args:
        guide: as it is called.
        problem: the model's densities.
        store: the state of Pyro's param store that the guide runs with.
        start: φ as the guide begins, (P,), float64.
        mappable: whether `vmap` may draw several times at once.
    """

    guide: Callable[..., Any]
    problem: Problem
    store: dict[str, Any]
    start: Tensor
    mappable: bool = True

    @property
    def leaves(self) -> list[Tensor]:
        """The parameters, unconstrained."""
        found: list[Tensor] = list({id(leaf): leaf for leaf in self.store["params"].values()}.values())
        return found

    @contextmanager
    def draws(self, params: Tensor, count: int, seed: int) -> Iterator[GuideDraws]:
        """Draws at φ; their gradients can be taken within the context.

        Args:
            params: φ, (P,).
            count: S.
            seed: of ε.
        """
        with self._at(params, seed):
            found = mapped_draws(self._draw, count) if self.mappable else None
            if found is None:
                found = pytree.tree_map(lambda *parts: torch.stack(parts), *(self._draw() for _ in range(count)))
            values, log_density = found
            yield GuideDraws(self.problem.vmap(self.problem.unconstrain)(values), log_density, self.leaves)

    def _draw(self) -> tuple[dict[str, Tensor], Tensor]:
        """Values of the model's global sites, and the log density of all sites."""
        args, kwargs = self.problem.arguments.call_arguments()
        trace = poutine.trace(self.guide).get_trace(*args, **kwargs)
        return {name: trace.nodes[name]["value"] for name in self.problem.sites}, _log_density(trace)

    def points(self, params: Tensor, count: int, seed: int) -> Tensor:
        """z of `draws`, (S, D), without derivatives.

        Args:
            params: φ, (P,).
            count: S.
            seed: of ε.
        """
        with torch.no_grad(), self.draws(params, count, seed) as found:
            return found.z.detach()

    def gradient(self, params: Tensor, count: int, seed: int, objective: Callable[[GuideDraws], Tensor]) -> Tensor:
        """∇_φ of a function of draws, (P,), float64.

        Args:
            params: φ, (P,).
            count: S.
            seed: of ε.
            objective: of the draws, a 0-d tensor.
        """
        with torch.enable_grad(), self.draws(params, count, seed) as found:
            value = objective(found)
            if not value.requires_grad:
                return torch.zeros_like(params)
            slopes = torch.autograd.grad(value, found.leaves, allow_unused=True, materialize_grads=True)
        return flat(slopes)

    @contextmanager
    def _at(self, params: Tensor, seed: int) -> Iterator[None]:
        """The guide's parameters have the values φ, and afterwards those that they had before."""
        before = self.start
        with own_params(seed), run_by_pyro(self.problem.dtype, self.problem.bound.constants):
            pyro.get_param_store().set_state(self.store)
            self._write(params)
            try:
                yield
            finally:
                self._write(before)

    def _write(self, params: Tensor) -> None:
        leaves = self.leaves
        for leaf, part in zip(leaves, params.split([leaf.numel() for leaf in leaves]), strict=True):
            leaf.data.copy_(part.reshape(leaf.shape))


def flat(parts: Any) -> Tensor:
    """Tensors as one vector, float64."""
    return torch.cat([torch.zeros(0, dtype=torch.float64), *(part.detach().double().flatten() for part in parts)])


@lru_cache(maxsize=8)
def guide_program(guide: Any, problem: Problem) -> GuideProgram:
    """A guide of a problem's global sites; warns of sites inside the plate, which are not used.

    Args:
        guide: an automatic guide, class or instance, a function of the model's arguments, or a `PyroModule`.
        problem: the model's densities.

    Raises:
        SettingError: a site that cannot be reparametrised, one that the model lacks, a global site of the model that
            the guide lacks, or draws outside the model's support.
    """
    name = getattr(guide, "__name__", type(guide).__name__)
    args, kwargs = problem.arguments.call_arguments()
    constants = problem.bound.constants
    with own_params(0), run_by_pyro(problem.dtype, constants), torch.enable_grad():
        if inspect.isclass(guide):
            model = for_pyro(problem.model, constants, problem.arguments.incomplete)
            guide = guide(poutine.block(model, hide=list(problem.layout.local)))
        trace = poutine.trace(guide).get_trace(*args, **kwargs)
        store = pyro.get_param_store().get_state()
    _check_sites(name, trace, problem, isinstance(guide, AutoGuide))
    program = GuideProgram(guide, problem, store, torch.zeros(0))
    program = replace(program, start=flat(program.leaves))
    with torch.no_grad(), program._at(program.start, 0):
        mappable = mapped_draws(program._draw, 2) is not None
    return replace(program, mappable=mappable)


def _check_sites(guide: str, trace: Any, problem: Problem, automatic: bool) -> None:
    nodes = sampled_sites(trace)
    check_names(guide, {name for name, node in nodes.items() if not node["infer"].get("is_auxiliary")}, problem, CURE)
    for name, node in nodes.items():
        kind = innermost(node["fn"])
        if not (node["fn"].has_rsample or type(kind).__name__ == "Delta"):
            raise SettingError(
                f"guide {guide}: site '{name}' ({type(kind).__name__}) cannot be reparametrised, which gradients of "
                "its draws need; give it a distribution that has rsample"
            )
    if not automatic:  # an automatic one draws on the model's own unconstrained scale
        for name, (support, _) in model_sites(problem).items():
            check_support(guide, nodes[name], support)


def _log_density(trace: Any) -> Tensor:
    """log q_φ of a trace's sites, auxiliary ones included."""
    trace.compute_log_prob()
    terms = [torch.as_tensor(node["log_prob_sum"]) for node in sampled_sites(trace).values()]
    return torch.stack(terms).sum()
