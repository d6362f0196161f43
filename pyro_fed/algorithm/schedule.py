"""Schedules, which choose the clients of each round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from pyro_fed.conventions.calls import Checked, explain
from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.setting_checks import check_at_least, check_probabilities, is_number, is_whole
from pyro_fed.errors import SHOWN, SettingError, shown

__all__ = [
    "HIP",
    "KSD",
    "All",
    "Availability",
    "Categorical",
    "Explicit",
    "Informed",
    "RoundRobin",
    "Schedule",
    "Shuffled",
    "UniformRandom",
]
__dir__ = public_dir(__all__)


@dataclass(frozen=True)
class Schedule(ABC, metaclass=Checked):
    """Chooses the clients of each round.

    Class attributes:
        asks: the indicator that all clients compute before the choice (see `Informed`); "" for none.

    Example:
        >>> class EveryOther(pf.schedule.Schedule):
        ...     def select(self, round, num_clients, rng):
        ...         return [k for k in range(num_clients) if (k + round) % 2 == 0]
        >>> idata = pf.run(pf.FedEP(), fed, schedule=EveryOther())
    """

    asks: ClassVar[str] = ""

    def period(self, num_clients: int) -> int:
        """Number of successive rounds with the same randomness."""
        return 1

    def chosen(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The result of `select` as a list; SettingError if it is not a list of different client numbers."""
        answer: Any
        try:
            answer = self.select(round, num_clients, rng)
        except Exception as error:  # of any kind, as it may be the user's code that raised it
            explain(error, SettingError, f"{self._called(round, num_clients)} failed")
        if type(answer) is list and len(answer) == 1 and type(answer[0]) is int and 0 <= answer[0] < num_clients:
            return answer  # of chains there are many rounds
        name = self._called(round, num_clients)
        expected = f"expected a list of different client numbers from 0 to {num_clients - 1}, empty where nobody works"
        if not isinstance(answer, list | tuple | range | np.ndarray | Tensor):
            raise SettingError(f"{name} returned {str(answer)[:SHOWN]} ({type(answer).__name__}); {expected}")
        numbers = answer.tolist() if isinstance(answer, np.ndarray | Tensor) else list(answer)
        if not isinstance(numbers, list):
            numbers = [numbers]
        wrong = [
            k for k in numbers if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < num_clients
        ]
        twice = sorted(k for k, times in Counter(numbers).items() if times > 1) if not wrong else []
        if wrong or twice:
            what = f"{wrong[0]!r}" if wrong else f"client {twice[0]} twice"
            cure = "; np.flatnonzero(mask) turns a mask into numbers" if wrong and isinstance(wrong[0], bool) else ""
            raise SettingError(f"{name} returned {what} in {str(numbers)[:SHOWN]}; {expected}{cure}")
        return [int(k) for k in numbers]

    def of_period(self, num_clients: int, rng: np.random.Generator) -> Callable[[int], list[int]]:
        """The results of `chosen` in each round of one period, each with the same randomness `rng`."""
        beginning = rng.bit_generator.state

        def answer(round: int) -> list[int]:
            rng.bit_generator.state = beginning
            return self.chosen(round, num_clients, rng)

        return answer

    def of_slots(
        self, num_clients: int, slots: int, generator: Callable[[int], np.random.Generator]
    ) -> Callable[[int], list[int]]:
        """The results of `chosen` for several slots, one for each chain, with independent randomness."""
        answers = [self.of_period(num_clients, generator(slot)) for slot in range(slots)]
        return lambda round: [client for answer in answers for client in answer(round)]

    def _called(self, round: int, num_clients: int) -> str:
        return f"{type(self).__name__}.select(round={round}, num_clients={num_clients})"

    @abstractmethod
    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The clients that work in this round.

        Args:
            round: the round, from 0.
            num_clients: K.
            rng: randomness of this round, or of the `period` that it belongs to; it depends only on the seed.
        """

    def _check(self, count: int, num_clients: int) -> None:
        if not 1 <= count <= num_clients:
            raise SettingError(f"clients_per_round must be between 1 and the {num_clients} clients, received {count}")


@dataclass(frozen=True)
class All(Schedule):
    """Every client in every round.

    Example:
        >>> pf.run(pf.FedEP(), fed, schedule=pf.schedule.All())
    """

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """All clients, in their order."""
        return list(range(num_clients))


@dataclass(frozen=True)
class SomeClients(Schedule):
    """Base of schedules with `clients_per_round` clients in each round."""

    clients_per_round: int = 1

    def __post_init__(self) -> None:
        check_at_least(self, 1, "clients_per_round")


@dataclass(frozen=True)
class RoundRobin(SomeClients):
    """Clients in turn, `clients_per_round` at a time.

    Args:
        clients_per_round: how many, at most all.

    Raises:
        SettingError: `clients_per_round` is not between 1 and the number of clients.

    Example:
        >>> pf.run(pf.DSVGD(), fed, schedule=pf.schedule.RoundRobin())
    """

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The next clients in the order of their numbers."""
        self._check(self.clients_per_round, num_clients)
        first = round * self.clients_per_round
        return [(first + i) % num_clients for i in range(self.clients_per_round)]


