"""Differential privacy of a client: clipped messages, Gaussian noise on their sum, and an accountant.

    m̄ = γ (Σ_k ⌊m_k min(1, r / ‖m_k‖) / γ⌋ + ξ) / C,    ξ_d discrete Gaussian, P(ξ_d) ∝ exp(-ξ_d² / 2 s²)           (1)
    s = z (r/γ + √D) rounded up

⌊·⌋ rounds each number towards zero, D is how many numbers a message has, and C is how many clients sent one.

**Adjacency** is *zero-out* (Kairouz et al. 2021; Ponomareva et al. 2023, *How to DP-fy ML*): two federations are
neighbours if one client's message is replaced by zero in every round, or with `unit="row"` one row's part of it. How
many clients and rows there are, and who sent a message in which round, is public.

**Sensitivity** of the sum in (1), of whole numbers and so without rounding errors, to one client: its message is at
most r/γ long, as rounding towards zero makes none longer. To one row: its part of its client's message is at most r
long, and the client's sum, rounded, moves by at most r/γ + √D, a step in each number. The noise has the larger of the
two for both, which also covers the errors of float64 in the clip, D 2⁻⁵³ r. So a round is a Gaussian mechanism of noise
multiplier z, for who sees m̄ and what follows from it: the server adds the noise, and is trusted (see SECURITY.md). No
reduction is claimed for clients that a schedule leaves out.

**The grid.** γ is a power of two, 2⁻³⁶ to 2⁻³⁵ of max(1, z) r. All released numbers are whole multiples of γ over C,
whatever the messages: neither noise nor messages show through the low bits of a floating-point number (Mironov 2012).
Sums are exact in 64 bits: a number beyond 2⁶²/C steps, which no message shortened to r has, and a client's sum of rows
only from 2²⁶/C rows on that all pull one way, is cut to that. Cutting brings no two sums further apart.

**The noise** does not follow from the run's seed, which the result names: `opendp` samples it exactly, from rational
numbers and bits of OpenSSL's generator, which the operating system seeds with 256 bits or more. (Torch's generator
keeps 32 bits of its seed, and all 2³² can be tried in a minute.) A private run cannot be repeated. A number costs
about 9 µs of one core.

**The accountant.** R releases are as private as one with σ = z / √R, and that one is (ε, δ)-private if and only if

    δ ≥ Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ)                                                                         (2)

With a = 1/2σ - εσ and Mills' ratio M(x) = Φ(-x)/φ(x) the right-hand side is Φ(a) - φ(a) M(1/σ - a), which increases
with a and subtracts no large numbers from each other: it is solved for a, between Φ⁻¹(δ), where it is below δ, and
1/2σ, where ε is 0. A continuous Gaussian, rounded to whole numbers, is a Gaussian mechanism with something computed
from its release, so that (2) holds for it. A discrete one's probabilities differ from its by a factor of exp(±β), β =
200 D R / s², for D numbers in all R releases, except where one of these is 40 SDs from its mean (probability below D R
1e-348): φ(k + u)/φ(k) is exp(-ku/s² - u²/2s²), and its mean over |u| ≤ 1/2 lies between exp(-1/8s²) and exp(k²/8s⁴). So
ε is 2β more than (2) says, less than 1e-9 for D R up to 1e9 where s is at least 2³⁵, as it is from z = 1 on. Without
any of this, such noise is zero-concentrated private with ρ = R / 2z² (Canonne et al.), so that ε ≤ ρ + 2 √(ρ ln 1/δ).

Source: McMahan, Ramage, Talwar & Zhang (2018), *Learning differentially private recurrent language models*; Canonne,
Kamath & Steinke (2020), *The discrete Gaussian for differential privacy*; Kairouz et al. (2021), *Practical and private
(deep) learning without sampling or shuffling*; Casacuberta, Shoemate, Vadhan & Wagaman (2022), *Widespread
underestimation of sensitivity in differentially private libraries*, for sums of rounded numbers; Balle & Wang (2018),
*Improving the Gaussian mechanism for differential privacy*, Theorem 8, and Dong, Roth & Su (2022), *Gaussian
differential privacy*, Corollary 3.3, for (2); Mironov (2012), *On significance of the least significant bits for
differential privacy*.

Letters: z `noise_multiplier`, r `norm`, γ `grid`, R `releases`; Φ and φ a normal distribution's cumulative and density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.combination import Shortened, as_numbers, clip
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.limits import STANDARD_ERRORS
from pyro_fed.conventions.setting_checks import check_between, check_choice, check_positive
from pyro_fed.errors import SettingError

#: Steps of the grid in `norm`, or in the noise where that is longer, as a power of two.
GRID_BITS = 36
#: No sum of a round's messages is larger, so that it fits in 64 bits with its noise.
LARGEST_SUM = 2.0**62
#: Norms and noise multipliers of which no product leaves float64.
REPRESENTABLE = (1e-100, 1e100)
#: Steps of the grid in one SD of `standard_normal`.
STEPS_PER_SD = 2.0**40


def with_discrete_gaussian(numbers: Tensor, sd: float) -> Tensor:
    """Whole numbers (P,), int64, with independent discrete Gaussian noise of SD s > 0, clamped to int64's range."""
    return torch.tensor(_mechanism(sd)(numbers.tolist()), dtype=torch.int64)


