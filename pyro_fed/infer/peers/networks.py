"""P2PVI on networks: beliefs that agents refine by gradients alone, from the point that averaging over the graph finds.

    1. averaging over the graph (`PeerBurnIn`); agent i is at m_i
    2. its first site t_i has precision S_i + v_i Λ_0, S_i its curvature there, and mean m_i: beliefs b_i = t_i^(1/v_i)
       are those of a posterior whose agents are all like i, and consensus makes of them  q = Π t_i
    3. then  t_i = l_i p_0^(v_i)  and  l_i ← l_i (l̂_i / l_i)^(δ v_i),  with l̂_i the site by `sites.online_newton`
       under the belief q_i, which has all other agents in it; and the same for the prior's part

As in all peer algorithms, Σ_i v_i q_i = Σ_i t_i holds (`peers.peer_gaussian`). An agent's belief moves by the whole of
its own change, and consensus takes the mean of all changes: that of the agents' tilted Gaussians, as in `FedEP` with δ
= 1 / K, so that their noise does not compound.

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
    """An agent that refines its belief by gradients, see `networks`."""

    site: Annotated[Gaussian, ""]  # t_i = l_i p_0^(c_i)
    likelihood: Annotated[Gaussian, "lik_"]  # l_i
    prior: Gaussian  # p_0^(c_i), the prior's part
    prior_share: torch.Tensor  # c_i, (A,); zero before the first round
    start: torch.Tensor  # m_i, the point (A, D) that averaging has found


def first_states(
    problem: Problem, num_clients: int, start: Start | None, algorithm: SpreadGaussian
) -> tuple[State, State]:
    """Flat beliefs and sites, and the points that averaging has found, from the final states of `PeerBurnIn`."""
    if algorithm.structure == "full":
        raise SettingError("P2PVI: the beliefs of update='ivon' are diagonal: take covariance='diag'")
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
    """Public beliefs of C agents, changes of their states, and the fractions of their changes that were made."""
    q, agent, v = gaussian(shared), entries_as(NetworkAgent, local), shared["centrality"].to(torch.float64)
    known, likelihood = q.is_proper(), agent.likelihood
    narrow = DiagGaussian.from_moments(agent.start, torch.full_like(agent.start, NARROW_VARIANCE))
    under = where(known, q, narrow)
    prior = _prior(algorithm, problem, under)
    new = likelihood
    if bool(known.any()):
        numerics = numerics_of(algorithm, problem)
        new = solver.infer(problem, numerics, Received(under, under / likelihood), data, noise).site
    if not bool(known.all()):
        precision = solver.curvature(problem, agent.start, prior.precision, 1 / v, data, noise)
        pull = (prior.precision * agent.start - prior.eta) * v.unsqueeze(-1)
        first = DiagGaussian(precision, precision * agent.start + pull)  # with the prior's share its mean is the point
        new = where(known, new, first)
    new = where(is_finite(new), new, likelihood)
    each = prior_share.unsqueeze(-1)
    mine = type(prior)(prior.precision * each, prior.eta * each)
    change = (new / likelihood) * (mine / agent.prior)
    belief, fraction = public_belief(q, change ** torch.where(known, 1.0, 1 / v), known, damping)
    taken = torch.where(known, fraction * v, fraction)
    likelihood = likelihood * (new / likelihood) ** taken
    held = agent.prior * (mine / agent.prior) ** taken
    after = agent._replace(site=likelihood * held, likelihood=likelihood, prior=held)
    return belief, as_entries(after), fraction


def _prior(algorithm: SpreadGaussian, problem: Problem, q: Gaussian) -> Gaussian:
    """The prior's site by an expected Newton step under each agent's belief, not negative, a few agents at a time."""
    size = count_in_memory(algorithm.num_points * q.dim)
    derivatives, found = algorithm.derivatives("diag"), []
    for first in range(0, len(q.eta), size):
        some = slice(first, first + size)
        belief = type(q)(q.precision[some], q.eta[some])
        found.append(site_of(derivatives.of_prior(problem, algorithm.points(belief)), belief.mean()))
    precision = torch.cat([site.precision for site in found])
    return type(found[0])(precision.abs(), torch.cat([site.eta for site in found]))
