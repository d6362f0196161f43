"""Points for expectations under a Gaussian, with exact first and second moments.

    E f(m + A z) ≈ 1/n Σ_i f(m + A z_i),   Σ_i z_i = 0,   1/n Σ_i z_i z_i' = I

Scrambled Sobol points u_i go through the normal quantile function, each z with its opposite -z (so that odd
moments vanish), and the half sample Z (h x d, h = n / 2) is then standardised:

* h >= d: Z is replaced by sqrt(h) U V' of its singular value decomposition Z = U S V', the nearest matrix
  with Z'Z / h = I. The rule is exact for every quadratic f.
* h < d: Z'Z has rank h at most, so no choice gives the identity. Each column is scaled to mean square one:
  the rule is exact for every quadratic f without cross terms; a cross term z_a z_b contributes the sample
  correlation of its two columns, of order h^(-1/2), where it should contribute nothing.

A step with score and Hessian from such expectations is exact for a Gaussian likelihood in either case: the score is
linear and the Hessian constant.

Draws paired with given numbers v_1 ... v_n (`balanced_normal`) each have their exact distribution, and together are far
more even than independent draws. They are stratified twice: over all n, and over each block of n^(1/2) with
neighbouring v. In one dimension this is a Latin hypercube based on an orthogonal array (Tang 1993, JASA 88), whose
other axis is v's rank.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

#: Largest number of dimensions of torch's Sobol sequence.
MOST_SOBOL_DIMS = SobolEngine.MAXDIM
#: Sobol points are multiples of 2^-MAXBIT in [0, 1). Half a cell is added, so that the quantile is finite.
SOBOL_HALF_CELL = 2.0 ** -(SobolEngine.MAXBIT + 1)


def standardised_sobol(num_points: int, dim: int, seed: int = 0) -> Tensor:
    """Antithetic, standardised quasi-random normal points (n, d), float64: z_1 ... z_h, then -z_1 ... -z_h.

    The same arguments give the same points; the global random state is neither used nor changed. Sobol points are best
    balanced if n is a power of two.

    Raises:
        ValueError: if ``num_points`` is not even and positive, or ``dim`` not in [1, 21201].
    """
    if num_points < 2 or num_points % 2:
        raise ValueError(f"standardised_sobol: expected an even num_points >= 2, received {num_points}")
    if not 1 <= dim <= SobolEngine.MAXDIM:
        raise ValueError(f"standardised_sobol: expected dim in [1, {SobolEngine.MAXDIM}], received {dim}")
    num_half = num_points // 2
    engine: Any = SobolEngine  # torch gives its constructor no types
    uniform: Tensor = engine(dim, scramble=True, seed=seed).draw(num_half, dtype=torch.float64)
    half = _standardise(torch.special.ndtri(uniform + SOBOL_HALF_CELL))
    return torch.cat([half, -half])


def even_normals(num_points: int, dim: int, generator: torch.Generator) -> Tensor:
    """Standard normal draws (n, d), float64, more even than independent ones: scrambled Sobol points in random order.

    Each draw is exactly normal (Owen 1997, SIAM J. Numer. Anal. 34), so that any number of them is a sample. Means and
    SDs over all have a chance error of about 1/n, that of independent draws is n^(-1/2). In more dimensions than
    Sobol's sequence has, the draws are independent.
    """
    if not num_points or not 1 <= dim <= MOST_SOBOL_DIMS:
        return torch.randn(num_points, dim, generator=generator, dtype=torch.float64)
    engine: Any = SobolEngine  # torch gives its constructor no types
    seed = int(torch.randint(2**31, (), generator=generator))
    sobol = engine(dim, scramble=True, seed=seed)
    uniform: Tensor = sobol.draw(num_points, dtype=torch.float64)
    uniform[0] = sobol.shift.double() * 2 * SOBOL_HALF_CELL  # torch computes the first point in the default dtype
    drawn: Tensor = torch.special.ndtri(uniform + SOBOL_HALF_CELL)
    return drawn[torch.randperm(num_points, generator=generator)]


def standardised_random(num_points: int, dim: int, seed: int = 0) -> Tensor:
    """Antithetic, standardised pseudo-random normal points (n, d), float64, in any number of dimensions."""
    if num_points < 2 or num_points % 2:
        raise ValueError(f"standardised_random: expected an even num_points >= 2, received {num_points}")
    generator = torch.Generator().manual_seed(seed)
    half = _standardise(torch.randn(num_points // 2, dim, generator=generator, dtype=torch.float64))
    return torch.cat([half, -half])


def balanced_normal(values: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal numbers (n, ...), stratified over the first axis and over neighbours in `values` (n, ...)."""
    count, columns = len(values), values.shape[1:]
    width = math.isqrt(count - 1) + 1  # of a block; each cell of a block has as many strata as there are blocks
    blocks = -(-count // width)
    shape = (blocks, width, *columns)
    cell, stratum, jitter = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    cells = cell.argsort(1)
    strata = stratum.argsort(0).gather(1, cells)
    uniform = ((cells * blocks + strata + jitter) / (blocks * width)).flatten(0, 1)
    ranks = values.argsort(0).argsort(0)
    normal: Tensor = torch.special.ndtri(uniform.clamp(SOBOL_HALF_CELL, 1 - SOBOL_HALF_CELL))
    return normal.gather(0, ranks.to(uniform.device))


def _standardise(half: Tensor) -> Tensor:
    num_half, dim = half.shape
    if num_half < dim:
        return half / half.square().mean(0).sqrt()
    left, _, right = torch.linalg.svd(half, full_matrices=False)
    orthonormal: Tensor = left @ right
    return math.sqrt(num_half) * orthonormal
