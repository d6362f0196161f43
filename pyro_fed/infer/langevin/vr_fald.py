"""Variance-reduced federated averaging Langevin dynamics: control variates against noise and drift of the clients.

Source: Plassier, Durmus & Moulines (2023), *Federated averaging Langevin dynamics: toward a unified theory and new
algorithms*, VR-FALD*. All K clients make T steps from the server's θ,

    θ^c ← θ^c + h/2 [∇ log p(θ^c) + K Σ_batch w_i (∇ log p(x_i | θ^c) - ∇ log p(x_i | Y)) + S] + η^c             (1)
    η^c = √h (√τ ξ + √(K (1 - τ)) ξ^c),    ξ, ξ^c ~ N(0, I),    w_i = N_c/m                                      (2)
    θ ← 1/K Σ_c θ^c;    S = Σ_c ∇ log p_c(Y)  of all rows                                                        (3)

where ξ is common to all clients. At θ^c = Y the drift is the posterior's score at every client, for any minibatch and
however the clients differ: noise and drift grow only with the distance from Y. Y is the start of the previous round:
each client sends the score of all its rows there along with its θ^c. The first round has no Y, and the client's own
score in place of S / K (SVRG-LD).

With τ = 1 the clients have no noise of their own, and differ only by the curvature of their rows over one or two
rounds. In terms of the source's potentials U^c, each of which contains a part of the prior, h/2 is its γ divided by K.

Stability: a run refuses steps h that are unstable at a single client. The delay of Y needs smaller steps if clients
differ: in a direction that only one client informs, with posterior curvature λ, averages of linear scores diverge from
about h T λ = 2 K / (K - 1) on.

S is a sum over all clients, so that a schedule with only some of them is refused.

Letters: T `local_steps`, h `step.size`, τ `shared_noise`, Y `reference`, S `reference_score`, m `batch_size`; p_c of
`langevin.averaged` is 1/K.
Deviations: a round has T steps, not a random number with mean 1/p_c; Y is renewed in every round, not in every step
with probability q; the prior is neither in the clients' scores nor in the control variate. The deviations of
`langevin.langevin` are settings, off in `inference/vr_fald.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise, Start, State
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.conventions.setting_checks import check_between
from pyro_fed.density.derivatives import clients_likelihood_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.averaged import AveragedLangevin
from pyro_fed.infer.langevin.gradients import ControlVariateScore
from pyro_fed.infer.langevin.step import Fixed, Step
from pyro_fed.infer.langevin.visits import Arrival, ClientState
from pyro_fed.infer.sites.records import entries_as
from pyro_fed.infer.surrogates.surrogates import Surrogates


class Reference(NamedTuple):
    """The point of the clients' last scores, and their sum, for M chains, or for the visits to C clients."""

    reference: Tensor  # Y, (M, D)
    reference_score: Tensor  # S, (M, D)
    has_reference: Tensor  # whether Y exists, (M,)
    noise_key: Tensor  # the seed of the clients' common noise in the next round, (M,)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class VRFALD(AveragedLangevin):
    """VR-FALD*: clients in parallel from one point, whose drift is corrected by the sum of all clients' scores.

    A draw is the average at the end of a round. A client of `FALD` sends the same without its score.

    Args:
        batch_size: m, rows per step, in minibatches that are drawn anew and weighted to represent all of the client's;
            None takes all.
        step: a `pf.infer.step.Fixed`; without surrogates it needs `precondition=False`.
        surrogates: the source of the Gaussians q_s, for the start and the preconditioner: an algorithm that leaves
            Gaussian sites at the clients, its name, or `Given`; None begins at draws of the prior.
        shared_noise: τ, the share of the noise that is common to all clients. The clients' own noise biases the average
            of scores that are not linear.

    References:
        Plassier, Durmus & Moulines (2023), Federated averaging Langevin dynamics: toward a unified theory and new
        algorithms.

    Example:
        >>> step = pf.infer.step.Fixed(size=1e-3, precondition=False, midpoint=False)
        >>> idata = pf.run(pf.infer.VRFALD(step=step), fed)
    """

    steps: ClassVar[tuple[type[Step], ...]] = (Fixed,)
    without: ClassVar[Mapping[str, str]] = {
        "control_variate": "the scores of all clients at the last round's start are one",
        "conducive": "the sum of all clients' scores replaces it; FALD and FSGLD have it",
        "minibatches": "each is drawn anew, and its noise is corrected; FALD has it",
        "probabilities": "all clients have the same weight in the average; FALD has it",
    }

    step: Step | str = Fixed(precondition=False, midpoint=False)
    surrogates: Surrogates = None
    shared_noise: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between(self, "shared_noise", 0.0, 1.0, "[]")

    @property
    def needs_visit_gradient(self) -> bool:
        """Whether a visit computes a gradient before its steps, which depends on where it begins."""
        return True

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """Start chains without a Y."""
        shared, local = super().init(problem, num_clients, generator, start)
        zero = torch.zeros_like(shared["position"])
        has_reference = torch.zeros(self.num_chains, dtype=torch.bool)
        keys = torch.randint(2**62, (self.num_chains,), generator=generator)
        return shared | Reference(zero, zero.clone(), has_reference, keys)._asdict(), local

    def download(self, shared: State, clients: Tensor) -> State:
        """Each chain's position and reference, for all clients of that chain."""
        all_clients = torch.arange(len(shared["visit_share"])).repeat(self.num_chains)
        if not torch.equal(clients, all_clients):
            raise SettingError(
                f"VRFALD sums the scores of all {len(shared['visit_share'])} clients in every round, for each of "
                f"{self.num_chains} chains, but the schedule named {len(clients)} in all: use schedule.All(), or FALD"
            )
        of_chain = torch.arange(self.num_chains).repeat_interleave(len(clients) // self.num_chains)
        reference = {name: value[of_chain] for name, value in entries_as(Reference, shared)._asdict().items()}
        return super().download(shared, clients) | reference

    def clients_noise(self, shared: State, normal: Tensor) -> Tensor:
        """Eq. (2) without √h, (T, C, D), from the clients' own ξ^c."""
        own_normal = super().clients_noise(shared, normal)
        common = {key: _normal(key, normal) for key in set(shared["noise_key"].tolist())}
        shared_normal = torch.stack([common[key] for key in shared["noise_key"].tolist()], 1)
        mixed: Tensor = self.shared_noise**0.5 * shared_normal + (1 - self.shared_noise) ** 0.5 * own_normal
        return mixed

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Take T steps of Eq. (1); the message contains the score of all rows at their start."""
        arrival, client = entries_as(Arrival, shared), entries_as(ClientState, local)
        client, new_state = self.with_entries_of_first_visit(problem, arrival, client, data)
        score_of_all_rows = clients_likelihood_scores(problem, arrival.position.unsqueeze(1), data).squeeze(1)
        has_reference, share = shared["has_reference"].unsqueeze(-1), 1 / client.inverse_f.unsqueeze(-1)
        anchor = torch.where(has_reference, shared["reference"], arrival.position)
        score = ControlVariateScore(
            client.inverse_f, anchor, torch.where(has_reference, share * shared["reference_score"], score_of_all_rows)
        )
        noise = {**noise, "normal": self.clients_noise(shared, noise["normal"])}
        _, visit, figures = self.visits(data).one_round(problem, arrival, client, score, data, noise)
        return {**visit._asdict(), "weight": shared["weight"], "score": score_of_all_rows}, new_state, figures

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """Average the clients of each chain, and sum their scores, Eq. (3)."""
        score = messages["score"].unflatten(0, (self.num_chains, -1)).sum(1)
        has_reference, keys = torch.ones_like(shared["has_reference"]), shared["noise_key"] + 1
        reference = Reference(shared["position"], score, has_reference, keys)
        return super().combine(shared, messages, weights) | reference._asdict()


def _normal(key: int, like: Tensor) -> Tensor:
    """ξ of all steps of a round, (T, D), from its seed."""
    generator = torch.Generator().manual_seed(key)
    return torch.randn(like.shape[0], like.shape[-1], generator=generator, dtype=like.dtype).to(like.device)
