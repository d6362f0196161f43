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
        step_size: h_0, the variance of the injected noise; None derives it, which needs `precondition`.
        decay: γ of h_t = h_0 (1 + t / decay_offset)^-γ, in [0, 1]; 0 keeps the step constant.
        decay_offset: steps after which the step has fallen to 2^-γ; only with a `decay`.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None runs without: then give `step_size` and turn
            `precondition` and `control_variate` off.
        precondition: use the covariance of p(θ) Π_s q_s(θ) as preconditioner, so that one step size serves posteriors
            of any scale.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π_s q_s(θ); "visit": where the
            chain is when a visit begins (SVRG-LD), which needs no surrogates.
        midpoint: evaluate and keep the chain at θ + η/2, whose variance at a Gaussian is exact for every stable step.
        largest_step: largest h if no `step_size` is given, in (0, 1]; stability ends at 4.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Welling & Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics; Eq. (1)-(2) of el Mekkaoui
        et al.

    Example:
        >>> idata = pf.run(pf.SGLD(), fed)
        >>> plain = {"surrogates": None, "precondition": False, "control_variate": False, "midpoint": False}
        >>> idata = pf.run(pf.SGLD(step_size=1e-4, **plain), fed)
    """

    pooled: ClassVar[bool] = True
