"""The settings of the Langevin samplers, and what follows from them alone; `infer.langevin` has the dynamics."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.schedule import Categorical, Schedule, Shuffled
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_choice, check_positive
from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.chains import ChainAlgorithm
from pyro_fed.infer.surrogates.phase import NAMES, Name, surrogate_phase
from pyro_fed.infer.surrogates.surrogates import Given


@dataclass(frozen=True, kw_only=True)
class LangevinSettings(ChainAlgorithm):
    """Settings of chains of Langevin steps that visit clients.

    Args: as for `ChainAlgorithm`, and
        batch_size: m, rows a step; None takes all of a client's rows.
        step_size: h_0, the variance of the injected noise; None derives it, for preconditioned chains.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ; 0 keeps the step constant.
        decay_offset: steps after which the step has fallen to 2^-γ.
        probabilities: f_s; uniform by default.
        sweeps: every client once in each sweep, in random order, where f_s is uniform; else clients are drawn anew for
            each visit.
        surrogates: where the Gaussians q_s come from: an algorithm that leaves Gaussian sites (see
            `infer.surrogates`), "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors
            better, "local_sgld" for `LocalSGLD()`, or `Given`; None runs without (a step size is then needed). "auto":
            "fedep" as far as that has a full covariance by default, and "laplace" beyond.
        precondition: use the covariance of p(θ) Π q_s(θ) as preconditioner.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π q_s(θ).
        midpoint: evaluate and keep the chain at θ + η/2.
        largest_step: largest h where none is given; stability ends at 4.
        visit_time: largest h T where no step is given.
        trust: the conducive gradient is bounded beyond √D + trust posterior SDs from the mode; None: never.
    """

    batch_size: int | None = 100
    step_size: float | None = None
    decay: float = 0.0
    decay_offset: float = 1.0
    probabilities: tuple[float, ...] | None = None
    sweeps: bool = True
    surrogates: Algorithm | Given | Name | None = "auto"
    precondition: bool = True
    control_variate: bool = True
    midpoint: bool = True
    largest_step: float = 0.5
    visit_time: float = 1.0
    trust: float | None = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 1, "batch_size", allow_none=True)
        check_positive(self, "step_size", "trust", allow_none=True)
        check_positive(self, "decay_offset", "visit_time")
        check_between(self, "largest_step", 0, 1)
        if isinstance(self.surrogates, str):
            check_choice(self, "surrogates", NAMES)
        check_between(self, "decay", 0, 1, "[]")
        if self.step_size is None and not (self.precondition and self.surrogates):
            raise SettingError(f"{self._name}: without preconditioner the step has no scale: give step_size")
        if self.surrogates is None and (self.precondition or self.control_variate or self.conducive_weight):
            raise SettingError(
                f"{self._name}: precondition, control_variate and conducive gradients need surrogates, received None"
            )
        self._check_probabilities()

    def _check_probabilities(self) -> None:
        f = self.probabilities
        if f is not None and not (min(f, default=0) > 0 and math.isclose(sum(f), 1, rel_tol=1e-9)):
            raise SettingError(f"{self._name}: probabilities must be positive and sum to one, received {f}")

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def conducive_weight(self) -> float:
        """α of Eq. (7); zero without conducive gradients."""
        return 0.0

    def default_schedule(self) -> Schedule:
        """One client a chain: in random sweeps, or drawn with probabilities f_s."""
        return Shuffled() if self.in_sweeps else Categorical(self.probabilities)

    @property
    def in_sweeps(self) -> bool:
        """Whether each sweep takes every client once."""
        return self.sweeps and self.probabilities is None

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """What fits the surrogates."""
        return surrogate_phase(self.surrogates, problem)
