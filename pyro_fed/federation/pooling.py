"""The sizes of plates before data are pooled, and one set of arguments from the clients'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.checks.first_run import FirstRun, first_run, refusing_writes
from pyro_fed.density.checks.points import ROWS_TOGETHER
from pyro_fed.density.rows.arguments import Arguments, exceed_memory, flatten, parameter_names, positional
from pyro_fed.density.rows.files import picked, pooled
from pyro_fed.density.rows.labelled import Labels
from pyro_fed.density.running.handlers import Execution, FillLatents, Source, run_model
from pyro_fed.errors import DataError, PyroFedError, listed
from pyro_fed.federation.arguments import Shard, align_argument, choose_shards
from pyro_fed.federation.data_checks import warn_duplicates
from pyro_fed.federation.failures import explained_failures, no_such_plate
from pyro_fed.federation.groups import AND, check_rows, group_arguments, several_arguments, with_column_names
from pyro_fed.ops.entries import evenly


def first_look(
    model: Callable[..., Any],
    arguments: Arguments,
    plate: str,
    rows: Mapping[str, Any] | None,
    dtype: torch.dtype,
) -> tuple[dict[str, int], FirstRun | None]:
    """Sizes of the model's plates, and the validated run on all of its data that they come from.

    There is no such run if data are not finite, say: that is reported once it is known which client has which rows.
    """
    if sizes := _sizes_by_few_rows(model, arguments, plate, rows):
        return sizes, None
    arguments = arguments.to(dtype)
    args, kwargs = arguments.call_arguments()

    def run(source: Source) -> Execution:
        filler = FillLatents(source, plate, {}, nested=tuple(rows or parts_of(plate)))
        return run_model(
            model, args, kwargs, filler, indices=None, dtype=dtype, validate=True, incomplete=arguments.incomplete
        )

    try:
        with refusing_writes(arguments.names, arguments.leaves):
            seen = first_run(run, dtype)
    except PyroFedError:
        raise
    except Exception:  # of any kind: it is raised again below, or by `build`, unless there is another cause
        return plate_sizes(model, arguments, plate, rows), None
    _check_plates(plate, seen.execution.plates, lambda: run(_zeros(dtype)).trace)
    return seen.execution.plates, seen


def plate_sizes(
    model: Callable[..., Any],
    arguments: Arguments,
    plate: str,
    rows: Mapping[str, Any] | None = None,
    where: str = "",
) -> dict[str, int]:
    """Sizes that the model declares for its plates; an error that `rows` cause names them, and the place `where`."""
    if sizes := _sizes_by_few_rows(model, arguments, plate, rows):
        return sizes
    dtype = arguments.floating_dtype()
    filler = FillLatents(_zeros(dtype), plate, {}, nested=tuple(rows or parts_of(plate)))
    args, kwargs = arguments.copy_as(dtype).call_arguments()  # a copy, as the model may write to its arguments
    declared: dict[str, int] = {}

    def run() -> Any:
        return run_model(
            *(model, args, kwargs, filler),
            indices=None,
            dtype=dtype,
            declared=declared,
            incomplete=arguments.incomplete,
        ).trace

    try:
        run()
    except (RuntimeError, IndexError):
        if plate in declared:  # an index out of range or of another length is a clearer cause than the failing line
            check_rows(arguments, plate, declared, rows or {}, where)
        raise
    _check_plates(plate, declared, run)
    return declared


def _sizes_by_few_rows(
    model: Callable[..., Any], arguments: Arguments, plate: str, rows: Mapping[str, Any] | None
) -> dict[str, int]:
    """The plates' sizes as a run on few of very many rows shows them; none if it does not."""
    tensors = [leaf for leaf in arguments.leaves if isinstance(leaf, Tensor)]
    largest = max(tensors, key=Tensor.numel, default=torch.empty(0))
    if not exceed_memory(largest.numel(), len(largest)) or rows or parts_of(plate):
        return {}
    sizes = {size for leaf in tensors for size in leaf.shape}
    few = next(size for size in range(ROWS_TOGETHER, len(largest)) if size not in sizes)
    at = evenly(len(largest), few)
    leaves = (
        picked(leaf, at) if isinstance(leaf, Tensor) and leaf.shape[:1] == largest.shape[:1] else leaf
        for leaf in arguments.leaves
    )
    try:
        found = plate_sizes(model, replace(arguments, leaves=tuple(leaves)), plate)
    except Exception:  # of any kind: all rows are asked then
        return {}
    return {name: len(largest) if size == few else size for name, size in found.items()} if found[plate] == few else {}


