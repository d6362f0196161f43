"""States of clients that follow what the server made of their messages, such as sites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from pyro_fed.errors import SettingError

if TYPE_CHECKING:
    from pyro_fed.algorithm.states import State
    from pyro_fed.density.problem import Problem


class SiteKeeping(ABC):
    """Its clients keep what the server made of their messages, such as their sites.

    Class attributes:
        corrected: `settle` takes up `correction_precision` and `correction_eta` of what it is told, so that a server
            may shorten messages.
    """

    corrected: ClassVar[bool] = False

    @abstractmethod
    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """What the server tells the clients of a round about their messages.

        Args:
            after: the server's state after `combine` and `Algorithm.refine`.
            clients: (C,) in the order in which `combine` saw their messages.

        Returns:
            what each is told, (C, ...), and more figures for the record, (C,).
        """

    def clippable_part(self, messages: State) -> State:
        """Messages without what a server that shortens them must not look at."""
        return messages

    @abstractmethod
    def settle(self, told: State, local: State) -> State:
        """What the C clients of a round keep, (C, ...).

        Args:
            told: the server's `feedback`, (C, ...).
            local: their states as `local_step` returned them, (C, ...).
        """

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """The states of an earlier run with other clients.

        Args:
            problem: the model with the present clients' data.
            shared: the server's, from the earlier run.
            local: the earlier clients', (K, ...).
            origin: (K',) where each present client was among the earlier ones, -1 where it is new.

        Raises:
            SettingError: a client's contribution cannot be taken out.
        """
        raise no_sites(self)


def no_distribution_left(algorithm: object) -> SettingError:
    """The error of an algorithm whose prior and sites of the clients that are left cannot be multiplied."""
    return SettingError(
        f"{type(algorithm).__name__}: the prior and the sites of the clients that are left are no distribution: run "
        "it afresh on them"
    )


def no_sites(algorithm: object) -> SettingError:
    """The error of an algorithm whose clients' contributions cannot be put in or taken out."""
    return SettingError(
        f"{type(algorithm).__name__} has no sites that could be put in or taken out: run it afresh on the clients that "
        "are left, or use FedEP"
    )
