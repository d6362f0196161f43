"""Names of groups, their numbers of rows, and a model's arguments without some of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.density.rows.leaves import LabelsByName
from pyro_fed.errors import DataError, PyroFedError, SettingError, listed
from pyro_fed.federation.labels import client_table, discrete_labels, row_labels
from pyro_fed.federation.partition.base import Partition
from pyro_fed.federation.partition.kinds import ByGroup
from pyro_fed.federation.pooling import plate_sizes


def with_group_names(
    coords: Mapping[str, Sequence[Any]] | None,
    plate: str,
    clients: Sequence[Tensor],
    names: Sequence[Any] | None,
    *,
    grouped: bool,
) -> Mapping[str, Sequence[Any]] | None:
    """Coordinate values, with the clients' names along a plate of groups if each client is one group."""
    given = dict(coords or {})
    if not grouped or names is None or plate in given or any(len(rows) != 1 for rows in clients):
        return coords
    at = {int(rows[0]): name for rows, name in zip(clients, names, strict=True)}
    return given | {plate: [at[i] for i in range(len(at))]}


def named_labels(
    arguments: Arguments,
    rows: Mapping[str, Sequence[str]],
    plate: str,
    coords: Mapping[str, Sequence[Any]] | None,
    partition: Partition | None,
) -> LabelsByName:
    """Labels, in order, of arguments of text whose elements the user names, by coordinates or by `ByGroup`."""
    by = tuple(np.asarray(partition.by).tolist()) if isinstance(partition, ByGroup) and partition.by is not None else ()
    by = by if rows and len(set(by)) == len(by) else ()
    given = {dim: tuple(values) for dim, values in (coords or {}).items()}
    if set(given.get(plate, ())) == set(by) and given.get(plate, ()) != by:
        raise SettingError(
            f"coords['{plate}'] names the elements of plate '{plate}' {listed(given[plate])}, and ByGroup "
            f"{listed(by)}: the same names in another order; give both in the order of the elements"
        )
    owners = {next(iter(parts), "") for parts in rows.values()}
    found = {}
    for name, labels in arguments.labels.items():
        if name in owners:
            names = {one for one in (given.get(plate, ()), by) if set(labels) & set(one)}
        else:
            names = {one for one in given.values() if set(labels) <= set(one)}
        if not names:
            continue
        if labels in names:
            found[name] = Labels(labels, ordered=True)
            continue
        if len(names) > 1 or (name not in owners and list(labels) != sorted(labels)):
            orders = " and ".join(f"[{listed(one)}]" for one in sorted(names))
            raise SettingError(
                f"argument '{name}' holds the labels [{listed(labels)}], whose codes are 0, 1, ..., and coords name "
                f"{orders}: the same names in another order; give all in the order of the codes, as in "
                f"pandas.Categorical({name}, categories=[...])"
            )
        found[name] = Labels(names.pop(), ordered=True)
    return found


def by_element(partition: Partition, arguments: Arguments, count: int) -> Partition:
    """A partition by a column of the nested rows, as one by the `count` elements of the plate that they belong to."""
    if not isinstance(partition, ByGroup) or partition.by is None or len(partition.by) == count:
        return partition
    for owner, *_ in arguments.nested_by_name.values():
        index = arguments.leaves[arguments.names.index(owner)].numpy()
        if len(index) != len(partition.by) or len(np.unique(index)) != count:
            continue
        order = np.argsort(index, kind="stable")
        first = partition.by[order[np.searchsorted(index[order], np.arange(count))]]
        odd = np.flatnonzero(first[index] != partition.by)
        if len(odd):
            raise SettingError(
                f"ByGroup: by has a value for each row that '{owner}' looks up, and rows of one element have several, "
                f"{first[index[odd[0]]]} and {partition.by[odd[0]]} (row {odd[0]}): an element is one client's"
            )
        return replace(partition, by=first)
    return partition


def owner_labels(arguments: Arguments, plate: str, coords: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The plate's labels, if the argument with each nested row's group is text or categories; `coords` come first."""
    for owner, *_ in arguments.nested_by_name.values():
        labels = list(arguments.labels.get(owner, ()))
        if plate not in coords and len(labels) == arguments.num_rows:
            return {plate: labels}
    return {}


def without_rows(arguments: Arguments, clients: Sequence[Tensor], names: Sequence[str]) -> list[str]:
    """Names of the clients that hold no rows, or only groups without rows; `clients` are row or group numbers."""
    nested = [] if arguments.row_names else arguments.nested_plates  # a column of the groups is data of each
    held = [
        len(index) if not nested else sum(len(arguments.rows_of(part, index)) for part in nested) for index in clients
    ]
    return [name for name, count in zip(names, held, strict=True) if not count]


def grouped_table(
    arguments: Arguments,
    plate: str,
    client_groups: Sequence[Tensor],
    names: Sequence[str],
    counted: Sequence[np.ndarray],
) -> pd.DataFrame:
    """A table with a row for each client: its groups, their nested rows, share of all rows, counts of each label."""
    nested = arguments.nested_plates
    counts = {part: [len(arguments.rows_of(part, groups)) for groups in client_groups] for part in nested}
    first = nested[0]
    rows = [arguments.rows_of(first, groups) for groups in client_groups]
    table = client_table(rows, names, discrete_labels(row_labels(arguments, first), counted))
    total = np.sum([counts[part] for part in nested], axis=0)
    table["rows"], table["share"] = total, total / total.sum()
    table.insert(0, plate, [len(groups) for groups in client_groups])
    if len(nested) > 1:
        for at, part in enumerate(nested, start=1):
            table.insert(at, part, counts[part])
    return table


def groups_alone(
    model: Callable[..., Any], plate: str, arguments: Any, groups: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The model's `(args, kwargs)` with the groups (m,) alone, also if their number is an argument."""
    alone = arguments.alone(groups)
    before = arguments.num_groups
    numbers = [i for i, leaf in enumerate(alone.leaves) if type(leaf) is int and leaf == before]
    for changed in ((), *((i,) for i in numbers), tuple(numbers)):
        leaves = [len(groups) if i in changed else leaf for i, leaf in enumerate(alone.leaves)]
        args, kwargs = pytree.tree_unflatten(leaves, alone.spec)
        same = Arguments(tuple(pytree.tree_leaves((args, kwargs))), alone.names, alone.spec)
        with suppress(PyroFedError, RuntimeError, IndexError, ValueError):  # the model does not run on them
            if plate_sizes(model, same, plate, arguments.nested_by_name)[plate] == len(groups):
                return args, kwargs
    raise DataError(
        f"the model's plate '{plate}' has {before} elements whatever its arguments are, so none can be left out: "
        f"take its size from an argument, such as the length of one with an entry a {plate}, or a number"
    )
