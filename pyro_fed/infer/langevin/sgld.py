"""Stochastic gradient Langevin dynamics on the pooled data (Welling & Teh, 2011), and control variates of minibatches.

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1)
    v(θ) = ∇ log p(θ) + N/m ∇ log p(x^(m) | θ)                                                        (2)

Equation numbers are those of el Mekkaoui et al.; letters and deviations as in `langevin.langevin`, with S = 1. Further
deviations:

* `control_variate` (`gradients.ControlVariateScore`) at θ*, the mode of p(θ) Π_s q_s(θ), where each client computes the
  gradient of all its rows once; or at the chain's position at the start of each visit. The latter needs no mode, and is
  SVRG-LD (Dubey et al., 2016, Algorithm 2) for one client with visits as long as an epoch.
* `minibatches`: pieces of a permutation in place of independent draws, so that their noise cancels over an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from pyro_fed.algorithm.contract import State
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.density.derivatives import clients_likelihood_scores
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, draw_minibatches
from pyro_fed.infer.langevin.gradients import Score
from pyro_fed.infer.langevin.langevin import Langevin
from pyro_fed.infer.langevin.visits import Beginning, ClientState, PickRows


@dataclass(frozen=True, kw_only=True)
class CorrectedLangevin(Langevin):
    """Langevin samplers whose minibatches may be corrected by a control variate.

    Args:
        minibatches: "reshuffled": a visit goes through the client's rows in random order, minibatch by minibatch. Or
            "anew": each minibatch is drawn from all of them, as published, which leaves the full minibatch noise.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π_s q_s(θ); "visit": where the
            chain is when a visit begins (SVRG-LD), which needs no surrogates.
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

    @property
    def needs_visit_gradient(self) -> bool:
        """Whether a visit computes a gradient before its steps, which depends on where it begins."""
        return self.control_variate == "visit"

    @property
    def pick_rows(self) -> PickRows:
        """How minibatches are drawn: as pieces of permutations, or independently."""
        return super().pick_rows if self.minibatches == "anew" else draw_minibatches

    def with_score_terms(self, clients: ClientState, begin: Beginning, visit_share: Tensor) -> ClientState:
        """The clients' states with an entry for the gradient of all rows at θ*, which first visits compute."""
        if not self.control_variate or self.batch_size is None:
            return clients
        return clients._replace(anchor_score=begin.anchor.new_zeros(len(visit_share), len(begin.anchor)))

    def first_gradients(self, problem: Problem, client: ClientState, data: ClientData) -> State:
        """The gradient of all rows at the mode."""
        if client.anchor_score is None or self.control_variate is not True:
            return {}
        return {"anchor_score": clients_likelihood_scores(problem, client.anchor.unsqueeze(1), data).squeeze(1)}

    def score_of_visit(self, problem: Problem, client: ClientState, position: Tensor, data: ClientData) -> Score:
        """The estimate with θ* at the mode, or at the chains' positions; with all rows there is no correction."""
        if client.anchor_score is None or self.takes_all_rows(data):
            return client.score()
        if self.control_variate == "visit":
            score = clients_likelihood_scores(problem, position.unsqueeze(1), data).squeeze(1)
            return client._replace(anchor_score=score).score(position)
        return client.score(client.anchor.clone())  # a compiled step distinguishes its inputs by identity


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SGLD(CorrectedLangevin):
    """Centralised stochastic gradient Langevin dynamics: `local_steps` steps per round on minibatches of all rows.

    References:
        Welling & Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Eq. (1)-(2) of el Mekkaoui
        et al.

    Example:
        >>> idata = pf.run(pf.infer.SGLD(), fed)
        >>> step = pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False)
        >>> idata = pf.run(pf.infer.SGLD(step=step, surrogates=None, control_variate=False), fed)
    """

    pooled: ClassVar[bool] = True
