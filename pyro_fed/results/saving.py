"""A check that a result can be written to a file, before the run."""

from __future__ import annotations

from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError, listed


def check_savable(problem: Problem, what: str = "out") -> None:
    """Refuse sites whose names cannot be in a NetCDF file, where a slash separates groups.

    `what` is the argument or option that asks for the file, for messages.
    """
    layout = problem.layout
    sites = {**layout.latents, **layout.local, **layout.discrete, **layout.reported, **layout.observed}
    slashed = [site for site in sites if "/" in site]
    if slashed:
        raise SettingError(
            f"{what}: no file of ArviZ holds names with a slash, and the model has site(s) {listed(slashed)}: give "
            "them other names in the model, or leave the file out"
        )
