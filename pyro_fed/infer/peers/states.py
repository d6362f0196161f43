"""What agents without a server keep between rounds, with names and types; leading axes are agents."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian
from pyro_fed.ops.gaussian import Gaussian


class Agent(NamedTuple):
    """An agent of `PeerGaussian` and its kin.

    Args:
        site: t_i.
        prior_share: c_i, the prior's share in it, (A,); zero before the first round.
        anchor: Laplace's approximation of all data, under which the first site is taken; improper where it has none.
        start: the point (A, D) at which its search for one of its own data begins.
    """

    site: Gaussian
    prior_share: Tensor
    anchor: Gaussian
    start: Tensor

    @classmethod
    def of(cls, local: State) -> Agent:
        """The agents in the run's dictionary."""
        return cls(gaussian(local), local["prior_share"], gaussian(local, "anchor_"), local["start"])

    def state(self) -> State:
        """The entries of the run's dictionary."""
        own = {"prior_share": self.prior_share, "start": self.start}
        return {**as_state(self.site), **own, **as_state(self.anchor, "anchor_")}


class NetworkAgent(NamedTuple):
    """An agent that refines its belief by gradients, see `networks`.

    Args:
        site: t_i = l_i p_0^(c_i).
        likelihood: l_i.
        prior: p_0^(c_i), the prior's part.
        prior_share: c_i, (A,); zero before the first round.
        start: m_i, the point (A, D) that averaging has found.
    """

    site: Gaussian
    likelihood: Gaussian
    prior: Gaussian
    prior_share: Tensor
    start: Tensor

    @classmethod
    def of(cls, local: State) -> NetworkAgent:
        """The agents in the run's dictionary."""
        likelihood, prior = gaussian(local, "lik_"), gaussian(local, "prior_")
        return cls(gaussian(local), likelihood, prior, local["prior_share"], local["start"])

    def state(self) -> State:
        """The entries of the run's dictionary."""
        sites = {**as_state(self.site), **as_state(self.likelihood, "lik_"), **as_state(self.prior, "prior_")}
        return {**sites, "prior_share": self.prior_share, "start": self.start}
