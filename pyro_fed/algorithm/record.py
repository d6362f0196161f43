"""The record of a run: its clients, the sizes of messages, times, and the algorithm's figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fed.algorithm.bounding import ACCEPTED_SHIFT_SDS
from pyro_fed.algorithm.combination import MIN_COHORT
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, texts
from pyro_fed.conventions.limits import MATTERS, NEGLIGIBLE
from pyro_fed.density.symmetry import Symmetry

#: Name of the model's non-centred form among the algorithms of a plan.
NONCENTRED = "non-centred"
#: Number of recent rounds from which the progress of a run is judged.
RECENT_ROUNDS = 10
#: A client moves the result more than others do if its median shift exceeds `ACCEPTED_SHIFT_SDS` and this multiple of
#: the median client's.
LARGE_SHIFT_TIMES_MEDIAN = 5.0
#: Largest share of messages beyond the limits in the recent rounds for which clients count as a cohort; two faulty
#: clients of ten are below it.
DISSIMILAR_SHARE = 0.3
#: Median distance of outlying messages from the cohort's medians, in the cohort's SDs; it is 0.7 for equal clients.
OUTLYING_MESSAGE_SDS = 6.0

#: Bytes that every client received and sent before the schedule chose clients.
Asked = tuple[int, int]
#: A client that failed, and the reason.
Failure = tuple[int, str]


@dataclass
class Round:
    """One round: its clients, their bytes received and sent, and their figures."""

    phase: str
    clients: list[int]
    bytes_down: int | np.ndarray  # of the encoded messages, one number for all, or (C,)
    bytes_up: int | np.ndarray
    seconds: float  # each
    info: dict[str, np.ndarray]  # figures (C,), or (C, D) if there is one a parameter
    #: Bytes that all K clients received and sent if the schedule asked them first; they need not receive these again.
    asked: Asked | None = None
    failures: list[Failure] = field(default_factory=list)  # of the clients that were asked, one for each attempt
    gone: int = 0  # number of these that did not reply; the others sent replies that could not be used
    reach: float = 0.0  # the norm of the release as a share of the largest possible, if messages are shortened

    @property
    def bytes(self) -> int:
        """All bytes that its clients received and sent, without those of the schedule's questions."""
        once = np.broadcast_to(np.asarray(self.bytes_down) + np.asarray(self.bytes_up), len(self.clients))
        return int(once.sum())

    def to_plain(self) -> dict[str, Any]:
        """This record with lists in place of arrays."""
        info = {name: values.tolist() for name, values in self.info.items()}
        traffic = {name: np.asarray(getattr(self, name)).tolist() for name in ("bytes_down", "bytes_up")}
        same = {
            name: getattr(self, name) for name in ("phase", "clients", "seconds", "asked", "failures", "gone", "reach")
        }
        return {**same, "info": info, **traffic}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Round:
        """The record from the plain values of `to_plain`."""
        traffic = {name: _number_or_array(plain[name]) for name in ("bytes_down", "bytes_up")}
        asked = plain["asked"] and tuple(plain["asked"])
        info = {name: np.asarray(values) for name, values in plain["info"].items()}
        failures = [(client, reason) for client, reason in plain["failures"]]
        return cls(**{**plain, **traffic, "asked": asked, "info": info, "failures": failures})


@dataclass(frozen=True)
class Released:
    """The ε and δ that a run spent, and the noise's largest SD in a mean, in SDs (of a point in its units)."""

    noise: float
    epsilon: float
    delta: float


@dataclass(frozen=True)
class BySums:
    """Figures from the clients' log-likelihoods at a result's draws, one number per client and draw."""

    log_density: State = field(default_factory=dict)  # the draws' `lp` (chain, draw); empty without all clients
    unchecked: str = ""  # what these sums cannot check, as a clause; "" if the result was not judged by them
    pareto_k: float | None = None  # of the draws' importance weights; None if there are none
    effective: float | None = None  # effective number of draws under the weights

    def attributes(self) -> dict[str, Any]:
        """The attributes of a result; unknown ones are left out."""
        attributes = {"unchecked": self.unchecked, "pareto_k": self.pareto_k, "effective_draws": self.effective}
        return {name: value for name, value in attributes.items() if value not in ("", None)}


