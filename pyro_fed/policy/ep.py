"""Settings of FedEP and related algorithms.

For a network, or another model that is too large for exact steps, clients use stochastic gradients and diagonal sites,
and the run starts from federated averaging. For up to `LARGE_DIM` parameters with linear predictors, such as a
regression on hundreds of covariates, full covariances and exact Hessians cost less and are the default.
"""

from __future__ import annotations

from pyro_fed.density.derivatives.few_rows import fewer_rows, first_row_count, has_many_rows
from pyro_fed.infer.ep.expectation_propagation import EP
from pyro_fed.infer.ep.fedlap import CURVATURE_SPREAD, FedLapCov
from pyro_fed.infer.ep.fedpa import BCM
from pyro_fed.infer.ep.pvi import PVI, StreamingVB
from pyro_fed.infer.ep.settings import WarmStarted
from pyro_fed.infer.ep.tilted import IVON
from pyro_fed.policy import gaussian
from pyro_fed.policy.choice import Case, Decision, Row, Table, affordable_rows, proper_prior
from pyro_fed.policy.gaussian import CURVATURE_ROW, EXACT, full_by_default, gradient_steps, parameters, takes_gradients


def client_of(case: Case) -> Decision | None:
    """The clients' inference: stochastic gradients for models too large for Newton steps."""
    algorithm = case.algorithm
    if not algorithm.solver.newton_steps or case.own & EXACT:
        return None
    if why := takes_gradients(case, algorithm.bound_is_known):
        return Decision(IVON(**gradient_steps(case.traits)), f"{why}: stochastic gradients")
    return Decision(algorithm.client, "exact Newton steps, of which a round costs little")


def narrow_client_of(case: Case) -> Decision | None:
    """The inference of FedLap's clients: stochastic gradients near their means for large models."""
    algorithm = case.algorithm
    if "client" in case.own or isinstance(algorithm.client, IVON):
        return None
    if why := takes_gradients(case):
        return Decision(IVON(spread=CURVATURE_SPREAD, longest=CURVATURE_SPREAD), f"{why}: stochastic gradients")
    return Decision(algorithm.client, "exact Newton steps, of which a round costs little")


def covariance_of(case: Case) -> Decision | None:
    """Full or diagonal: diagonal by stochastic gradients."""
    if "client" in case.chosen and case.algorithm.covariance == "auto":
        return Decision("diag", "stochastic gradients need diagonal sites")
    return gaussian.covariance_of(case)


def order_of(case: Case) -> Decision | None:
    """The order of clients: one in each round, or all."""
    if "order" in case.own or "client" not in case.chosen:
        return None
    return Decision("synchronous", "stochastic gradients are used with all clients in each round")


def start_of(case: Case) -> Decision | None:
    """The start of a run."""
    algorithm, traits = case.algorithm, case.traits
    if "client" in case.chosen and "start" not in case.own:
        return Decision("fedavg", "stochastic gradients start from federated averaging")
    if algorithm.start in ("auto", "laplace") and traits.improper:
        why = "are improper: only Newton's method run to its end shows whether there is a mode"
        return Decision("mode", f"the priors of {sorted(traits.improper)} {why}")
    if algorithm.start == "few_rows" and case.setup.private:
        return Decision("laplace", "each round by a part of the rows would add privacy noise")
    if algorithm.start != "auto":
        return None
    if not full_by_default(case):
        return Decision("prior", f"{parameters(traits.dim)}, for which Newton's method costs too much")
    if traits.non_smooth_scores:
        return Decision("prior", "the scores of rows are discontinuous: a curvature at a point is not informative")
    if traits.kinked_prior:
        return Decision("prior", "the prior's score is discontinuous: a curvature at a point is not informative")
    if few_rows_lead(case):
        return Decision("few_rows", f"a network of {traits.num_rows:,} rows: a quarter of them gives a good start")
    return Decision("laplace", f"{parameters(traits.dim)}: Newton's method finds the mode in few rounds")


def few_rows_lead(case: Case) -> bool:
    """Whether to start with a quarter of the rows: for a network of many rows, without privacy noise."""
    algorithm, traits = case.algorithm, case.traits
    if not algorithm.bound_is_known or case.setup.private or algorithm.step_control.memory == 0:
        return False  # each round adds privacy noise
    if not (traits.layers and has_many_rows(traits)):
        return False
    rows: int = algorithm.rows_of_rounds(traits.num_rows)
    return fewer_rows(rows) >= first_row_count(traits.dim)


def pooled_start_of(case: Case) -> Decision | None:
    """The start of a phase on pooled data."""
    decision = start_of(case)
    if decision is None or decision.value == "fedavg":
        return decision
    return Decision("laplace", "this phase is the start of particles")


def nearest_start_of(case: Case) -> Decision | None:
    """The start of the Gaussian nearest to a posterior of one mode: the mode."""
    return Decision("laplace", "at the mode that was found") if case.algorithm.start == "auto" else None


CLIENT = Row("client", client_of, "client='newton', or another of pf.infer.tilted")
NARROW_CLIENT = Row("client", narrow_client_of, "client=")
COVARIANCE = Row("covariance", covariance_of, "covariance='full' or 'diag'")
ORDER = Row("order", order_of, "order='sequential' or 'synchronous'")
START = Row("start", start_of, "start='laplace', 'mode', 'prior' or 'fedavg'")

AT_PRIOR = proper_prior(
    "start='prior' begins at the Gaussian nearest to the prior",
    "begin at the federated Laplace approximation, start='laplace'",
    lambda case: case.algorithm.start == "prior",
)
A_COPY_EACH = proper_prior("every client has a copy of the whole prior", "use FedEP or FedPA")
ONLY_PRIOR = proper_prior("it begins at the prior", "use FedEP or FedLaplace")
CHECKS = (affordable_rows, AT_PRIOR)

EXACT_OR_NOT = (CLIENT, COVARIANCE)
TABLES = {
    EP: Table((*EXACT_OR_NOT, CURVATURE_ROW), (affordable_rows, ONLY_PRIOR)),
    WarmStarted: Table((*EXACT_OR_NOT, START, CURVATURE_ROW), CHECKS),
    PVI: Table((*EXACT_OR_NOT, ORDER, START, CURVATURE_ROW), CHECKS),
    StreamingVB: Table((COVARIANCE, CURVATURE_ROW), (affordable_rows, ONLY_PRIOR)),
    BCM: Table((COVARIANCE, CURVATURE_ROW), (affordable_rows, A_COPY_EACH)),
    FedLapCov: Table((NARROW_CLIENT, COVARIANCE, START, CURVATURE_ROW), CHECKS),
}