@dataclass(frozen=True)
class UniformRandom(SomeClients):
    """`clients_per_round` different clients, uniformly at random.

    Args:
        clients_per_round: how many, at most all.

    Raises:
        SettingError: `clients_per_round` is not between 1 and the number of clients.

    Example:
        >>> pf.run(pf.FedEP(), fed, schedule=pf.schedule.UniformRandom(3))
    """

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """A uniform sample without replacement."""
        self._check(self.clients_per_round, num_clients)
        return [int(k) for k in rng.choice(num_clients, size=self.clients_per_round, replace=False)]


@dataclass(frozen=True)
class Explicit(Schedule):
    """An explicit list of the clients of each round; it is repeated when it ends.

    Args:
        rounds: the numbers of each round's clients, from 0; at least one client per round.

    Raises:
        SettingError: no rounds; a round without clients, with one twice, or with one that does not exist.

    Example:
        >>> pf.run(pf.FedEP(), fed, num_rounds=20, schedule=pf.schedule.Explicit([[0, 1], [2], [0, 2]]))
    """

    rounds: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        if not len(self.rounds):
            raise SettingError("Explicit: expected at least one round, received none")
        for number, clients in enumerate(self.rounds):
            if not len(clients) or not all(is_whole(k) and k >= 0 for k in clients):
                raise SettingError(
                    f"Explicit: expected clients' numbers from 0 in round {number}, at least one, received "
                    f"{shown(clients)}"
                )
            if len(set(clients)) < len(clients):
                raise SettingError(f"Explicit: round {number} has a client twice: {shown(clients)}")

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The clients listed for this round."""
        chosen = [int(k) for k in self.rounds[round % len(self.rounds)]]
        if max(chosen) >= num_clients:
            raise SettingError(f"round {round} of the schedule lists {chosen}, but clients are 0..{num_clients - 1}")
        return chosen


@dataclass(frozen=True)
class Categorical(Schedule):
    """One random client per round, with given probabilities, such as FSGLD's f_s; uniform by default.

    Args:
        probabilities: the probability of each client; they sum to one.

    Raises:
        SettingError: probabilities that do not sum to one, or not one for each client.

    Example:
        >>> pf.run(pf.FSGLD(), fed, schedule=pf.schedule.Categorical((0.5, 0.3, 0.2)))
    """

    probabilities: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.probabilities is not None:
            check_probabilities(self, "probabilities", zeros=True)

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """A draw of the categorical distribution."""
        if self.probabilities is not None and len(self.probabilities) != num_clients:
            raise SettingError(
                f"Categorical: {len(self.probabilities)} probabilities were given for {num_clients} clients"
            )
        return [int(rng.choice(num_clients, p=self.probabilities))]


@dataclass(frozen=True)
class Shuffled(Schedule):
    """One client per round, every client once in a sweep of K rounds, in a new random order for each sweep.

    The common part of the clients' messages adds up as with `Categorical()`, but the clients' own errors, whose sum
    over a sweep is zero, cancel (random reshuffling).

    Up to K chains use one order, each starting one place after the previous chain. For each chain the order is random,
    and no client has two chains in a round while another client has none.

    Example:
        >>> pf.run(pf.FSGLD(), fed, schedule=pf.schedule.Shuffled())
    """

    def period(self, num_clients: int) -> int:
        """A sweep, the number of rounds in which each client works once."""
        return num_clients

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The sweep's next client."""
        return [int(rng.permutation(num_clients)[round % num_clients])]

    def of_period(self, num_clients: int, rng: np.random.Generator) -> Callable[[int], list[int]]:
        """The clients of a sweep in their random order."""
        if type(self).select is not Shuffled.select:
            return super().of_period(num_clients, rng)
        return self.of_slots(num_clients, 1, lambda _: rng)

    def of_slots(
        self, num_clients: int, slots: int, generator: Callable[[int], np.random.Generator]
    ) -> Callable[[int], list[int]]:
        """One order for every K slots, which start at successive places in it."""
        if type(self).select is not Shuffled.select:
            return super().of_slots(num_clients, slots, generator)
        orders = [generator(first).permutation(num_clients).tolist() * 2 for first in range(0, slots, num_clients)]
        counts = [min(num_clients, slots - first) for first in range(0, slots, num_clients)]

        def answer(round: int) -> list[int]:
            at = round % num_clients
            return [client for order, count in zip(orders, counts, strict=True) for client in order[at : at + count]]

        return answer


