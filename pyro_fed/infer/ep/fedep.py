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
from typing import Any, Self

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Noise, State
from pyro_fed.algorithm.record import Record
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.infer.averaging.server_optim import client_steps, make_optim, optimised
from pyro_fed.infer.ep.site_updates import Limits, changes, fractions_of, site_warnings
from pyro_fed.infer.ep.states import EPStates
from pyro_fed.infer.ep.step_control import added, held_back
from pyro_fed.infer.ep.tilted import CLIENTS, Client, Received
from pyro_fed.infer.guides.automatic import is_hand_written
from pyro_fed.infer.sites.gaussian_sites import as_state, gaussian, joined
from pyro_fed.ops.gaussian import Gaussian


@dataclass(frozen=True, kw_only=True)
class FedEP(EPStates):
    """Federated expectation propagation with Gaussian sites.

    Args: as for `EPSettings`. With a guide that is a function, what is made is a `GuidedFedEP`.

    References:
        Guo et al. (2023), Algorithms 1, 3, 4 and 5. Vehtari et al. (2020), JMLR.
    """

    def __new__(cls, **settings: Any) -> Self:
        """The subclass that federates hand-written guides, where one is given."""
        if not is_hand_written(settings.get("guide")):
            return super().__new__(cls)
        from pyro_fed.infer.ep.guided import guided_kind  # what it gives derives from this class

        return super().__new__(guided_kind(cls))

    def default_rounds(self, num_clients: int) -> int:
        """At most 50; with a client that has no randomness it stops when q does not move any more."""
        return 50 if self.deterministic else 20

    @property
    def deterministic(self) -> bool:
        """Whether the client's inference has no randomness."""
        return self.client in ("newton", "laplace")

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

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """Changes beyond what q and the other clients' changes allow."""
        alike = {name: received[name][:1] for name in ("precision", "eta")}
        return message_limits.natural(gaussian(alike), gaussian(messages))

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Algorithm 3, with fractions that keep q a distribution."""
        q, deltas = gaussian(shared), joined(gaussian(shared, "prior_delta_"), gaussian(messages))
        damping, move = self.fraction_for(len(weights)), deltas.product_over(0)
        server = make_optim(self, self.server_optimiser)
        if server is None:
            share, state = held_back(self, shared, move, len(weights))
            fractions = fractions_of(q, deltas, Limits(damping * share, self.min_fraction, self.margin))
            steps = deltas.power(fractions)
            state |= added(self, shared, move, fractions, damping)
            new = q.product(steps.product_over(0)).product(gaussian(state, "added_"))
        else:
            steps = deltas.power(damping)
            new, kept, state = optimised(server, shared, q, move, Limits(damping, self.min_fraction, self.margin))
            fractions = q.eta.new_full((len(deltas.eta),), damping if kept > 0 else 0.0)
        prior = gaussian(shared, "prior_").product(type(q)(steps.precision[0], steps.eta[0]))
        taken = fractions[1:] * messages["usable"]
        return {**shared, **state, **as_state(new), **as_state(prior, "prior_"), "fractions": taken}

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

    def converged(self, figures: list[dict[str, float]]) -> bool | None:
        """Whether q did not move in as many rounds as let every client work once, and nothing was held back.

        Where the client's inference is random q never comes to rest, and there is no criterion.
        """
        if not self.deterministic:
            return None
        window = math.ceil(1 / figures[-1]["share"])
        recent = figures[-window:]
        return len(recent) == window and all(f["change"] < self.tolerance and f["fraction"] > 0 for f in recent)

    def warnings(self, record: Record, problem: Problem) -> list[str]:
        """Clients whose last message could not be used, and optimisers that give up the invariant."""
        return site_warnings(self, record)
