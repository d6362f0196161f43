"""Expectation propagation over clients.

Source: Guo et al., *Federated learning as variational inference*, Algorithms 1, 3 and 4; Vehtari et al. (2020).

    q_-k ∝ q / t_k                         cavity
    q̂_k ≈ p_k q_-k                         tilted inference, the setting `client`
    Δ_k ∝ q̂_k / q                          what the client sends
    t_k ← t_k (Δ_k)^δ,   q ← q Π_k (Δ_k)^δ

Letters: q `shared`, t_k `local`, δ `damping` and the fractions of `site_updates`; sites as in `gaussian_sites`.

The default client is not one of the paper's. "newton" takes the site of an expected Newton step at q itself,

    Λ_k ← E_q[-∇² log p_k],   η_k ← E_q[∇ log p_k] + Λ_k m,

at the same Sobol points for all clients. Its fixed point is the Gaussian of smallest KL(q ‖ posterior), it is
reached like Newton's method does, undamped, and it starts at the federated Laplace approximation. With
`local_steps` > 1 the step is repeated at q̂_k, the cavity held fixed: partitioned variational inference.

Deviations: a prior that is not Gaussian gets a site of its own at the server. Fractions are backtracked, never a
precision repaired. With all clients at work single Newton steps are accelerated (`ops.anderson`): where the precision
of one parameter follows the mean of another they alternate for ever, and a diagonal curvature oversteps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pyro_fed import gates
from pyro_fed.algorithm import Algorithm, Noise, Start, State
from pyro_fed.data import ClientData
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.infer.clients import CLIENTS, Client, Received
from pyro_fed.infer.families import is_hand_written
from pyro_fed.infer.fedep_settings import EPSettings
from pyro_fed.infer.fedlaplace import ESCAPING, IMPROPER, FedLaplace
from pyro_fed.infer.gaussian_sites import as_state, flat_site, gaussian, joined, select
from pyro_fed.infer.prior_gaussian import fit_prior
from pyro_fed.infer.server_optim import client_steps, make_optim, optimised
from pyro_fed.infer.site_updates import Limits, changes, fractions_of, site_warnings, warm_sites
from pyro_fed.ops.anderson import acceleration, remember
from pyro_fed.ops.gaussian import Gaussian
from pyro_fed.problem import Problem
from pyro_fed.record import Record


@dataclass(frozen=True, kw_only=True)
class FedEP(EPSettings):
    """Federated expectation propagation with Gaussian sites.

    Args: as for `EPSettings`. With a guide that is a function, what is made is a `GuidedFedEP`.

    References:
        Guo et al. (2023), Algorithms 1, 3, 4 and 5. Vehtari et al. (2020), JMLR.
    """

    additive: ClassVar[bool] = True
    keeps_sites: ClassVar[bool] = True

    def __new__(cls, **settings: Any) -> Self:
        """The subclass that federates hand-written guides, where one is given."""
        if not is_hand_written(settings.get("guide")):
            return super().__new__(cls)
        from pyro_fed.infer.guided import guided_kind  # what it gives derives from this class

        return super().__new__(guided_kind(cls))

    def default_rounds(self, num_clients: int) -> int:
        """At most 50; with a client that has no randomness it stops when q does not move any more."""
        return 50 if self.stops_itself else 20

    @property
    def deterministic(self) -> bool:
        """Whether the client's inference has no randomness."""
        return self.client in ("newton", "laplace")

    @property
    def stops_itself(self) -> bool:
        """Whether the client's inference has no randomness."""
        return self.client in ("newton", "laplace")

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
        if not self.keeps_sites:
            return super().regroup(problem, shared, local, origin)
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
            **self._nothing_known(q),
        }
        server = make_optim(self, self.server_optimiser)
        if server is not None:
            shared |= {f"optim.{name}": value for name, value in server.init(as_state(q)).items()}
        return shared, self.client_state(sites)

    def client_state(self, sites: Gaussian) -> State:
        """What the clients keep: their sites, and the state of the client optimiser."""
        state, optim = as_state(sites), make_optim(self, self.client_optimiser)
        if optim is None:
            return state
        zero = optim.init({name: value[0] for name, value in state.items()})
        return state | {
            f"optim.{name}": value.expand(len(sites.eta), *value.shape).clone() for name, value in zero.items()
        }

    def prepare(self, problem: Problem, shared: State) -> State:
        """The change of the prior's site, by the same step as the clients'."""
        delta = self.prior_site(problem, gaussian(shared)).quotient(gaussian(shared, "prior_"))
        return {**shared, **as_state(delta, "prior_delta_")}

    def download(self, shared: State, clients: Tensor) -> State:
        """The Gaussian q alone."""
        return super().download(as_state(gaussian(shared)), clients)

    def inference(self, problem: Problem) -> Client:
        """The client inference with its settings, which are fields of this algorithm."""
        kind = CLIENTS[self.client]
        small = problem.dim <= self.full_dim and self.curvature != "fisher"
        exact = self.derivatives(problem, "full" if small else None)
        settings = {f.name: getattr(self, f.name) for f in fields(kind) if f.name not in ("derivatives", "exact")}
        return kind(derivatives=self.derivatives(problem), exact=exact, **settings)

    def draw_noise(self, problem: Problem, num_rows: int, generator: torch.Generator) -> Noise:
        """The client inference's randomness."""
        return self.inference(problem).draw_noise(problem, num_rows, generator)

    def old_site(self, shared: State, local: State) -> Gaussian:
        """The sites that the clients' changes refer to, (C,)."""
        return gaussian(local)

    def cavity(self, shared: State, site: Gaussian) -> Gaussian:
        """`q_-k`, step 2 of Algorithm 4, (C,)."""
        return gaussian(shared).quotient(site)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Changes of sites, steps 2 to 4 of Algorithm 4; step 5 is in `settle`."""
        q, site = gaussian(shared), self.old_site(shared, local)
        cavity = self.cavity(shared, site)
        found = self.inference(problem).infer(problem, Received(q, cavity), data, noise)
        delta, usable = changes(found, site, data.num_rows)
        info = {**found.info, "cavity_proper": cavity.is_proper().double(), "usable": usable.double()}
        return {**as_state(delta), "usable": usable}, {**local, **as_state(delta, "delta_")}, info

    def objections(self, received: State, messages: State) -> gates.Objections:
        """Changes beyond what q and the other clients' changes allow."""
        alike = {name: received[name][:1] for name in ("precision", "eta")}
        return gates.natural(gaussian(alike), gaussian(messages))

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Algorithm 3, with fractions that keep q a distribution."""
        q, deltas = gaussian(shared), joined(gaussian(shared, "prior_delta_"), gaussian(messages))
        damping = self.fraction_for(len(weights))
        limits = Limits(damping, self.min_fraction, self.margin)
        server = make_optim(self, self.server_optimiser)
        if server is None:
            fractions = fractions_of(q, deltas, limits)
            steps = deltas.power(fractions)
            new = q.product(steps.product_over(0))
            state = self._added(shared, deltas.product_over(0), fractions, damping)
            new = new.product(gaussian(state, "added_"))
        else:
            steps = deltas.power(damping)
            new, kept, state = optimised(server, shared, q, deltas.product_over(0), limits)
            fractions = q.eta.new_full((len(deltas.eta),), damping if kept > 0 else 0.0)
        prior = gaussian(shared, "prior_").product(type(q)(steps.precision[0], steps.eta[0]))
        taken = fractions[1:] * messages["usable"]
        return {**shared, **state, **as_state(new), **as_state(prior, "prior_"), "fractions": taken}

    def _nothing_known(self, q: Gaussian) -> State:
        """An empty history of the acceleration."""
        rounds = self.accelerated(q)[0]
        past = type(q)(*(part.new_full((rounds, *part.shape), torch.nan) for part in (q.precision, q.eta)))
        return {**as_state(past, "points_"), **as_state(past, "moves_")}

    def _added(self, shared: State, move: Gaussian, fractions: Tensor, damping: float) -> State:
        """What acceleration adds to q, and its history: empty after a step of fewer clients, or one held back."""
        q = gaussian(shared)
        whole = self.client == "newton" and self.local_steps == 1 and len(fractions) == int(shared["num_clients"]) + 1
        if not (whole and bool((fractions == damping).all())):
            return {**as_state(type(q).zeros((), q.dim, device=q.eta.device), "added_"), **self._nothing_known(q)}
        points, moves = remember(gaussian(shared, "points_"), q), remember(gaussian(shared, "moves_"), move)
        added = acceleration(points, moves, damping, self.growth, self.accelerated(q)[1])
        return {**as_state(added, "added_"), **as_state(points, "points_"), **as_state(moves, "moves_")}

    def feedback(self, after: State, clients: Tensor) -> tuple[State, State]:
        """The fractions taken of the clients' messages, and their shares of what was added to q."""
        fractions, share = after["fractions"], gaussian(after, "added_").power(1.0 / len(clients))
        shares = {name: part.expand(len(clients), *part.shape) for name, part in as_state(share, "share_").items()}
        return {"fraction": fractions, **shares}, {"fraction": fractions}

    def settle(self, told: State, local: State) -> State:
        """Step 5 of Algorithm 4: the clients move their sites by what the server took of their messages."""
        delta, optim = gaussian(local, "delta_"), make_optim(self, self.client_optimiser)
        state: State = {}
        if optim is None:
            steps = delta.power(told["fraction"])
        else:
            steps, state = client_steps(optim, local, delta)
        return {**as_state(gaussian(local).product(steps).product(gaussian(told, "share_"))), **state}

    def monitor(self, before: State, after: State) -> dict[str, float]:
        """Besides `change`: the smallest fraction taken, sites skipped, and the share of clients at work."""
        fractions = after["fractions"]
        share = len(fractions) / int(after["num_clients"])
        return {
            **super().monitor(before, after),
            "fraction": float(fractions.min()),
            "skipped": float((fractions == 0).sum()),
            "share": share,
        }

    def converged(self, figures: list[dict[str, float]]) -> bool:
        """Whether q did not move in as many rounds as let every client work once, and nothing was held back."""
        if not self.stops_itself:
            return False
        window = math.ceil(1 / figures[-1]["share"])
        recent = figures[-window:]
        return len(recent) == window and all(f["change"] < self.tolerance and f["fraction"] > 0 for f in recent)

    def warnings(self, record: Record) -> list[str]:
        """Clients whose last message could not be used, and optimisers that give up the invariant."""
        return site_warnings(self, record)
