"""Figures that a user computes of the posterior after every round, such as the accuracy on test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyro_fed.algorithm.contract import Algorithm
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.conventions import seeding
from pyro_fed.density.problem import Problem
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.federation import Federation
from pyro_fed.ops.gaussian import ImproperGaussianError
from pyro_fed.results.to_arviz import posterior_alone

#: A user's function: takes the posterior so far, as InferenceData with only the group `posterior`, and returns figures
#: by name.
Evaluate = Callable[[Any], Mapping[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """A user's function of `num_draws` draws of the posterior, called `every` rounds.

    Raises:
        SettingError: `every` below 1.
    """

    evaluate: Evaluate
    every: int
    num_draws: int

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SettingError(f"evaluate_every must be at least 1, received {self.every}")

    def figures(
        self,
        algorithm: Algorithm,
        federation: Federation,
        problem: Problem,
        record: Record,
        seed: int,
        shared: State,
        done: int,
    ) -> dict[str, float]:
        """Figures of the state after `done` rounds; none between evaluations, or while there is no distribution.

        Raises:
            SettingError: the function returned something other than numbers by name.
        """
        if done % self.every:
            return {}
        generator = seeding.torch_generator(seed, seeding.DRAWS)
        try:
            shared = algorithm.conclude(problem, shared)
            draws = algorithm.sample(shared, self.num_draws, generator).to(problem.dtype)
        except ImproperGaussianError:
            return {}
        sofar = posterior_alone(algorithm, federation, problem, draws, record)
        try:
            found = self.evaluate(sofar)
        except PyroFedError:
            raise
        except Exception as error:  # of the user's own function, of any kind; it stays the cause
            raise SettingError(f"evaluate raised {type(error).__name__}: {error}") from error
        return _checked_figures(found)


def _checked_figures(found: Any) -> dict[str, float]:
    wrong = f"evaluate must return numbers by name, such as {{'accuracy': 0.9}}, received {found!r}"
    if not isinstance(found, Mapping):
        raise SettingError(wrong)
    try:
        return {str(name): float(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise SettingError(wrong) from error
