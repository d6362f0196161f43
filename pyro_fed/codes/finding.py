"""A finding: one thing that speaks against a result, or that its user should know.

A check returns findings, and decisions depend on their codes and topics, never on their texts. `Finding.to_plain` and
`from_plain` convert them to and from `attrs["findings"]` of a result.

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

#: Arguments of a sentence for the place of a finding; all others but `cures` are its figures.
PLACES = ("parameter", "site", "sites", "plate", "argument", "column", "client", "clients", "round")

#: Arguments of a sentence.
Figures = ParamSpec("Figures")


class Severity(StrEnum):
    """Whether a finding speaks against the result."""

    DOUBT = "doubt"
    NOTE = "note"


class Topic(StrEnum):
    """The subject of a finding; decisions that concern several codes use it."""

    #: The run ended before the algorithm's own criterion held.
    CONVERGENCE = "convergence"
    #: The algorithm's own figures on its rounds, chains, particles or weights.
    DIAGNOSTICS = "diagnostics"
    #: Means and SDs of the draws.
    MOMENTS = "moments"
    #: Modes and mass where the draws are not.
    MODES = "modes"
    #: The model's densities and their computation, which no algorithm can mend.
    DENSITY = "density"
    #: Settings that ask for another result than the posterior, or for too few draws.
    SETTINGS = "settings"
    #: Clients that differ, fail, or are left out.
    CLIENTS = "clients"
    #: A network's inputs.
    INPUTS = "inputs"
    #: The effect of differential privacy's noise.
    PRIVACY = "privacy"
    #: Checks that were not made, and groups that are left out of the result.
    UNCHECKED = "unchecked"
    #: A result compared with others, or as their reference.
    COMPARISON = "comparison"
    #: Leave-one-out and other figures of single rows.
    ROWS = "rows"
    #: Tables of the clients that contradict the codebook or each other, before any run.
    CODEBOOK = "codebook"


@dataclass(frozen=True)
class Finding:
    """One thing that speaks against a result, or that its user should know.

    Attributes:
        code: what was found, such as "chains_disagree". Codes are kept from version to version; texts are not.
        topic: what it is about.
        severity: whether it speaks against the result.
        text: the same in words, without a full stop.
        where: parameter, site, clients or round, by these names.
        figures: numbers and texts by name, as in `text`.
        cures: a sentence for each cure.
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
        """The same with a further cure, a sentence without its full stop, behind its text."""
        return replace(self, text=f"{self.text}. {cure}", cures=(*self.cures, cure))

    def to_plain(self) -> dict[str, Any]:
        """The finding in JSON's types; numbers that are not finite as the texts "inf", "-inf" and "nan"."""
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
        """The finding from the plain values of `to_plain`."""
        topic, severity, cures = Topic(plain["topic"]), Severity(plain["severity"]), tuple(plain["cures"])
        return cls(plain["code"], topic, severity, plain["text"], plain["where"], plain["figures"], cures)


@dataclass(frozen=True)
class Sentence(Generic[Figures]):
    """A kind of finding: called with its figures, it returns a finding with the text that `write` returns."""

    write: Callable[Figures, str]
    topic: Topic
    severity: Severity

    @property
    def code(self) -> str:
        """The name of the function that writes the text."""
        return self.write.__name__

    def __call__(self, *args: Figures.args, **kwargs: Figures.kwargs) -> Finding:
        """A finding with these figures; `cures` are its cures, and the arguments named in `PLACES` its place."""
        bound = inspect.signature(self.write).bind(*args, **kwargs)
        bound.apply_defaults()
        figures = dict(bound.arguments)
        text = self.write(*bound.args, **bound.kwargs)
        cures = tuple(figures.pop("cures", ()))
        where = {name: figures.pop(name) for name in PLACES if name in figures}
        return Finding(self.code, self.topic, self.severity, text, where, figures, cures)


def doubt(topic: Topic) -> Callable[[Callable[Figures, str]], Sentence[Figures]]:
    """Make a function that writes a sentence a kind of finding, on this topic, that speaks against a result."""
    return lambda write: Sentence(write, topic, Severity.DOUBT)


def note(topic: Topic) -> Callable[[Callable[Figures, str]], Sentence[Figures]]:
    """Make a function that writes a sentence a kind of finding, on this topic, that a user should know."""
    return lambda write: Sentence(write, topic, Severity.NOTE)


def doubts_among(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that speak against a result."""
    return [one for one in findings if one.is_doubt]


def is_about(findings: Iterable[Finding], topic: Topic) -> bool:
    """Whether one of a result's findings is about a topic."""
    return any(one.topic is topic for one in findings)


def texts(findings: Iterable[Finding]) -> list[str]:
    """The texts of findings, each once, in their order."""
    return list(dict.fromkeys(one.text for one in findings))


def _as_json(value: Any) -> Any:
    """Numbers, texts and lists of them, in JSON's types."""
    if isinstance(value, Mapping):
        return {name: _as_json(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
