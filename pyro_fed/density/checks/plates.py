"""A model's plates: sizes, a drawing with sites and their dependences, and errors of shape.

Errors of shape are a latent whose size depends on the present rows, since `int(group.max()) + 1` differs between
clients, and a site that has the rows twice: in its plate, and as values of each row.
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
    """A run of the model on all rows, and the latent sites on which each site's density depends."""
    execution, places = run_at_zero(bound)
    latents_by_site = {}
    for name, msg in execution.trace.nodes.items():
        if msg["type"] == "sample" and not is_deterministic(msg):
            with torch.enable_grad():
                log_prob = msg["fn"].log_prob(msg["value"])
            latents_by_site[name] = [other for other in derivatives(log_prob, places) if other != name]
    return execution, latents_by_site


def plate_tree(bound: BoundModel) -> str:
    """The drawing, after a line break; "" for a model of one plate.

    plate 'county' (85), split over the clients
    ├─ a ← mu, tau
    └─ plate 'obs' (919), whose rows follow 'county'
       └─ y ← sigma, a
    """
    execution, latents_by_site = dependences(bound)
    root = _Branch()
    nested = bound.arguments.nested_plates
    for name, latents in latents_by_site.items():
        path = [frame.name for frame in execution.trace.nodes[name]["cond_indep_stack"]]
        if path and path[0] in nested and bound.plate not in path:
            path = [bound.plate, *path]
        root.at(path).sites.append(f"{name} ← {', '.join(latents)}" if latents else name)
    if len(execution.plates) < 2:
        return ""
    titles = {bound.plate: f"the rows of plates {' and '.join(nested)}"}
    titles |= {name: f"plate '{name}' ({size})" for name, size in execution.plates.items()}
    titles[bound.plate] += ", split over the clients"
    for name in nested:
        titles[name] += "" if bound.arguments.declared else f", whose rows follow '{bound.plate}'"
    return "\nThe model's plates, their sites, and the dependences of these:\n" + "\n".join(root.lines(titles))


def check_followers(bound: BoundModel, plates: tuple[str, ...]) -> None:
    """Refuse sites that depend on latents inside the split plates, but are outside these and their nested plates."""
    execution, latents_by_site = dependences(bound)
    nodes, plate = execution.trace.nodes, plates[0]
    local = [
        name for name in latents_by_site if not nodes[name]["is_observed"] and frame_of(nodes[name], plate) is not None
    ]
    for name, latents in latents_by_site.items():
        inside = [other for other in latents if other in local]
        if not inside or plate_of(nodes[name], plates) is not None:
            continue
        own_plates = [frame.name for frame in nodes[name]["cond_indep_stack"]]
        where = f"in plate '{own_plates[-1]}'" if own_plates else "in no plate"
        raise ModelError(
            f"site '{name}', {where}, depends on {inside} inside the partitioned plate '{plate}', which stay with "
            f"their clients. {_cure(bound, execution.plates, own_plates)}{plate_tree(bound)}"
        )


def _cure(bound: BoundModel, sizes: dict[str, int], own_plates: list[str]) -> str:
    plate = bound.plate
    if not own_plates:
        return f"Move it into `with pyro.plate('{plate}', ...)`"
    indices = [
        name
        for name, leaf in zip(bound.arguments.names, bound.arguments.leaves, strict=True)
        if isinstance(leaf, Tensor)
        and leaf.dim() == 1
        and len(leaf) == sizes[own_plates[-1]]
        and not leaf.is_floating_point()
    ]
    index = indices[0] if indices else "group_idx"
    return (
        f"If each row of '{own_plates[-1]}' belongs to one element of '{plate}', pass "
        f"rows={{'{own_plates[-1]}': '{index}'}}, an argument that numbers the elements from 0; otherwise "
        "partition over another plate"
    )


def size_of_plate(plate: str, declared: Mapping[str, int]) -> int:
    """The partitioned plate's size, from the sizes that the model declares."""
    if plate not in declared:
        raise ModelError(f"the model has no plate '{plate}'; its plates are {sorted(declared)}. Pass plate=...")
    return declared[plate]


def check_plate_size(plate: str, size: int, num_rows: int) -> None:
    """Refuse row-sharded data whose number of rows differs from the plate's; the DataError names both numbers."""
    if size != num_rows:
        raise DataError(
            f"plate '{plate}' has size {size}, but the data split by rows have {num_rows} rows. If the rows are on "
            "another dimension than the first, name it, shard={'counts': 1}, or transpose the argument"
        )


def size_differs_error(name: str, shape: tuple[int, ...], other_shape: tuple[int, ...]) -> ModelError:
    """The error for a latent site whose `shape` in the first run, on all rows, differs from that on other rows."""
    line = current_line()
    at = f" at {line_text(line)}" if line else ""
    return ModelError(
        f"latent site '{name}' has shape {shape} with all rows and {other_shape} with some of them{at}: its size is "
        "read from the rows, such as by int(group.max()) + 1, len(group.unique()) or len(x), and differs between "
        "clients. "
        "Compute the number of groups once: before the model, and pass it as an argument, or in the model by "
        "pf.shared('groups', lambda: int(group.max()) + 1); a latent with one value a row belongs inside the plate"
    )


def rows_as_values(bound: BoundModel, name: str) -> str:
    """A sentence on a site inside the plate if each row contains the values of all rows; otherwise ""."""
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
            f"Each of the {count} rows has all {count} as one value, by .to_event({len(event)}): omit this, since "
            "the plate already makes them rows"
        )
    plate_dims = {each.dim for each in site["cond_indep_stack"]}
    if any(size == count and at - len(batch) not in plate_dims for at, size in enumerate(batch)):
        return (
            f"The site has the shape {batch}, all pairs of rows, in place of {(count,)}: its values, or its "
            f"distribution's parameters, are a column {(count, 1)}. Remove their last dimension, as in y.squeeze(-1)"
        )
    return ""
