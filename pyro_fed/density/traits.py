"""The traits of a model: all properties that a choice of settings may depend on, in one record.

Sizes are stored when the record is made. Traits that need a search of the model's operations, or a run of the model,
are computed at the first access, and stored.

Up to `LARGE_DIM` parameters, curvatures of single rows and expectations at many points are exact, at a cost of rows ×
parameters × points. For more parameters this costs more than a whole run of stochastic gradients. A model of fewer
parameters is also large if its rows have no linear predictors, as in a network, and the scores of its rows at all
values of their observations are too many. A network of 160 parameters took 17 s a round with these scores; its diagonal
Gaussian started at the prior and stayed there, at the accuracy of chance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_fed.ops.memory import count_in_step

#: Models with more parameters than this are large.
LARGE_DIM = 1000
#: Largest number of parameters for which curvatures of rows, and full covariances, are affordable for any model.
FULL_DIM = 100
#: Largest number of parameters for which a few hundred points of a posterior have neighbours.
NEIGHBOURS_DIM = 20
#: A model is also large if rows × parameters × points exceeds this number, about ten seconds a round with a diagonal
#: curvature.
LARGE_WORK = 2_000_000_000
#: Number of points in the definition of a network's size: the algorithms' default number for expectations.
NETWORK_POINTS = 128
#: Rows × points × parameters × values of an observation above which a model of more than `FULL_DIM` parameters is a
#: network: a diagonal Gaussian takes half a second a round and 26 s a run, and stochastic gradients take 2 s to a
#: better log density (343 parameters, 142 rows). This also holds for algorithms without expectations, since they begin
#: with a Gaussian, and a Laplace approximation by Newton's method does not fit a network.
NETWORK_NUMBERS = 10_000_000


class Neck(NamedTuple):
    """The region where the scale of a site is small, by a linear approximation of its logarithm in the flat vector."""

    site: str  # its name
    scales: list[str]  # latents that its scale depends on
    log_scale: float  # the scale's logarithm at zero, the mean over its entries
    slope: Tensor  # derivatives of the logarithm at zero, (D,)


@dataclass(frozen=True, eq=False)
class Traits(ABC):
    """The traits of a model, on the data of all clients.

    Args:
        dim: D, parameters of the flat vector.
        num_rows: rows of all clients.
        evaluations: densities of rows computed in one log-likelihood of all data.
        num_clients: clients that share the rows.
        improper: names of the sites with improper priors.
        local_dim: latents of one row that are integrated out of its likelihood.
        row_latents: names of rows' own latents, integrated out or part of the flat vector.
        rows_in_tensors: whether a row is an entry of tensors, and not a group of nested rows.
        looped: whether the model is run point by point because it cannot be mapped.
        in_units_of_scale: names of the sites that are in units of their scale, in the non-centred form.
        without_curvature: rows whose second derivatives are finite at no point, and the cure; "" if there are none.
        dtype: dtype of the flat vector.
        device: device of clients' steps.
        centred: the traits of the model's own form, if this is its non-centred one.

    Example:
        >>> traits = fed.problem.traits
        >>> traits.dim, traits.linear_predictors, traits.layers
        (8, True, False)
    """

    dim: int
    num_rows: int
    evaluations: int
    num_clients: int
    improper: frozenset[str]
    local_dim: int
    row_latents: tuple[str, ...]
    rows_in_tensors: bool
    looped: bool
    in_units_of_scale: tuple[str, ...]
    without_curvature: str
    dtype: torch.dtype
    device: torch.device
    centred: Traits | None = field(default=None, repr=False)

    @property
    def as_written(self) -> Traits:
        """The traits of the model in its own form."""
        return self.centred or self

    @property
    @abstractmethod
    def linear_predictors(self) -> bool:
        """Whether a row depends on a few numbers that are linear in the parameters, as in a regression."""

    @property
    @abstractmethod
    def layers(self) -> bool:
        """Whether rows pass through layers of weights, which makes a model of any size a network."""

    @property
    @abstractmethod
    def one_outcome(self) -> bool:
        """Whether a row has one observation, whose distribution depends on its inputs and the flat vector alone."""

    @property
    @abstractmethod
    def labels(self) -> bool:
        """Whether a row's observation has finitely many values, so that all rows of a client may have the same."""

    @property
    @abstractmethod
    def observed_values(self) -> int:
        """Number of values of a row's observation in its expected scores."""

    @cached_property
    def non_smooth_scores(self) -> bool:
        """Whether rows' scores jump, as in a quantile regression: in linear predictors, or without them in most rows.

        False for a large model without linear predictors, whose rows are not examined.
        """
        if self.linear_predictors:
            return self.scores_jump(in_predictors=True)
        return not self.large() and self.scores_jump(in_predictors=False)

    @abstractmethod
    def scores_jump(self, in_predictors: bool) -> bool:
        """Whether rows' scores jump, in their linear predictors if `in_predictors`, otherwise in all parameters."""

    @property
    def non_smooth_rows(self) -> bool:
        """Whether scores jump and there are no linear predictors, so that curvatures come from scores alone."""
        return not self.linear_predictors and self.non_smooth_scores

    @property
    @abstractmethod
    def prior_kinks(self) -> Tensor:
        """Coordinates along which the prior's score jumps, such as at zero for a lasso, (D,) bool."""

    @property
    def proper_kinks(self) -> bool:
        """Whether the priors are proper and one has a score that jumps: a mode there has no Laplace approximation."""
        return not self.improper and bool(self.prior_kinks.any())

    @cached_property
    def kinked_prior(self) -> bool:
        """Whether the prior's kinks rule out a Laplace approximation, and the prior is a suitable start.

        If scales are latent, as in a hierarchical lasso, the Gaussian nearest to the prior is too wide for a start: the
        likelihood overflows there, and a Laplace approximation is better. A network is stationary at its prior's mean.
        """
        return self.proper_kinks and not self.layers and not self.latent_scales

    @property
    @abstractmethod
    def latent_scales(self) -> bool:
        """Whether a latent's scale depends on another latent, as in a hierarchical model."""

    @property
    @abstractmethod
    def effects(self) -> tuple[str, ...]:
        """Names of the latents that have a form in units of their latent scale."""

    @property
    @abstractmethod
    def moving_supports(self) -> dict[str, list[str]]:
        """Latents whose support depends on other latents, such as u ~ Uniform(0, theta), with these other latents."""

    @property
    @abstractmethod
    def walls(self) -> tuple[str, ...]:
        """Sites whose density is set to zero on a part of the prior: beyond a parameter's constraint, or if NaN."""

    @property
    @abstractmethod
    def funnel_hint(self) -> list[str]:
        """A sentence on the sites to reparameterise if chains do not mix; none if there are no such sites."""

    @property
    @abstractmethod
    def necks_of_rows(self) -> list[Neck]:
        """The necks of rows' own latents whose scales are latent."""

    @property
    @abstractmethod
    def numbers_of_a_row(self) -> float:
        """Intermediate numbers of one row in a run of the model."""

    def affordable_points(self, rows: int, wanted: int) -> int:
        """The `wanted` number of points, or for a large model the largest even number that memory allows at once.

        `rows` is the number of rows of all clients at each point.
        """
        if not self.many_parameters:
            return wanted
        affordable = count_in_step(rows * self.numbers_of_a_row)
        return min(wanted, max(2, affordable // 2 * 2))

    @property
    def scores_dtype(self) -> torch.dtype:
        """Dtype of stored and sent scores: float64, or the model's own for many parameters."""
        return self.dtype if self.many_parameters else torch.float64

    @abstractmethod
    def require_affordable(self) -> None:
        """Refuse a network whose rows' own latents are too costly to integrate out.

        Raises:
            ModelError: names the latents, the cost and the cures.
        """

    @property
    def points_have_neighbours(self) -> bool:
        """Whether a few hundred points are near each other, so that a mixture around them fits any shape."""
        return self.dim <= NEIGHBOURS_DIM

    @property
    def many_parameters(self) -> bool:
        """Whether the number of parameters alone makes the model large."""
        return self.dim > LARGE_DIM

    @property
    def few_parameters(self) -> bool:
        """Whether full covariances and Hessians are affordable for any model."""
        return self.dim <= FULL_DIM

    def large(self, points: int = 1) -> bool:
        """Whether the model is too large for curvatures row by row.

        `points` is the number of points in an algorithm's expectations, 1 without expectations.
        """
        if self.many_parameters:
            return True
        if self.few_parameters:
            return False
        return self.dim * self.evaluations * points > LARGE_WORK or self._is_network

    @cached_property
    def _is_network(self) -> bool:
        """Whether rows pass through layers, or scores at all values are many and there are no linear predictors."""
        numbers = self.dim * self.evaluations * NETWORK_POINTS
        few_scores = numbers * self.observed_values <= NETWORK_NUMBERS
        return self.layers if few_scores else not self.linear_predictors
