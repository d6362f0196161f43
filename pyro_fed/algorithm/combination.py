"""Combinations of messages that a server does not trust, or must not see, one by one.

`Bounded` is for algorithms whose messages are contributions of single clients (Gaussian sites, draws, visits of a chain
or of particles). Their `contributions` limit the effect of one client relative to the cohort.

All other combinations replace every message by one vector m̄, so that the sum of C messages is C m̄, and their mean m̄
for all weights:

    Clipped       m̄ = mean_k m_k min(1, r / ‖m_k‖)
    TrimmedMean   m̄_d = mean of m_kd without the largest and smallest share of them      (Yin et al. 2018)
    Median        m̄_d = median_k m_kd                                                     (Yin et al. 2018)
    Private       m̄ = (Σ_k m_k min(1, r / ‖m_k‖) + noise of SD z r) / C, on a grid      (McMahan et al. 2018)

Bias: all four differ from the mean if clients differ. The median and the trimmed mean of skewed messages are not their
mean, clipping shortens long messages, and the clients' shares of the rows are not used. The bias is small for clients
of equal size with similar data. If each client has only one label, it is large, and the result is not the posterior.

They are for algorithms that use only sums of messages and whose clients keep no site (`additive`, `keeps_sites`): if a
client changed its site by a message that the server trims, the change would be lost. `Bounded`, `Clipped` and `Private`
send each client the part that was cut from its message, so that its site equals the one in q; with `Private` this is
differentially private partitioned variational inference (Heikkilä et al. 2023).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.bounding import BoundedSites, bounded_sites
from pyro_fed.algorithm.message_limits import LARGEST_RATIO
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.setting_checks import check_between, check_positive
from pyro_fed.errors import SettingError
from pyro_fed.ops.gaussian import Gaussian

__all__ = ["Bounded", "Clipped", "Combination", "Median", "Middle", "Shortened", "TrimmedMean"]
__dir__ = public_dir(__all__)

#: Smallest number of clients that can outvote one of them.
MIN_COHORT = 3
#: Smallest cohort without a warning: in a smaller one, a client and one other determine the median and the spread.
MIN_BOUNDED_COHORT = 2 * MIN_COHORT


@dataclass(frozen=True, kw_only=True)
class Combination(ABC, metaclass=Checked):
    """A rule by which the server replaces a round's messages."""

    #: Whether the clients' other figures and flags must not be used.
    private = False
    #: Whether it only shortens messages, so that a client that receives the correction may keep a site.
    shortens = False

    def check_clients(self, num_clients: int) -> None:
        """Refuse settings that are invalid for this number of clients; none by default."""
        return

    def figures(self, releases: int) -> dict[str, float]:
        """Figures after this number of rounds with used messages."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Bounded(Combination):
    """Each client's message, limited relative to the cohort's messages.

    A client's pull on a mean is limited to `pull` SDs of its variation by chance or among clients. Its information is
    limited to `precision` times that of the median client, or half as many times that expected from its rows
    (`algorithm.bounding` has the derivation). One of ten equal clients moves no mean by more than about 1.5 SDs,
    whatever it sends; two move it by at most twice as much. Honest clients within the limits lose nothing. A client
    with more than twenty times the median client's rows counts as if it had that many, which widens the result. The run
    names the clients whose messages were limited, and how often.

    Args:
        pull: limit on a client's pull, in SDs of its variation by chance or among clients.
        precision: limit on a client's information, in units of the median client's.

    Raises:
        SettingError: a setting out of its range; fewer than three clients.

    Example:
        >>> idata = pf.run(pf.FedEP(), fed, combination=pf.combination.Bounded())
    """

    pull: float = 2.0
    precision: float = 4.0

    def __post_init__(self) -> None:
        check_positive(self, "pull")
        check_between(self, "precision", 1.0, LARGEST_RATIO, "[]")

    def check_clients(self, num_clients: int) -> None:
        """Refuse fewer than three: two cannot outvote one."""
        if num_clients < MIN_COHORT:
            raise SettingError(
                f"Bounded: {num_clients} clients cannot outvote one of them; expected at least {MIN_COHORT}, and ten "
                "or more for a bound below two SDs"
            )

    def small_cohort(self, num_clients: int) -> list[Finding]:
        """A finding that the cohort is small, with its effect on the result; empty if it is not."""
        enough = num_clients >= MIN_BOUNDED_COHORT
        return [] if enough else [sentences.cohort_is_small(clients_held=num_clients, enough=MIN_BOUNDED_COHORT)]

    def sites(self, base: Gaussian, sites: Gaussian, centre: Tensor, rows: Tensor | None = None) -> BoundedSites:
        """Sites (K,) within the limits (see `bounded_sites`); fewer than three are refused."""
        self.check_clients(len(sites.eta))
        return bounded_sites(base, sites, centre, pull=self.pull, precision=self.precision, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Middle(Combination):
    """One vector that replaces all messages of a round."""

    @abstractmethod
    def middle(self, messages: Tensor) -> Tensor:
        """m̄ (P,) of messages (C, P), float64."""

    def __call__(self, messages: State) -> State:
        """The messages (C, ...) with m̄ in each place; flags by majority."""
        flat, names = _flat(messages)
        parts = self.middle(flat).split(list(names.values()))
        out = {
            name: part.to(messages[name].dtype).reshape(messages[name].shape[1:]).expand_as(messages[name])
            for name, part in zip(names, parts, strict=True)
        }
        return {name: out.get(name, self._flags(value)) for name, value in messages.items()}

    def _flags(self, value: Tensor) -> Tensor:
        if self.private:
            return torch.ones_like(value)
        return value.mode(0).values.expand_as(value)


@dataclass(frozen=True, kw_only=True)
class Shortened(Middle):
    """Means of messages that are shortened to a norm.

    Args:
        norm: r, the longest that a message may be.
    """

    shortens = True

    norm: float

    def reach(self, combined: State) -> float:
        """The norm of m̄, in each place of `combined` (C, ...), as a share of the largest possible."""
        return float(as_numbers(combined)[0].norm()) / self.norm

    def corrections(self, messages: State) -> State:
        """For each client that keeps a site, the difference of its shortened message from the one it sent."""
        flat, sizes = _flat(messages)
        short = (clip(flat, self.norm) - flat).split(list(sizes.values()), 1)
        return {
            f"correction_{name}": part.reshape(messages[name].shape).to(messages[name].dtype)
            for name, part in zip(sizes, short, strict=True)
        }


@dataclass(frozen=True, kw_only=True)
class Clipped(Shortened):
    """The mean of messages that are shortened to a norm.

    Args:
        norm: r, the longest that a message may be.

    Raises:
        SettingError: `norm` is not positive.

    Example:
        >>> pf.run(pf.infer.FedSEP(start="prior"), fed, combination=pf.combination.Clipped(norm=1.0))
    """

    def __post_init__(self) -> None:
        check_positive(self, "norm")

    def middle(self, messages: Tensor) -> Tensor:
        """The mean of the clipped messages."""
        return clip(messages, self.norm).mean(0)


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Middle):
    """The mean of each number without its largest and smallest values.

    Args:
        share: share of the messages that is omitted at each end; it tolerates the same share of faulty clients.

    Raises:
        SettingError: `share` out of its range.

    References:
        Yin, Chen, Ramchandran & Bartlett (2018), Byzantine-robust distributed learning.

    Example:
        >>> pf.run(pf.infer.FedSEP(start="prior"), fed, combination=pf.combination.TrimmedMean(share=0.1))
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        check_between(self, "share", 0, 0.5, "[)")

    def middle(self, messages: Tensor) -> Tensor:
        """The trimmed mean; at least one value is left."""
        cut = min(math.ceil(self.share * len(messages)), (len(messages) - 1) // 2)
        return messages.sort(0).values[cut : len(messages) - cut].mean(0)


@dataclass(frozen=True, kw_only=True)
class Median(Middle):
    """The median of each number.

    References:
        Yin, Chen, Ramchandran & Bartlett (2018), Byzantine-robust distributed learning.

    Example:
        >>> pf.run(pf.infer.FedSEP(start="prior"), fed, combination=pf.combination.Median())
    """

    def middle(self, messages: Tensor) -> Tensor:
        """The median; of an even number of messages the mean of the middle two."""
        return messages.quantile(0.5, 0)


def _flat(messages: State) -> tuple[Tensor, dict[str, int]]:
    """All numbers that are not flags, (C, P), float64, and the number of them in each tensor."""
    sizes = {name: value[0].numel() for name, value in messages.items() if value.is_floating_point()}
    return torch.cat([messages[name].double().reshape(len(messages[name]), -1) for name in sizes], 1), sizes


def as_numbers(messages: State) -> Tensor:
    """All numbers of messages that are not flags, (C, P), float64."""
    return _flat(messages)[0]


def clip(messages: Tensor, norm: float) -> Tensor:
    """Messages (C, P), shortened to at most `norm`."""
    lengths: Tensor = messages.norm(dim=1, keepdim=True)
    return messages * (norm / lengths).clamp_max(1.0)
