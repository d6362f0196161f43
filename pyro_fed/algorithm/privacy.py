"""Differential privacy of a client: clipped messages, Gaussian noise on their sum, and an accountant.

    m̄ = γ (Σ_k ⌊m_k min(1, r / ‖m_k‖) / γ⌋ + ξ) / C,    ξ_d discrete Gaussian, P(ξ_d) ∝ exp(-ξ_d² / 2 s²)           (1)
    s = z (r/γ + √D) rounded up

⌊·⌋ rounds each number towards zero, D is the number of entries of a message, and C the number of clients that sent one.

**Adjacency** is *zero-out* (Kairouz et al. 2021; Ponomareva et al. 2023, *How to DP-fy ML*): two federations are
neighbours if one client's message is replaced by zero in every round, or with `unit="row"` one row's part of it. The
numbers of clients and rows, and the clients of each round, are public.

**Sensitivity.** The sum in (1) is of integers, and has no rounding errors. One client's message has a norm of at most
r/γ, since rounding towards zero lengthens none. One row's part of a message has a norm of at most r, and the client's
rounded sum changes by at most r/γ + √D. The noise is scaled to the larger of the two, which also covers the errors of
float64 in the clipping, D 2⁻⁵³ r. A round is therefore a Gaussian mechanism with noise multiplier z for everybody who
sees m̄ and its consequences. The server adds the noise and is trusted (see SECURITY.md). No reduction is claimed for
clients that a schedule leaves out.

**The grid.** γ is a power of two, 2⁻³⁶ to 2⁻³⁵ of max(1, z) r. All released numbers are multiples of γ/C, whatever the
messages, so that the low bits of floating-point numbers reveal neither noise nor messages (Mironov 2012). Sums are
exact in 64 bits. Numbers beyond 2⁶²/C steps are clipped, which does not occur for a message shortened to r, and for a
client's sum of rows only from 2²⁶/C rows in the same direction. Clipping does not increase the distance of two sums.

**The noise** does not depend on the run's seed, which the result contains. `opendp` samples it exactly, from rational
numbers and bits of OpenSSL's generator, which the operating system seeds with 256 bits or more. (Torch's generator uses
32 bits of its seed, and all 2³² can be tried in a minute.) A private run cannot be repeated. A number takes about 9 µs
on one core.

**The accountant.** R releases are as private as one with σ = z / √R, which is (ε, δ)-private if and only if

    δ ≥ Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ)                                                                         (2)

With a = 1/2σ - εσ and the Mills ratio M(x) = Φ(-x)/φ(x) the right-hand side is Φ(a) - φ(a) M(1/σ - a), which increases
with a and has no cancellation. It is solved for a between Φ⁻¹(δ), where it is below δ, and 1/2σ, where ε is 0. Rounding
a continuous Gaussian mechanism's release to integers is post-processing, so that (2) holds for it. The probabilities of
discrete noise differ from these by a factor of exp(±β), β = 200 D R / s², for D numbers in all R releases, except where
one of these is 40 SDs from its mean (probability below D R 1e-348): φ(k + u)/φ(k) is exp(-ku/s² - u²/2s²), and its mean
over |u| ≤ 1/2 lies between exp(-1/8s²) and exp(k²/8s⁴). ε therefore exceeds the solution of (2) by at most 2β, which is
less than 1e-9 for D R up to 1e9 if s is at least 2³⁵, that is for z ≥ 1. Independently, such noise is zero-concentrated
private with ρ = R / 2z² (Canonne et al.), so that ε ≤ ρ + 2 √(ρ ln 1/δ).

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

#: Number of grid steps in `norm`, or in the noise if it is larger, as a power of two.
GRID_BITS = 36
#: Largest sum of a round's messages, which fits in 64 bits with its noise.
LARGEST_SUM = 2.0**62
#: Range of norms and noise multipliers whose products are finite in float64.
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

    enable_features("contrib")  # OpenDP's flag for code that its committee has not yet reviewed in full
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

    The result contains only what was released and what follows from it: no rows, log-likelihoods or densities, and no
    other figures of the clients. The group `federation` has `epsilon` after each round. The result's attributes are
    `epsilon`, `delta` and `noise`, the largest SD of the noise in a mean, in posterior SDs. The spread of the draws
    includes the noise, but not the bias of clipping. If the norm of the last release, without noise, is at least half
    of `norm`, the result warns that messages were still being shortened; their number is not released. Shortened
    messages that cancel each other cannot be detected: choose a norm that honest messages seldom reach. A checkpoint of
    the run contains the server's state, and must not leave the server.

    Args:
        norm: r, the largest norm of a message, or with `unit="row"` of a row's part of it.
        noise_multiplier: z, the SD of the noise in units of `norm`.
        delta: δ; well below one over the number of clients, or of rows.
        unit: the protected unit, in the sense of *zero-out* adjacency. "client": all messages of a client, which the
            server shortens. "row": one row's part of its client's messages, which the client shortens; the algorithm
            must support it (`SummedLangevin(row_norm=...)`). The numbers of clients and of rows are public.

    The noise comes from the operating system's random numbers and does not depend on the run's `seed`, so that no
    private run can be repeated exactly.

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
                "Private needs opendp, which samples the noise securely: pip install 'pyro_fed[privacy]'"
            ) from error

    def check_clients(self, num_clients: int) -> None:
        """Refuse δ unless it is below one over the clients; a larger δ would allow to publish the data of one client.

        Raises:
            SettingError: δ is too large.
        """
        self.check_units(num_clients, "client")

    def check_units(self, number: int, unit: str) -> None:
        """Refuse δ unless it is below one over the number of units, "client" or "row".

        Raises:
            SettingError: δ is too large.
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
        """The norm of m̄ as a share of `norm`, less a bound on its noise; 0 with `unit="row"`.

        It is computed from the release, and costs no privacy.
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
        """ε after this number of rounds, at least 1."""
        return gaussian_epsilon(self.noise_multiplier, releases, self.delta)