@dataclass
class Record:
    """The rounds of a run, all phases."""

    client_names: list[str]
    rounds: list[Round] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)  # of the last phase's rounds, empty if none worked
    until: int | None = None  # the round after the last of these figures, if later rounds follow
    planned: frozenset[str] = frozenset()  # algorithms that a plan tries, and `NONCENTRED`, which advice must not name
    findings: list[Finding] = field(default_factory=list)  # about the result, in the order of the checks
    converged: bool | None = None  # whether it stopped by the algorithm's criterion; None if there is none
    blocked: bool = False  # whether nothing moved because no client's change could be applied
    interrupted: bool = False  # whether the user interrupted the run
    stopped: str = ""  # such as "stopped at the limit of 60 s, after 3 of 100 rounds"
    audited: bool = False  # whether the result was judged at its draws
    by_sums: BySums = field(default_factory=BySums)  # from the clients' sums over rows, if the rows are elsewhere
    measured: dict[str, np.ndarray] = field(default_factory=dict)  # measurements of the audit, by `parameter`
    #: Maxima of the posterior (D,) that the audit knows, those without draws first, the heaviest first, in the
    #: coordinates of the form that was run, which later stages of a plan reuse; and maps that leave the posterior
    #: unchanged.
    modes: list[Tensor] = field(default_factory=list)
    # weighted points of the posterior that an earlier stage's audit has found: weights (N,), points (N, D)
    posterior_points: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    symmetries: list[Symmetry] = field(default_factory=list)
    spread: bool = False  # whether the draws were spread over the images under these maps
    #: The clients' Gaussian sites, `precision` and `eta` (K, ...), with those of q as `q_precision` and `q_eta`.
    sites: State = field(default_factory=dict)
    sites_of: str = ""  # the algorithm that computed them: the run's own, or one that it started from
    stands_apart: str = ""  # a sentence on clients that move the result more than others do
    private: Released | None = None  # what a private run spent

    @property
    def latest(self) -> dict[str, float]:
        """Figures of the last round with clients; empty if there is none."""
        return next((figures for figures in reversed(self.figures) if figures), {})

    @property
    def rounds_help(self) -> bool:
        """Whether more rounds may help: not if changes cannot be applied, no longer decrease, or are none.

        After at least eight rounds, the smallest change of the second half is compared with that of the first half.
        """
        changes = [figures.get("change", math.nan) for figures in self.figures]
        half = len(changes) // 2
        first, last = ([one for one in part if math.isfinite(one)] for part in (changes[:half], changes[half:]))
        still = self.latest.get("change") == 0
        return not self.blocked and not still and (half < 4 or not first or not last or min(last) < min(first))

    @property
    def doubts(self) -> list[str]:
        """Reasons not to trust the result, one sentence each."""
        return texts(one for one in self.findings if one.is_doubt)

    @property
    def notes(self) -> list[str]:
        """Events of the run that the user should know, one sentence each."""
        return texts(one for one in self.findings if not one.is_doubt)

    @property
    def has_private_noise(self) -> bool:
        """Whether the noise of differential privacy was added to messages."""
        return "epsilon" in self.latest

    def warning_texts(self) -> list[str]:
        """All warnings of a run, each once: notes on events, and then reasons not to trust the result."""
        return [*self.notes, *self.doubts]

    def untried(self, *names: str) -> str:
        """Algorithms that the plan does not try, as "FSGLD, DSVGD or NUTS"; the last of `names` if it tries all."""
        *others, last = [name for name in names if name not in self.planned] or names[-1:]
        return f"{', '.join(others)} or {last}" if others else last

    def last(self, name: str) -> np.ndarray:
        """Figures `name` of the clients in the last round that has them; empty if none has."""
        return next((r.info[name] for r in reversed(self.rounds) if name in r.info), np.empty(0))

    def workers(self, name: str) -> list[str]:
        """Names of the clients that `last` has figures of, in their order."""
        clients: list[int] = next((r.clients for r in reversed(self.rounds) if name in r.info), [])
        return [self.client_names[client] for client in clients]

    def to_plain(self) -> dict[str, Any]:
        """The record as values for JSON; `restore` reads it again, to the last bit."""
        return {
            "rounds": [r.to_plain() for r in self.rounds],
            "figures": self.figures,
            "findings": [one.to_plain() for one in self.findings],
            "converged": self.converged,
            "interrupted": self.interrupted,
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Restore a record that `to_plain` wrote; ValueError for other entries."""
        if plain.keys() != self.to_plain().keys():
            raise ValueError(f"a record has {list(self.to_plain())}, received {list(plain)!s:.200}")
        for name, value in plain.items():
            setattr(self, name, value)
        self.rounds = [Round.from_plain(r) for r in plain["rounds"]]
        self.findings = [Finding.from_plain(one) for one in plain["findings"]]

    def by_client(self, name: str) -> dict[int, list[float]]:
        """Figures `name` of each client in the rounds in which it worked."""
        figures: dict[int, list[float]] = {}
        for one in self.rounds:
            for client, value in zip(one.clients, one.info.get(name, ()), strict=False):
                figures.setdefault(client, []).append(float(value))
        return figures

    def messages_cut_back(self) -> list[Finding]:
        """A finding on the clients whose messages were limited relative to the cohort, if any."""
        # Smaller excesses, in SDs of a mean or as the log of a factor, are not reported.
        excesses = {k: [v for v in values if v > MATTERS] for k, values in self.by_client("beyond").items()}
        limited_clients = sorted((k for k in excesses if excesses[k]), key=lambda k: -len(excesses[k]))
        if not limited_clients:
            return []
        num_rounds = {k: len(values) for k, values in self.by_client("beyond").items()}
        widened_sds = {k: values[-1] for k, values in self.by_client("widened").items() if values[-1] > 1 + NEGLIGIBLE}
        named = limited_clients[: sentences.MAX_DESCRIBED]
        return [
            sentences.messages_cut_back(
                clients=self.names_of(named),
                times=[len(excesses[k]) for k in named],
                of_rounds=[num_rounds[k] for k in named],
                largest=[max(excesses[k]) for k in named],
                more=len(limited_clients) - len(named),
                widened=[
                    (self.client_names[k], widened_sds[k]) for k in sorted(widened_sds, key=lambda k: -widened_sds[k])
                ],
            )
        ]

    def share_cut_back(self) -> float:
        """The share of messages beyond the limits in the recent rounds with limits."""
        last = [one for one in self.rounds if "beyond" in one.info][-RECENT_ROUNDS:]
        cut = np.concatenate([one.info["beyond"] for one in last]) if last else np.zeros(0)
        return float((cut > MATTERS).mean()) if len(cut) else 0.0

    def unlike(self) -> str:
        """A sentence that the clients differ too much for a cohort; "" if they do not."""
        share = self.share_cut_back()
        return sentences.no_cohort(share) if share > DISSIMILAR_SHARE else ""

    def clients_are_no_cohort(self) -> list[Finding]:
        """A finding that the clients differ too much for a cohort, if they do."""
        share = self.share_cut_back()
        return [sentences.clients_are_no_cohort(share=share)] if share > DISSIMILAR_SHARE else []

    def names_of(self, clients: Iterable[int]) -> list[str]:
        """Names of clients by their numbers."""
        return [self.client_names[client] for client in clients]

    def restless(self) -> bool:
        """Whether the run has not converged after `RECENT_ROUNDS` rounds, so that its sites are less informative."""
        return self.converged is False and len(self.figures) >= RECENT_ROUNDS

    def clients_move_the_answer(self) -> list[Finding]:
        """A finding on the clients that move the result more than others do in most of their rounds, if any."""
        median_shifts = {k: float(np.median(values)) for k, values in self.by_client("moved").items()}
        if len(median_shifts) <= MIN_COHORT:  # there is no cohort besides the client
            return []
        threshold = max(ACCEPTED_SHIFT_SDS, LARGE_SHIFT_TIMES_MEDIAN * float(np.median(list(median_shifts.values()))))
        outlying = sorted((k for k in median_shifts if median_shifts[k] > threshold), key=lambda k: -median_shifts[k])
        if not outlying:
            return []
        sds = [median_shifts[k] for k in outlying]
        return [
            sentences.clients_move_the_answer(clients=self.names_of(outlying), sds=sds, times=LARGE_SHIFT_TIMES_MEDIAN)
        ]

    def moved_first(self) -> str:
        """The client that first moved the result far more than others before it diverged, as the end of a sentence.

        The client's shift must be about as large as the largest one, and much larger than all earlier shifts: the next
        client reverses it by a shift of the same size. "" if there is none, as when all shifts grow because steps are
        too long.
        """
        moves = [
            (float(value), number, client)
            for number, one in enumerate(self.rounds)
            for client, value in zip(one.clients, one.info.get("moved", ()), strict=False)
            if not np.isnan(value)
        ]
        if len({client for _, _, client in moves}) <= MIN_COHORT:
            return ""
        furthest = max(value for value, _, _ in moves)
        for value, number, client in moves:
            usual = float(np.median([other for other, _, who in moves if who != client]))
            before = [other for other, when, who in moves if when < number and who != client]
            least = LARGE_SHIFT_TIMES_MEDIAN * max([usual, *before])
            if value > max(ACCEPTED_SHIFT_SDS, least) and value * LARGE_SHIFT_TIMES_MEDIAN >= furthest:
                name = self.client_names[client]
                return (
                    f"before that, client {name} moved the result by {value:.2g} SDs in round {number}, whereas the "
                    f"median message of the others moves it by {usual:.2g}: check that client first (other kinds of "
                    f"rows, wrong units or labels, a faulty client?), leave it out (fed.without('{name}')), or limit "
                    "all clients relative to the cohort (combination=pf.combination.Bounded())"
                )
        return ""

    def messages_stand_apart(self) -> list[Finding]:
        """A finding on clients with mostly outlying messages, if any."""
        far = {
            k: sorted(values)[len(values) // 2]
            for k, values in self.by_client("apart").items()
            if sum(value > OUTLYING_MESSAGE_SDS for value in values) > len(values) / 2
        }
        if not far:
            return []
        farthest = sorted(far, key=lambda k: -far[k])
        return [sentences.messages_stand_apart(clients=self.names_of(farthest), sds=[far[k] for k in farthest])]

    def refused(self) -> str:
        """The last reason why a reply could not be used; "" if there is none, or if some clients did not reply."""
        reasons = [reason for one in self.rounds for _, reason in one.failures]
        return reasons[-1] if reasons and not any(one.gone for one in self.rounds) else ""

    def clients_failed(self) -> list[Finding]:
        """A finding on all clients that failed, if any."""
        every = [(client, i, reason) for i, r in enumerate(self.rounds) for client, reason in r.failures]
        if not every:
            return []
        last = {client: (i, reason) for client, i, reason in every}
        often = Counter(client for client, _, _ in every).most_common(sentences.MAX_DESCRIBED)
        return [
            sentences.clients_failed(
                failures=len(every),
                clients=self.names_of(client for client, _ in often),
                times=[count for _, count in often],
                last=[last[client][0] for client, _ in often],
                reasons=[last[client][1] for client, _ in often],
                more=len(last) - len(often),
            )
        ]


def _number_or_array(value: int | list[float]) -> int | np.ndarray:
    return np.asarray(value) if isinstance(value, list) else value


def as_figures(info: State) -> dict[str, np.ndarray]:
    """The clients' figures as NumPy arrays, (C,)."""
    return {name: figure_array(value) for name, value in info.items()}


def figure_array(value: Tensor) -> np.ndarray:
    """A figure of each client, (C,), or of each client and parameter, (C, D), as float64."""
    return value.detach().double().cpu().numpy()
