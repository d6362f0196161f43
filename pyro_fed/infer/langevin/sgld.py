"""Stochastic gradient Langevin dynamics on the pooled data (Welling & Teh, 2011).

    θ_{t+1} = θ_t + h_t/2 v(θ_t) + η_t,    η_t ~ N(0, h_t I)                                          (1)
    v(θ) = ∇ log p(θ) + N/m ∇ log p(x^(m) | θ)                                                        (2)

Equation numbers are those of el Mekkaoui et al.; letters and deviations as in `langevin.langevin`, with S = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.infer.langevin.control_variates import CorrectedLangevin


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SGLD(CorrectedLangevin):
    """Centralised stochastic gradient Langevin dynamics: `local_steps` steps a round on minibatches of all rows.

    Args:
        num_chains: M, chains that run at once.
        local_steps: T, steps a round.
        burn_in: first steps of each chain that are not kept.
        thin: one step in this many is kept.
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is at most 1.01 (1.025 of ten chains); None runs all rounds.
        batch_size: m, rows a step, weighted to all; None takes all rows.
        minibatches: "reshuffled": a visit goes through the client's rows in random order, minibatch by minibatch. Or
            "anew": each minibatch is drawn from all of them, as published, which leaves the full minibatch noise.
        step: the step's size and rule: a `pf.infer.step.Derived`, or a `pf.infer.step.Fixed`.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None runs without: then give
            `step=pf.infer.step.Fixed(precondition=False)` and turn `control_variate` off.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π_s q_s(θ); "visit": where the
            chain is when a visit begins (SVRG-LD), which needs no surrogates.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Welling & Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Eq. (1)-(2) of el Mekkaoui
        et al.

    Example:
        >>> idata = pf.run(pf.infer.SGLD(), fed)
        >>> step = pf.infer.step.Fixed(size=1e-4, precondition=False, midpoint=False)
        >>> idata = pf.run(pf.infer.SGLD(step=step, surrogates=None, control_variate=False), fed)
    """

    pooled: ClassVar[bool] = True
