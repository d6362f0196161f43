"""The clients' log-likelihoods at a result's draws, and Gaussian sites that approximate them there.

A client sends S log-likelihoods, or the D + D² numbers of a site. No row leaves its client.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.conventions.calls import cast_checked
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.density.derivatives import finite_or
from pyro_fed.density.derivatives.scores import log_likelihoods
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Batch, ClientData, in_chunks
from pyro_fed.federation.federation import Federation
from pyro_fed.infer import FedEP
from pyro_fed.infer.sites.gaussian_sites import MIN_POINTS, add_batch_axis, as_state, gaussian, site_of
from pyro_fed.ops.batched import Moments
from pyro_fed.ops.gaussian import STRUCTURES, Gaussian
from pyro_fed.ops.memory import count_in_memory, count_in_step
from pyro_fed.policy import resolve


def client_log_likelihoods(federation: Federation, points: Tensor) -> Tensor:
    """Each client's log-likelihood at each of the unconstrained points (S, D): (S, K), float64; zero without rows."""
    return torch.stack([log_likelihoods_of(federation, k, points) for k in range(federation.num_clients)], 1)


def log_likelihoods_of(federation: Federation, client: int, points: Tensor) -> Tensor:
    """One client's log-likelihood at each of the unconstrained points (S, D): (S,), float64; zero without rows."""
    data, problem = federation.client_data([client]), federation.problem
    index, count = data.row_index[0], int(data.num_rows[0])
    if not count:
        return points.new_zeros(len(points), dtype=torch.float64)
    batch = Batch(tuple(leaf[index[:count]] for leaf in data.rows), points.new_ones(count))
    pieces = in_chunks(points, count * max(1, problem.evaluations // problem.num_rows))
    return torch.cat([log_likelihoods(problem, piece, batch) for piece in pieces]).double()


def around(problem: Problem, draws: Tensor) -> Gaussian:
    """The Gaussian with the moments of draws (S, D); diagonal if S is too small for a covariance, or D is large."""
    z = draws.double()
    if problem.traits.few_parameters and len(z) > 2 * z.shape[1]:
        q: Gaussian = STRUCTURES["full"].from_moments(z.mean(0), torch.atleast_2d(torch.cov(z.T)))
        if bool(q.is_proper()):
            return q
    return STRUCTURES["diag"].from_moments(z.mean(0), z.var(0).clamp_min(torch.finfo(torch.float64).tiny))


def sites_at(problem: Problem, data: ClientData, q: Gaussian) -> Gaussian:
    """Each client's site (K,) after an expected Newton step under q, as FedEP takes it."""
    algorithm = _newton_algorithm(problem, q)
    point_cost = max(q.eta.shape[-1], data.row_index.shape[1] * problem.num_nodes)
    points = algorithm.points(add_batch_axis(q))
    # Memory holds the points' coordinates, or the rows' densities, of all clients: more rows leave room for fewer
    # points.
    affordable = count_in_step(point_cost * len(data.num_rows))
    if affordable < len(points):
        points = replace(algorithm, num_points=max(MIN_POINTS, affordable // 2 * 2)).points(add_batch_axis(q))
    derivatives = algorithm.derivatives("full" if q.dense else "diag")

    def of_some(clients: ClientData) -> State:
        mean = q.mean().expand(len(clients.num_rows), -1)
        root = q.root().expand(len(mean), -1, -1) if q.dense else None
        moments = None if root is None else derivatives.under(problem, mean, root, clients)

        def at_points() -> Moments:
            client_points = points.expand(-1, len(mean), -1).contiguous()
            return derivatives.of_likelihood(problem, client_points, clients.full_batch())

        return as_state(site_of(finite_or(moments, at_points), mean))

    size = count_in_memory(point_cost * len(points))
    site_states = [of_some(data.of(slice(k, k + size))) for k in range(0, len(data.num_rows), size)]
    state = {name: torch.cat([one[name] for one in site_states]) for name in site_states[0]}
    for value in state.values():
        value[data.num_rows == 0] = 0.0
    return gaussian(state)


def _newton_algorithm(problem: Problem, q: Gaussian) -> FedEP:
    """The algorithm whose steps give sites with the same structure as q, full or diagonal."""
    named = FedEP(client="newton", covariance="full" if q.dense else "diag", start="laplace")
    return cast_checked(resolve(named, problem.traits).algorithm, FedEP)


def product_and_sites(federation: Federation, at: Gaussian) -> tuple[Gaussian, Gaussian]:
    """The clients' sites (K,) after a step under `at`, preceded by their product with the prior's site."""
    sites = sites_at(federation.problem, federation.client_data(), at)
    return _newton_algorithm(federation.problem, at).prior_site(federation.problem, at).product(
        sites.product_over(0)
    ), sites


def answer_and_sites(federation: Federation, draws: Tensor) -> State:
    """The clients' sites at draws (S, D) and their product, in the form of `Record.sites`; empty if it is improper."""
    # q is the product of the sites, not a Gaussian fitted to the draws: if these are skewed, such a Gaussian divided by
    # a site is not the posterior of the other clients.
    problem = federation.problem
    if len(draws) > 1 and bool((draws != draws[0]).any()):
        at = around(problem, draws)
    else:
        structure = "full" if problem.traits.few_parameters else "diag"
        # The Gaussian is so narrow that the expected curvature is the curvature at the point.
        spread = draws.new_full((problem.dim,), SAME_SHARE, dtype=torch.float64)
        at = STRUCTURES[structure].from_moments(draws[0].double(), spread.diag() if structure == "full" else spread)
    q, sites = product_and_sites(federation, at)
    return {**as_state(sites), **as_state(q, "q_")} if bool(q.is_proper()) else {}
