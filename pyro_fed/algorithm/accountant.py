"""What Gaussian noise costs in ε: the exact curve of the Gaussian mechanism, for any number of releases.

Source: Balle & Wang (2018), *Improving the Gaussian mechanism for differential privacy: analytical calibration and
optimal denoising*, Theorem 8; Dong, Roth & Su (2022), *Gaussian differential privacy*, Corollary 3.3, for releases of
which each may depend on those before.

R releases with noise of z times the sensitivity are as private as one with σ = z / √R, and that one is (ε, δ)-private
if and only if

    δ ≥ Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ)                                                                         (1)

With a = 1/2σ - εσ and Mills' ratio M(x) = Φ(-x)/φ(x) the right-hand side is Φ(a) - φ(a) M(1/σ - a), which increases
with a and subtracts no large numbers from each other: it is solved for a, between Φ⁻¹(δ), where it is below δ, and
1/2σ, where ε is 0.

**On a grid.** Noise is a discrete Gaussian there (see `privacy`), of SD s steps. A continuous one, rounded to whole
numbers, is a Gaussian mechanism with something computed from its release, so that (1) holds for it. The two
distributions' probabilities of a point differ by a factor within exp(±β), β = 200 D R / s², for D numbers in all R
releases, except where one of these is 40 SDs from its mean (probability below D R 1e-348): φ(k + u)/φ(k) is
exp(-ku/s² - u²/2s²), and its mean over |u| ≤ 1/2 lies between exp(-1/8s²) and exp(k²/8s⁴). So ε is 2β more than (1)
says, less than 1e-9 for D R up to 1e9 where s is at least 2³⁵, as it is in `privacy` from a noise multiplier of 1 on.
Without any of this, such noise is zero-concentrated private with ρ = R / 2z², as the continuous one is (Canonne, Kamath
& Steinke 2020), of which ε ≤ ρ + 2 √(ρ ln 1/δ) follows.

Letters: Φ and φ the normal distribution's cumulative and density, z `noise_multiplier`, R `releases`.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri


def gaussian_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """ε of R >= 1 releases with Gaussian noise, exactly; 0 if δ alone is enough.

    `noise_multiplier` is z, the noise's SD over the sensitivity; δ lies between 0 and 1.

    Example:
        >>> gaussian_epsilon(noise_multiplier=4.0, releases=5, delta=1e-6)  # 2.26
    """
    sigma = noise_multiplier / math.sqrt(releases)
    largest = 0.5 / sigma
    if _delta(largest, sigma) <= delta:
        return 0.0
    a = brentq(lambda a: _delta(a, sigma) - delta, float(ndtri(delta)), largest, xtol=1e-14, rtol=1e-14)
    return (largest - float(a)) / sigma


def _delta(a: float, sigma: float) -> float:
    """The right-hand side of (1)."""
    density = math.exp(-(a**2) / 2) / math.sqrt(2 * math.pi)
    return float(ndtr(a) - density * _mills(1 / sigma - a))


def _mills(x: float) -> float:
    """Mills' ratio Φ(-x)/φ(x)."""
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))
