"""Whether a result can be written to a file."""

from __future__ import annotations

from pyro_fed.density.problem import Problem
from pyro_fed.errors import SettingError, listed


def check_savable(problem: Problem, what: str = "out") -> None:
    """Refuse a file for sites whose names no file of ArviZ takes, before the work: a slash there is that of folders.

    Args:
        problem: the model's densities.
        what: the argument or option that asks for the file, for messages.

    Raises:
        SettingError: names them.
    """
    layout = problem.layout
    sites = {**layout.latents, **layout.local, **layout.discrete, **layout.reported, **layout.observed}
    slashed = [site for site in sites if "/" in site]
    if slashed:
        raise SettingError(
            f"{what}: no file of ArviZ holds names with a slash, as the site(s) {listed(slashed)} have: call them "
            "otherwise in the model, or leave the file out"
        )
