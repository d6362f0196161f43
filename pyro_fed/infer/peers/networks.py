"""P2PVI on networks: agents refine beliefs by gradients alone, starting from the average over the graph.

    1. averaging over the graph (`PeerBurnIn`) gives agent i the point m_i
    2. its first site t_i has mean m_i and precision S_i + v_i Λ_0, with S_i its curvature there; its belief
       b_i = t_i^(1/v_i) assumes that all agents are like i, and consensus gives  q = Π t_i
    3. then  t_i = l_i p_0^(v_i)  and  l_i ← l_i (l̂_i / l_i)^(δ v_i),  with l̂_i the site by `sites.online_newton`
       under the belief q_i, which contains all other agents' sites; the prior's part is updated in the same way

As in all peer algorithms, Σ_i v_i q_i = Σ_i t_i holds (`peers.peer_gaussian`). An agent's belief moves by its full
change, and consensus averages these changes: the result is the geometric mean of the agents' tilted Gaussians, as in
`FedEP` with δ = 1 / K, so that their noise does not compound.

Letters: v_i `centrality`, Λ_0 the prior's precision, δ `damping`; those of an agent in `NetworkAgent`.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch

from pyro_fed.algorithm.contract import Noise, Start, State, required_start
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted import IVON, Received
from pyro_fed.infer.ep.tilted.base import numerics_of
from pyro_fed.infer.peers.peer_sites import public_belief
from pyro_fed.infer.sites.gaussian_sites import (
    SpreadGaussian,
    as_state,
    flat_site,
    gaussian,
    is_finite,
    site_of,
    where,
)
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import DiagGaussian, Gaussian
from pyro_fed.ops.memory import count_in_memory

#: Variance about an agent's first point at which the prior is evaluated.
NARROW_VARIANCE = 1e-4


class NetworkAgent(NamedTuple):
    """The state of an agent that refines its belief by gradients."""

    site: Annotated[Gaussian, ""]  # t_i = l_i p_0^(c_i)
    likelihood: Annotated[Gaussian, "lik_"]  # l_i
    prior: Gaussian  # p_0^(c_i), the prior's part
    prior_share: torch.Tensor  # c_i, (A,); zero before the first round
    start: torch.Tensor  # m_i, the averaged point, (A, D)


def first_states(
    problem: Problem, num_clients: int, start: Start | None, algorithm: SpreadGaussian
) -> tuple[State, State]:
    """Flat beliefs and sites, and the averaged points, from the final states of `PeerBurnIn`."""
    if algorithm.structure == "full":
        raise SettingError("P2PVI: the beliefs of update='ivon' are diagonal: use covariance='diag'")
    flat = flat_site(problem, "diag", num_clients)
    point = required_start(start, algorithm).shared["point"].double()
    agents = NetworkAgent(flat, flat, flat, torch.zeros_like(point[:, 0]), point)
    return as_state(flat), {name: value.clone() for name, value in as_entries(agents).items()}


def step(
    algorithm: SpreadGaussian,
    solver: IVON,
    damping: float,
    problem: Problem,
    shared: State,
    local: State,
    prior_share: torch.Tensor,
    data: ClientData,
    noise: Noise,
) -> tuple[Gaussian, State, torch.Tensor]:
    """Public beliefs of C agents, changes of their states, and the fractions of their sites' changes."""
    q, agent, v = gaussian(shared), entries_as(NetworkAgent, local), shared["centrality"].to(torch.float64)
    is_proper, likelihood = q.is_proper(), agent.likelihood
    narrow_start = DiagGaussian.from_moments(agent.start, torch.full_like(agent.start, NARROW_VARIANCE))
    base = where(is_proper, q, narrow_start)
    prior = _prior(algorithm, problem, base)
    new_likelihood = likelihood
    if bool(is_proper.any()):
        numerics = numerics_of(algorithm, problem)
        new_likelihood = solver.infer(problem, numerics, Received(base, base / likelihood), data, noise).site
    if not bool(is_proper.all()):
        precision = solver.curvature(problem, agent.start, prior.precision, 1 / v, data, noise)
        pull = (prior.precision * agent.start - prior.eta) * v.unsqueeze(-1)
        first_likelihood = DiagGaussian(
            precision, precision * agent.start + pull
        )  # its product with the prior's share has its mean at the point
        new_likelihood = where(is_proper, new_likelihood, first_likelihood)
    new_likelihood = where(is_finite(new_likelihood), new_likelihood, likelihood)
    share = prior_share.unsqueeze(-1)
    prior_part = type(prior)(prior.precision * share, prior.eta * share)
    change = (new_likelihood / likelihood) * (prior_part / agent.prior)
    belief, fraction = public_belief(q, change ** torch.where(is_proper, 1.0, 1 / v), is_proper, damping)
    site_fraction = torch.where(is_proper, fraction * v, fraction)
    likelihood = likelihood * (new_likelihood / likelihood) ** site_fraction
    new_prior = agent.prior * (prior_part / agent.prior) ** site_fraction
    new_agent = agent._replace(site=likelihood * new_prior, likelihood=likelihood, prior=new_prior)
    return belief, as_entries(new_agent), fraction


def _prior(algorithm: SpreadGaussian, problem: Problem, q: Gaussian) -> Gaussian:
    """The prior's site, with a positive precision, by an expected Newton step under each agent's belief."""
    size = count_in_memory(algorithm.num_points * q.dim)
    derivatives, sites = algorithm.derivatives("diag"), []
    for first in range(0, len(q.eta), size):
        block = slice(first, first + size)
        belief = type(q)(q.precision[block], q.eta[block])
        sites.append(site_of(derivatives.of_prior(problem, algorithm.points(belief)), belief.mean()))
    precision = torch.cat([site.precision for site in sites])
    return type(sites[0])(precision.abs(), torch.cat([site.eta for site in sites]))
