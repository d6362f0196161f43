"""A model's plates: their sizes, a drawing with their sites and what these depend on, and shapes that do not fit.

Shapes that do not fit are those of a latent whose size depends on the rows at hand, since `int(group.max()) + 1` is
another number at every client, and of a site that has rows twice: in its plate, and as values of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pyro_fed.density.bound import BoundModel, derivatives, run_at_zero
from pyro_fed.density.checks.source import current_line, line_text
from pyro_fed.density.running.handlers import Execution
from pyro_fed.density.running.trace_sites import frame_of, is_deterministic, plate_of
from pyro_fed.errors import DataError, ModelError


@dataclass
class _Branch:
    """A plate: the lines of its sites, and the plates within."""

    sites: list[str] = field(default_factory=list)
    plates: dict[str, _Branch] = field(default_factory=dict)

    def at(self, path: list[str]) -> _Branch:
        branch = self
        for name in path:
            branch = branch.plates.setdefault(name, _Branch())
        return branch

    def lines(self, titles: dict[str, str]) -> list[str]:
        children = [[site] for site in self.sites]
        children += [[titles[name], *branch.lines(titles)] for name, branch in self.plates.items()]
        out = []
        for number, (first, *rest) in enumerate(children):
            last = number == len(children) - 1
            out += [("└─ " if last else "├─ ") + first, *(("   " if last else "│  ") + line for line in rest)]
        return out


def dependences(bound: BoundModel) -> tuple[Execution, dict[str, list[str]]]:
    """One run of the model on all rows, and the latent sites that each site's density depends on."""
    execution, places = run_at_zero(bound)
    found = {}
    for name, msg in execution.trace.nodes.items():
        if msg["type"] == "sample" and not is_deterministic(msg):
            with torch.enable_grad():
                log_prob = msg["fn"].log_prob(msg["value"])
            found[name] = [other for other in derivatives(log_prob, places) if other != name]
    return execution, found


def plate_tree(bound: BoundModel) -> str:
    """The drawing, after a line break; "" for a model of one plate.

    plate 'county' (85), split over the clients
    ├─ a ← mu, tau
    └─ plate 'obs' (919), whose rows follow 'county'
       └─ y ← sigma, a
    """
    execution, found = dependences(bound)
    root = _Branch()
    nested = bound.arguments.nested_plates
    for name, on in found.items():
        path = [frame.name for frame in execution.trace.nodes[name]["cond_indep_stack"]]
        if path and path[0] in nested and bound.plate not in path:
            path = [bound.plate, *path]
        root.at(path).sites.append(f"{name} ← {', '.join(on)}" if on else name)
    if len(execution.plates) < 2:
        return ""
    titles = {bound.plate: f"the rows of plates {' and '.join(nested)}"}
    titles |= {name: f"plate '{name}' ({size})" for name, size in execution.plates.items()}
    titles[bound.plate] += ", split over the clients"
    for name in nested:
        titles[name] += "" if bound.arguments.declared else f", whose rows follow '{bound.plate}'"
    return "\nThe model's plates, their sites, and what those depend on:\n" + "\n".join(root.lines(titles))


def check_followers(bound: BoundModel, plates: tuple[str, ...]) -> None:
    """Refuse sites outside the split plates, and those whose rows follow them, that depend on latents inside."""
    execution, found = dependences(bound)
    nodes, plate = execution.trace.nodes, plates[0]
    local = [name for name in found if not nodes[name]["is_observed"] and frame_of(nodes[name], plate) is not None]
    for name, on in found.items():
        inside = [other for other in on if other in local]
        if not inside or plate_of(nodes[name], plates) is not None:
            continue
        own = [frame.name for frame in nodes[name]["cond_indep_stack"]]
        where = f"in plate '{own[-1]}'" if own else "in no plate"
        raise ModelError(
            f"site '{name}', {where}, depends on {inside} inside the partitioned plate '{plate}', which stay with "
            f"their clients. {_cure(bound, execution.plates, own)}{plate_tree(bound)}"
        )


def _cure(bound: BoundModel, sizes: dict[str, int], own: list[str]) -> str:
    plate = bound.plate
    if not own:
        return f"Move it into `with pyro.plate('{plate}', ...)`"
    indices = [
        name
        for name, leaf in zip(bound.arguments.names, bound.arguments.leaves, strict=True)
        if isinstance(leaf, Tensor) and leaf.dim() == 1 and len(leaf) == sizes[own[-1]] and not leaf.is_floating_point()
    ]
    index = indices[0] if indices else "group_idx"
    return (
        f"Where each row of '{own[-1]}' belongs to one element of '{plate}', say so by "
        f"rows={{'{own[-1]}': '{index}'}}, an argument that numbers the elements from 0; else "
        "partition over another plate"
    )


def size_of_plate(plate: str, declared: Mapping[str, int]) -> int:
    """The partitioned plate's size, among the sizes that the model declared for its plates."""
    if plate not in declared:
        raise ModelError(f"the model has no plate '{plate}'; its plates are {sorted(declared)}. Pass plate=...")
    return declared[plate]


def check_plate_size(plate: str, size: int, num_rows: int) -> None:
    """Refuse row-sharded data with another number of rows than the plate has; the DataError names both numbers."""
    if size != num_rows:
        raise DataError(
            f"plate '{plate}' has size {size}, but the data split by rows have {num_rows} rows. Where the rows are on "
            "another dimension than the first, name it, shard={'counts': 1}, or transpose the argument"
        )


def size_differs_error(name: str, shape: tuple[int, ...], found: tuple[int, ...]) -> ModelError:
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
