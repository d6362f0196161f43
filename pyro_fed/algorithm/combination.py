"""How a server adds up messages that it does not trust one by one, or must not see one by one.

`Bounded` is for algorithms whose messages say what each client knows (Gaussian sites, draws, visits of a chain or of
particles): each takes it up by its `contributions`, and holds what one client can do to what the cohort does.

All others put one vector m̄ in the place of all C messages, so that what an algorithm makes of their sum is
C m̄ and of their mean, whatever the weights, m̄:

    Clipped       m̄ = mean_k m_k min(1, r / ‖m_k‖)
    TrimmedMean   m̄_d = mean of m_kd without the largest and smallest share of them      (Yin et al. 2018)
    Median        m̄_d = median_k m_kd                                                     (Yin et al. 2018)
    Private       m̄ = (Σ_k m_k min(1, r / ‖m_k‖) + noise of SD z r) / C, on a grid      (McMahan et al. 2018)

Bias: all four leave the mean where clients differ. The median and the trimmed mean of skew messages are not their
mean, clipping shortens the long ones, and the clients' shares of the rows are not used. With clients of equal size
and like data the bias is small; with one label a client it is not, and the result is not the posterior.

They serve algorithms that ask for sums alone and whose clients keep no site (`additive`, `keeps_sites`): a client
that moved its own site by a message that the server trimmed away would never send it again. `Bounded`, `Clipped` and
`Private` tell each client what was cut of its own message, so that its site is what the server has taken: with
`Private` that is differentially private partitioned variational inference (Heikkilä et al. 2023).
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

#: Fewer clients than this cannot outvote one of them.
MIN_COHORT = 3
#: Of fewer clients than this one is a third to a fifth of the cohort, whose median and spread it sets with one other.
MIN_BOUNDED_COHORT = 2 * MIN_COHORT


@dataclass(frozen=True, kw_only=True)
class Combination(ABC, metaclass=Checked):
    """What the server puts in the place of a round's messages."""

    #: Whether what else the clients say of themselves, figures and flags, must not be looked at.
    private = False
    #: Whether it does no more to a client's message than to shorten it: a client that is told may keep a site.
    shortens = False

    def check_clients(self, num_clients: int) -> None:
        """Refuse settings that make no sense for so many clients; none by default."""
        return

    def figures(self, releases: int) -> dict[str, float]:
        """Figures after so many rounds whose messages were used."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Bounded(Combination):
    """Each client's message, cut back to what the cohort's messages do.

    A client moves no mean by more than `pull` SDs of what chance, or the median client, does, and knows at most
    `precision` times as much as the median client, or half as many times what its rows would (`algorithm.bounding` has
    the derivation). One of ten like clients moves no mean by more than about 1.5 SDs, whatever it sends; two by twice
    that. Honest clients within the limits lose nothing; one with more than twenty times the median client's rows counts
    as if it had so many, which widens the result. The run names the clients whose messages were cut, and how often.

    Args:
        pull: SDs of what chance or the median client does.
        precision: of the median client.

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
        """A finding that so few clients are no cohort, with its effect on the result; empty if they are one."""
        enough = num_clients >= MIN_BOUNDED_COHORT
        return [] if enough else [sentences.cohort_is_small(clients_held=num_clients, enough=MIN_BOUNDED_COHORT)]

    def sites(self, base: Gaussian, sites: Gaussian, centre: Tensor, rows: Tensor | None = None) -> BoundedSites:
        """Sites (K,) within the limits, see `bounded_sites`; refused where there are fewer than three."""
        self.check_clients(len(sites.eta))
        return bounded_sites(base, sites, centre, pull=self.pull, precision=self.precision, rows=rows)


@dataclass(frozen=True, kw_only=True)
class Middle(Combination):
    """One vector in the place of all messages of a round."""

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
        """The length of a round's middle, in each place of `combined` (C, ...), as a part of the largest possible."""
        return float(as_numbers(combined)[0].norm()) / self.norm

    def corrections(self, messages: State) -> State:
        """For each client that keeps a site, and for it alone: what its shortened message is over the one it sent."""
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
        share: of the messages that is left out at each end; it bears as large a share of attackers.

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
        """The median, of an even number the mean of the middle two."""
        return messages.quantile(0.5, 0)


def _flat(messages: State) -> tuple[Tensor, dict[str, int]]:
    """All numbers that are not flags, (C, P), float64, and the number of them in each tensor."""
    sizes = {name: value[0].numel() for name, value in messages.items() if value.is_floating_point()}
    return torch.cat([messages[name].double().reshape(len(messages[name]), -1) for name in sizes], 1), sizes


def as_numbers(messages: State) -> Tensor:
    """All numbers of messages that are not flags, (C, P), float64."""
    return _flat(messages)[0]


def clip(messages: Tensor, norm: float) -> Tensor:
    """Messages (C, P), none longer than `norm`."""
    lengths: Tensor = messages.norm(dim=1, keepdim=True)
    return messages * (norm / lengths).clamp_max(1.0)
