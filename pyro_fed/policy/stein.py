"""Settings of DSVGD and related algorithms, and of the phases from which particles start.

Large models have fewer particles, which move by minibatches. If surrogates represent the other clients, turns are
short: the surrogates are diagonal, and along joint directions of many parameters they constrain a particle much less
than the clients' rows would. After 50 steps of 0.05 SDs a network has forgotten the labels that this client's rows do
not have.
"""

from __future__ import annotations

from pyro_fed.density.derivatives.few_rows import has_many_rows
from pyro_fed.density.derivatives.nodes import MANY_ROWS_A_PARAMETER
from pyro_fed.density.traits import FULL_DIM
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.importance import NUM_POINTS, AdaptiveImportance
from pyro_fed.infer.stein.modes import Modes, Nearest, OneMode
from pyro_fed.infer.stein.parallel_dsvgd import ParallelDSVGD
from pyro_fed.infer.stein.survey import Survey
from pyro_fed.infer.stein.svgd import SVGD, PooledEP
from pyro_fed.ops.kernels import Marginal
from pyro_fed.policy import ep
from pyro_fed.policy.choice import Case, Decision, Row, Table, affordable_rows
from pyro_fed.policy.gaussian import CURVATURE_ROW, LARGE_BATCH, on_large, parameters

#: Particles of a large model, and steps of a turn.
PARTICLES, STEPS = 20, 50
#: Steps of a turn if surrogates represent the other clients, and the step size in SDs.
SHORT_TURN, SHORT_STEP = 10, 0.02
#: Factor by which the number of points is reduced for many rows, to check whether the modes' approximations suffice.
FEWER_POINTS = 4
#: Largest number of parameters for which modes are searched, and for which weights are tried.
MAX_MODES_DIM, MAX_WEIGHTS_DIM = 30, 12


def from_gaussian(case: Case) -> bool:
    """Whether surrogates represent the other clients, in turns that start from a Gaussian."""
    return case.algorithm.start in ("auto", "gaussian")


def steps_of(case: Case) -> Decision | None:
    """The number of steps of a turn."""
    if "local_steps" in case.own or not case.traits.large():
        return None
    if from_gaussian(case):
        return Decision(SHORT_TURN, "a large model, whose other clients are diagonal surrogates: short turns")
    return Decision(STEPS, "a large model")


def step_size_of(case: Case) -> Decision | None:
    """The length of a step."""
    if "step_size" in case.own or not case.traits.large() or not from_gaussian(case):
        return None
    return Decision(SHORT_STEP, "a large model, whose other clients are diagonal surrogates: short steps")


def kernel_of(case: Case) -> Decision | None:
    """The kernel: for networks that do not predict labels, one that preserves only marginals."""
    # With 20 particles in hundreds of dimensions the linear part of `Balanced` moves all spread into 19 directions.
    # Between these a network fits the noise of the rows, at up to 1/4 nat per row (`benchmarks/networks/kinds.py`). For
    # labels, the linear part compensates for Gaussians that are too wide.
    traits = case.traits
    if "kernel" in case.own or not from_gaussian(case):
        return None
    if not traits.large() or not traits.layers or traits.labels:
        return None
    return Decision(Marginal(), "a network for regression: a few particles cannot represent a covariance")


def start_of(case: Case) -> Decision | None:
    """The start of particles."""
    algorithm, traits = case.algorithm, case.traits
    if algorithm.start != "auto":
        return None
    if case.setup.bounded:
        return Decision("gaussian", "clients' turns are compared with turns towards Gaussian sites")
    if traits.large():
        return Decision("gaussian", f"a network or another large model, {parameters(traits.dim)}")
    if traits.improper:
        return Decision(
            "gaussian", f"the priors of {sorted(traits.improper)} are improper: there are no draws to search from"
        )
    if MAX_MODES_DIM < traits.dim <= FULL_DIM:
        return Decision("gaussian", f"{parameters(traits.dim)}, more than {MAX_MODES_DIM}")
    if traits.non_smooth_scores:
        return Decision("gaussian", "the scores of rows are discontinuous: a mode has no curvature")
    if traits.dim <= MAX_MODES_DIM:
        return Decision("modes", f"{parameters(traits.dim)}, at most {MAX_MODES_DIM}")
    return Decision(
        "checked", f"{parameters(traits.dim)}, too many for Hessians: a check shows whether the start is a maximum"
    )


