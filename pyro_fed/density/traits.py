"""The traits of a model: everything that a choice of settings may depend on, in one record.

Sizes are known from the beginning. Traits that need a search of the model's operations, or a run of the model, are
found at the first access, and stored.

Up to `LARGE_DIM` parameters, curvatures of single rows and expectations at many points are exact, and cost rows ×
parameters × points. Beyond, that costs more than a whole run of stochastic gradients. A model of fewer parameters is
also large if its rows have no linear predictors, as those of a network, and each row's scores at all values of its
observation are too many: a network of 160 parameters took 17 s a round in this way, and as a diagonal Gaussian that
starts at the prior it stayed there, at the accuracy of chance.
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
#: Parameters up to which curvatures of rows, and full covariances, are affordable for any model.
FULL_DIM = 100
#: Parameters up to which some hundred points of a posterior have neighbours.
NEIGHBOURS_DIM = 20
#: A model is large, too, if its curvature is diagonal and a round takes more numbers than this: rows × parameters ×
#: points, about ten seconds a round.
LARGE_WORK = 2_000_000_000
#: Points at which a network's size is judged: the algorithms' default number for expectations.
NETWORK_POINTS = 128
#: Rows × points × parameters × values of an observation above which a model of more than `FULL_DIM` parameters is a
#: network: half a second a round of a diagonal Gaussian, and 26 s a run; stochastic gradients take 2 s to a better log
#: density (343 parameters, 142 rows). Algorithms without expectations begin with a Gaussian too, and Laplace's at the
#: end of Newton's method does not fit a network.
NETWORK_NUMBERS = 10_000_000


class Neck(NamedTuple):
    """Where the scale of a site is small, as far as its logarithm is linear in the flat vector."""

    site: str  # its name
    scales: list[str]  # latents that its scale depends on
    log_scale: float  # the scale's logarithm at zero, the mean over its entries
    slope: Tensor  # that logarithm's derivatives there, (D,)


class Search(ABC):
    """Finds those traits of one model that need a run of it, or a search of its operations; see `Traits` for each."""

    @abstractmethod
    def linear_predictors(self) -> bool: ...

    @abstractmethod
    def layers(self) -> bool: ...

    @abstractmethod
    def one_outcome(self) -> bool: ...

    @abstractmethod
    def labels(self) -> bool: ...

    @abstractmethod
    def observed_values(self) -> int: ...

    @abstractmethod
    def scores_jump(self, in_predictors: bool) -> bool:
        """Whether rows' scores jump: in their linear predictors if `in_predictors`, or else in all parameters."""

    @abstractmethod
    def prior_kinks(self) -> Tensor: ...

    @abstractmethod
    def latent_scales(self) -> bool: ...

    @abstractmethod
    def require_affordable(self) -> None: ...

    @abstractmethod
    def effects(self) -> tuple[str, ...]: ...

    @abstractmethod
    def moving_supports(self) -> dict[str, list[str]]: ...

    @abstractmethod
    def walls(self) -> tuple[str, ...]: ...

    @abstractmethod
    def funnel_hint(self) -> list[str]: ...

    @abstractmethod
    def necks_of_rows(self) -> list[Neck]: ...

    @abstractmethod
    def numbers_of_a_row(self) -> float:
        """Numbers that a run of the model makes for one row."""


