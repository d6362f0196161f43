"""Settings of algorithms without a server."""

from __future__ import annotations

from pyro_fed.infer.ep.tilted import IVON
from pyro_fed.infer.peers.consensus_laplace import ConsensusLaplace
from pyro_fed.infer.peers.p2p_ep import P2PEP
from pyro_fed.infer.peers.p2p_vi import P2PVI
from pyro_fed.infer.peers.peer_gaussian import PeerGaussian
from pyro_fed.infer.peers.push_sum import P2PPushSum
from pyro_fed.policy import gaussian
from pyro_fed.policy.choice import Case, Decision, Row, Table, affordable_rows, apply_table
from pyro_fed.policy.gaussian import (
    COVARIANCE_ROW,
    CURVATURE_ROW,
    NEWTON_START_ROW,
    full_by_default,
    gradient_steps,
    takes_gradients,
)

#: Settings of exact steps; a user who sets one of them gets exact steps.
EXACT = frozenset({"update", "curvature", "num_points", "tolerance", "batch_size", "weighting"})
#: Fraction of a change in a round if scores are discontinuous: whole changes overshoot and diverge.
NON_SMOOTH_DAMPING = 0.5


def update_of(case: Case) -> Decision | None:
    """The update of beliefs: by gradients alone if the model is too large for Newton steps."""
    algorithm = case.algorithm
    if algorithm.solver.by_gradients or case.own & EXACT:
        return None
    if why := takes_gradients(case):
        full = algorithm.covariance == "auto" and bool(full_by_default(case))
        if full and "start" in case.own:  # the user's start is one for exact steps
            return None
        return Decision(IVON(**gradient_steps(case.traits)), f"{why}: stochastic gradients")
    return Decision(algorithm.update, "exact Newton steps, of which a round costs little")


def covariance_of(case: Case) -> Decision | None:
    """Full or diagonal: diagonal by stochastic gradients."""
    if "update" in case.chosen and case.algorithm.covariance == "auto":
        return Decision("diag", "stochastic gradients need diagonal beliefs")
    return gaussian.covariance_of(case)


def curvature_of(case: Case) -> Decision | None:
    """Hessians, or Fisher's information, for Newton steps; other updates take neither."""
    return gaussian.curvature_of(case) if case.algorithm.solver.takes_curvature else None


def non_smooth(case: Case) -> str:
    """The reason why a Laplace approximation is no start and whole changes overshoot; "" if there is none."""
    algorithm, traits = case.algorithm, case.traits
    exact = algorithm.solver.newton_steps and algorithm.weighting == "exact"
    if not exact or traits.improper:
        return ""
    if traits.kinked_prior:
        return "the prior's score jumps"
    return "rows' scores jump" if traits.non_smooth_scores else ""


def damping_of(case: Case) -> Decision | None:
    """The fraction of a change in a round."""
    why = non_smooth(case)
    if "damping" in case.own or not why:
        return None
    return Decision(NON_SMOOTH_DAMPING, f"{why}: whole changes overshoot")


def start_of(case: Case) -> Decision | None:
    """The start of beliefs."""
    algorithm, traits = case.algorithm, case.traits
    if algorithm.start != "auto":
        return None
    if algorithm.solver.by_gradients:
        return Decision("fedavg", "stochastic gradients start from averaging over the graph")
    if algorithm.weighting == "paper":
        return Decision("prior", "weighting='paper' starts from the prior, as published")
    if not algorithm.solver.newton_steps:
        return Decision("prior", "a guide is fitted around a proper belief")
    if why := non_smooth(case):
        return Decision(
            "local" if traits.kinked_prior else "prior", f"{why}: a curvature at a point is not informative"
        )
    return consensus_or_local(case)


def consensus_or_local(case: Case) -> Decision:
    """The Laplace approximation of all data, or each agent's own if sums over agents are unavailable or untrusted."""
    if case.setup.groups_take_turns:
        return Decision("local", "groups of agents take turns: sums over all agents would take many rounds")
    if case.setup.bounded:
        return Decision("local", "no agent can check sums over all agents")
    return Decision("consensus", "Newton's method over the graph finds the mode of all data in few rounds")


def start_of_p2p_ep(case: Case) -> Decision | None:
    """The start of `P2PVI`, from whose beliefs `P2PEP` starts."""
    if case.algorithm.start != "auto":
        return None
    if case.setup.groups_take_turns:
        return consensus_or_local(case)
    if case.traits.kinked_prior:
        return Decision("local", "the prior's score is discontinuous: a curvature at a point is not informative")
    if case.traits.non_smooth_scores and not case.traits.improper:
        return Decision("prior", "the scores of rows are discontinuous: a curvature at a point is not informative")
    return consensus_or_local(case)


def start_over_graph_of(case: Case) -> Decision | None:
    """The start of beliefs if sums are computed over the graph."""
    return consensus_or_local(case) if case.algorithm.start == "auto" else None


def start_by_push_sum_of(case: Case) -> Decision | None:
    """The start of beliefs if the graph does not preserve sums."""
    return (
        Decision("local", "links that fail do not preserve sums over all agents")
        if case.algorithm.start == "auto"
        else None
    )


def newton_of(case: Case) -> Decision | None:
    """The settings of Newton's method, which every agent runs by itself."""
    newton = case.algorithm.newton
    chosen = apply_table(newton, NEWTON, case.traits, case.setup).algorithm
    return None if chosen is newton else Decision(chosen, "; ".join(chosen_settings_text(newton, chosen)))


def chosen_settings_text(before: object, after: object) -> list[str]:
    """The chosen settings of a nested algorithm as text, from the algorithm before and after the choices."""
    names = [name for name, value in vars(after).items() if not name.startswith("_") and getattr(before, name) != value]
    return [f"{name}={getattr(after, name)!r}" for name in names]


UPDATE = Row("update", update_of, "update='newton', 'svi' or 'ivon'")
COVARIANCE = Row("covariance", covariance_of, "covariance='full' or 'diag'")
DAMPING = Row("damping", damping_of, "damping=")
CURVATURE = Row("curvature", curvature_of, CURVATURE_ROW.override)
START = Row("start", start_of, "start='consensus', 'local' or 'prior'")
NEWTON = Table((COVARIANCE_ROW, NEWTON_START_ROW, CURVATURE_ROW))

TABLES = {
    P2PVI: Table((UPDATE, COVARIANCE, DAMPING, START, CURVATURE), (affordable_rows,)),
    P2PEP: Table((COVARIANCE_ROW, Row("start", start_of_p2p_ep, START.override), CURVATURE_ROW)),
    P2PPushSum: Table((COVARIANCE_ROW, Row("start", start_by_push_sum_of, "start='prior'"), CURVATURE_ROW)),
    PeerGaussian: Table((COVARIANCE_ROW, Row("start", start_over_graph_of, START.override), CURVATURE_ROW)),
    ConsensusLaplace: Table((Row("newton", newton_of, "start='local' or 'prior'"),)),
}