def parts_of(plate: str) -> tuple[str, ...]:
    """The model's plates that are split together under the joined name `plate`; none if it is a single plate."""
    parts = tuple(plate.split(AND))
    return parts if len(parts) > 1 else ()


def _zeros(dtype: torch.dtype) -> Source:
    def zeros(msg: Any, transform: Any) -> Tensor:
        return torch.zeros(transform.inverse_shape(msg["fn"].shape()), dtype=dtype)

    return zeros


def _check_plates(plate: str, declared: dict[str, int], run: Callable[[], Any]) -> None:
    """Refuse a model without the plates that are to be split, with its own lines in the message."""
    for part in parts_of(plate) or (plate,):
        if part not in declared:
            raise no_such_plate(part, sorted(declared), run)


def pool_clients(
    model: Callable[..., Any],
    clients: Sequence[Any],
    names: Sequence[str],
    kwargs: Mapping[str, Any] | None,
    plate: str,
    shard: Shard,
    rows: Mapping[str, str | Sequence[str]] | None = None,
) -> tuple[Arguments, list[Tensor]]:
    """One set of arguments from the clients', and each client's rows (N_k,) in it."""
    if not clients:
        raise DataError("from_clients needs at least one client, received none")
    for client, name in zip(clients, names, strict=True):
        if type(client) is tuple and len(client) == 2 and isinstance(client[0], str) and isinstance(client[1], tuple):
            raise DataError(
                f"client {name} is a pair of the name {client[0]!r} and arguments: names are the keys of a dictionary, "
                "such as dict(clients)"
            )
    clients = _aligned_arguments(model, clients, names, kwargs)
    each = [flatten(model, args, kwargs) for args in clients]
    rows = with_column_names(each[0], rows)
    owners = {next(iter(parts), "") for parts in (rows or {}).values()}
    labels = {name: known for name, known in _all_labels(each, names).items() if name not in owners}
    if any(arguments.labels != labels for arguments in each):
        each = [flatten(model, args, kwargs, labels) for args in clients]
    for arguments, name in zip(each, names, strict=True):
        if arguments.spec != each[0].spec:
            raise DataError(
                f"clients {names[0]} and {name} have arguments of different structure: {list(each[0].names)} and "
                f"{list(arguments.names)}"
            )
    if parts_of(plate):
        each = _with_several_plates(model, each, names, plate, shard)
    elif rows:
        each = _with_nested_plates(model, each, names, plate, rows, shard)
    else:
        each = _with_row_leaves(model, each, names, plate, shard)
    for arguments, name in zip(each, names, strict=True):
        _check_like_first(arguments, name, each[0], names[0])
    warn_duplicates(each, names)
    counts = [arguments.num_rows or 0 for arguments in each]
    starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
    leaves = [_pool_leaf(i, each, starts, names) for i in range(len(each[0].leaves))]
    index = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=False)]
    whole = each[0].pooled(leaves, starts[-1]).with_client_rows(index)
    return replace(whole, labels={**whole.labels, **_group_labels(each, names, owners)}), index


def _group_labels(each: Sequence[Arguments], names: Sequence[str], owners: set[str]) -> dict[str, Labels]:
    """Labels of the groups in each owner argument, client after client; two clients with the same group are refused."""
    found = {}
    for owner in owners & {name for arguments in each for name in arguments.labels}:
        whose: dict[Any, str] = {}
        for arguments, name in zip(each, names, strict=True):
            for label in arguments.labels.get(owner, ()):
                if label in whose:
                    raise DataError(
                        f"argument '{owner}' says to which group each row belongs, and clients {whose[label]} and "
                        f"{name} both have the group {label!r}: a group belongs to one client, with all of its rows"
                    )
                whose[label] = name
        found[owner] = Labels(whose)
    return found


