"""Settings of Gaussian approximations: covariance, curvature, start, and stochastic gradients for large models."""

from __future__ import annotations

from typing import Any

from pyro_fed.density.traits import FULL_DIM, LARGE_DIM, Traits
from pyro_fed.errors import ModelError
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import GaussianAlgorithm
from pyro_fed.ops.memory import fits_in_memory
from pyro_fed.policy.choice import Case, Decision, Row, Rule, Table, affordable_rows

#: Largest rows × parameters² for a full covariance of more than `FULL_DIM` parameters with linear predictors: a second
#: per round. Logistic regression with 200 parameters on 2,000 rows then takes 1.2 s, instead of 40 s with diagonal
#: covariances.
CHEAP_PRODUCTS = 10_000_000_000
#: Rows in a step on a large model.
LARGE_BATCH = 32
#: Settings of steps; a user who sets one gets the covariance of small models.
EXACT = frozenset({"client", "update", "curvature", "step_control"})
#: Rounds of averaging for classification, or more than `LARGE_DIM` parameters.
AVERAGING_ROUNDS = 40
#: Rounds of averaging for a network of at most `LARGE_DIM` parameters that does not classify: its curve has to be
#: fitted down to the noise, which may be small, and later rounds are ten times slower at this. Labels are learned in 40
#: rounds, and more rounds worsen the calibration.
CURVE_ROUNDS = 100
#: Rounds by stochastic gradients for a network of at most `LARGE_DIM` parameters, which are cheap: with 160 parameters
#: on the digits, SDs and means still move after 40 rounds (`benchmarks/networks/README.md`).
SMALL_ROUNDS = 200
#: Number of clients below which such a network for classification takes this many steps per round, since each client
#: may have a single label: in ten steps it would forget the other clients' rows. Three steps are as good for clients
#: that are alike, but not if a noise scale is learned, which takes many steps.
FEW_CLIENTS, FEW_STEPS = 5, 3


def full_is_cheap(traits: Traits) -> bool:
    """Whether a full covariance of up to `LARGE_DIM` parameters is cheap, since rows have linear predictors."""
    squared = traits.dim**2
    few = traits.evaluations * squared <= CHEAP_PRODUCTS and fits_in_memory(traits.num_clients * squared)
    return traits.dim <= LARGE_DIM and few and traits.linear_predictors


def full_by_default(case: Case) -> str:
    """The reason why "auto" takes full covariances and Hessians; "" if it does not."""
    algorithm, traits = case.algorithm, case.traits
    if traits.few_parameters:
        return f"{parameters(traits.dim)}, at most {FULL_DIM}"
    if algorithm.covariance == "diag" or case.own & EXACT or not algorithm.by_newton:
        return ""
    cheap = full_is_cheap(traits.as_written)
    return f"rows have linear predictors, so that a full covariance of {traits.dim} costs little" if cheap else ""


def covariance_of(case: Case) -> Decision | None:
    """Full or diagonal."""
    if case.algorithm.covariance != "auto":
        return None
    if why := full_by_default(case):
        return Decision("full", why)
    return Decision("diag", f"{parameters(case.traits.dim)}, more than {FULL_DIM}")


def curvature_of(case: Case) -> Decision | None:
    """Hessians, or Fisher's information."""
    traits = case.traits
    require_curvature(case)
    if case.algorithm.curvature != "auto":
        return None
    if why := full_by_default(case):
        return Decision("hessian", why)
    if traits.dim <= LARGE_DIM and traits.linear_predictors:
        return Decision("hessian", "rows have linear predictors, along which Hessians cost little")
    return Decision("fisher", f"{parameters(traits.dim)}, for which Hessians cost too much")


def require_curvature(case: Case) -> None:
    """Refuse Hessians of rows whose second derivatives are not finite at any point."""
    missing = case.traits.without_curvature
    if missing and case.algorithm.curvature != "fisher":
        raise ModelError(
            f"{type(case.algorithm).__name__} takes second derivatives. {missing[0].upper() + missing[1:]}. Or run "
            "what takes gradients alone, such as NUTS, SVI or SFVI"
        )


def takes_gradients(case: Case, held_back: bool = False) -> str:
    """The reason for stochastic gradients and diagonal sites: a large model, or a network of any size; "" if none.

    Clients that take several exact steps on their tilted densities end at different modes of a network: sites of 10 to
    100 parameters ended at log densities of -2 to -1e6 per row, where stochastic gradients reach -0.3. Full covariances
    are still the default if clients take one step at the same q and the algorithm rejects steps that lower the bound
    (`held_back`), and are used if the user asks for them.
    """
    algorithm, traits = case.algorithm, case.traits
    full = algorithm.covariance == "full" or (algorithm.covariance == "auto" and bool(full_by_default(case)))
    if full and (algorithm.covariance == "full" or not traits.few_parameters):
        return ""
    if traits.large(algorithm.num_points):
        return f"a network or another large model, {parameters(traits.dim)}"
    return "a network, whose exact steps lead clients to different modes" if not held_back and traits.layers else ""


def parameters(dim: int) -> str:
    """A number of parameters, as text."""
    return f"{dim:,} parameters" if dim != 1 else "1 parameter"


def newton_start_of(case: Case) -> Decision | None:
    """The start of Newton's method."""
    if case.algorithm.start != "auto":
        return None
    if case.traits.layers:
        return Decision(
            "fedavg",
            "a network's density is stationary at zeros, and averaging finds a better mode than Newton's method",
        )
    return Decision("zeros", "not a network: Newton's method finds the mode from zeros on the unconstrained scale")


def on_large(setting: str, value: Any, why: str) -> Rule:
    """A rule that gives a setting another value on large models, unless it is set; `why` is a clause."""

    def rule(case: Case) -> Decision | None:
        if setting in case.own or not case.traits.large():
            return None
        return Decision(value, f"{why}: {parameters(case.traits.dim)}")

    return rule


COVARIANCE_ROW = Row("covariance", covariance_of, "covariance='full' or 'diag'")
CURVATURE_ROW = Row("curvature", curvature_of, "curvature='hessian' or 'fisher'")
NEWTON_START_ROW = Row("start", newton_start_of, "start='zeros', 'prior' or 'fedavg'")


def gradient_steps(traits: Traits) -> dict[str, int]:
    """Rounds and steps, as settings of `IVON`, of a network of at most `LARGE_DIM` parameters; else empty."""
    if traits.dim > LARGE_DIM:
        return {}
    few = traits.num_clients < FEW_CLIENTS and traits.labels
    return {"rounds": SMALL_ROUNDS} | ({"steps": FEW_STEPS} if few else {})


def averaging_rounds_of(case: Case) -> Decision | None:
    """Rounds of averaging at the start of another algorithm."""
    if case.algorithm.rounds is not None:
        return None
    traits = case.traits
    if traits.dim > LARGE_DIM:
        return Decision(AVERAGING_ROUNDS, parameters(traits.dim))
    if traits.labels:
        return Decision(AVERAGING_ROUNDS, "classification: labels are learned in this many rounds")
    return Decision(CURVE_ROUNDS, "regression: the curve is fitted down to the noise")


TABLES = {
    GaussianAlgorithm: Table((COVARIANCE_ROW, CURVATURE_ROW)),
    FedLaplace: Table((COVARIANCE_ROW, NEWTON_START_ROW, CURVATURE_ROW), (affordable_rows,)),
    BurnIn: Table((Row("rounds", averaging_rounds_of, "rounds="),)),
}
