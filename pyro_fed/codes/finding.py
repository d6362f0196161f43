"""A finding: one thing that speaks against a result, or that its user should know.

A check returns findings, and whoever decides anything decides by their codes and topics, never by their texts.
`Finding.to_plain` and `from_plain` are what a result keeps in `attrs["findings"]`.

    @doubt(Topic.CONVERGENCE)
    def chains_disagree(chains: int, r_hat: float) -> str: ...          in `sentences`

    sentences.chains_disagree(chains=4, r_hat=1.08)                     in the check: a `Finding`
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, ParamSpec, Self

#: Arguments of a sentence that say where something was found; all others but `cures` are its figures.
PLACES = ("parameter", "site", "sites", "plate", "argument", "column", "client", "clients", "round")

#: Arguments of a sentence.
Figures = ParamSpec("Figures")


class Severity(StrEnum):
    """Whether a finding speaks against the result."""

    DOUBT = "doubt"
    NOTE = "note"


class Topic(StrEnum):
    """What a finding is about; decisions that concern several codes are made by it."""

    #: The run ended before the algorithm's own criterion held.
    CONVERGENCE = "convergence"
    #: What the algorithm's own figures say of its rounds, chains, particles or weights.
    DIAGNOSTICS = "diagnostics"
    #: Means and SDs of the draws.
    MOMENTS = "moments"
    #: Modes and mass where the draws are not.
    MODES = "modes"
    #: The model's densities as they are computed, which no algorithm can mend.
    DENSITY = "density"
    #: What settings ask for, where that is not the posterior, or too little of it.
    SETTINGS = "settings"
    #: Clients that differ, fail, or are left out.
    CLIENTS = "clients"
    #: A network's inputs.
    INPUTS = "inputs"
    #: What the noise of differential privacy does.
    PRIVACY = "privacy"
    #: Checks that were not made, and groups that are left out of the result.
    UNCHECKED = "unchecked"
    #: A result beside others, or as their reference.
    COMPARISON = "comparison"
    #: Leave-one-out and other figures of single rows.
    ROWS = "rows"


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a result, or that its user should know.

    Attributes:
        code: what was found, such as "chains_disagree". Codes are kept from version to version; texts are not.
        topic: what it is about.
        severity: whether it speaks against the result.
        text: the same in words, without a full stop.
        where: parameter, site, clients or round, by these names.
        figures: numbers and words by name, as the text has them.
        cures: what to do about it, a sentence each.
    """

    code: str
    topic: Topic
    severity: Severity
    text: str
    where: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    cures: tuple[str, ...] = ()

    @property
    def is_doubt(self) -> bool:
        """Whether it speaks against the result."""
        return self.severity is Severity.DOUBT

    def with_cure(self, cure: str) -> Self:
        """The same with a further cure, behind its text.

        Args:
            cure: a sentence without its full stop.
        """
        return replace(self, text=f"{self.text}. {cure}", cures=(*self.cures, cure))

    def to_plain(self) -> dict[str, Any]:
        """The finding as JSON has it; numbers that are not finite as the words "inf", "-inf" and "nan"."""
        return {
            "code": self.code,
            "topic": str(self.topic),
            "severity": str(self.severity),
            "text": self.text,
            "where": _as_json(self.where),
            "figures": _as_json(self.figures),
            "cures": list(self.cures),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Finding:
        """The finding of which `to_plain` made plain values."""
        topic, severity, cures = Topic(plain["topic"]), Severity(plain["severity"]), tuple(plain["cures"])
        return cls(plain["code"], topic, severity, plain["text"], plain["where"], plain["figures"], cures)


@dataclass(frozen=True)
class Sentence(Generic[Figures]):
    """A kind of finding: called with its figures, it gives a finding.

    Attributes:
        write: gives the text.
        topic: what it is about.
        severity: whether it speaks against a result.
    """

    write: Callable[Figures, str]
    topic: Topic
    severity: Severity

    @property
    def code(self) -> str:
        """The name of the function that writes the text."""
        return self.write.__name__

    def __call__(self, *args: Figures.args, **kwargs: Figures.kwargs) -> Finding:
        """A finding with these figures; `cures` are its cures, the arguments named in `PLACES` say where."""
        bound = inspect.signature(self.write).bind(*args, **kwargs)
        bound.apply_defaults()
        figures = dict(bound.arguments)
        text = self.write(*bound.args, **bound.kwargs)
        cures = tuple(figures.pop("cures", ()))
        where = {name: figures.pop(name) for name in PLACES if name in figures}
        return Finding(self.code, self.topic, self.severity, text, where, figures, cures)


def doubt(topic: Topic) -> Callable[[Callable[Figures, str]], Sentence[Figures]]:
    """Make a function that writes a sentence a kind of finding that speaks against a result.

    Args:
        topic: what it is about.
    """
    return lambda write: Sentence(write, topic, Severity.DOUBT)


def note(topic: Topic) -> Callable[[Callable[Figures, str]], Sentence[Figures]]:
    """Make a function that writes a sentence a kind of finding that a user should know.

    Args:
        topic: what it is about.
    """
    return lambda write: Sentence(write, topic, Severity.NOTE)


def doubts_among(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that speak against a result.

    Args:
        findings: of one result.
    """
    return [one for one in findings if one.is_doubt]


def is_about(findings: Iterable[Finding], topic: Topic) -> bool:
    """Whether something was found about a topic.

    Args:
        findings: of one result.
        topic: the topic.
    """
    return any(one.topic is topic for one in findings)


def texts(findings: Iterable[Finding]) -> list[str]:
    """The texts of findings, each once, in their order.

    Args:
        findings: of one result.
    """
    return list(dict.fromkeys(one.text for one in findings))


def _as_json(value: Any) -> Any:
    """Numbers, words and lists of them, as JSON has them."""
    if isinstance(value, Mapping):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
