"""What happened in a run: who took part, what was sent, how long it took, and the algorithm's own figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from pyro_fed.algorithm.states import State

#: Among what a plan tries: the model's non-centred form.
NONCENTRED = "non-centred"
#: Clients that a warning of failures names.
SHOWN = 5
#: A message that was cut back by less than this, in SDs of a mean or as the logarithm of a factor, is not told of.
TOLD = 0.25
#: SDs that are so many times as wide as with a client's message uncut are told of: what is asked of honest cohorts.
WIDER = 1.05
#: Of fewer clients the median is no cohort's.
FEWEST_MOVERS = 4
#: A client moves the answer more than others do where it moves it by so many SDs in its median round, and by so many
#: times what the median client does in its own.
MOVED, MOVED_TIMES = 0.5, 5.0
#: Clients differ too much for limits relative to the cohort where more than this share of their messages were cut back
#: in the last rounds, and so many of these are looked at. Two liars of ten are no such share.
UNLIKE, LAST_ROUNDS = 0.3, 10
#: Messages whose numbers are mostly so many of the cohort's SDs from its medians stand apart: like clients are at 0.7.
FAR = 6.0

#: Bytes that every client received and sent before a schedule chose.
Asked = tuple[int, int]
#: A client that failed, and why.
Failure = tuple[int, str]


@dataclass
class Round:
    """One round: the clients that worked, bytes each received and sent, seconds each, figures of each.

    Bytes are those of the encoded messages, one number for all, or (C,). Figures are (C,), or (C, D) where there is
    one a parameter. Where the schedule asked all K clients first, `asked` has the bytes that each received and sent
    for that; what a client received then it need not receive again. `failures` are of clients that were asked to work
    and did not, a client once an attempt; `gone` is how many of these did not reply, where others replied what could
    not be used. `reach` is how long what was released is, as a part of the longest that it can be, where messages are
    shortened.
    """

    phase: str
    clients: list[int]
    bytes_down: int | np.ndarray
    bytes_up: int | np.ndarray
    seconds: float
    info: dict[str, np.ndarray]
    asked: Asked | None = None
    failures: list[Failure] = field(default_factory=list)
    gone: int = 0
    reach: float = 0.0

    @property
    def bytes(self) -> int:
        """All that its clients received and sent, what a schedule asks of everybody left out."""
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
        """The record of which `to_plain` made plain values."""
        traffic = {name: _number_or_array(plain[name]) for name in ("bytes_down", "bytes_up")}
        asked = plain["asked"] and tuple(plain["asked"])
        info = {name: np.asarray(values) for name, values in plain["info"].items()}
        failures = [(client, reason) for client, reason in plain["failures"]]
        return cls(**{**plain, **traffic, "asked": asked, "info": info, "failures": failures})


@dataclass(frozen=True)
class Released:
    """That a run was private, and what it spent.

    Attributes:
        noise: the largest SD of the noise in a mean, in SDs without it; of a point in its own units.
        epsilon: ε, of all rounds.
        delta: δ.
    """

    noise: float
    epsilon: float
    delta: float


@dataclass(frozen=True)
class BySums:
    """What the clients' log-likelihoods at a result's draws have told, one number a client and draw.

    Attributes:
        log_density: of the draws, `lp` (chain, draw); empty where they were not asked about all.
        unchecked: what such sums cannot tell, as a clause; "" where they were not judged by.
        pareto_k: of the draws' importance weights; None where there are none.
        effective: how many draws the weights are worth; likewise.
    """

    log_density: State = field(default_factory=dict)
    unchecked: str = ""
    pareto_k: float | None = None
    effective: float | None = None

    def attributes(self) -> dict[str, Any]:
        """As a result tells it; what is not known is left out."""
        found = {"unchecked": self.unchecked, "pareto_k": self.pareto_k, "effective_draws": self.effective}
        return {name: value for name, value in found.items() if value not in ("", None)}


@dataclass
class Record:
    """The rounds of a run, all phases.

    Attributes:
        client_names: the clients.
        rounds: what happened, round by round.
        figures: figures of each round of the last phase, empty where nobody worked.
        until: the round after the last one of these, where others came after it.
        planned: what a plan tries: the names of its algorithms, and `NONCENTRED`; empty where there is none. Advice
            names nothing of it.
        notes: what happened in the run that its user should know, one sentence each.
        doubts: why the result should not be trusted, one sentence each.
        of_density: whether some of them are about the densities as they are computed, which no algorithm mends.
        converged: whether the algorithm stopped by its own criterion; None where it has none.
        blocked: whether it stood still only since no change of a client's could be applied; it has not converged then.
        interrupted: whether the user stopped it.
        stopped: by its limit of time, such as "stopped at the limit of 60 s, after 3 of 100 rounds"; "" if not.
        audited: whether the result was judged at its draws.
        by_sums: what the clients' sums over rows have told of the result, where the rows are elsewhere.
        measured: what the audit measured: figures by name, each one a `parameter`, whose names are there too.
        lost: the share of the posterior's mass in modes that the result has no draws of.
        modes: places (D,) of the posterior's maxima that the audit knows, in the coordinates of the form that was run;
            what one stage of a plan has found the next ones look at.
        sites: the clients' Gaussian sites, `precision` and `eta` (K, ...), with those of q as `q_precision` and
            `q_eta`; empty where there are none.
        sites_of: the algorithm that left them: the run's own, or one that it started from.
        stands_apart: what is to be said of clients that move the answer more than others do.
        odd_clients: the note on those of them whose number of rows does not explain it.
        private: what a private run spent; None of any other.
    """

    client_names: list[str]
    rounds: list[Round] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)
    until: int | None = None
    planned: frozenset[str] = frozenset()
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    of_density: bool = False
    converged: bool | None = None
    blocked: bool = False
    interrupted: bool = False
    stopped: str = ""
    audited: bool = False
    by_sums: BySums = field(default_factory=BySums)
    measured: dict[str, np.ndarray] = field(default_factory=dict)
    lost: float = 0.0
    modes: list[Tensor] = field(default_factory=list)
    sites: State = field(default_factory=dict)
    sites_of: str = ""
    stands_apart: str = ""
    odd_clients: str = ""
    private: Released | None = None

    @property
    def latest(self) -> dict[str, float]:
        """Figures of the last round in which anybody worked; empty where there was none."""
        return next((figures for figures in reversed(self.figures) if figures), {})

    def said(self) -> list[str]:
        """All that a run warns of, each once: what happened, and why its result should not be trusted.

        Stages of a plan note the same of the model or of the network, each for itself.
        """
        odd = [self.odd_clients] if self.odd_clients else []
        return list(dict.fromkeys([*self.notes, *odd, *self.doubts]))

    def untried(self, *names: str) -> str:
        """Those of some algorithms that no plan tries anyway, as one says them: "FSGLD, DSVGD or NUTS".

        Args:
            names: of algorithms; the last is named where a plan tries all.
        """
        *others, last = [name for name in names if name not in self.planned] or names[-1:]
        return f"{', '.join(others)} or {last}" if others else last

    def last(self, name: str) -> np.ndarray:
        """Figures `name` of the clients in the last round that has them; empty where none has."""
        return next((r.info[name] for r in reversed(self.rounds) if name in r.info), np.empty(0))

    def workers(self, name: str) -> list[str]:
        """Names of the clients that `last` has figures of, in their order."""
        clients: list[int] = next((r.clients for r in reversed(self.rounds) if name in r.info), [])
        return [self.client_names[client] for client in clients]

    def to_plain(self) -> dict[str, Any]:
        """What JSON can hold of it; `restore` reads it again, to the last bit."""
        return {
            "rounds": [r.to_plain() for r in self.rounds],
            "figures": self.figures,
            "notes": self.notes,
            "doubts": self.doubts,
            "converged": self.converged,
            "interrupted": self.interrupted,
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Take up a record that `to_plain` wrote.

        Raises:
            ValueError: other entries than those that it writes.
        """
        if plain.keys() != self.to_plain().keys():
            raise ValueError(f"a record has {list(self.to_plain())}, received {list(plain)!s:.200}")
        for name, value in plain.items():
            setattr(self, name, value)
        self.rounds = [Round.from_plain(r) for r in plain["rounds"]]

    def by_client(self, name: str) -> dict[int, list[float]]:
        """Figures `name` of each client in the rounds in which it worked."""
        found: dict[int, list[float]] = {}
        for one in self.rounds:
            for client, value in zip(one.clients, one.info.get(name, ()), strict=False):
                found.setdefault(client, []).append(float(value))
        return found

    def bounded(self) -> list[str]:
        """One sentence on the clients whose messages were cut back to what the cohort does; none where none were."""
        told = {k: [v for v in values if v > TOLD] for k, values in self.by_client("beyond").items()}
        cut = sorted((k for k in told if told[k]), key=lambda k: -len(told[k]))
        if not cut:
            return []
        asked = {k: len(values) for k, values in self.by_client("beyond").items()}
        parts = [
            f"client {self.client_names[k]} {len(told[k])} of {asked[k]} times, at most by {max(told[k]):.2g}"
            for k in cut[:SHOWN]
        ]
        more = f"; and {len(cut) - SHOWN} more clients" if len(cut) > SHOWN else ""
        more += self._price()
        return [
            "messages were cut back to what the other clients' messages do (in SDs of a mean and logarithms of a "
            f"factor): {'; '.join(parts)}{more}. A liar, wrong units or labels, or another population: pf.influence "
            "without combination= shows which; all cuts are in the group `federation` (beyond)"
        ]

    def _price(self) -> str:
        """By how much cuts of what clients know have widened the last SDs, as a clause; "" where they have not."""
        wider = {k: values[-1] for k, values in self.by_client("widened").items() if values[-1] > WIDER}
        if not wider:
            return ""
        named = ", ".join(
            f"{wider[k]:.2f} (client {self.client_names[k]})" for k in sorted(wider, key=lambda k: -wider[k])
        )
        return f". If they are honest SDs are too wide for it, by the factors {named}"

    def unlike(self) -> str:
        """That the clients are no cohort, in the last rounds with cuts looked at; "" where they are one."""
        last = [one for one in self.rounds if "beyond" in one.info][-LAST_ROUNDS:]
        cut = np.concatenate([one.info["beyond"] for one in last]) if last else np.zeros(0)
        share = float((cut > TOLD).mean()) if len(cut) else 0.0
        if share <= UNLIKE:
            return ""
        return (
            f"{100 * share:.0f} % of the clients' messages were cut back in the last rounds: they differ too much from "
            "each other (one label a client, other populations, too few rows) for Bounded to hold each to what the "
            "others say. Leave combination= out, raise its pull, or pool like clients"
        )

    def restless(self) -> bool:
        """Whether the run has not come to rest in as many rounds as are looked at: sites of one that has tell more."""
        return self.converged is False and len(self.figures) >= LAST_ROUNDS

    def movers(self) -> list[str]:
        """The clients that move the answer more than others do in most of their rounds, one sentence; none if none."""
        usual = {k: float(np.median(values)) for k, values in self.by_client("moved").items()}
        if len(usual) < FEWEST_MOVERS:
            return []
        least = max(MOVED, MOVED_TIMES * float(np.median(list(usual.values()))))
        far = sorted((k for k in usual if usual[k] > least), key=lambda k: -usual[k])
        if not far:
            return []
        named = ", ".join(f"client {self.client_names[k]} by {usual[k]:.2g} SDs" for k in far)
        return [
            f"in most of their rounds some clients move the answer more than {MOVED_TIMES:g} times as far as others "
            f"do: {named} (`moved` in the group `federation`). A liar, wrong units or labels, another population, or "
            "one that puts right what another of them has done?"
        ]

    def moved_first(self) -> str:
        """Who moved the answer far more than others before it was lost, as the end of a sentence; "" where nobody did.

        The first of those that moved it about as far as anybody, and much further than all before: who comes next puts
        that right, and moves it as far. Where all go further and further, steps are too long, and nobody is named.
        """
        moves = [
            (float(value), number, client)
            for number, one in enumerate(self.rounds)
            for client, value in zip(one.clients, one.info.get("moved", ()), strict=False)
            if not np.isnan(value)
        ]
        if len({client for _, _, client in moves}) < FEWEST_MOVERS:
            return ""
        furthest = max(value for value, _, _ in moves)
        for value, number, client in moves:
            usual = float(np.median([other for other, _, who in moves if who != client]))
            before = [other for other, when, who in moves if when < number and who != client]
            least = MOVED_TIMES * max([usual, *before])
            if value > max(MOVED, least) and value * MOVED_TIMES >= furthest:
                name = self.client_names[client]
                return (
                    f"before that, client {name} had moved the answer by {value:.2g} SDs in round {number}, the median "
                    f"message of the others moves it by {usual:.2g}: look at that client first (rows of another kind, "
                    f"wrong units or labels, a liar?), leave it out (fed.without('{name}')), or hold all to the cohort "
                    "(combination=pf.combination.Bounded())"
                )
        return ""

    def apart_from_cohort(self) -> list[str]:
        """The clients most of whose messages were far from the others', one sentence; none where there are none."""
        far = {
            k: sorted(values)[len(values) // 2]
            for k, values in self.by_client("apart").items()
            if sum(value > FAR for value in values) > len(values) / 2
        }
        if not far:
            return []
        named = ", ".join(
            f"client {self.client_names[k]} by {far[k]:.2g} SDs" for k in sorted(far, key=lambda k: -far[k])
        )
        return [
            f"messages stand apart from the cohort's in most rounds: {named} (the median number of a message, in the "
            "cohort's SDs). Rows of another kind or population, or wrong units, labels or signs?"
        ]

    def refused(self) -> str:
        """Why a reply could not be used, the last time; empty where none failed for that, or some did not reply."""
        reasons = [reason for one in self.rounds for _, reason in one.failures]
        return reasons[-1] if reasons and not any(one.gone for one in self.rounds) else ""

    def failed(self) -> list[str]:
        """One sentence on all clients that failed; none where none did."""
        every = [(client, i, reason) for i, r in enumerate(self.rounds) for client, reason in r.failures]
        if not every:
            return []
        last = {client: (i, reason) for client, i, reason in every}
        often = Counter(client for client, _, _ in every).most_common(SHOWN)
        parts = [
            f"client {self.client_names[client]} {count} times, the last in round {last[client][0]}: {last[client][1]}"
            for client, count in often
        ]
        more = f"; and {len(last) - SHOWN} more clients" if len(last) > SHOWN else ""
        return [
            f"{len(every)} times a client failed, and its round went on without it: {'; '.join(parts)}{more}. All are "
            "listed in the group `federation` (failure_round, failure_client, failure_reason)"
        ]


def _number_or_array(value: int | list[float]) -> int | np.ndarray:
    return np.asarray(value) if isinstance(value, list) else value


def as_figures(info: State) -> dict[str, np.ndarray]:
    """Figures of the clients as NumPy arrays, (C,)."""
    return {name: figure_array(value) for name, value in info.items()}


def figure_array(value: Tensor) -> np.ndarray:
    """One figure a client, (C,), or one a client and parameter, (C, D), as float64."""
    return value.detach().double().cpu().numpy()
