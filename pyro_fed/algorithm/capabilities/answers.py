"""What an algorithm knows of its own answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

if TYPE_CHECKING:
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem


class KnownDensity(ABC):
    """The log density that its draws come from is known, so that importance ratios can judge them."""

    @abstractmethod
    def log_density(self, shared: State, draws: Tensor) -> Tensor | None:
        """At draws (chain, draw, D), up to a constant: (chain, draw); None where it is not known after all."""


class OwnErrors(ABC):
    """Its figures tell how far off its answer may be."""

    @abstractmethod
    def own_errors(self, figures: Mapping[str, float]) -> tuple[float, float]:
        """The largest error of a mean, in SDs, and of the logarithm of an SD, as far as it can tell; 0 where not.

        Args:
            figures: of its last round.
        """


class Provisional:
    """What its own figures have against its answer's moments counts unless exact chains find these right.

    Attributes:
        provisional: the codes of those of its `warnings`.
    """

    provisional: ClassVar[frozenset[str]]


class DrawStats(ABC):
    """More columns for `sample_stats`."""

    @abstractmethod
    def sample_stats(self, shared: State, draws: Tensor) -> dict[str, Tensor]:
        """Of draws (chain, draw, D), each column (chain, draw)."""


class Advice(ABC):
    """A cure of its own for an update that left the finite numbers; that of others is to reduce the step size."""

    @abstractmethod
    def advice(self, problem: Problem, before: State) -> str:
        """The cure, as the end of a sentence.

        Args:
            problem: the model's densities.
            before: the server's state before that update.
        """
