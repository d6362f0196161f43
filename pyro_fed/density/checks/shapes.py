"""Shapes that are incompatible with a plate over rows.

A latent whose size depends on the rows at hand: `int(group.max()) + 1` is another number at every client. And a site
that has rows twice: in its plate, and as values of each row.
"""

from __future__ import annotations

from pyro_fed.density.bound import BoundModel
from pyro_fed.density.checks.blame import current_line, line_text
from pyro_fed.density.checks.dependence import run_at_zero
from pyro_fed.density.running.trace_sites import frame_of
from pyro_fed.errors import ModelError


def another_size(name: str, shape: tuple[int, ...], found: tuple[int, ...]) -> ModelError:
    """The error for a latent site whose `shape` in the first run, on all rows, is not that `found` on other rows."""
    line = current_line()
    at = f" at {line_text(line)}" if line else ""
    return ModelError(
        f"latent site '{name}' has shape {shape} with all rows and {found} with some of them{at}: its size is "
        "read from the rows, such as by int(group.max()) + 1, len(group.unique()) or len(x), and differs between "
        "clients. "
        "Compute the number of groups once: before the model, and pass it as an argument, or in the model by "
        "pf.shared('groups', lambda: int(group.max()) + 1); what has one value a row belongs into the plate"
    )


def rows_as_values(bound: BoundModel, name: str) -> str:
    """A sentence on a site inside the plate each of whose rows holds all rows' values; "" if that is not so."""
    site = run_at_zero(bound)[0].trace.nodes.get(name)
    frame = None if site is None else frame_of(site, bound.plate)
    if site is None or frame is None or frame.dim is None:
        return ""
    fn, count = site["fn"], bound.num_rows
    batch, event = tuple(fn.batch_shape), tuple(fn.event_shape)
    value = tuple(site["value"].shape)
    if count not in event and count in value[len(value) - len(event) :]:
        return (
            f"Its values have the shape {value}, its distribution {batch + event} by .to_event({len(event)}), so that "
            f"each of the {count} rows has all {count} values: give both the same shape, as by y[:, None]"
        )
    if count in event:
        return (
            f"Each of the {count} rows has all {count} as one value, by .to_event({len(event)}): leave that out, since "
            "the plate makes them rows already"
        )
    taken = {each.dim for each in site["cond_indep_stack"]}
    if any(size == count and at - len(batch) not in taken for at, size in enumerate(batch)):
        return (
            f"The site has the shape {batch}, each row beside each, in place of {(count,)}: its values, or its "
            f"distribution's parameters, are a column {(count, 1)}. Leave their last dimension out, as in y.squeeze(-1)"
        )
    return ""
