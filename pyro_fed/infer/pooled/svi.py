"""Centralised stochastic variational inference with Pyro's own `SVI` and guides: the papers' "GVI".

The guide is an automatic one (class or instance) or a function of the model's arguments. It is fitted in a param store
of its own, so that the user's store is unchanged; its parameters travel between rounds as tensors, unconstrained.
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

    A step runs the model and the guide `num_samples` times by Pyro, some milliseconds of each however few the rows are.
    Where the guide is a Gaussian of all latents, `GVI` finds the same by a handful of expected Newton steps.

    Args:
        guide: an automatic guide, class or instance, or a guide function of the model's arguments.
        num_steps: steps of SVI.
        step_size: Adam's learning rate at the beginning, in the guide's own units.
        final_share: what share of the learning rate is left at the end; it falls geometrically.
        num_samples: draws of the guide a step.
        num_guide_draws: draws of the fitted guide that are kept, each returned once by `run`; None keeps as many
            as it is asked for, and 4,000 at least.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α. Of models without latents of rows' own.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others; an automatic guide, and
            a latent whose support moves with others.
        DivergenceError: the ELBO is NaN at the end.

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
        """One round, in which all steps are made."""
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
        made = inspect.isclass(self.guide)
        given: Any = self.guide
        with pooled_model(problem, int(noise[0, 0]), self.temperature) as model:
            guide = given(model) if made else given
            self._check_sites(problem, guide, args, kwargs)
            rate = {"lr": self.step_size, "lrd": self.final_share ** (1 / self.num_steps)}
            svi = PyroSVI(model, guide, ClippedAdam(rate), Trace_ELBO(num_particles=self.num_samples))
            losses = [svi.step(*args, **kwargs) for _ in range(self.num_steps)]
            if not math.isfinite(losses[-1]):
                raise self._diverged(losses, model, guide, args, kwargs)
            draws = self._draws(problem, guide, args, kwargs)
        return {"draws": draws[None]}, {}, {"negative_elbo": torch.tensor([losses[-1]])}

    def _diverged(self, losses: list[float], model: Any, guide: Any, args: Any, kwargs: Any) -> DivergenceError:
        """The error for an ELBO that is NaN, with the sites that cause it."""
        first = next(number for number, loss in enumerate(losses, 1) if not math.isfinite(loss))
        with torch.no_grad():
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            trace = poutine.trace(poutine.replay(model, drawn)).get_trace(*args, **kwargs)
            trace.compute_log_prob()
        nodes = [node for node in trace.nodes.values() if node["type"] == "sample"]
        lost = [node["name"] for node in nodes if not bool(torch.isfinite(node["log_prob"]).all())]
        where = f" at its draws now the log density of {lost} is not finite." if lost else ""
        return DivergenceError(
            f"{type(self).__name__}: the guide's ELBO was first no number in step {first} of {self.num_steps};{where} "
            f"Take a shorter step_size ({self.step_size:g} was taken), a guide that begins nearer (init_loc_fn, "
            "init_scale), or dtype=torch.float64"
        )

    def _check_sites(self, problem: Problem, guide: Any, args: Any, kwargs: Any) -> None:
        """Refuse a function that does not have the model's latents, before it is fitted."""
        if isinstance(guide, AutoGuide):
            return
        nodes = poutine.trace(guide).get_trace(*args, **kwargs).nodes.items()
        own = {name for name, msg in nodes if msg["type"] == "sample" and not msg["is_observed"]}
        if missing := sorted(problem.sites.keys() - own):
            raise SettingError(
                f"{type(self).__name__}: the guide lacks the sites {missing}: the model's are {list(problem.sites)}"
            )

    def _draws(self, problem: Problem, guide: Any, args: Any, kwargs: Any) -> Tensor:
        """Draws (S, D), one by one from the guide, and all at once through the model, which has their transforms."""
        with torch.no_grad():
            traces = [poutine.trace(guide).get_trace(*args, **kwargs).nodes for _ in range(self.kept_draw_count)]
            values = {name: torch.stack([nodes[name]["value"] for nodes in traces]) for name in problem.sites}
            vectors: Tensor = problem.vmap(problem.unconstrain)(values)
        return vectors

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Take the draws of the guide from the one client with all rows."""
        return {"draws": messages["draws"][0]}
