"""Stochastic gradients of the client's free energy: "svi", a Gaussian guide by Adam, and "ivon", for networks.

"svi" is Pyro's `SVI` on the tilted density; `guides.gaussian_guides` has the objective and the steps. The guide starts
at the end of a Newton step with the inverse curvature as covariance, so that the step size, which falls linearly to
zero, does not depend on the parameters' units. "ivon" takes diagonal natural-gradient steps from scores alone; its
steps and settings are those of `sites.online_newton.OnlineNewton`. A site is the change of the cavity's natural
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.record import RECENT_ROUNDS, Record
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.guides.gaussian_guides import GuideFit
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference, one_newton_step, site_from
from pyro_fed.infer.sites.online_newton import OnlineNewton
from pyro_fed.ops.gaussian import Gaussian


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class SVI(GuideFit, TiltedInference):
    """A Gaussian guide fitted to the tilted density by Adam on the evidence lower bound, as Pyro's `SVI` does.

    Args:
        step_size: initial rate of Adam, in SDs of the tilted density; it falls linearly to zero.

    References:
        Kingma & Ba (2015), Adam.

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.SVI(steps=100)), fed)
    """

    minimises_free_energy: ClassVar[bool] = True

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the fitted guides."""
        start = one_newton_step(numerics, problem, received, data)
        return site_from(self.fit(problem, start, received.cavity, data, noise), received.cavity)


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(OnlineNewton, TiltedInference):
    """Diagonal sites by variational online Newton steps: gradients alone, on minibatches; for networks.

    Args:
        steps: steps per round.
        pairs: antithetic pairs of draws per step, with two gradients each.
        batch_size: rows per step, weighted to all of the client's; None takes all.
        rate: α, the fraction of a Newton step; it falls linearly to zero in a round.
        momentum: β, in [0, 1).
        curvature_memory: 1 - ρ, the weight of the previous curvature in a step, in [0, 1).
        longest: largest move of a parameter in a step, in SDs.
        largest_factor: largest factor by which a round raises or lowers a parameter's precision.
        most_gain: largest predicted gain of a step, in nats per row; scores that predict more are scaled down.
        spread: spread of the draws, in SDs of q̂. Well below 1, scores and curvatures are those at the mean, as in a
            Laplace approximation.
        rounds: default number of rounds of a run; None is 40 with a server, and 20 for agents without one, whose
            beliefs move by their own full change instead of the mean of all changes. SDs start narrow and widen over
            many rounds.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks. Lin et al. (2020).

    Example:
        >>> pf.run(pf.FedEP(client=pf.infer.tilted.IVON(steps=50), covariance="diag"), fed)
        >>> pf.run(pf.P2PVI(update="ivon", covariance="diag"), fed, graph=pf.graph.ring(5))
    """

    by_gradients: ClassVar[bool] = True
    minimises_free_energy: ClassVar[bool] = True
    takes_curvature: ClassVar[bool] = False

    @property
    def default_rounds(self) -> int:
        """The setting `rounds`, or 40."""
        return self.rounds or 40

    @property
    def agents_rounds(self) -> int:
        """The setting `rounds`, or 20."""
        return self.rounds or 20

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the last step.

        Raises:
            SettingError: q has a full covariance.
        """
        if received.q.dense:
            raise SettingError(
                "IVON: its sites are diagonal, but the covariance is full: use covariance='diag' or client='newton'"
            )
        site = self.fit(problem, received.q, received.cavity, data, noise)
        return Tilted(site, site.product(received.cavity).is_proper(), {})

    def objections(self, q: Gaussian, changes: Gaussian, values: Tensor | None) -> message_limits.Objections:
        """Objections of `message_limits.natural`, with means of the other clients in place of medians, which sort."""
        old_precision, mean, total = q.precision[0], q.mean()[0], changes.precision.abs().sum(0)
        growth, step_lengths, wrong_sign = [], [], []
        for precision, eta in zip(changes.precision, changes.eta, strict=True):  # one at a time to save memory
            scale = old_precision + (total - precision.abs()) / max(1, len(changes.eta) - 1)
            growth.append(_largest_magnitude(precision / scale))
            step_lengths.append(_largest_magnitude((eta - precision * mean) / scale.sqrt()))
            wrong_sign.append((precision < -message_limits.LARGEST_FALL * scale).any())
        return {
            **message_limits.outlying_clients(torch.stack(growth), "change of the precision"),
            **message_limits.outlying_clients(torch.stack(step_lengths), "step"),
            "its precision has the wrong sign": torch.stack(wrong_sign),
        }

    def figures(self, before: Gaussian, after: Gaussian) -> dict[str, float]:
        """`sd_growth`, the mean change of a log SD in a round."""
        return {"sd_growth": float((before.precision.log() - after.precision.log()).mean() / 2)}

    def findings(self, record: Record, problem: Problem) -> list[Finding]:
        """Warnings about SDs that have not converged, and about parameters without curvature."""
        notes = list[Finding]()
        recent = [figures["sd_growth"] for figures in record.figures[-RECENT_ROUNDS:] if "sd_growth" in figures]
        growth = sum(recent) / max(1, len(recent))
        if abs(growth) * RECENT_ROUNDS > NEGLIGIBLE:
            notes.append(sentences.sds_still_change(percent_a_round=100 * growth))
        improper = sorted(problem.traits.improper)
        return [*notes, sentences.improper_priors(sites=improper)] if improper else notes


def _largest_magnitude(value: Tensor) -> Tensor:
    return value.double().abs().amax()