@dataclass(frozen=True)
class Availability(Schedule):
    """A random sample of the reachable clients; each client is reachable with its own probability.

    Rounds are not empty: reachable clients are drawn given that at least one is reachable. If fewer than
    `clients_per_round` are reachable, all of them work.

    Args:
        probabilities: the probability that each client is reachable, in (0, 1].
        clients_per_round: largest number of clients in a round.

    Raises:
        SettingError: a setting out of its range, or not one probability for each client.

    Example:
        >>> pf.run(pf.FedEP(), fed, schedule=pf.schedule.Availability((0.9, 0.5, 0.1), clients_per_round=2))
    """

    probabilities: Sequence[float]
    clients_per_round: int = 1

    def __post_init__(self) -> None:
        check_at_least(self, 1, "clients_per_round")
        if not len(self.probabilities) or not all(is_number(one) and 0 < one <= 1 for one in self.probabilities):
            raise SettingError(
                f"Availability: probabilities must be numbers in (0, 1], received {shown(self.probabilities)}"
            )

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """A uniform sample of the reachable clients, in the order of their numbers."""
        self._check(self.clients_per_round, num_clients)
        chances = np.asarray(self.probabilities, dtype=float)
        if len(chances) != num_clients:
            raise SettingError(f"Availability: {len(chances)} probabilities were given for {num_clients} clients")
        # the first reachable client, given that there is one: those before it are not reachable, those after it are
        # independent of it
        odds = chances * np.cumprod(np.concatenate(([1.0], 1 - chances[:-1])))
        first = int(rng.choice(num_clients, p=odds / odds.sum()))
        behind = np.flatnonzero(rng.random(num_clients) < chances)
        here = np.concatenate(([first], behind[behind > first]))
        count = min(self.clients_per_round, len(here))
        return sorted(int(k) for k in rng.choice(here, size=count, replace=False))


@dataclass(frozen=True)
class Informed(SomeClients):
    """Random clients with probabilities proportional to their importance, computed by all clients in every round.

    The server sends the round's download to all clients, each replies with an indicator, and the server computes
    probabilities from these (Yang, Liu & Kassab, *Client selection for federated Bayesian learning*, Section III-A).
    The algorithm must provide the indicator (`Indicators.indicators`). The record's bytes include all of this traffic.

    Args:
        clients_per_round: number of clients, drawn without replacement.

    Raises:
        SettingError: `clients_per_round` is not between 1 and the number of clients.
    """

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Refuse to select without the clients' indicators.

        Raises:
            SettingError: always; use `choose`.
        """
        raise SettingError(f"{type(self).__name__} chooses by the clients' indicators: use it with pyro_fed.run")

    def choose(self, importance: np.ndarray, rng: np.random.Generator) -> list[int]:
        """Clients with probabilities proportional to `importance` (K,), which is nonnegative.

        If fewer clients than `clients_per_round` have a positive importance, the rest are drawn uniformly.
        """
        self._check(self.clients_per_round, len(importance))
        weights = np.asarray(importance, dtype=float)
        chosen: list[int] = []
        for _ in range(self.clients_per_round):
            left = np.ones(len(weights), dtype=bool)
            left[chosen] = False
            odds = np.where(left, weights, 0.0)
            odds = odds if odds.sum() > 0 else left.astype(float)
            chosen.append(int(rng.choice(len(weights), p=odds / odds.sum())))
        return chosen


@dataclass(frozen=True)
class KSD(Informed):
    """Clients whose tilted distribution the particles fit worst (the paper's Algorithm 1).

        P_k = S_k(q, p̃_k) / Σ_m S_m(q, p̃_m)                                                          (17)

    with S the squared kernelised Stein discrepancy with the algorithm's kernel. The paper's bandwidth of 0.55 "for the
    KSD estimator" is taken to be that of the KDE. A client replies with one number.

    Args:
        clients_per_round: how many, without replacement.

    Example:
        >>> pf.run(pf.papers.PaperDSVGD(), fed, num_rounds=10, schedule=pf.schedule.KSD())
    """

    asks: ClassVar[str] = "ksd"


@dataclass(frozen=True)
class HIP(Informed):
    """Clients whose likelihood moves the particles as all clients together would (the paper's Algorithm 2).

        P_k = <φ_k, φ'> / Σ_m <φ_m, φ'>                                                             (24)

    in the kernel's Hilbert space, with φ' that of the geometric mean of the clients' likelihoods. A client replies with
    its scores at all particles. Deviation: the paper does not define negative products; here they count as zero.

    Args:
        clients_per_round: how many, without replacement.

    Example:
        >>> pf.run(pf.papers.PaperDSVGD(), fed, num_rounds=10, schedule=pf.schedule.HIP())
    """

    asks: ClassVar[str] = "hip"
