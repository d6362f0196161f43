"""Accurate SVGD on the pooled data (Liu & Wang, 2016): `dsvgd` with a single client.

Whitened coordinates, the kernel, the decaying step, the start and the end are those of `dsvgd`, and so is the
fixed point; the form of the DSVGD paper's experiments is `papers.svgd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.point_sites import PointSites
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.importance import AdaptiveImportance
from pyro_fed.infer.stein.modes import Modes, Nearest, OneMode
from pyro_fed.infer.stein.survey import Survey


@dataclass(frozen=True, kw_only=True)
class PooledLaplace(FedLaplace):
    """Newton's method on the pooled data."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledPointSites(PointSites):
    """A diagonal site of the pooled data at the point of an averaging."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledEP(FedEP):
    """The Gaussian nearest to the pooled data's posterior."""

    pooled: ClassVar[bool] = True

    def warm_start(self, problem: Problem) -> Algorithm | None:
        return PooledPointSites() if self.start == "fedavg" else PooledLaplace()


@dataclass(frozen=True, kw_only=True)
class PooledOneMode(OneMode):
    """Whether the pooled data's posterior has one mode."""

    pooled: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PooledModes(Modes):
    """Modes of the pooled data's posterior."""

    pooled: ClassVar[bool] = True
    newton: ClassVar[type[FedLaplace]] = PooledLaplace
    one_mode: ClassVar[type[OneMode]] = PooledOneMode


@dataclass(frozen=True, kw_only=True)
class PooledNearest(Nearest):
    """The Gaussian nearest to the pooled data's posterior, if that has one mode."""

    pooled: ClassVar[bool] = True
    search: ClassVar[type[Modes]] = PooledModes


@dataclass(frozen=True, kw_only=True)
class PooledAdaptiveImportance(AdaptiveImportance):
    """Weighted points of the pooled data's posterior."""

    pooled: ClassVar[bool] = True
    search: ClassVar[type[Modes]] = PooledModes


@dataclass(frozen=True, kw_only=True)
class PooledSurvey(Survey):
    """The survey of the pooled data."""

    pooled: ClassVar[bool] = True
    gaussians: ClassVar[Mapping[str, type[Algorithm]]] = {
        "ep": PooledEP,
        "points": PooledPointSites,
        "laplace": PooledLaplace,
        "nearest": PooledNearest,
    }
    importance: ClassVar[type[AdaptiveImportance]] = PooledAdaptiveImportance


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVGD(DSVGD):
    """Accurate SVGD on the pooled data: `DSVGD` with a single client, which holds all rows.

    Args:
        num_particles: N, at least 2.
        local_steps: L, SVGD steps a round; more than for `DSVGD`, as a round is a pass.
        step_size: learning rate of AdaGrad at the beginning, in SDs of the Gaussian that the particles are whitened by.
        momentum: weight of the past in AdaGrad's running mean of squares, in [0, 1).
        fudge: added to the root of that mean.
        batch_size: rows a step, weighted to all of them; None takes all.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.
        kernel: of the SVGD direction, of `pyro_fed.ops`; the default keeps two moments and the marginals right.
        decay: power of the step's decay, rate (1 + t / 500)^-decay, in [0, 1]; 0 keeps it constant.
        entropy: keep by how much each turn changes the particles' entropy, exactly (figure `entropy_gain`, nats); costs
            D passes over the kernel a step.
        start: start of the particles: "gaussian" (points under the Gaussian of FedEP, or of Laplace in many
            dimensions), "modes" (points under Laplace approximations at each mode that is
            found; in more than 12 dimensions those of one mode under FedEP's Gaussian; or weighted points where the
            posterior is elsewhere), "prior" (draws of the prior), "apart" (the same without surrogates,
            for densities that have no useful mode, as those of neural networks), or "checked" ("gaussian", unless its
            centre is no maximum: then "apart").
            "auto" searches for modes if the prior is proper and the model has at most 30 parameters; it
            otherwise takes the Gaussian, with a check if the prior is proper and the model too large for Hessians.
        end: criterion of the run's end, a `pf.infer.EndOfRun`; not for particles that start apart, which use all
            rounds.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Liu & Wang (2016), Stein variational gradient descent: a general purpose Bayesian inference algorithm.

    Example:
        >>> idata = pf.run(pf.infer.SVGD(num_particles=100), fed)
    """

    pooled: ClassVar[bool] = True
    survey: ClassVar[type[Survey]] = PooledSurvey

    local_steps: int = 50

    def default_rounds(self, num_clients: int) -> int:
        """`end.max_passes` rounds of `local_steps` steps."""
        return self.end.max_passes