def source_of(case: Case) -> Decision | None:
    """The source of the survey's points."""
    begin, traits = case.algorithm.begin, case.traits
    if case.algorithm.source != "auto":
        return None
    if traits.large():
        if begin in ("gaussian", "checked"):
            return Decision("ep", "a large model: FedEP's Gaussian, by stochastic gradients")
        return Decision("points", "a large model: sites at the point of federated averaging")
    if begin == "modes":
        if traits.dim <= MAX_WEIGHTS_DIM:
            what = f"{parameters(traits.dim)}, few enough for weighted points, which give the mass of each mode"
            return Decision("importance", what)
        return Decision("nearest", f"{parameters(traits.dim)}, more than importance weights take ({MAX_WEIGHTS_DIM})")
    if traits.dim <= FULL_DIM and begin == "gaussian":
        return Decision("ep", f"{parameters(traits.dim)}: the Gaussian nearest to the posterior")
    if traits.dim <= FULL_DIM and traits.non_smooth_scores:
        return Decision("ep", "the scores of rows are discontinuous: a curvature at a point is not informative")
    return Decision("laplace", f"begin={begin!r} of {parameters(traits.dim)}: Laplace's approximation")


def by_few_rows_of(case: Case) -> Decision | None:
    """Whether a search for modes starts with few rows, or uses all."""
    if case.algorithm.after != "auto":
        return None
    if not case.algorithm.by_few_rows and has_many_rows(case.traits):
        return Decision("few_rows", f"{case.traits.num_rows:,} rows: the mode search starts with few of them")
    return Decision("one_mode", "all rows are used from the start")


def first_points_of(case: Case) -> Decision | None:
    """The number of points that are weighted first."""
    algorithm, traits = case.algorithm, case.traits
    if algorithm.first_points is not None:
        return None
    if traits.num_rows >= MANY_ROWS_A_PARAMETER * traits.dim:
        return Decision(NUM_POINTS // FEWER_POINTS, "many rows: the modes' approximations usually suffice")
    return Decision(NUM_POINTS, "few rows: the modes' approximations may not suffice")


def one_mode_rows_of(case: Case) -> Decision | None:
    """Whether few rows decide if there is one mode, or all."""
    if case.algorithm.by_few_rows is not None:
        return None
    many = has_many_rows(case.traits)
    return Decision(
        many, f"{case.traits.num_rows:,} rows: " + ("few of them, as modes are searched" if many else "all")
    )


NUM_PARTICLES = Row("num_particles", on_large("num_particles", PARTICLES, "a particle is a network"), "num_particles=")
BATCH_SIZE = Row("batch_size", on_large("batch_size", LARGE_BATCH, "minibatches"), "batch_size=")
POOLED_STEPS = Row("local_steps", on_large("local_steps", STEPS, "a large model"), "local_steps=")
LOCAL_STEPS = Row("local_steps", steps_of, "local_steps=")
STEP_SIZE = Row("step_size", step_size_of, "step_size=")
KERNEL = Row("kernel", kernel_of, "kernel=")
START = Row("start", start_of, "start='gaussian', 'modes', 'prior', 'apart' or 'checked'")
SOURCE = Row("source", source_of, "start=, of the algorithm that it is for")

POOLED_START = Row("start", ep.pooled_start_of, "start=")

TABLES = {
    DSVGD: Table((NUM_PARTICLES, LOCAL_STEPS, STEP_SIZE, BATCH_SIZE, KERNEL, START), (affordable_rows,)),
    SVGD: Table((NUM_PARTICLES, POOLED_STEPS, BATCH_SIZE, KERNEL, START), (affordable_rows,)),
    ParallelDSVGD: Table((NUM_PARTICLES, KERNEL, START), (affordable_rows,)),
    Survey: Table((SOURCE,)),
    Modes: Table((Row("after", by_few_rows_of, "start='gaussian', of the algorithm that it is for"),)),
    AdaptiveImportance: Table((Row("first_points", first_points_of, "first_points="),)),
    OneMode: Table((Row("by_few_rows", one_mode_rows_of, "by_few_rows="),)),
    Nearest: Table((ep.CLIENT, ep.COVARIANCE, Row("start", ep.nearest_start_of, "start="), CURVATURE_ROW)),
    PooledEP: Table((ep.CLIENT, ep.COVARIANCE, POOLED_START, CURVATURE_ROW)),
}
