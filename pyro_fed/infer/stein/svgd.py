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
from pyro_fed.infer.laplace.fedlaplace import FedLaplace, PooledLaplace
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.importance import AdaptiveImportance
from pyro_fed.infer.stein.modes import Modes, Nearest, OneMode
from pyro_fed.infer.stein.survey import Survey


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
        local_steps: L, SVGD steps a round; more than for `DSVGD`, as a round is a pass.

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
