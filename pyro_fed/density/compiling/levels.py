"""The level of compilation of a run: as its user asks, as far as the model can be mapped and traced."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.func import grad

from pyro_fed.density.compiling.compiler import LEVELS, choose_level, maps
from pyro_fed.density.compiling.mapping import trial
from pyro_fed.density.compiling.process import with_process_cache
from pyro_fed.density.problem import Problem
from pyro_fed.ops.batched import vmap


def with_known_structure(problem: Problem, mode: str) -> Problem:
    """The problem with all that this process knows of its model, also from the rows of another federation.

    A run asks before it has chosen its algorithms, which ask, say, where scores jump.
    """
    kept = problem.compiler
    common = with_process_cache(problem) if kept.level == "off" and LEVELS.get(mode) != "off" else None
    return replace(problem, compiler=replace(kept, common=common))


def compile_problem(problem: Problem, mode: str, rounds: int, progress: bool, seconds: float | None = None) -> Problem:
    """The problem as a run compiles it; compiled steps, and the level that works, are kept for the next run.

    Args:
        problem: the model's densities, after `with_known_structure` or not.
        mode: as `run` takes it.
        rounds: number of rounds of the run.
        progress: whether the progress of a compilation may be shown.
        seconds: seconds of the run; None if time is not limited.
    """
    known = problem if problem.compiler.common is not None else with_known_structure(problem, mode)
    kept, common = known.compiler, known.compiler.common
    levels = kept.levels if common is None else common.levels
    if mode not in levels:
        particles, clients = trial(problem)

        def log_density(z: Tensor, rows: tuple[Tensor, ...]) -> Tensor:
            log_prior, pointwise = problem.log_parts(z, rows)
            return log_prior + pointwise.sum()

        def scores(z: Tensor, *rows: Tensor) -> Tensor:
            """Scores mapped as in a step: over the particles of each client, and over the clients."""
            found: Tensor = vmap(lambda one: vmap(grad(log_density), (0, None))(z, one))(rows)
            return found

        example = (particles, *clients)
        if mode == "auto":  # whether it can be traced is seen once anything is
            level = "trace" if maps(scores, example) else "loop"
        else:
            level = choose_level(mode, scores, example)
        if level != LEVELS[mode]:  # with a warning, which the next run gives again
            return replace(problem, compiler=kept.at(mode, level, rounds, None, seconds), progress=progress)
        levels[mode] = level
    return replace(problem, compiler=kept.at(mode, levels[mode], rounds, common, seconds), progress=progress)
