"""Differential privacy of a client: clipped messages, Gaussian noise on their sum, and an accountant.

Source: McMahan, Ramage, Talwar & Zhang (2018), *Learning differentially private recurrent language models*; Mironov
(2017), Rényi differential privacy, by `opacus.accountants`.

    m̄ = (Σ_k m_k min(1, r / ‖m_k‖) + ξ) / C,    ξ ~ N(0, z² r² I)

Adding or removing one client with all its rows changes the sum by at most r. So a round is a Gaussian mechanism of
noise multiplier z, and (ε, δ) follow from z and the number of rounds. That holds for who sees m̄ and what follows from
it: the server adds the noise, and is trusted (see SECURITY.md). No reduction is claimed for clients that a schedule
leaves out.

The noise does not follow from the run's seed, which the result names: it is drawn from the operating system, so that a
private run is the one kind that cannot be repeated to the bit.
"""

from __future__ import annotations

import math
import secrets
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Shortened, as_numbers, clip
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.setting_checks import check_between, check_choice, check_positive
from pyro_fed.errors import SettingError

#: The noise's squared length is taken for so many of its SDs more than its mean.
SIGMAS = 3.0


@dataclass(frozen=True, kw_only=True)
class Private(Shortened):
    """The mean of clipped messages with Gaussian noise.

    The result holds what was released and what follows from it: no rows, log-likelihoods or densities, and nothing that
    clients say of themselves. The group `federation` gets `epsilon` after each round, the result's attributes
    `epsilon`, `delta` and `noise`: the noise's largest SD in a mean, in posterior SDs. The draws have that noise in
    their spread; what clipping takes away is not in it. If the last release, noise aside, is at least half as long as
    `norm` allows, the result says that messages were still being shortened; how many is not released. Shortened
    messages that cancel each other out cannot be noticed: choose a norm that honest messages seldom reach. A checkpoint
    of the run holds the server's state, and is the server's alone.

    Args:
        norm: r, the longest that a message may be, or with `unit="row"` that a row's part of it may be.
        noise_multiplier: z, the noise's SD in units of `norm`.
        delta: δ; well below one over the number of clients, or of rows.
        unit: what is protected: "client", all its rows at once, whose messages the server shortens; or "row", one row
            of any client, whose part of the message the client shortens, which is asked of an algorithm
            (`SummedLangevin(row_norm=...)`).

    Raises:
        SettingError: a setting out of its range, or no accountant is installed.

    References:
        McMahan, Ramage, Talwar & Zhang (2018). Mironov (2017).

    Example:
        >>> private = pf.Private(norm=1.0, noise_multiplier=2.0, delta=1e-5)
        >>> idata = pf.run(pf.FedEP(start="prior"), fed, num_rounds=3, combination=private)
        >>> idata.attrs["epsilon"]
    """

    private = True

    noise_multiplier: float
    delta: float = 1e-5
    unit: Literal["client", "row"] = "client"

    def __post_init__(self) -> None:
        check_choice(self, "unit", ("client", "row"))
        check_positive(self, "norm", "noise_multiplier")
        check_between(self, "delta", 0.0, 0.5)
        self.epsilon(1)

    def check_clients(self, num_clients: int) -> None:
        """δ is below one over the clients: else a mechanism that publishes one of them all would do.

        Raises:
            SettingError: it is not.
        """
        self.check_units(num_clients, "client")

    def check_units(self, number: int, unit: str) -> None:
        """δ is below one over the number of clients, or of rows.

        Args:
            number: how many there are.
            unit: "client" or "row".

        Raises:
            SettingError: δ is too large for so many.
        """
        if self.delta * number >= 1:
            whose = "one client's rows" if unit == "client" else "one row"
            raise SettingError(
                f"Private: delta={self.delta:g} means nothing for {number} {unit}s: to publish {whose} "
                f"would be as private; expected well below 1/{number}, such as {0.01 / number:.1g}"
            )

    def middle(self, messages: Tensor) -> Tensor:
        """The mean of the clipped messages, with noise."""
        generator = torch.Generator().manual_seed(secrets.randbits(63))
        noise = torch.randn(messages.shape[1], generator=generator, dtype=messages.dtype)
        short = messages if self.unit == "row" else clip(messages, self.norm)
        total = short.sum(0) + self.noise_multiplier * self.norm * noise.to(messages.device)
        return total / len(messages)

    def reach(self, combined: State) -> float:
        """How long a round's middle is, as a part of `norm`, less what its noise may be; of rows' parts, 0.

        It follows from what is released, and costs no privacy.
        """
        if self.unit == "row":
            return 0.0
        released = as_numbers(combined)
        count, size = released.shape
        noise = (self.noise_multiplier * self.norm / count) ** 2 * (size + SIGMAS * (2 * size) ** 0.5)
        return math.sqrt(max(float(released[0].square().sum()) - noise, 0.0)) / self.norm

    def figures(self, releases: int) -> dict[str, float]:
        """ε and δ of all rounds so far."""
        return {"epsilon": self.epsilon(releases), "delta": self.delta}

    def epsilon(self, releases: int) -> float:
        """ε after so many rounds.

        Raises:
            SettingError: no accountant is installed.
        """
        try:
            from opacus.accountants import RDPAccountant
        except ImportError as error:
            raise SettingError(
                "Private needs an accountant, and says no epsilon without: pip install 'pyro_fed[privacy]'"
            ) from error
        accountant = RDPAccountant()
        accountant.history = [(self.noise_multiplier, 1.0, releases)]
        with warnings.catch_warnings():  # beyond the range of its orders the bound is only looser
            warnings.filterwarnings("ignore", message="Optimal order is the", category=UserWarning)
            return float(accountant.get_epsilon(delta=self.delta))
