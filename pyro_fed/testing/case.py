"""One algorithm under test: its short runs, each made once and shared by the checks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from pyro_fed import graph
from pyro_fed.algorithm import Algorithm
from pyro_fed.algorithm.capabilities import OnGraph
from pyro_fed.errors import ContractError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.runtime.run import run
from pyro_fed.testing import problems
from pyro_fed.testing.observation import Observation, with_noted_calls

#: Options of every short run.
OPTIONS: dict[str, Any] = {
    "num_draws": 8,
    "progress": False,
    "compile": "off",
    "log_likelihood": False,
    "audit": False,
}
#: Rounds of a short run.
NUM_ROUNDS = 4
#: Rounds of runs that are checked for their forms only.
NUM_FORM_ROUNDS = 2


@dataclass(eq=False)
class Case:
    """An algorithm, the federation of its short runs, and these runs.

    Attributes:
        algorithm: under test.
        given: the user's federation; None: `problems.lines`.
        num_rounds: of a short run; None: 4, or 1 for an algorithm that is done in one.
    """

    algorithm: Algorithm
    given: Federation | None = None
    num_rounds: int | None = None

    @property
    def federation(self) -> Federation:
        """The federation of the short runs."""
        return problems.lines() if self.given is None else self.given

    @cached_property
    def rounds(self) -> int:
        """Rounds of a short run."""
        if self.num_rounds is not None:
            return self.num_rounds
        return 1 if self.done_in_one_round else NUM_ROUNDS

    @property
    def done_in_one_round(self) -> bool:
        """Whether an algorithm is done in a single round, so that another would repeat its work."""
        return self.algorithm.default_rounds(3) == 1

    @property
    def draws_by_chance(self) -> bool:
        """Whether draws depend on the seed: those of a point do if its clients receive random numbers."""
        noise = [leaf for call in self.observation.of("draw_noise") for leaf in pytree.tree_leaves(call.result)]
        return self.algorithm.draws_are != "point" or any(leaf.numel() for leaf in noise)

    def run(self, federation: Federation | None = None, **options: Any) -> InferenceData:
        """A run of a new copy of the algorithm, without the usual warnings about so short a run."""
        where = self.federation if federation is None else federation
        algorithm = options.pop("algorithm", None) or replace(self.algorithm)
        fixed = OPTIONS | {"num_rounds": self.rounds} | graph_of(algorithm, where)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(algorithm, where, **(fixed | options))

    def observe(self, federation: Federation | None = None, *, thorough: bool = False, **options: Any) -> Observation:
        """Arguments and results of the algorithm's methods in a short run, one client after the other."""
        twin, found = with_noted_calls(replace(self.algorithm).delegate(), thorough=thorough)
        options = {"executor": "sequential"} | options
        try:
            self.run(federation, algorithm=twin, **options)
        except Exception as error:  # of any kind: a check may find its cause in the records so far
            found.error = error
        return found

    @cached_property
    def untraced(self) -> InferenceData:
        """All clients at once, nothing compiled."""
        return self.run()

    @cached_property
    def traced(self) -> InferenceData:
        """The same with steps traced: the reference for runs that must agree to the bit."""
        return self.run(compile="trace")

    @cached_property
    def one_by_one(self) -> InferenceData:
        """One client after the other, nothing compiled."""
        return self.run(executor="sequential")

    @cached_property
    def integrated(self) -> InferenceData:
        """A run on groups whose effects are integrated out; traced if that pays, since their integrals take long."""
        return self.run(problems.groups(), compile="auto")

    @cached_property
    def observation(self) -> Observation:
        """Each method's calls in a short run, each repeated to test whether it returns the same again."""
        return self.observe(thorough=True)

    @cached_property
    def seen_one_row(self) -> Observation:
        """The calls in a run of two rounds over clients of one row."""
        return self.observe(
            problems.one_row_each(), num_rounds=min(NUM_FORM_ROUNDS, self.rounds), executor="vectorised"
        )


def graph_of(algorithm: Algorithm, federation: Federation) -> dict[str, Any]:
    """Further arguments of `run`: a ring for an algorithm that has no server."""
    return {"graph": graph.ring(federation.num_clients)} if isinstance(algorithm, OnGraph) else {}


def values(idata: InferenceData) -> NDArray[np.float64]:
    """All draws of a result, one after the other."""
    return np.concatenate(
        [idata["posterior"][name].values.ravel() for name in sorted(map(str, idata["posterior"].data_vars))]
    )


def require(condition: bool, expected: str, received: str, cure: str) -> None:
    """Refuse a violation of the contract.

    Raises:
        ContractError: says what was expected and received, and the cure.
    """
    if not condition:
        raise ContractError(f"expected {expected}; received {received}. {cure}")
