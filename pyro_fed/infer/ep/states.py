"""FedEP's states before the first round: from a warm start, from the prior, or from an earlier run's clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import ServerWork, SiteKeeping
from pyro_fed.algorithm.contract import Algorithm, Start, State
from pyro_fed.algorithm.states import prefixed
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.infer.averaging.server_optim import OPTIM, make_optim
from pyro_fed.infer.ep.settings import EPSettings
from pyro_fed.infer.ep.site_updates import warm_sites
from pyro_fed.infer.ep.step_control import never_held, nothing_known
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.laplace.laplace_point import ESCAPING, IMPROPER
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_site, gaussian, select
from pyro_fed.infer.sites.prior_gaussian import fit_prior
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class EPStates(EPSettings, SiteKeeping, ServerWork):
    """Where expectation propagation begins. Args: as for `EPSettings`."""

    def warm_start(self, problem: Problem) -> Algorithm | None:
        """The federated Laplace approximation, with all clients in its rounds, unless `start` is "prior".

        Under an improper prior it is carried to its end, which tells whether there is a mode.
        """
        if self.starts_at_prior(problem):
            return None
        tolerance = FedLaplace.tolerance if problem.layout.improper else self.warm_tolerance
        return FedLaplace(
            covariance=self.structure(problem),
            full_dim=self.full_dim,
            curvature=self.curvature,
            tolerance=min(tolerance, self.warm_tolerance),
        )

    def starts_at_prior(self, problem: Problem) -> bool:
        """Whether the run starts from q = prior."""
        if self.start == "auto":
            return problem.dim > self.full_dim and not problem.layout.improper
        return self.start == "prior"

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """At the warm start's sites, or at the prior with sites equal to one.

        Raises:
            ModelError: the mode is at infinity.
        """
        structure = self.structure(problem)
        if start is not None and float(start.shared.get("fall", 0.0)) > ESCAPING:
            raise ModelError(f"{type(self).__name__}: {IMPROPER}")
        if start is None:
            q = prior = fit_prior(self, problem, generator)
            sites = flat_site(problem, structure, num_clients)
        else:
            q, sites, prior = warm_sites(start, self.min_curvature)
        return self._states(problem, q, prior, sites)

    def regroup(self, problem: Problem, shared: State, local: State, origin: Tensor) -> tuple[State, State]:
        """q = t_0 Π t_k of the clients that are there, each with the site that it had.

        Raises:
            SettingError: the clients keep no sites, or those that are left make no distribution.
        """
        kept = gaussian({name: value[origin] for name, value in local.items()})
        prior, sites = gaussian(shared, "prior_"), select(origin >= 0, kept)
        q = prior.product(sites.product_over(0))
        if not bool(q.is_proper()):
            raise SettingError(
                f"{type(self).__name__}: the prior and the sites of the clients that are left are no distribution: run "
                "it afresh on them"
            )
        return self._states(problem, q, prior, sites)

    def _states(self, problem: Problem, q: Gaussian, prior: Gaussian, sites: Gaussian) -> tuple[State, State]:
        """The server's and the clients' states at given sites."""
        num_clients, structure = len(sites.eta), self.structure(problem)
        one = torch.ones((), dtype=torch.float64, device=q.eta.device)
        shared = {
            **as_state(q),
            **as_state(prior, "prior_"),
            **as_state(flat_site(problem, structure), "prior_delta_"),
            "num_clients": torch.tensor(num_clients),
            "fractions": one.expand(num_clients).clone(),
            **as_state(flat_site(problem, structure), "added_"),
            **nothing_known(self, q),
            **never_held(q),
        }
        server = make_optim(self, self.server_optimiser)
        if server is not None:
            shared |= prefixed(OPTIM, server.init(as_state(q)))
        return shared, self.client_state(sites)

    def client_state(self, sites: Gaussian) -> State:
        """What the clients keep: their sites, and the state of the client optimiser."""
        state, optim = as_state(sites), make_optim(self, self.client_optimiser)
        if optim is None:
            return state
        zero = optim.init({name: value[0] for name, value in state.items()})
        return state | prefixed(
            OPTIM, {name: value.expand(len(sites.eta), *value.shape).clone() for name, value in zero.items()}
        )
