"""Centralised stochastic variational inference with Pyro's own `SVI` and guides: the papers' "GVI".

The guide is an automatic one (class or instance) or a function of the model's arguments. It is fitted in a param store
of its own, so that the user's store is unchanged.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pyro import poutine
from pyro.infer import SVI as PyroSVI
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoGuide, AutoMultivariateNormal
from pyro.optim import ClippedAdam
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, LocalResult, Noise, Start
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import DivergenceError, SettingError
from pyro_fed.guides.guide_runs import KeptDraws, pooled_model


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(KeptDraws, Algorithm):
    """Pyro's SVI on the pooled data, in one round.

    A step runs the model and the guide `num_samples` times by Pyro, which takes some milliseconds each however few rows
    there are. If the guide is a Gaussian of all latents, `GVI` finds the same answer in a handful of Newton steps.

    Args:
        guide: an automatic guide, class or instance, or a guide function of the model's arguments.
        num_steps: number of SVI steps.
        step_size: Adam's learning rate at the beginning, in the guide's own units.
        final_share: ratio of the last learning rate to the first; the rate falls geometrically.
        num_samples: draws of the guide per step.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α. Only for models without latents of rows.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others; an automatic guide for
            a latent whose support depends on other latents.
        DivergenceError: the ELBO is not finite at the end.

    References:
        Kucukelbir et al. (2017), Automatic differentiation variational inference.

    Example:
        >>> idata = pf.run(pf.infer.SVI(num_steps=5000), fed)
        >>> idata = pf.run(pf.infer.SVI(guide=AutoDiagonalNormal), fed)
    """

    pooled: ClassVar[bool] = True
    on_cpu: ClassVar[bool] = True
    joint: ClassVar[bool] = True

    guide: Any = AutoMultivariateNormal
    num_steps: int = 3000
    step_size: float = 0.02
    final_share: float = 0.01
    num_samples: int = 4
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "num_steps", "num_samples")
        check_positive(self, "step_size", "temperature")
        check_between(self, "final_share", 0, 1)

    def default_rounds(self, num_clients: int) -> int:
        """One round, which takes all steps."""
        return 1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start with zeros in place of the guide's draws."""
        return {"draws": torch.zeros(self.kept_draw_count, problem.dim, dtype=problem.dtype)}, {}

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """A seed for Pyro's samplers."""
        return torch.randint(2**31, (1,), generator=generator)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Fit the guide, and draw from it."""
        args, kwargs = problem.arguments.call_arguments()
        is_class = inspect.isclass(self.guide)
        guide_setting: Any = self.guide
        with pooled_model(problem, int(noise[0, 0]), self.temperature) as model:
            guide = guide_setting(model) if is_class else guide_setting
            self._check_sites(problem, guide, args, kwargs)
            rate = {"lr": self.step_size, "lrd": self.final_share ** (1 / self.num_steps)}
            svi = PyroSVI(model, guide, ClippedAdam(rate), Trace_ELBO(num_particles=self.num_samples))
            losses = [svi.step(*args, **kwargs) for _ in range(self.num_steps)]
            if not math.isfinite(losses[-1]):
                raise self._diverged(losses, model, guide, args, kwargs)
            draws = self._draws(problem, guide, args, kwargs)
        return {"draws": draws[None]}, {}, {"negative_elbo": torch.tensor([losses[-1]])}

    def _diverged(self, losses: list[float], model: Any, guide: Any, args: Any, kwargs: Any) -> DivergenceError:
        """The error for an ELBO that is not finite, with the sites that cause it."""
        first = next(number for number, loss in enumerate(losses, 1) if not math.isfinite(loss))
        with torch.no_grad():
            guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
            trace = poutine.trace(poutine.replay(model, guide_trace)).get_trace(*args, **kwargs)
            trace.compute_log_prob()
        nodes = [node for node in trace.nodes.values() if node["type"] == "sample"]
        not_finite = [node["name"] for node in nodes if not bool(torch.isfinite(node["log_prob"]).all())]
        where = f" at its draws now the log density of {not_finite} is not finite." if not_finite else ""
        return DivergenceError(
            f"{type(self).__name__}: the guide's ELBO was first not finite in step {first} of {self.num_steps};{where} "
            f"Take a smaller step_size (now {self.step_size:g}), a guide that begins nearer (init_loc_fn, "
            "init_scale), or dtype=torch.float64"
        )

    def _check_sites(self, problem: Problem, guide: Any, args: Any, kwargs: Any) -> None:
        """Refuse a guide function without the model's latents before it is fitted."""
        if isinstance(guide, AutoGuide):
            return
        nodes = poutine.trace(guide).get_trace(*args, **kwargs).nodes.items()
        guide_sites = {name for name, msg in nodes if msg["type"] == "sample" and not msg["is_observed"]}
        if missing := sorted(problem.sites.keys() - guide_sites):
            raise SettingError(
                f"{type(self).__name__}: the guide lacks the sites {missing}: the model's are {list(problem.sites)}"
            )

    def _draws(self, problem: Problem, guide: Any, args: Any, kwargs: Any) -> Tensor:
        """Draws (S, D), one by one from the guide, unconstrained all at once by the model's transforms."""
        with torch.no_grad():
            traces = [poutine.trace(guide).get_trace(*args, **kwargs).nodes for _ in range(self.kept_draw_count)]
            values = {name: torch.stack([nodes[name]["value"] for nodes in traces]) for name in problem.sites}
            vectors: Tensor = problem.vmap(problem.unconstrain)(values)
        return vectors

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take the draws of the guide from the one client with all rows."""
        return {"draws": messages["draws"][0]}
