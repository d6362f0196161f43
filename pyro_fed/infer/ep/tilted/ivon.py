"""Diagonal sites by natural-gradient steps from scores alone, on minibatches: "ivon", for networks.

See `sites.online_newton` for the steps, their source and the deviations. A site is what the client has changed of the
cavity's natural parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyro_fed.algorithm.contract import Noise
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.sites.online_newton import OnlineNewton


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class IVON(OnlineNewton, TiltedInference):
    """Diagonal sites by variational online Newton steps: gradients alone, on minibatches; for networks.

    Args:
        steps: steps a round.
        pairs: draws a step, each with its opposite: two gradients a pair.
        batch_size: rows a step, weighted to all of the client's; None takes all.
        rate: α, of a Newton step; it falls linearly to zero in a round.
        momentum: β, in [0, 1).
        curvature_memory: 1 - ρ, the weight of the curvature so far in a step, in [0, 1).
        longest: no step moves a parameter by more than this many SDs.
        largest_factor: by which a round changes a parameter's precision, up or down.
        most_gain: nats a row that a step may promise; a score that promises more is cut.
        spread: of the draws, in SDs of q̂; far below one scores and curvatures are those at its mean, Laplace's.
        rounds: of a run that is given no number of them; SDs begin narrow and widen over many.

    References:
        Shen et al. (2024), Variational learning is effective for large deep networks. Lin et al. (2020).

    Example:
        >>> pf.run(pf.FedEP(client=pf.tilted.IVON(steps=50), covariance="diag"), fed)
    """

    def infer(self, problem: Problem, numerics: Numerics, received: Received, data: ClientData, noise: Noise) -> Tilted:
        """Sites from the last step.

        Raises:
            SettingError: q has a full covariance.
        """
        if received.q.dense:
            raise SettingError("IVON: its sites are diagonal: take covariance='diag', or client='newton'")
        site = self.fit(problem, received.q, received.cavity, data, noise)
        return Tilted(site, site.product(received.cavity).is_proper(), {})