def _aligned_arguments(
    model: Callable[..., Any], clients: Sequence[Any], names: Sequence[str], kwargs: Mapping[str, Any] | None
) -> list[Any]:
    """The clients' positional arguments, with tables and dictionaries in one form."""
    each = [positional(model, args, kwargs) for args in clients]
    if len({len(args) for args in each}) > 1:
        return each  # the model cannot take all of them, and refuses one later
    heads = parameter_names(model, len(each[0]))
    parts = [
        align_argument(values, names, f"argument '{head}'")
        for head, values in zip(heads, zip(*each, strict=True), strict=False)
    ]
    return list(zip(*parts, strict=True)) if parts else each


def _all_labels(each: list[Arguments], names: Sequence[str]) -> dict[str, Labels]:
    """Labels of categories over all clients: sorted, or in the order of a client that has an order and all of them."""
    found: dict[str, Labels] = {}
    for argument in dict.fromkeys(name for arguments in each for name in arguments.labels):
        held = {name: part.labels[argument] for name, part in zip(names, each, strict=True) if argument in part.labels}
        ordered = {name: labels for name, labels in held.items() if labels.ordered}
        if not ordered:
            same = len(set(held.values())) == 1
            found[argument] = next(iter(held.values())) if same else Labels(sorted(set().union(*held.values())))
            continue
        first, longest = max(ordered.items(), key=lambda one: len(one[1]))
        for name, labels in held.items():
            known = [label for label in longest if label in labels]
            if len(known) < len(labels) or (labels.ordered and list(labels) != known):
                raise DataError(
                    f"argument '{argument}' has the labels [{listed(labels)}] at client {name} and the ordered "
                    f"categories [{listed(longest)}] at client {first}: give all clients the same categories in the "
                    f"same order, pandas.Categorical({argument}, categories=[...], ordered=True)"
                )
        found[argument] = longest
    return found


def _with_several_plates(
    model: Callable[..., Any], each: list[Arguments], names: Sequence[str], plate: str, shard: Shard
) -> list[Arguments]:
    """The clients' arguments with several plates of rows, as in the first client with unambiguous lengths."""
    parts, told, listed = parts_of(plate), None, {}
    given = shard if isinstance(shard, Mapping) else None
    for arguments, name in zip(each, names, strict=True):
        if any(isinstance(leaf, Tensor) and leaf.dim() and not len(leaf) for leaf in arguments.leaves):
            continue  # a plate without rows, which Pyro does not run
        where = f" at client {name}"
        sizes = plate_sizes(model, arguments, plate, where=where)
        if given or len({sizes[part] for part in parts}) == len(parts):
            told = several_arguments(arguments, parts, sizes, given, where)
            listed = {part.plate: [told.names[i] for i in part.leaves] for part in told.nested}
            break
    if told is None:
        raise DataError(
            f"no client has rows in each of the plates {list(parts)}, and another number in each, by which arguments "
            "could be distinguished: name them, as in shard={'observed': ('x', 'y'), 'censored': ('z',)}"
        )
    return [
        several_arguments(arguments, parts, _lengths(arguments, listed), listed, f" at client {name}")
        for arguments, name in zip(each, names, strict=True)
    ]


