"""Distributed stochastic gradient Langevin dynamics (Ahn et al., 2014; el Mekkaoui et al., Section 2.1).

    θ_{t+1} = θ_t + h_t/2 v_s(θ_t) + η_t                                                              (3)
    v_s(θ) = ∇ log p(θ) + N_s/(f_s m) ∇ log p(x_s^(m) | θ)                                       (4)

FSGLD without conducive gradients. A chain that stays at a client for more than a few steps drifts towards the
posterior of that client's data counted 1/f_s times, so that many local steps sample a mixture of those.
Letters and deviations as in `langevin.langevin`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.infer.langevin.visiting import VisitingLangevin, one_client


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class DSGLD(VisitingLangevin):
    """Distributed SGLD: each chain makes `local_steps` steps on one client's rows, then moves on.

    Surrogates serve the preconditioner, the start and the control variate alone.

    Args:
        num_chains: M, chains that run at once.
        local_steps: T, steps a visit.
        burn_in: first steps of each chain that are not kept.
        thin: one step in this many is kept.
        target_ess: the run ends when the slowest coordinate has this many effective draws (all chains together)
            and R-hat is at most 1.01 (1.025 of ten chains); None runs all rounds.
        batch_size: m, rows a step, weighted to all of the client's; None takes all of a client's rows.
        minibatches: "reshuffled": a visit goes through the client's rows in random order, minibatch by minibatch. Or
            "anew": each minibatch is drawn from all of them, as published, which leaves the full minibatch noise.
        step: the step's size and rule: a `pf.infer.step.ForVisits`, or a `pf.infer.step.Fixed`.
        surrogates: the source of the Gaussians q_s: an algorithm that leaves Gaussian sites at the clients, or its
            name: "laplace" for `FedLaplace()`, "fedep" for `FedEP()`, which fits skewed posteriors better, "local_sgld"
            for `LocalSGLD()`, and "auto" for "fedep" as far as that has a full covariance by default and "laplace"
            beyond. `Given` has them as tensors. None runs without: then give
            `step=pf.infer.step.Fixed(precondition=False)` and turn `control_variate` off.
        control_variate: correct minibatches by their gradient at the mode of p(θ) Π_s q_s(θ); "visit": where the
            chain is when a visit begins (SVRG-LD), which needs no surrogates.
        probabilities: f_s, the probability of each client, positive with sum one; None is uniform.
        sweeps: every client once in each sweep, in random order, if f_s is uniform; else clients are drawn anew for
            each visit.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Ahn, Shahbaba & Welling (2014), Distributed stochastic gradient MCMC. El Mekkaoui et al., Eq. (3)-(4).

    Example:
        >>> idata = pf.run(pf.infer.DSGLD(local_steps=2), fed)
    """

    sweeps: bool = True

    def default_schedule(self) -> Schedule:
        """One client for each chain: in random sweeps, or drawn with probabilities f_s."""
        return one_client(self.sweeps, self.probabilities)
