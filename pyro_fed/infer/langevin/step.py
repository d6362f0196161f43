"""Step sizes, integration rules and coordinates of Langevin chains.

    h_t = h_0 (1 + t / decay_offset)^-decay          after t steps of the chain

h_0 is set (`Fixed`) or derived: the longest stable step (`Derived`), a step for which visits to clients are short
(`ForVisits`), or one for which the clients' errors, measured in a preliminary round, are small (`Measured`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.nested_settings import Variant, explains_unknown, refuse_unused, shared_settings
from pyro_fed.conventions.setting_checks import check_between, check_positive
from pyro_fed.errors import SettingError

__all__ = ["Derived", "Fixed", "ForVisits", "Measured", "Step"]
__dir__ = public_dir(__all__)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Step(Variant):
    """Base of the steps of Langevin chains.

    Args:
        midpoint: evaluate the score, and take draws, at θ + η/2, whose variance at a Gaussian is exact for every
            stable step.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ, in [0, 1]; 0 keeps the step constant.
        decay_offset: number of steps after which the step has fallen by 2^-γ; only with a `decay`.
    """

    what: ClassVar[str] = "step"
    door: ClassVar[str] = "pf.infer.step"

    midpoint: bool = True
    decay: float = 0.0
    decay_offset: float = 1.0

    def __post_init__(self) -> None:
        check_between(self, "decay", 0, 1, "[]")
        check_positive(self, "decay_offset")
        if self.decay == 0:
            refuse_unused(self, "the step is constant; give decay, such as 0.55", "decay_offset")

    @property
    def given_size(self) -> float | None:
        """h_0 if it is set; None if it is derived."""
        return None

    @property
    def preconditions(self) -> bool:
        """Whether the covariance of p(θ) Π q_s(θ) is the preconditioner; derived steps need it."""
        return True


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Fixed(Step):
    """A step of fixed size.

    Args:
        size: h_0, the variance of the injected noise.
        precondition: whether the covariance of p(θ) Π_s q_s(θ) is the preconditioner, so that one step size suits
            posteriors of any scale.

    References:
        El Mekkaoui et al. (2021), Sections 5.1 and 5.3, for 1e-4. Leimkuhler & Matthews (2013), for the midpoint.

    Example:
        >>> idata = pf.run(pf.FSGLD(step=pf.infer.step.Fixed(size=1e-3)), fed)
    """

    size: float = 1e-4
    precondition: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "size")

    @property
    def given_size(self) -> float | None:
        """The setting `size`."""
        return self.size

    @property
    def preconditions(self) -> bool:
        """The setting `precondition`."""
        return self.precondition


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Derived(Step):
    """The longest stable step, in coordinates in which the posterior is about N(0, I).

    Args:
        largest: largest h, in (0, 1]; stability ends at 4.

    Example:
        >>> idata = pf.run(pf.infer.SGLD(step=pf.infer.step.Derived(largest=0.2)), fed)
    """

    largest: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, "largest", 0, 1)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class ForVisits(Derived):
    """A step for which a visit to a client is short compared with the chain's relaxation time.

    Args:
        visit_time: largest h T, in preconditioned time, where the posterior's relaxation time is 2; None takes the
            algorithm's own: 1, or 0.2 if clients work in parallel.

    Example:
        >>> idata = pf.run(pf.infer.DSGLD(step=pf.infer.step.ForVisits(visit_time=0.5)), fed)
    """

    visit_time: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "visit_time", allow_none=True)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Measured(ForVisits):
    """A step for which the clients' errors, measured in a preliminary round, change the result little.

    Args:
        visit_error: largest share by which the clients' errors may widen a variance; for `FALD`, also the largest
            shift of a mean by the clients' own noise, in SDs. An SD changes by half as much: by default by 1.5 %, the
            precision of 2,000 effective draws.

    Example:
        >>> idata = pf.run(pf.FSGLD(step=pf.infer.step.Measured(visit_error=0.01)), fed)
    """

    visit_error: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "visit_error")

    def unmeasured(self) -> ForVisits:
        """The same without the measurement."""
        return ForVisits(**shared_settings(self, ForVisits))


def check_step_fits(owner: object, step: Step, kinds: tuple[type[Step], ...]) -> None:
    """Refuse a step that a sampler does not accept."""
    if type(step) not in kinds:
        allowed = " or ".join(f"pf.infer.step.{kind.__name__}" for kind in kinds)
        raise SettingError(f"{type(owner).__name__}: step must be {allowed}, received {step!r}")


def check_scale_known(owner: object, step: Step, needs_surrogates: bool) -> None:
    """Refuse a step, or an estimate of the score, that needs surrogates if there are none."""
    name = type(owner).__name__
    if step.given_size is None:
        raise SettingError(
            f"{name}: without surrogates the step has no scale: give step=pf.infer.step.Fixed(size=..., "
            "precondition=False)"
        )
    if step.preconditions or needs_surrogates:
        raise SettingError(
            f"{name}: precondition, control_variate at the mode and conducive gradients need surrogates, received None"
        )