def _lengths(arguments: Arguments, listed: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Number of rows of each plate, from the first of its arguments."""
    first = {part: arguments.leaves[arguments.names.index(names[0])] for part, names in listed.items()}
    return {part: len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else 0 for part, leaf in first.items()}


def _with_row_leaves(
    model: Callable[..., Any], each: list[Arguments], names: Sequence[str], plate: str, shard: Shard
) -> list[Arguments]:
    """The clients' arguments with the leaves split by rows marked."""
    sample = _first_with_rows(model, each, plate, shard)
    for arguments, name in zip(each, names, strict=True):
        for i in sample.sharded:
            leaf = arguments.leaves[i]
            if not isinstance(leaf, Tensor) or leaf.dim() == 0:
                received = "a scalar" if isinstance(leaf, Tensor) else type(leaf).__name__
                raise DataError(
                    f"argument '{arguments.names[i]}' of client {name} is split by rows: expected an array of "
                    f"rows, received {received}"
                )
    axes = {sample.names[i]: sample.axes.get(i, 0) for i in sample.sharded}
    found: Shard = axes if sample.axes else list(axes)
    return [
        choose_shards(arguments, None, found, where=f" at client {name}")
        for arguments, name in zip(each, names, strict=True)
    ]


def _with_nested_plates(
    model: Callable[..., Any],
    each: list[Arguments],
    names: Sequence[str],
    plate: str,
    rows: Mapping[str, str | Sequence[str]],
    shard: Shard,
) -> list[Arguments]:
    """The clients' arguments with their nested plates, as in the first client with unambiguous lengths."""
    places = [f" at client {name}" for name in names]
    sizes = []
    for arguments, where in zip(each, places, strict=True):
        for name, leaf in zip(arguments.names, arguments.leaves, strict=True):
            if isinstance(leaf, Tensor) and leaf.dim() and not len(leaf):
                raise DataError(f"argument '{name}'{where} has no rows: leave the client out")
        sizes.append(plate_sizes(model, arguments, plate, rows, where))
    clear = [k for k, size in enumerate(sizes) if len({size.get(part) for part in (plate, *rows)}) == 1 + len(rows)]
    first = clear[0] if clear else 0
    told = group_arguments(each[first], plate, sizes[first], rows, shard, places[first])
    listed = {part.plate: [told.names[i] for i in (part.index, *part.leaves)] for part in told.nested}
    return [
        group_arguments(arguments, plate, size, listed, told.row_names, where)
        for arguments, size, where in zip(each, sizes, places, strict=True)
    ]


def _first_with_rows(model: Callable[..., Any], each: list[Arguments], plate: str, shard: Shard) -> Arguments:
    """Arguments of the first client that has rows, with the leaves split by rows marked, as named or guessed."""
    if isinstance(shard, Mapping):
        return choose_shards(each[0], plate_sizes(model, each[0], plate)[plate], shard)
    if shard is not None:
        return choose_shards(each[0], None, shard)
    for arguments in each:
        sizes = [len(leaf) for leaf in arguments.leaves if isinstance(leaf, Tensor) and leaf.dim()]
        if sizes and min(sizes) > 0:
            with explained_failures(arguments, model, plate):
                found = plate_sizes(model, arguments, plate)
            chosen = choose_shards(arguments, found[plate], None)
            if not chosen.sharded:
                raise DataError(f"no argument of the first client with rows has as many rows as plate '{plate}'")
            return chosen
    raise DataError("no client has any row")


def _check_like_first(arguments: Arguments, name: str, first: Arguments, first_name: str) -> None:
    for i, (mine, theirs) in enumerate(zip(arguments.leaves, first.leaves, strict=True)):
        if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
            continue
        skip = 1 if i in arguments.split else 0
        if mine.shape[skip:] != theirs.shape[skip:]:
            raise DataError(
                f"argument '{arguments.names[i]}' has shape {tuple(theirs.shape)} at client {first_name} and "
                f"{tuple(mine.shape)} at client {name}: they may differ only in the number of rows"
            )


def _pool_leaf(i: int, each: list[Arguments], starts: list[int], names: Sequence[str]) -> Any:
    if i in each[0].split:
        return pooled([arguments.shifted(i, start) for arguments, start in zip(each, starts, strict=False)])
    leaves = [arguments.leaves[i] for arguments in each]
    counts = [list(counts) for counts in zip(*(arguments.lengths for arguments in each), strict=True)]
    if all(isinstance(leaf, int) for leaf in leaves) and leaves in counts:
        return sum(leaves)
    unequal = [k for k, leaf in enumerate(leaves) if not _equal_leaves(leaf, leaves[0])]
    if unequal:
        raise DataError(
            f"argument '{each[0].names[i]}' is not split by rows, so it is shared and must be equal at all clients, "
            f"but clients {names[0]} and {names[unequal[0]]} differ"
        )
    return leaves[0]


def _equal_leaves(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)