@dataclass(frozen=True, eq=False)
class Traits:
    """The traits of a model, on the data of all clients.

    Args:
        dim: D, parameters of the flat vector.
        num_rows: rows of all clients.
        evaluations: densities of rows computed in one log-likelihood of all data.
        num_clients: clients that share the rows.
        improper: names of the sites with improper priors.
        local_dim: latents of one row that are integrated out of its likelihood.
        row_latents: names of rows' own latents, integrated out or part of the flat vector.
        rows_in_tensors: whether a row is one entry of tensors, and not a group with a shape of its own.
        looped: whether the model is run point by point, since it cannot be mapped.
        in_units_of_scale: names of the sites that are in units of their scale, in the non-centred form.
        without_curvature: rows whose second derivatives are finite at no point, and the cure; "" if there are none.
        dtype: of the flat vector.
        device: where clients' steps are computed.
        search: finds the other traits.
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
    search: Search = field(repr=False)
    centred: Traits | None = field(default=None, repr=False)

    @property
    def as_written(self) -> Traits:
        """The traits of the model in the form in which it is written."""
        return self.centred or self

    @cached_property
    def linear_predictors(self) -> bool:
        """Whether a row depends on a few numbers that are linear in the parameters, as in a regression."""
        return self.search.linear_predictors()

    @cached_property
    def layers(self) -> bool:
        """Whether rows go through layers of weights, which makes the model a network of any size."""
        return self.search.layers()

    @cached_property
    def one_outcome(self) -> bool:
        """Whether a row has one observation, whose distribution follows from its inputs and the flat vector."""
        return self.search.one_outcome()

    @cached_property
    def labels(self) -> bool:
        """Whether a row's observation is one of finitely many values, so that a client may have only one of them."""
        return self.search.labels()

    @cached_property
    def observed_values(self) -> int:
        """Number of values of a row's observation at which its expected scores are computed."""
        return self.search.observed_values()

    @cached_property
    def non_smooth_scores(self) -> bool:
        """Whether rows' scores jump, as those of a quantile regression: in predictors, or without them in most rows.

        Rows of a large model without linear predictors are not examined.
        """
        if self.linear_predictors:
            return self.search.scores_jump(in_predictors=True)
        return not self.large() and self.search.scores_jump(in_predictors=False)

    @property
    def non_smooth_rows(self) -> bool:
        """Whether scores jump and there are no linear predictors, so that curvatures are those of scores alone."""
        return not self.linear_predictors and self.non_smooth_scores

    @cached_property
    def prior_kinks(self) -> Tensor:
        """The coordinates along which the prior's score jumps, as a lasso's does at zero, (D,) bool."""
        return self.search.prior_kinks()

    @property
    def proper_kinks(self) -> bool:
        """Whether the priors are proper and a score of theirs jumps: a mode there has no Laplace approximation."""
        return not self.improper and bool(self.prior_kinks.any())

    @cached_property
    def kinked_prior(self) -> bool:
        """Whether the prior's kinks rule out a Laplace approximation, and the prior is a place to begin at.

        If scales are latent, as in a hierarchical lasso, the Gaussian nearest to the prior is too wide to begin with:
        the likelihood overflows there, and Laplace's is the better place. A network is stationary at its prior's mean.
        """
        return self.proper_kinks and not self.layers and not self.latent_scales

    @cached_property
    def latent_scales(self) -> bool:
        """Whether a latent's scale depends on another latent, as in a hierarchical model."""
        return self.search.latent_scales()

    @cached_property
    def effects(self) -> tuple[str, ...]:
        """Names of the latents that have a form in units of their latent scale."""
        return self.search.effects()

    @cached_property
    def moving_supports(self) -> dict[str, list[str]]:
        """Latents whose support depends on other latents, with these, as for u ~ Uniform(0, theta)."""
        return self.search.moving_supports()

    @cached_property
    def walls(self) -> tuple[str, ...]:
        """Sites whose density is zero on a part of the prior: beyond a parameter's constraint, or where it is NaN."""
        return self.search.walls()

    @cached_property
    def funnel_hint(self) -> list[str]:
        """A sentence on the sites to reparameterise if chains do not mix; none if there are no such sites."""
        return self.search.funnel_hint()

    @cached_property
    def necks_of_rows(self) -> list[Neck]:
        """Where the scales of rows' own latents are small, if these scales are latent."""
        return self.search.necks_of_rows()

    def affordable_points(self, rows: int, wanted: int) -> int:
        """The `wanted` number of points, or for a large model the largest even number that is computed at once.

        `rows` are those of all clients at each point.
        """
        if not self.many_parameters:
            return wanted
        room = count_in_step(rows * self.search.numbers_of_a_row())
        return min(wanted, max(2, room // 2 * 2))

    @property
    def scores_dtype(self) -> torch.dtype:
        """Dtype of scores that are stored and sent: double precision, or the model's own if its parameters are many."""
        return self.dtype if self.many_parameters else torch.float64

    def require_affordable(self) -> None:
        """Refuse a network whose rows' own latents cost too much to be integrated out.

        Raises:
            ModelError: names the latents, the cost and the cures.
        """
        if self.local_dim:
            self.search.require_affordable()

    @property
    def points_have_neighbours(self) -> bool:
        """Whether some hundred points are near to each other, so that a mixture around them follows any shape."""
        return self.dim <= NEIGHBOURS_DIM

    @property
    def many_parameters(self) -> bool:
        """Whether the parameters alone make the model large, whatever its rows."""
        return self.dim > LARGE_DIM

    @property
    def few_parameters(self) -> bool:
        """Whether full covariances and Hessians cost little, whatever the model."""
        return self.dim <= FULL_DIM

    def large(self, points: int = 1) -> bool:
        """Whether the model is too large for curvatures row by row.

        `points` is the number at which an algorithm takes expectations, 1 for none.
        """
        if self.many_parameters:
            return True
        if self.few_parameters:
            return False
        return self.dim * self.evaluations * points > LARGE_WORK or self._is_network

    @cached_property
    def _is_network(self) -> bool:
        """Whether rows go through layers, or scores at all values are many and there are no linear predictors."""
        numbers = self.dim * self.evaluations * NETWORK_POINTS
        few = numbers * self.observed_values <= NETWORK_NUMBERS
        return self.layers if few else not self.linear_predictors
