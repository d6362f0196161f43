"""A latent whose size depends on the rows at hand: `int(group.max()) + 1` is another number at every client."""

from __future__ import annotations

from pyro_fed.density.checks.blame import current_line, quoted
from pyro_fed.errors import ModelError


def another_size(name: str, shape: tuple[int, ...], found: tuple[int, ...]) -> ModelError:
    """What to say of it.

    Args:
        name: of the latent site.
        shape: its shape in the model's first run, on all rows.
        found: its shape in another run, on other rows.
    """
    line = current_line()
    at = f" at {quoted(line)}" if line else ""
    return ModelError(
        f"latent site '{name}' has shape {shape} with all rows and {found} with some of them{at}: its size is "
        "read from the rows, such as by int(group.max()) + 1, len(group.unique()) or len(x), and differs between "
        "clients. "
        "Compute the number of groups once: before the model, and pass it as an argument, or in the model by "
        "pf.shared('groups', lambda: int(group.max()) + 1); what has one value a row belongs into the plate"
    )
