"""What Langevin steps are at a Gaussian target.

At the target N(0, 1/lambda), v = -lambda theta + e with e independent of variance s², Eq. (1) of `ops.langevin` is the
linear recursion theta' = (1 - h lambda / 2) theta + h/2 e + sqrt(h) xi, whose variance V solves
V = (1 - h lambda / 2)² V + h + h² s² / 4, hence

    V = (1 + h s² / 4) / (lambda (1 - h lambda / 4)),     for 0 < h lambda < 4,

and there is none outside: too wide by the factor 1 / (1 - h lambda / 4) even with exact scores.
"""

import torch


def stationary_variance(precision, step_size, score_variance=0.0):
    """Stationary variance of Eq. (1) at a Gaussian target, as derived in the header.

    Args:
        precision: lambda, eigenvalues of the target's precision (of A' P A, if preconditioned), any shape.
        step_size: h.
        score_variance: s², variance of the error of the score in each coordinate.

    Returns:
        The variance in each direction; infinite where h lambda >= 4 and the recursion diverges.
    """
    contraction = 1.0 - step_size * precision / 4.0
    variance = (1.0 + step_size * score_variance / 4.0) / (precision * contraction)
    return torch.where(contraction > 0, variance, torch.inf)
