"""The change of the entropy of the particles' density by a step of Stein variational gradient descent.

Source: Liu & Wang (2016), *Stein variational gradient descent*, Lemma 1 and Theorem 3.1; Kassab & Simeone, Theorem 2;
Yang, Liu & Kassab, Lemmas 1 and 2.

    T(θ) = θ + ε φ(θ),    H[T q] = H[q] + E_q log |det(I + ε ∇φ(θ))|
    F(q) = E_q[-log p̃] - H[q],    d/dε F(T q) = -S(q, p̃) at ε = 0

A step is a map of the whole space, known at every θ and not only at the particles, so that the change of the entropy of
the density that they represent needs no estimate of that density: a mean over the particles is enough. Theorem 2 and
the lemmas are about such changes; the entropy itself, of the first particles, is the prior's or the start's.

With AdaGrad ε is a number for each particle and coordinate. It is taken as constant around the particle.

Letters: ε `rates`, φ as in `ops.stein`, S the squared KSD (V-statistic).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad

from pyro_fed.ops.batched import vmap
from pyro_fed.ops.kernel_base import Kernel


def entropy_gain(particles: Tensor, scores: Tensor, kernel: Kernel, rates: Tensor | float) -> Tensor:
    """Mean over the particles (N, D), before the step, of log |det(I + ε ∇φ)|, (), in nats.

    `scores` (N, D) are gradients of the target's log density at the particles, `kernel` is fitted here as in
    `svgd_direction`, and `rates` is ε, (N, D) or a number.
    """
    field = kernel.fit(particles, scores)
    axes = torch.eye(particles.shape[-1], dtype=particles.dtype, device=particles.device)

    def along(at: Tensor, axis: Tensor) -> Tensor:
        value: Tensor = (field.velocity(at[None], particles, scores)[0] * axis).sum()
        return value

    slopes = vmap(vmap(grad(along), (None, 0)), (0, None))(particles, axes)
    scaled = slopes * torch.as_tensor(rates, dtype=slopes.dtype, device=slopes.device).expand_as(particles)[..., None]
    gain: Tensor = torch.linalg.slogdet(axes + scaled)[1].mean()
    return gain
