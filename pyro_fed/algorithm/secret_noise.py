"""Gaussian noise that nobody can search for: exact discrete Gaussians from a cryptographic generator.

Source: Canonne, Kamath & Steinke (2020), *The discrete Gaussian for differential privacy*; Mironov (2012), *On
significance of the least significant bits for differential privacy*, for what floating-point noise gives away.

    P(x) ∝ exp(-x² / 2 s²),    x a whole number

`opendp` samples it exactly, from rational numbers and random bits alone, by the algorithm of Canonne et al. Its bits
come from OpenSSL's generator, which the operating system seeds with 256 bits or more. Torch's and NumPy's generators
are not for secrets: torch's on a CPU keeps 32 bits of its seed, and all 2³² can be tried in a minute.

A number costs about 9 µs of one core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

#: Steps of the grid in one SD of `standard_normal`.
STEPS = 2.0**40


def with_discrete_gaussian(numbers: Tensor, sd: float) -> Tensor:
    """Whole numbers (P,), int64, with independent discrete Gaussian noise of SD s > 0, clamped to the range of int64.

    Raises:
        ImportError: opendp is not installed.
    """
    return torch.tensor(_mechanism(sd)(numbers.tolist()), dtype=torch.int64)


def standard_normal(like: Tensor) -> Tensor:
    """Standard normal numbers of a tensor's shape, dtype and device, on a grid of 2⁻⁴⁰.

    Raises:
        ImportError: opendp is not installed.
    """
    numbers = with_discrete_gaussian(torch.zeros(like.numel(), dtype=torch.int64), STEPS)
    return (numbers.double() / STEPS).reshape(like.shape).to(like)


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
