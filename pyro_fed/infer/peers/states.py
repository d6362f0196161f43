"""What agents without a server keep between rounds, with names and types; leading axes are agents."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from torch import Tensor

from pyro_fed.ops.gaussian import Gaussian


class Agent(NamedTuple):
    """An agent of `PeerGaussian` and its kin.

    Args:
        site: t_i.
        prior_share: c_i, the prior's share in it, (A,); zero before the first round.
        anchor: Laplace's approximation of all data, under which the first site is taken; improper where it has none.
        start: the point (A, D) at which its search for one of its own data begins.
    """

    site: Annotated[Gaussian, ""]
    prior_share: Tensor
    anchor: Gaussian
    start: Tensor


class Turn(NamedTuple):
    """Where an agent of `P2PVI` stands in its turns.

    Args:
        next_row: the row at which its next turn begins, (A,).
        strict: whether its beliefs have to be proper, as the product of all sites once was not, (A,); None where rounds
            are not accelerated.
        pace: factor of the rate of its stochastic steps, (A,); None is one.
    """

    next_row: Tensor
    strict: Tensor | None = None
    pace: Tensor | None = None


class NetworkAgent(NamedTuple):
    """An agent that refines its belief by gradients, see `networks`.

    Args:
        site: t_i = l_i p_0^(c_i).
        likelihood: l_i.
        prior: p_0^(c_i), the prior's part.
        prior_share: c_i, (A,); zero before the first round.
        start: m_i, the point (A, D) that averaging has found.
    """

    site: Annotated[Gaussian, ""]
    likelihood: Annotated[Gaussian, "lik_"]
    prior: Gaussian
    prior_share: Tensor
    start: Tensor
