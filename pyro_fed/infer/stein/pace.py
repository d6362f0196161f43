"""Factor of the steps of particles that start near the posterior, and its decrease.

AdaGrad's first steps have one size, however near the target is. Particles that start under the Gaussian nearest to a
posterior of one mode only have to find its shape. Those that start at weighted points of the posterior are draws of it:
they only settle, and their factor halves after each pass that does not lower their discrepancy.
"""

from __future__ import annotations

from dataclasses import replace

from pyro_fed.algorithm.bounding import NORMAL_MEDIAN_DEVIATION
from pyro_fed.algorithm.states import State
from pyro_fed.density.derivatives import prior_scores
from pyro_fed.density.problem import Problem
from pyro_fed.infer.stein.states import Server
from pyro_fed.ops.whitening import Coordinates

#: Factor of the steps of draws of the posterior.
SETTLING = 0.25
#: Factor of the steps of particles that start under the nearest Gaussian; their turns have half as many steps.
NEAREST_STEP_SHARE, TURN_DIVISOR = 0.4, 2


def first_pace(problem: Problem, found: State) -> float:
    """The factor of the particles' first steps; `found` is the survey's last state."""
    if bool(found["census"]):
        return SETTLING / _narrower(problem, found)
    return NEAREST_STEP_SHARE if bool(found["near"]) else 1.0


def _narrower(problem: Problem, found: State) -> float:
    """Ratio, at least one, of the scale of all particles together to that of the density around them.

    The score of N(0, 1) has the median `NORMAL_MEDIAN_DEVIATION` in size, that of modes a tenth as wide ten times that.
    Steps in proportion to the whole's SD would carry particles from one mode to the next.
    """
    coordinates = Coordinates(found["mean"], found["factor"])
    prior = prior_scores(problem, coordinates.model(found["white"]).to(problem.dtype)).double()
    size = (found["scores"] + coordinates.pull(prior)).abs().nan_to_num(nan=0.0)
    return max(1.0, float(size.median(0).values.max()) / NORMAL_MEDIAN_DEVIATION)


def with_pace(server: Server) -> Server:
    """The server's state with the factor after a round: halved if draws have ended a pass no nearer than before."""
    if not bool(server.census):
        return server
    total, done = server.pass_ksd + server.ksd, server.passed
    if float((done - done.round()).abs()) > 0.5 * float(server.pass_length):
        return replace(server, pass_ksd=total)
    pace = server.pace if bool(total < server.lowest_ksd) else 0.5 * server.pace
    return replace(server, pass_ksd=total.new_zeros(()), lowest_ksd=total.minimum(server.lowest_ksd), pace=pace)
