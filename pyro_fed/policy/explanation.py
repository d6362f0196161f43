"""The phases of a run on a model, with their settings, and the reason for each choice."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyro_fed.algorithm.combination import Combination
from pyro_fed.algorithm.contract import Algorithm, Plan, Stage
from pyro_fed.conventions import html
from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.nested_settings import changed_settings
from pyro_fed.density.problem import Problem
from pyro_fed.density.traits import Traits
from pyro_fed.errors import PyroFedError, SettingError
from pyro_fed.federation.federation import Federation
from pyro_fed.graph import Graph
from pyro_fed.policy.choice import AS_SET, DEFAULT, Choice, Setup
from pyro_fed.policy.resolving import phases_of, resolve_for_run, stages_of

if TYPE_CHECKING:
    import pandas as pd

#: Width of the column of settings, in characters.
MAX_SETTING_WIDTH = 40
COLUMNS = ("stage", "algorithm", "setting", "value", "reason", "override")


@dataclass(frozen=True)
class Phase:
    """One algorithm of a run."""

    stage: int  # number of its stage in a plan, from 1
    algorithm: Algorithm | None  # without open settings; None if the stage is not run on this model
    rounds: int = 0  # the largest number of rounds by default
    choices: tuple[Choice, ...] = ()
    refused: str = ""  # why the stage is not run
    before: str = ""  # the name of the algorithm that starts from this one
    expected: int | None = None  # rounds that suffice for an approximately Gaussian posterior, if known


@dataclass(frozen=True)
class Explanation:
    """The phases of a run on a model, and the reason for each choice; returned by `pyro_fed.explain`.

    Attributes:
        traits: the model's traits.
        phases: the phases in order; later stages of a plan run only if earlier results are doubted.

    Example:
        >>> print(pf.explain(pf.FedEP(), fed))
        8 parameters, 1,000 rows, 10 clients
        1. FedLaplace, at most 100 rounds
        ...
    """

    traits: Traits
    phases: tuple[Phase, ...]

    @property
    def table(self) -> pd.DataFrame:
        """A table with one row for each setting: stage, algorithm, setting, value, reason, override."""
        import pandas as pd

        return pd.DataFrame(_rows(self.phases), columns=list(COLUMNS))

    @property
    def outlook(self) -> str:
        """The number of stages of a plan that may be needed, and why; "" for a single algorithm."""
        return outlook(self.traits, self.phases[-1].stage)

    def __str__(self) -> str:
        several = self.phases[-1].stage > 1
        lines, stage, known = [self._model, *([self.outlook] if several else [])], 0, list[Algorithm | None]()
        for number, phase in enumerate(self.phases, 1):
            if several and phase.stage != stage:
                stage = phase.stage
                lines.append(f"stage {stage}" + ("" if stage == 1 else ", where the answers before are doubted"))
            if phase.algorithm is None:
                lines.append(f"   not run: {phase.refused}")
                continue
            name = type(phase.algorithm).__name__
            if phase.algorithm in known:
                lines.append(f"{number}. {name}, of which an earlier stage has the result")
                continue
            known.append(phase.algorithm)
            lines.append(f"{number}. {name}, at most {phase.rounds:,} round{'' if phase.rounds == 1 else 's'}")
            if phase.expected is not None:
                lines.append(f"   about {phase.expected:,} rounds, more where the posterior is far from a Gaussian")
            lines += [f"   {said}" for said in _settings_lines(phase)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """In a notebook: the phases, and the choices as a table."""
        rows = [[str(cell) for cell in row] for row in _rows(self.phases)]
        return html.block(
            "what will be run", html.text(self._model), html.text(self.outlook), html.table(list(COLUMNS), rows)
        )

    @property
    def _model(self) -> str:
        traits = self.traits
        counts = (traits.dim, "parameter"), (traits.num_rows, "row"), (traits.num_clients, "client")
        return ", ".join(f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in counts)


def outlook(traits: Traits, stages: int) -> str:
    """A sentence on the number of stages that may be needed, and why more than the first; "" for a single stage."""
    if stages < 2:
        return ""
    reasons = [
        f"the scale of {', '.join(map(repr, traits.effects))} is itself latent" if traits.effects else "",
        "scores are discontinuous, so that curvatures are not informative" if traits.non_smooth_scores else "",
        "the support of a latent depends on another one" if traits.moving_supports else "",
        f"the density of {', '.join(map(repr, traits.walls))} is zero on a part of the prior" if traits.walls else "",
    ]
    why = "; ".join(filter(None, reasons))
    first = f"more than the first are likely to be needed: {why}" if why else "the first is enough for most models"
    return f"at most {stages} stages of increasing cost, run if earlier results are doubted; {first}"


@checked
def explain(
    algorithm: Algorithm | Plan,
    federation: Federation,
    *,
    graph: Graph | None = None,
    combination: Combination | None = None,
) -> Explanation:
    """Explain what `run` does with an algorithm on a federation, without running it.

    Rules choose the open settings for the model. Each choice has a reason and the setting that overrides it; settings
    of the user are unchanged. The phases from which an algorithm starts are listed before it, and the stages of a plan,
    such as `pf.Auto()`, in the order in which they are tried.

    Args:
        algorithm: the algorithm, or the plan.
        federation: the model and its clients.
        graph: the argument of `run`.
        combination: the argument of `run`.

    Returns:
        An object that prints as text, and as HTML in a notebook; its `table` is a DataFrame.

    Raises:
        SettingError: the algorithm cannot be run on this model; the message names alternatives.

    Example:
        >>> pf.explain(pf.FedEP(), fed).table[["algorithm", "setting", "value", "reason"]]
    """
    if not isinstance(algorithm, Algorithm | Plan) or not isinstance(federation, Federation):
        raise SettingError(
            "explain takes an algorithm and a federation, such as pf.explain(pf.FedEP(), fed), "
            f"received {algorithm!r} and {federation!r}"
        )
    setup, problem = Setup(graph, combination), federation.problem
    stages = stages_of(algorithm, problem, graph)
    if not isinstance(algorithm, Plan):
        return Explanation(problem.traits, _phases(1, stages[0], _form(stages[0], federation), setup))
    found: list[Phase] = []
    for number, stage in enumerate(stages, 1):
        try:
            found += _phases(number, stage, _form(stage, federation), setup)
        except PyroFedError as error:
            found.append(Phase(number, None, refused=str(error)))
    return Explanation(problem.traits, tuple(found))


def _form(stage: Stage, federation: Federation) -> Problem:
    """The form of the model that a stage is run on."""
    joint = stage.algorithm.joint and federation.problem.local_dim
    federation = federation.joint if joint else federation
    return federation.noncentred.problem if stage.noncentred else federation.problem


def _phases(number: int, stage: Stage, problem: Problem, setup: Setup) -> tuple[Phase, ...]:
    """The phases of a stage."""
    chain = phases_of(resolve_for_run(stage.algorithm, problem, setup), problem)
    names = [*(type(one.algorithm).__name__ for one in chain[1:]), ""]
    return tuple(
        Phase(
            number,
            one.algorithm,
            one.algorithm.default_rounds(problem.num_clients),
            one.choices,
            before=name,
            expected=one.algorithm.expected_rounds(problem.dim),
        )
        for one, name in zip(chain, names, strict=True)
    )


def _rows(phases: Iterable[Phase]) -> list[tuple[Any, ...]]:
    return [
        (phase.stage, type(phase.algorithm).__name__, choice.setting, choice.value, choice.reason, choice.override)
        for phase in phases
        if phase.algorithm is not None
        for choice in phase.choices
    ]


def _settings_lines(phase: Phase) -> list[str]:
    """A phase's settings as lines of text: choices with their reasons, and settings that are not at their defaults."""
    looked = {choice.setting for choice in phase.choices}
    others = {name: value for name, value in changed_settings(phase.algorithm).items() if name not in looked}
    lines = [(f"{one.setting}={one.value!r}", one.reason) for one in phase.choices if one.reason != DEFAULT]
    given = f"as {phase.before} has it" if phase.before else AS_SET
    lines += [(f"{name}={value!r}", given) for name, value in others.items()]
    width = min(MAX_SETTING_WIDTH, max((len(setting) for setting, _ in lines), default=0))
    return [f"{setting:{width}}  {reason}" for setting, reason in lines]


def as_json(choices: Iterable[tuple[Algorithm, tuple[Choice, ...]]]) -> str:
    """The choices of a run's algorithms, without repetitions, as the JSON list in `attrs["choices"]`."""
    seen: list[Algorithm] = []
    found: list[dict[str, str]] = []
    for algorithm, own in choices:
        if algorithm in seen:
            continue
        seen.append(algorithm)
        name = type(algorithm).__name__
        found += [{"algorithm": name, **vars(choice), "value": repr(choice.value)} for choice in own]
    return json.dumps(found)
