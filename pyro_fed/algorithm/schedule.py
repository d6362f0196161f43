"""Who works in a round."""

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
        asks: the indicator that it asks all clients for before it chooses (see `Informed`); "" for none.

    Example:
        >>> class EveryOther(pf.schedule.Schedule):
        ...     def select(self, round, num_clients, rng):
        ...         return [k for k in range(num_clients) if (k + round) % 2 == 0]
        >>> idata = pf.run(pf.FedEP(), fed, schedule=EveryOther())
    """

    asks: ClassVar[str] = ""

    def period(self, num_clients: int) -> int:
        """How many rounds in a row get the same randomness."""
        return 1

    def chosen(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """What `select` answers, as a list; a SettingError where it is not one of different clients' numbers."""
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
        found = answer.tolist() if isinstance(answer, np.ndarray | Tensor) else list(answer)
        if not isinstance(found, list):
            found = [found]
        wrong = [
            k for k in found if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 0 <= k < num_clients
        ]
        twice = sorted(k for k, times in Counter(found).items() if times > 1) if not wrong else []
        if wrong or twice:
            what = f"{wrong[0]!r}" if wrong else f"client {twice[0]} twice"
            cure = "; np.flatnonzero(mask) turns a mask into numbers" if wrong and isinstance(wrong[0], bool) else ""
            raise SettingError(f"{name} returned {what} in {str(found)[:SHOWN]}; {expected}{cure}")
        return [int(k) for k in found]

    def of_period(self, num_clients: int, rng: np.random.Generator) -> Callable[[int], list[int]]:
        """What `chosen` answers in each round of one period, which all begin with the randomness of `rng`."""
        beginning = rng.bit_generator.state

        def answer(round: int) -> list[int]:
            rng.bit_generator.state = beginning
            return self.chosen(round, num_clients, rng)

        return answer

    def of_slots(
        self, num_clients: int, slots: int, generator: Callable[[int], np.random.Generator]
    ) -> Callable[[int], list[int]]:
        """What `chosen` answers for several slots, one a chain, each with randomness of its own, slot after slot."""
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
            rng: randomness of this round, or of the `period` that it belongs to: a function of the seed alone.
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
    """Base of schedules of `clients_per_round` clients."""

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
    """Given clients, round by round; the list is repeated when it ends.

    Args:
        rounds: the numbers of each round's clients, from 0; at least one client a round.

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
    """One client, drawn with given probabilities, such as FSGLD's f_s; uniform by default.

    Args:
        probabilities: of each client, not negative, with the sum one.

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
    """Every client once in a sweep of K rounds, one a round, in an order drawn anew for each sweep.

    What the clients' messages have in common adds up as under `Categorical()`, but the clients' own errors, whose
    sum over a sweep is zero, cancel (random reshuffling).

    Up to K chains go through one order, each a place ahead of the one before: to each it is a random one, and no client
    has two of them in a round while others have none.

    Example:
        >>> pf.run(pf.FSGLD(), fed, schedule=pf.schedule.Shuffled())
    """

    def period(self, num_clients: int) -> int:
        """A sweep: as many rounds as take each client once."""
        return num_clients

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """The sweep's next client."""
        return [int(rng.permutation(num_clients)[round % num_clients])]

    def of_period(self, num_clients: int, rng: np.random.Generator) -> Callable[[int], list[int]]:
        """A sweep's clients, whose order is drawn once."""
        if type(self).select is not Shuffled.select:
            return super().of_period(num_clients, rng)
        return self.of_slots(num_clients, 1, lambda _: rng)

    def of_slots(
        self, num_clients: int, slots: int, generator: Callable[[int], np.random.Generator]
    ) -> Callable[[int], list[int]]:
        """One order for each K slots, which begin at one place of it after the other."""
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
    """Clients that happen to be reachable: each with its own probability, then some of these at random.

    There are no empty rounds: who is reachable is drawn given that somebody is. If fewer than `clients_per_round` are,
    all of them work.

    Args:
        probabilities: of each client, in (0, 1].
        clients_per_round: at most.

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
        # the first that is there, given that one is: all before it are not; those behind it are independent of that
        odds = chances * np.cumprod(np.concatenate(([1.0], 1 - chances[:-1])))
        first = int(rng.choice(num_clients, p=odds / odds.sum()))
        behind = np.flatnonzero(rng.random(num_clients) < chances)
        here = np.concatenate(([first], behind[behind > first]))
        count = min(self.clients_per_round, len(here))
        return sorted(int(k) for k in rng.choice(here, size=count, replace=False))


@dataclass(frozen=True)
class Informed(SomeClients):
    """Clients at random in proportion to their importance, which all clients are asked for in every round.

    The server sends what a round needs to all clients, each answers with an indicator, and the server turns
    the answers into probabilities (Yang, Liu & Kassab, *Client selection for federated Bayesian learning*,
    Section III-A). The algorithm must be able to give the indicator (`Algorithm.indicators`). All traffic is
    in the record's bytes.

    Args:
        clients_per_round: how many, without replacement.

    Raises:
        SettingError: `clients_per_round` is not between 1 and the number of clients.
    """

    def select(self, round: int, num_clients: int, rng: np.random.Generator) -> list[int]:
        """Not without the clients' answers.

        Raises:
            SettingError: always; `choose` is the method.
        """
        raise SettingError(f"{type(self).__name__} chooses by the clients' answers: use it with pyro_fed.run")

    def choose(self, importance: np.ndarray, rng: np.random.Generator) -> list[int]:
        """Clients with probabilities proportional to `importance` (K,), which is not negative.

        Where fewer clients than wanted have any importance, the rest are drawn uniformly.
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

    with S the squared kernelised Stein discrepancy, by the algorithm's own kernel: the paper's bandwidth of 0.55 "for
    the KSD estimator" is read as that of its source's KDE. A client answers with one number.

    Args:
        clients_per_round: how many, without replacement.

    Example:
        >>> pf.run(pf.papers.PaperDSVGD(), fed, num_rounds=10, schedule=pf.schedule.KSD())
    """

    asks: ClassVar[str] = "ksd"


@dataclass(frozen=True)
class HIP(Informed):
    """Clients whose likelihood pulls the particles where all together would (the paper's Algorithm 2).

        P_k = <φ_k, φ'> / Σ_m <φ_m, φ'>                                                             (24)

    in the kernel's Hilbert space, φ' for the geometric mean of the clients' likelihoods. A client answers
    with its scores at all particles. Deviation: the paper does not say what a negative product means; here it
    counts as zero.

    Args:
        clients_per_round: how many, without replacement.

    Example:
        >>> pf.run(pf.papers.PaperDSVGD(), fed, num_rounds=10, schedule=pf.schedule.HIP())
    """

    asks: ClassVar[str] = "hip"
