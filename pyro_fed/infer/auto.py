"""FedEP, followed by further algorithms if its result is doubtful.

    with a server   FedEP → FedAIS of its sites → FedAIS around those draws → DSVGD → FedAIS of its particles → FSGLD
                    where a latent's scale is itself latent, before DSVGD: FedEP and both FedAIS on the non-centred
                    form of the model, which has no funnel
                    FedEP → FSGLD → DSVGD                in more dimensions than FedEP has a full covariance for
    of a network whose weights have latent scales, of more parameters too, first on its non-centred form
    on a graph      P2PVI → P2PEP

Each stage is judged by its own warnings and by the audit of its draws; the first without doubts is the answer, and
where an earlier one was doubted another must agree with it (`contract.Plan`). The order is that of cost, and the kinds
of error differ: FedAIS has FedEP's sites but no Gaussian, DSVGD looks for modes by itself and its particles are weighed
by the model, FSGLD is a Markov chain of thousands of rounds. FedAIS is not tried where what it starts from misses a
mode, which no weights bring back (`policy.why_not_from`).
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
    """FedEP, and if its result is doubtful further algorithms, until a result is not.

    `pyro_fed.metrics.steps` lists what was tried, the cost and the reason; the result's warnings are the remaining
    doubts.

    Args:
        max_rounds: rounds of all stages together; None: no limit.
        max_bytes: bytes that the clients receive and send in all stages together; None: no limit. What they will send
            in the first round of a phase is not known before it, and may come on top.
        max_seconds: seconds on the clock of all stages together; None: no limit. See `max_seconds` of `pyro_fed.run`.
        confirm: an answer without doubts that comes after a doubted one has to be confirmed by a second one that agrees
            with it, as found or as the audit's chains correct it. So many more stages are tried for that; 0: none.
        mean_error: the most that any mean of two answers that agree may differ, in SDs.
        sd_factor: the largest ratio of any SD of two answers that agree.
        aim_mean_error: the error of a mean that is aimed at, in SDs, as the audit's chains or the answer's own weights
            estimate it. An answer that misses an aim, but has no doubts, is followed by stages that may be better, see
            `refine`.
        aim_sd_factor: the factor by which an SD may be off, also as an aim.
        refine: the most stages that are tried for a missed aim; 0: none.

    Raises:
        SettingError: a setting out of its range, or unknown.

    References:
        Of none of the papers; those of its stages are theirs. Yao, Vehtari, Simpson & Gelman (2018), *Yes, but did it
        work?*, judges an approximation before another method is tried, as here.

    Example:
        >>> idata = pf.run(pf.Auto(), fed)
        >>> pf.metrics.steps(idata)
    """

    def stages(self, problem: Problem, graph: Graph | None) -> Sequence[Algorithm | Stage]:
        """The algorithms that can run on this model, in the order of their cost."""
        large, has_effects = problem.traits.large(), bool(problem.traits.effects)
        if large:  # where nothing is audited, nothing says that another would be better
            own: Algorithm = FedEP() if graph is None else P2PVI()
            return [Stage(own, noncentred=True), own] if has_effects and problem.traits.layers else [own]
        if graph is not None:
            return [P2PVI(), P2PEP()]
        if not problem.traits.few_parameters:  # importance weights fail there, and a few particles are too narrow
            return [FedEP(), *([Stage(FedEP(), noncentred=True)] if has_effects else []), FSGLD(), DSVGD()]
        weighed = FedAIS(surrogates=FedEP())
        again = [FedAIS(surrogates=weighed)] if problem.traits.points_have_neighbours else []
        apart = [Stage(one, noncentred=True) for one in (FedEP(), weighed, *again)]
        more: list[Algorithm | Stage] = [*apart] if has_effects else [*again]
        return [FedEP(), weighed, *more, DSVGD(), FedAIS(surrogates=DSVGD()), FSGLD(surrogates=FedEP())]
