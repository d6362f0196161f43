"""A plan: FedEP, followed by further algorithms as long as the result is doubtful.

    with a server   FedEP → FedAIS of its sites → FedAIS around those draws
                    → DSVGD → FedAIS of its particles → FedAIS around those draws → FSGLD
                    if a latent's scale is itself latent, before DSVGD: FedEP and both FedAIS on the non-centred
                    form of the model, which has no funnel
                    FedEP → FSGLD → DSVGD                in more dimensions than FedEP has a full covariance for
    large networks  FedEP; if weights have latent scales, first on the non-centred form
    on a graph      P2PVI → P2PEP

Each stage is judged by its own warnings and by the audit of its draws. The answer is the first without doubts; if an
earlier one was doubted, another stage must agree with it (`contract.Plan`). Stages are ordered by cost, and differ in
their kinds of error: FedAIS uses FedEP's sites but is no Gaussian, DSVGD searches for modes itself and the model
weights its particles, FSGLD is a Markov chain over thousands of rounds. FedAIS is skipped if its start misses a mode,
which weights cannot restore (`policy.why_not_from`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyro_fed.algorithm.contract import Algorithm, Plan, Stage
from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.density.problem import Problem
from pyro_fed.graph import Graph
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.langevin.fsgld import FSGLD
from pyro_fed.infer.peers.p2p_ep import P2PEP
from pyro_fed.infer.peers.p2p_vi import P2PVI
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.surrogates.fedais import FedAIS

__all__ = ["Auto"]


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class Auto(Plan):
    """FedEP, followed by further algorithms until a result has no doubts.

    `pyro_fed.metrics.steps` lists the stages with cost and reason; the result's warnings are the remaining doubts.

    Args:
        max_rounds: largest number of rounds of all stages together; None: no limit.
        max_bytes: largest number of bytes that clients receive and send in all stages together; None: no limit. The
            size of the first messages of a phase is not known in advance, and may exceed the limit.
        max_seconds: largest wall-clock time of all stages together; None: no limit. See `max_seconds` of
            `pyro_fed.run`.
        confirm: largest number of further stages that are tried to confirm an answer without doubts that follows a
            doubted one. A second answer confirms it if the two agree, as they are or as the audit's chains correct
            them; 0: none.
        mean_error: largest difference of a mean of two answers that agree, in SDs.
        sd_factor: largest ratio of an SD of two answers that agree.
        aim_mean_error: desired error of a mean, in SDs, as estimated by the audit's chains or the answer's own weights.
            An answer without doubts that misses an aim is followed by stages that may be better, see `refine`.
        aim_sd_factor: desired factor by which an SD may be off.
        refine: largest number of stages that are tried for a missed aim; 0: none.

    References:
        The plan is this package's own; its stages cite their sources. Yao, Vehtari, Simpson & Gelman (2018), *Yes, but
        did it work?*, also judge an approximation before they try another method.

    Example:
        >>> idata = pf.run(pf.Auto(), fed)
        >>> pf.metrics.steps(idata)
    """

    def stages(self, problem: Problem, graph: Graph | None) -> Sequence[Algorithm | Stage]:
        """The algorithms that can run on this model, in the order of their cost."""
        large, has_effects = problem.traits.large(), bool(problem.traits.effects)
        if large:  # results are not audited, so that nothing would favour another stage
            single: Algorithm = FedEP() if graph is None else P2PVI()
            return [Stage(single, noncentred=True), single] if has_effects and problem.traits.layers else [single]
        if graph is not None:
            return [P2PVI(), P2PEP()]
        if not problem.traits.few_parameters:  # importance weights fail, and a few particles are too narrow
            return [FedEP(), *([Stage(FedEP(), noncentred=True)] if has_effects else []), FSGLD(), DSVGD()]

        def weighted(first: Algorithm) -> list[Algorithm]:
            """Draws of an algorithm weighted, then draws around those, where points have neighbours."""
            once = FedAIS(surrogates=first)
            return [once, *([FedAIS(surrogates=once)] if problem.traits.points_have_neighbours else [])]

        first, *again = weighted(FedEP())
        noncentred = [Stage(one, noncentred=True) for one in (FedEP(), first, *again)]
        more: list[Algorithm | Stage] = [*noncentred] if has_effects else [*again]
        return [FedEP(), first, *more, DSVGD(), *weighted(DSVGD()), FSGLD(surrogates=FedEP())]
