"""What share of a step particles take that start near the posterior, and how it shrinks.

AdaGrad's first steps have one size, however near the target is. Particles that start under the Gaussian nearest to a
posterior of one mode only have to find its shape. Those that start at weighted points of the posterior are draws of it:
they only settle, and take half of a step again after each pass that leaves their discrepancy no lower.
"""

from __future__ import annotations

from dataclasses import replace

from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.scores import prior_scores
from pyro_fed.infer.sites.whitening import Coordinates
from pyro_fed.infer.stein.states import Server

#: Share of a step that draws of the posterior take.
SETTLING = 0.25
#: Share of a step that particles take which start under the nearest Gaussian; they have half as many steps a turn.
NEAREST_STEP_SHARE, TURN_DIVISOR = 0.4, 2
#: Median size of a standard normal number.
NORMAL_MEDIAN = 0.6745


def first_pace(problem: Problem, found: State) -> float:
    """The share of a step that particles take at first.

    Args:
        problem: the model's densities.
        found: the survey's last state.
    """
    if bool(found["census"]):
        return SETTLING / _narrower(problem, found)
    return NEAREST_STEP_SHARE if bool(found["near"]) else 1.0


def _narrower(problem: Problem, found: State) -> float:
    """How many times as narrow as all particles together the density is around them, at least one.

    The score of N(0, 1) has the median `NORMAL_MEDIAN` in size, that of modes a tenth as wide ten times that. Steps of
    a part of the whole's SD would carry particles from one to the next.
    """
    coordinates = Coordinates(found["mean"], found["factor"])
    prior = prior_scores(problem, coordinates.model(found["white"]).to(problem.dtype)).double()
    size = (found["scores"] + coordinates.pull(prior)).abs().nan_to_num(nan=0.0)
    return max(1.0, float(size.median(0).values.max()) / NORMAL_MEDIAN)


def with_pace(server: Server) -> Server:
    """The server's state with the pace after a round: half of it where draws have ended a pass no nearer than before.

    Args:
        server: with the round's `ksd`, and `passed` counted up.
    """
    if not bool(server.census):
        return server
    total, done = server.pass_ksd + server.ksd, server.passed
    if float((done - done.round()).abs()) > 0.5 * float(server.pass_length):
        return replace(server, pass_ksd=total)
    pace = server.pace if bool(total < server.lowest_ksd) else 0.5 * server.pace
    return replace(server, pass_ksd=total.new_zeros(()), lowest_ksd=total.minimum(server.lowest_ksd), pace=pace)
