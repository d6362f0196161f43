"""Rounds and steps by which large models are fitted: of averaging, and by gradients of Gaussian sites."""

from __future__ import annotations

from pyro_fed.density.traits import LARGE_DIM, Traits
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.policy.choice import Case, Decision, Row, Table
from pyro_fed.policy.gaussian import parameters

#: Rounds of averaging of a model that classifies, or has more than `LARGE_DIM` parameters.
AVERAGING_ROUNDS = 40
#: Those of a network of at most `LARGE_DIM` parameters that does not classify: its curve is fitted to the noise, which
#: may be small, and what averaging leaves of it the rounds that follow take ten times as long to find. Labels are
#: learned in 40, and more wear on the calibration.
CURVE_ROUNDS = 100
#: Rounds by stochastic gradients of a network of at most `LARGE_DIM` parameters, which cost little and are too few
#: otherwise: of 160 parameters on the digits SDs and means still move after 40 (`benchmarks/networks/README.md`).
SMALL_ROUNDS = 200
#: At fewer clients than this, which may have one label each, such a network that classifies has so many steps a round:
#: in ten each client forgets the others' rows. Where they are alike three steps do as well, but not where a noise scale
#: is learned, which rises over many.
FEW_CLIENTS, FEW_STEPS = 5, 3


def gradient_steps(traits: Traits) -> dict[str, int]:
    """Rounds and steps, as settings of `IVON`, of a network of at most `LARGE_DIM` parameters; else empty."""
    if traits.dim > LARGE_DIM:
        return {}
    few = traits.num_clients < FEW_CLIENTS and traits.labels
    return {"rounds": SMALL_ROUNDS} | ({"steps": FEW_STEPS} if few else {})


def averaging_rounds_of(case: Case) -> Decision | None:
    """Rounds of the averaging that another algorithm begins with."""
    if case.algorithm.rounds is not None:
        return None
    traits = case.traits
    if traits.dim > LARGE_DIM:
        return Decision(AVERAGING_ROUNDS, parameters(traits.dim))
    if traits.labels:
        return Decision(AVERAGING_ROUNDS, "it classifies: labels are learned in so many")
    return Decision(CURVE_ROUNDS, "it fits a curve, down to the noise")


TABLES = {BurnIn: Table((Row("rounds", averaging_rounds_of, "rounds="),))}