def standard_normal(like: Tensor) -> Tensor:
    """Standard normal numbers of a tensor's shape, dtype and device, on a grid of 2⁻⁴⁰."""
    numbers = with_discrete_gaussian(torch.zeros(like.numel(), dtype=torch.int64), STEPS_PER_SD)
    return (numbers.double() / STEPS_PER_SD).reshape(like.shape).to(like)


@lru_cache(maxsize=16)
def _mechanism(sd: float) -> Callable[[list[int]], list[int]]:
    """OpenDP's measurement of vectors of whole numbers."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")  # OpenDP's mark of what its own committee has not yet reviewed in full
    found: Callable[[list[int]], list[int]] = make_gaussian(
        vector_domain(atom_domain(T="i64")), l2_distance(T="i64"), scale=sd
    )
    return found


def gaussian_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """ε of R >= 1 releases with Gaussian noise of z times the sensitivity, exactly; 0 if δ alone is enough."""
    from scipy.optimize import brentq  # here, so that algorithms load without SciPy
    from scipy.special import erfcx, ndtr, ndtri

    sigma = noise_multiplier / math.sqrt(releases)

    def delta_of(a: float) -> float:
        """The right-hand side of (2)."""
        density = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
        mills = math.sqrt(math.pi / 2) * float(erfcx((1 / sigma - a) / math.sqrt(2)))
        return float(ndtr(a) - density * mills)

    largest = 0.5 / sigma
    if delta_of(largest) <= delta:
        return 0.0
    a = brentq(lambda a: delta_of(a) - delta, float(ndtri(delta)), largest, xtol=1e-14, rtol=1e-14)
    return (largest - float(a)) / sigma


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
        unit: what is protected, in the sense of *zero-out* adjacency: "client", whether a client's messages, of all its
            rows, are replaced by zero; the server shortens them. "row", whether one row's part of its client's messages
            is; the client shortens it, which is asked of an algorithm (`SummedLangevin(row_norm=...)`). The number of
            clients and of rows is public.

    The noise comes from the operating system's secrets: the run's `seed` does not touch it, and no private run can be
    repeated exactly.

    Raises:
        SettingError: a setting out of its range, or opendp, which draws the noise, is not installed.

    References:
        McMahan, Ramage, Talwar & Zhang (2018). Canonne, Kamath & Steinke (2020). Balle & Wang (2018). Kairouz et al.
        (2021).

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
        check_between(self, "norm", *REPRESENTABLE, "[]")
        check_between(self, "noise_multiplier", *REPRESENTABLE, "[]")
        check_between(self, "delta", 0.0, 0.5)
        try:
            import opendp.measurements  # noqa: F401
        except ImportError as error:
            raise SettingError(
                "Private needs opendp, which draws noise that nobody can search for: pip install 'pyro_fed[privacy]'"
            ) from error

    def check_clients(self, num_clients: int) -> None:
        """Refuse δ unless it is below one over the clients: else a mechanism that publishes one of them all would do.

        Raises:
            SettingError: it is not.
        """
        self.check_units(num_clients, "client")

    def check_units(self, number: int, unit: str) -> None:
        """Refuse δ unless it is below one over the number of units, "client" or "row".

        Raises:
            SettingError: δ is too large for so many.
        """
        if self.delta * number >= 1:
            whose = "one client's rows" if unit == "client" else "one row"
            raise SettingError(
                f"Private: delta={self.delta:g} means nothing for {number} {unit}s: to publish {whose} "
                f"would be as private; expected well below 1/{number}, such as {0.01 / number:.1g}"
            )

    @property
    def grid(self) -> float:
        """γ: released sums are whole multiples of it."""
        return 2.0 ** (math.frexp(self.norm * max(1.0, self.noise_multiplier))[1] - GRID_BITS)

    def middle(self, messages: Tensor) -> Tensor:
        """Eq. (1)."""
        short = messages if self.unit == "row" else clip(messages, self.norm)
        largest = LARGEST_SUM / len(messages)
        total = (short / self.grid).clamp(-largest, largest).trunc().to(torch.int64).sum(0)
        sd = math.ceil(self.noise_multiplier * (self.norm / self.grid + math.sqrt(messages.shape[1])))
        released = with_discrete_gaussian(total.cpu(), float(sd)).to(messages)
        return self.grid * released / len(messages)

    def reach(self, combined: State) -> float:
        """The length of a round's middle, as a part of `norm`, less what its noise may be; 0 for rows' parts.

        It follows from what is released, and costs no privacy.
        """
        if self.unit == "row":
            return 0.0
        released = as_numbers(combined)
        count, size = released.shape
        noise = (self.noise_multiplier * self.norm / count) ** 2 * (size + STANDARD_ERRORS * (2 * size) ** 0.5)
        return math.sqrt(max(float(released[0].square().sum()) - noise, 0.0)) / self.norm

    def figures(self, releases: int) -> dict[str, float]:
        """ε and δ of all rounds so far."""
        return {"epsilon": self.epsilon(releases), "delta": self.delta}

    def epsilon(self, releases: int) -> float:
        """ε after so many rounds, at least 1."""
        return gaussian_epsilon(self.noise_multiplier, releases, self.delta)
