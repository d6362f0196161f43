"""Langevin samplers on minibatches, whose noise a control variate reduces.

    Σ_batch w_i ∇ log p(x_i | θ)   becomes   Σ_batch w_i [∇ log p(x_i | θ) - ∇ log p(x_i | θ*)]
                                           + Σ_all ∇ log p(x_i | θ*)

See `gradients.ControlVariateScore`. θ* is the mode of p(θ) Π_s q_s(θ), where each client computes the gradient of all
its rows once, or the chain's own position when a visit begins, where it computes it every time: SVRG-LD (Dubey et al.,
2016, Algorithm 2) at one client with visits as long as an epoch, which needs no mode.

Deviation (`minibatches`): pieces of a permutation in place of draws anew in each step. Over an epoch their noise
cancels, so that a chain whose visits last an epoch or more, such as 20 steps of ten in 200 rows, has less of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.capabilities import LocalRounds
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.conventions.nested_settings import refuse_unused
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, Batch, ClientData, Minibatch, draw_anew, draw_minibatches
from pyro_fed.infer.langevin.client_state import ClientState
from pyro_fed.infer.langevin.gradients import ControlVariateScore, Score, likelihood_score
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.start import Beginning


@dataclass(frozen=True, kw_only=True)
class CorrectedLangevin(Langevin):
    """Langevin samplers whose minibatches may be corrected by a control variate.

    Args:
        minibatches: "reshuffled": a visit goes through the client's rows in random order, minibatch by minibatch. Or
            "anew": each minibatch is drawn from all of them, as published, which leaves the full minibatch noise.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π q_s(θ); "visit": where the chain
            is when a visit begins.

    The others are those of `Langevin`.
    """

    minibatches: Literal["reshuffled", "anew"] = "reshuffled"
    control_variate: bool | Literal["visit"] = True

    def __post_init__(self) -> None:
        check_choice(self, "minibatches", ("reshuffled", "anew"))
        if not isinstance(self.control_variate, bool):
            check_choice(self, "control_variate", ("visit",))
        super().__post_init__()
        if self.batch_size is None:
            refuse_unused(self, "batch_size=None takes all rows", "minibatches")

    @property
    def needs_surrogates(self) -> bool:
        """Whether a control variate at the surrogates' mode is used."""
        return self.control_variate is True

    def draw_picks(self, num_rows: int, batch_size: int, generator: torch.Generator, dtype: torch.dtype) -> Minibatch:
        """Pieces of permutations, or independent draws."""
        drawn = draw_anew if self.minibatches == "anew" else draw_minibatches
        return drawn(num_rows, batch_size, self.local_steps, generator, dtype)

    def build_gradient(self, client: ClientState, anchor: Tensor | None = None) -> Score:
        """Eq. (4), with its control variate at θ* if the client knows the gradient of all rows there."""
        if anchor is None or client.anchor_score is None:
            return super().build_gradient(client)
        return ControlVariateScore(client.inverse_f, anchor, client.anchor_score)

    def equip(self, clients: ClientState, begin: Beginning, share: Tensor) -> ClientState:
        """The clients' states with an entry for the gradient of all rows at θ*, which first visits compute."""
        if not self.control_variate or self.batch_size is None:
            return clients
        return clients._replace(anchor_score=begin.anchor.new_zeros(len(share), len(begin.anchor)))

    def first_gradients(self, problem: Problem, client: ClientState, batch: Batch) -> State:
        """The gradient of all rows at the mode."""
        if client.anchor_score is None or self.control_variate is not True:
            return {}
        return {"anchor_score": problem.mapped(likelihood_score, (0, BATCHES), calls=0)(client.anchor, batch)}

    def score_of_visit(self, problem: Problem, client: ClientState, position: Tensor, data: ClientData) -> Score:
        """The estimate with θ* at the mode, or at the chains' positions; with all rows there is no correction."""
        if client.anchor_score is None or self.takes_all_rows(data):
            return self.build_gradient(client)
        if self.control_variate == "visit":
            score = problem.mapped(likelihood_score, (0, BATCHES))(position, data.full_batch())
            return self.build_gradient(client._replace(anchor_score=score), position)
        return self.build_gradient(
            client, client.anchor.clone()
        )  # a compiled step distinguishes its inputs by identity

    def local_rounds(
        self,
        problem: Problem,
        received: State,
        local: State,
        data: ClientData,
        clients: Tensor,
        at: Tensor,
        noise: Noise,
    ) -> LocalRounds | None:
        """R rounds of visits as for `Langevin`, if visits compute nothing of their own."""
        if self.control_variate == "visit":
            return None
        return super().local_rounds(problem, received, local, data, clients, at, noise)
