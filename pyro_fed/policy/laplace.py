"""Settings of FedLaplace."""

from __future__ import annotations

from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.policy.choice import Case, Decision, Row, Table
from pyro_fed.policy.gaussian import COVARIANCE_ROW, CURVATURE_ROW
from pyro_fed.policy.refusals import affordable_rows


def start_of(case: Case) -> Decision | None:
    """The start of Newton's method."""
    if case.algorithm.start != "auto":
        return None
    if case.traits.layers:
        return Decision("fedavg", "a network is stationary at zeros, and averaging finds a better mode than Newton's")
    return Decision("zeros", "no network: Newton's method finds the mode from zeros, on the unconstrained scale")


START = Row("start", start_of, "start='zeros', 'prior' or 'fedavg'")
TABLES = {FedLaplace: Table((COVARIANCE_ROW, START, CURVATURE_ROW), (affordable_rows,))}
