"""A federation: an ordinary Pyro model, its data, and which rows lie at which client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pyro_fed.conventions import html
from pyro_fed.conventions.calls import cast_checked, checked, checked_but, explained
from pyro_fed.conventions.names import as_it_looks, check_shown_name
from pyro_fed.density.build import build, rebuild
from pyro_fed.density.checks.first_run import FirstRun
from pyro_fed.density.checks.sites import OutsideSupportError
from pyro_fed.density.checks.undefined import UndefinedError
from pyro_fed.density.forms import JointProblem, NonCentred, noncentred_form
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.problem import CPU, Problem
from pyro_fed.density.rows.arguments import Arguments, flatten
from pyro_fed.density.rows.batches import ClientData, NestedRows, padded_index
from pyro_fed.density.running.torch_modes import on_the_cpu
from pyro_fed.errors import DataError, ModelError, SettingError, listed, warn_user
from pyro_fed.federation import partition as partitions
from pyro_fed.federation.arguments import Shard, check_row_labels, choose_shards, device_of, taken_apart
from pyro_fed.federation.data_checks import check_handled, check_labels, not_finite, warn_unsplit, wide_enough
from pyro_fed.federation.data_mistakes import warn_of_odd_data
from pyro_fed.federation.failures import explained_failures, is_failure
from pyro_fed.federation.group_names import (
    by_element,
    grouped_table,
    groups_alone,
    named_labels,
    owner_labels,
    with_group_names,
    without_rows,
)
from pyro_fed.federation.groups import AND, group_arguments, several_arguments, with_column_names
from pyro_fed.federation.labels import (
    client_table,
    discrete_labels,
    entry_labels,
    label_coords,
    observed_counts,
    row_labels,
    warn_of_labels,
)
from pyro_fed.federation.pooling import first_look, parts_of, pool_clients


class Federation:
    """A model whose data are split over clients by one of its plates.

    Args:
        model: an ordinary Pyro model (a function or a `PyroModule`).
        args: its positional arguments, as in `model(*args)`; NumPy arrays, pandas and xarray objects, and lists of
            numbers become tensors, text and categories codes from 0. NaN is what the model handles by `torch.isnan`.
        kwargs: its keyword arguments.
        plate: name of the plate whose rows are split over the clients. If several plates of data are split, their
            names, `plate=("observed", "censored")`; rows are numbered plate after plate.
        rows: for a plate of groups: the plates whose rows go with the groups, each with the argument, or column
            of a frame, that holds each row's group, `plate="county", rows={"obs": "county_idx"}`. If the lengths of
            arguments do not determine which others belong to that plate, they follow: `{"obs": ("county_idx", "x",
            "y")}`.
        num_clients: number of clients; may be left out if the partition determines it (ByGroup, Explicit).
        partition: how rows go to clients; IID by default.
        shard: names of the arguments that are split by rows; by default the tensors whose leading dimension is the
            plate's size. The others are shared by all clients. If rows are on another dimension, that dimension by
            name, `{"counts": 1}`; arguments that are not named are then taken as by default. With several plates, the
            arguments of each, if their lengths are ambiguous: `{"observed": ("x", "t"), "censored": "c"}`.
        seed: seed of the partition.
        dtype: floating dtype of the computation; by default the data's, or float64, with a warning, if float32 is not
            precise enough for their columns.
        dims: names for the dimensions of sites, as in ArviZ: `{"beta": ["feature"]}`.
        coords: coordinate values: `{"feature": names}`.
        quadrature: how latent sites inside the plate are integrated out at the clients.
        device: where clients' steps are computed, such as "cuda"; by default where the data lie. Checks, the server and
            results are on the CPU, and so is all randomness: draws are the same on every device, except for rounding
            (see docs/devices.md).

    Raises:
        DataError: data that are not finite, of disagreeing lengths, or outside a likelihood's support.
        ModelError: a model that cannot be split over the plate.
        SettingError: `dims` of an unknown site, `coords` of another length than their dimension, a partition that
            cannot be made.

    Example:
        >>> fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
    """

    #: Whether the rows are here; if not, they are at the clients, and the problem has one made-up row.
    holds_data: ClassVar[bool] = True

    @checked_but("kwargs")
    @explained(ModelError, "the model cannot be run on these arguments")
    def __init__(
        self,
        model: Callable[..., Any],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        plate: str | Sequence[str],
        rows: Mapping[str, str | Sequence[str]] | None = None,
        num_clients: int | None = None,
        partition: partitions.Partition | None = None,
        shard: Shard = None,
        seed: int = 0,
        dtype: torch.dtype | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        quadrature: Quadrature | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        model, args, kwargs = taken_apart(model, args, kwargs)
        place = device_of(device, (args, kwargs))
        plate = joint_plate_name(plate, rows)
        check_row_labels(model, args, kwargs, partition=partition)
        arguments = flatten(model, args, kwargs)
        rows = with_column_names(arguments, rows)
        if named := named_labels(arguments, rows or {}, plate, coords, partition):
            arguments = flatten(model, args, kwargs, named)
        given, dtype = dtype, _floating_dtype(dtype, arguments)
        arguments = arguments.copy_as(dtype)  # before a run of the model, which may write to its arguments
        with explained_failures(arguments, model, plate):
            sizes, seen = first_look(model, arguments, plate, rows, dtype)
        arguments = _mark_split_arguments(arguments, plate, sizes, rows, shard)
        dtype = wide_enough(arguments, dtype) if given is None else dtype
        if num_clients is not None and num_clients < 1:
            raise SettingError(f"num_clients must be at least 1, received {num_clients}")
        self.partition = partition or partitions.IID()
        num_rows = sizes[plate] if arguments.num_rows is None else arguments.num_rows
        self.partition = by_element(self.partition, arguments, num_rows)
        each = rows and isinstance(self.partition, partitions.ByGroup)  # of a plate of groups
        labels = np.arange(num_rows) if each else row_labels(arguments)
        split = self.partition.split(num_rows, num_clients, np.random.default_rng(seed), labels)
        clients = [torch.as_tensor(index, dtype=torch.int64) for index in split]
        names = self.partition.names(len(clients))
        self._bind(
            *(model, arguments.with_client_rows(clients).to(dtype), plate, num_rows, clients, dtype),
            names=None if names is None else [str(name) for name in names],
            dims=dims,
            coords=with_group_names(coords, plate, clients, names, grouped=bool(rows)),
            quadrature=quadrature,
            seen=seen,
            said=shard is not None,
            free=given is None,
            device=place,
        )

    @classmethod
    @checked
    @explained(ModelError, "the model cannot be run on these arguments")
    def from_clients(
        cls,
        model: Callable[..., Any],
        clients: Sequence[Any] | Mapping[Any, Any],
        *,
        plate: str | Sequence[str],
        rows: Mapping[str, str | Sequence[str]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        shard: Shard = None,
        dtype: torch.dtype | None = None,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        quadrature: Quadrature | None = None,
        device: torch.device | str | None = None,
    ) -> Federation:
        """A federation of data that are already split over clients.

        Args:
            model: an ordinary Pyro model.
            clients: each client's positional arguments (a tuple), in a list or in a mapping from names.
            plate: name of the plate that runs over rows, or over groups of them.
            rows: for a plate of groups, the plates whose rows go with the groups, each with the argument that holds
                each row's group; each client numbers its own groups from 0.
            kwargs: keyword arguments shared by all clients.
            shard: names of the arguments that are split by rows; by default the tensors whose leading dimension is
                the plate's size at the first client that has rows.
            dtype: floating dtype of the computation; by default as for `Federation`.
            dims: names for the dimensions of sites, as in ArviZ: `{"beta": ["feature"]}`.
            coords: coordinate values: `{"feature": names}`.
            quadrature: how latent sites inside the plate are integrated out at the clients.
            device: where clients' steps are computed, as for `Federation`.

        Raises:
            DataError: shapes that differ between clients, shared arguments that are not equal, no clients, data that
                are not finite or outside a likelihood's support.
            ModelError: a model that cannot be split over the plate.
            SettingError: `dims` of an unknown site, `coords` of another length than their dimension.

        Example:
            >>> clients = {"north": (x1, y1), "south": (x2, y2)}
            >>> fed = pf.Federation.from_clients(model, clients, plate="data")
        """
        values = list(clients.values()) if isinstance(clients, Mapping) else list(clients)
        names = [str(name) for name in (clients if isinstance(clients, Mapping) else range(len(values)))]
        for name in names:
            check_shown_name(name)
        if len({as_it_looks(name) for name in names}) < len(names):
            raise DataError(f"client names must differ as text, received {names}, of which two look the same")
        plate = joint_plate_name(plate, rows)
        for name, value in zip(names, values, strict=True):
            check_row_labels(model, value, kwargs, f" at client {name}")
        arguments, index = pool_clients(model, values, names, kwargs, plate, shard, rows)
        given, dtype = dtype, _floating_dtype(dtype, arguments)
        dtype = wide_enough(arguments, dtype) if given is None else dtype
        self = cls.__new__(cls)
        self.partition = partitions.Explicit([i.numpy() for i in index])
        self._bind(
            *(model, arguments.copy_as(dtype), plate, arguments.num_rows or 0, index, dtype),
            names=names,
            local_numbering=True,
            dims=dims,
            coords=with_group_names(
                coords,
                plate,
                index,
                names if isinstance(clients, Mapping) and not owner_labels(arguments, plate, {}) else None,
                grouped=bool(rows),
            ),
            quadrature=quadrature,
            said=shard is not None,
            free=given is None,
            device=device_of(device, (values, kwargs)),
        )
        return self

    @on_the_cpu
    def _bind(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        plate: str,
        num_rows: int,
        clients: list[Tensor],
        dtype: torch.dtype,
        *,
        names: list[str] | None = None,
        local_numbering: bool = False,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence[Any]] | None = None,
        quadrature: Quadrature | None = None,
        seen: FirstRun | None = None,
        said: bool = False,
        free: bool = False,
        device: torch.device = CPU,
    ) -> None:
        """Set up the federation: the last step of every constructor.

        `arguments` are pooled copies in `dtype`, with the row-sharded leaves marked; `clients` are row positions
        (N_k,). `said` is whether the user has named the arguments that are split, `free` whether float64 may replace
        float32, as the user has not chosen a dtype.
        """
        self.client_rows = clients
        self.client_names = names or [str(k) for k in range(len(clients))]
        self._local_numbering = local_numbering
        self._quadrature = quadrature
        missing = not_finite(arguments, clients, self.client_names, local_numbering)
        if num_rows < 1:
            raise DataError(f"the data have no rows: plate '{plate}' is empty at every client")
        self.dims = {name: list(value) for name, value in (dims or {}).items()}
        self.coords = {name: list(value) for name, value in (coords or {}).items()}
        try:
            with explained_failures(arguments, model, plate, self._place):
                problem = build(
                    model, arguments, plate, num_rows, dtype, quadrature=quadrature, initial_run=seen, free=free
                )
                self.problem = replace(problem, device=device, num_clients=len(clients))
        except OutsideSupportError as error:
            if missing is None and error.row is None:
                raise
            raise missing or DataError(f"{self._place(error.row or 0)}: {error}") from error
        except UndefinedError as error:
            if missing is not None and error.order == 0:
                raise missing from error
            error.args = (f"{self._holders(error.rows)}{error}",)
            raise
        except Exception as error:  # of any kind: a model may fail in any way on missing values
            meant = isinstance(error, ModelError) and not is_failure(error)
            if missing is None or meant:
                raise
            raise missing from error
        bound = self.problem.bound
        for found in (*bound.without_curvature, *bound.partly_undefined):
            undefined = cast_checked(found, UndefinedError)
            undefined.args = (f"{self._holders(undefined.rows)}{undefined}",)
            consequence = "refuse the model" if found in bound.without_curvature else "may fail where this is so"
            warn_user(f"{undefined}. Algorithms that take second derivatives, FedEP and fit among them, {consequence}")
        check_handled(self.problem, missing)
        if missing is None or seen is not None:
            warn_unsplit(self.problem, said)
        warn_of_odd_data(self.problem, clients, self.client_names, local_numbering)
        warn_of_labels(self.problem, clients, self.client_names)
        check_labels(self.problem, self.dims, self.coords)
        self.coords |= owner_labels(arguments, plate, self.coords)
        self.coords |= label_coords(self.problem, self.dims, self.coords)
        self.problem = replace(self.problem, labels=entry_labels(self.problem, self.dims, self.coords))
        empty = without_rows(arguments, clients, self.client_names)
        if empty:
            warn_user(f"clients {listed(empty)} have no rows: they contribute nothing")

    def _place(self, row: int) -> str:
        """Name of a row of the pooled data in messages: its client, and its number there or among all rows."""
        for name, rows in zip(self.client_names, self.client_rows, strict=True):
            at = (rows == row).nonzero()
            if len(at):
                return f"client {name}, row {int(at[0]) if self._local_numbering else row}"
        return f"row {row}"

    def _holders(self, rows: list[int]) -> str:
        """Names of the clients that hold some of the rows, as the beginning of a message; "" without rows."""
        each = zip(self.client_names, self.client_rows, strict=True)
        held = [name for name, own in each if not set(rows).isdisjoint(own.tolist())]
        if len(held) == 1:
            return f"{self._place(rows[0])}{' and others' if len(rows) > 1 else ''}: "
        return f"clients {listed(held)} (first: {self._place(rows[0])}): " if rows else ""

    # -- clients --------------------------------------------------------------------------------------------
    @property
    def num_clients(self) -> int:
        """Number of clients, K."""
        return len(self.client_rows)

    @property
    def num_rows(self) -> int:
        """Number of rows over all clients, N."""
        return self.problem.num_rows

    @cached_property
    def row_counts(self) -> Tensor:
        """(K,) rows of each client."""
        return torch.tensor([len(index) for index in self.client_rows])

    @checked
    def client_data(self, clients: Sequence[int] | None = None) -> ClientData:
        """Row indices of some clients (all by default), padded to the longest of all.

        Args:
            clients: their numbers; all by default.

        Returns:
            ClientData with index (C, n) and num_rows (C,).

        Raises:
            SettingError: a client does not exist.
        """
        if clients is not None:
            self._check_numbers(clients)
        chosen = torch.arange(self.num_clients) if clients is None else torch.as_tensor(clients, dtype=torch.int64)
        index, num_rows = padded_index(self.client_rows, chosen)
        device = self.problem.rows[0].device
        return ClientData(self.problem.rows, index.to(device), num_rows.to(device))

    def pooled_data(self) -> ClientData:
        """All rows as the data of one client: index (1, N), num_rows (1,)."""
        device = self.problem.rows[0].device
        index = torch.arange(self.num_rows, device=device)
        rows = (
            leaf.with_room(int(leaf.where.sum())) if isinstance(leaf, NestedRows) else leaf
            for leaf in self.problem.rows
        )
        return ClientData(tuple(rows), index[None], torch.tensor([self.num_rows], device=device))

    @cached_property
    def joint(self) -> Federation:
        """This federation with every row's own latents in the flat vector, instead of integrated out."""
        return self.with_problem(JointProblem.of(self.problem))

    @cached_property
    def noncentred(self) -> Federation:
        """This federation with effects in units of their scale, if that is a latent, see `density.NonCentred`.

        If there are few data on the effects, a run there has no funnel; results are on the model's own scale.

        Raises:
            ModelError: no latent outside the plate has such a scale.

        Example:
            >>> idata = pf.run(pf.FedEP(), fed.noncentred)
        """
        form = noncentred_form(self.problem)
        if form is None:
            local = list(self.problem.layout.local)
            rest = f"; {listed(map(repr, local))} inside the plate are integrated out, so no funnel is left"
            raise ModelError(
                f"the model has no non-centred form: of its latents {list(self.problem.sites)} none has a scale that "
                f"depends on another latent{rest if local else ''}"
            )
        return self.with_problem(form)

    def with_problem(self, problem: Problem) -> Federation:
        """These clients with other densities; cached properties, such as the federation's forms, are computed anew."""
        other = copy(self)
        for kind in type(self).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, cached_property):
                    vars(other).pop(name, None)
        other.problem = problem
        return other

    @checked
    def client_args(self, client: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The model's arguments `(args, kwargs)` with one client's rows alone.

        Args:
            client: its number, from 0.

        Example:
            >>> args, kwargs = fed.client_args(0)
            >>> model(*args, **kwargs)            # an ordinary run of the model on this client's rows

        Raises:
            SettingError: there is no such client.
        """
        self._check_numbers([client])
        return self.problem.arguments.of_client(self.client_rows[client])

    def _check_numbers(self, clients: Sequence[int]) -> None:
        """Refuse client numbers that are out of range."""
        if bad := [client for client in clients if not 0 <= client < self.num_clients]:
            raise SettingError(f"there is no client {bad[0]}: clients are numbered from 0 to {self.num_clients - 1}")

    @checked
    @explained(ModelError, "the model cannot be run on these arguments")
    def with_args(self, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Federation:
        """This federation on new data of the same shapes; its runs reuse what is compiled.

        Row i stays at the client that has it now, even if the partition would move it by its new values: sort or deal
        the new rows beforehand if that matters. The new data are checked like the old ones: values that are not
        finite, and a validated run of the model on all rows. Whether the model splits over the plate is not checked
        again. Arrays that all clients share may change too, but then steps are compiled anew, as they hold them as
        constants.

        Args:
            args: the model's positional arguments, as for `Federation`; after `from_clients`, the clients' rows one
                client after the other.
            kwargs: its keyword arguments.

        Returns:
            A federation with the same clients, names and dtype; this one is unchanged.

        Raises:
            DataError: arguments of other names, shapes or dtypes; Python values or groups that have changed; data that
                are not finite, outside a likelihood's support, or with which the model has other sites.

        Example:
            >>> first = pf.run(pf.FedEP(), fed)
            >>> again = pf.run(pf.FedEP(), fed.with_args((x, y_simulated)))      # a tenth of the time
        """
        problem = self.problem
        if not self.holds_data:
            raise DataError("the rows are at the clients, and only they can renew them: start the clients again")
        if not problem.arguments.split:
            raise DataError("the model indexes its own data: no argument is split by rows, so none can be renewed")
        mine = problem.arguments
        new = flatten(problem.model, args, kwargs, mine.labels, mine.orders(problem.model))
        return self.with_arguments(problem.arguments.with_leaves_of(new, problem.dtype))

    def with_arguments(self, arguments: Arguments) -> Federation:
        """As `with_args`, from this federation's own flattened arguments with other values in their leaves."""
        problem, arguments = self.problem, arguments.with_client_rows(self.client_rows)
        missing = not_finite(arguments, self.client_rows, self.client_names, self._local_numbering)
        if missing is not None and not problem.arguments.incomplete:
            raise missing
        with explained_failures(arguments, problem.model, problem.plate):
            other = self.with_problem(rebuild(problem, arguments, self._quadrature))
        check_handled(other.problem, missing)
        return other

    @checked
    def without(self, *names: str) -> Federation:
        """The federation of the other clients, under their names.

        Args:
            names: clients that leave.

        Raises:
            DataError: an unknown client, nobody left, a model that indexes its own data, or one whose number of groups
            is fixed.

        Example:
            >>> rest = fed.without("hospital_3")
        """
        if not names or any(not isinstance(name, str) for name in names):
            raise DataError(
                f"without takes the names of clients as separate texts, such as without({self.client_names[0]!r}); "
                f"received {str(names)[:100]}"
            )
        unknown = sorted(set(names) - set(self.client_names))
        if unknown:
            raise DataError(f"there are no clients {unknown}; the clients are {self.client_names[:20]}")
        keep = [k for k, name in enumerate(self.client_names) if name not in names]
        problem, arguments = self.problem, self.problem.arguments
        reason = _why_not_left_out(keep, arguments)
        if reason:
            raise DataError(f"clients {list(names)} cannot be left out: {reason}")
        index = torch.cat([self.client_rows[k] for k in keep])
        if arguments.nested_by_name:
            args, kwargs = groups_alone(problem.model, problem.plate, arguments, index)
        else:
            args, kwargs = arguments.rebuild([leaf[index] for leaf in arguments.rows])
        sizes = [len(self.client_rows[k]) for k in keep]
        rows = iter(range(len(index)))
        coords = {n: [v[i] for i in index] if n == problem.plate else v for n, v in self.coords.items()}
        rest = type(self)(
            problem.model,
            args,
            kwargs,
            plate=problem.plate,
            rows=arguments.nested_by_name or None,
            partition=partitions.Explicit([[next(rows) for _ in range(size)] for size in sizes]),
            shard=_split_as(arguments),
            dtype=problem.dtype,
            dims=self.dims,
            coords=coords,
            quadrature=problem.quadrature,
            device=problem.device,
        )
        rest.client_names = [self.client_names[k] for k in keep]
        rest = rest.joint if isinstance(problem, JointProblem) else rest
        return rest.noncentred if isinstance(problem, NonCentred) else rest

    # -- display --------------------------------------------------------------------------------------------
    def summary(self) -> pd.DataFrame:
        """A table of the clients: rows, share of all rows, and how often each label occurs.

        A label is one of a few whole numbers in the last argument with one number a row, unless the model observes it
        as a count. If the partitioned plate is one of groups, its column is the number of a client's groups, and
        `rows` are those nested in them.

        Returns:
            A table with one row for each client.

        Example:
            >>> fed.summary()
                    rows  share  label 0  label 1
            client
            0        100    0.5       31       69
            1        100    0.5       75       25
        """
        arguments = self.problem.arguments
        counts = observed_counts(self.problem) if self.holds_data else []
        if arguments.nested_by_name:
            return grouped_table(arguments, self.problem.plate, self.client_rows, self.client_names, counts)
        return client_table(self.client_rows, self.client_names, discrete_labels(row_labels(arguments), counts))

    def __repr__(self) -> str:
        arguments = self.problem.arguments
        nested = ", ".join(
            f"{len(arguments.leaves[arguments.names.index(owner)])} rows of '{part}'"
            for part, (owner, *_) in arguments.nested_by_name.items()
        )
        rows = f"{self.num_rows} groups with {nested}" if nested else f"{self.num_rows} rows"
        return (
            f"Federation({self.num_clients} clients, {rows}, plate='{self.problem.plate}', "
            f"{self.problem.dim} parameters, {type(self.partition).__name__})"
        )

    def _repr_html_(self) -> str:
        """HTML for notebooks: the text form, and a table of each client's rows and labels."""
        clients = self.summary().drop(columns="share")
        rows = ([name, *values] for name, *values in clients.itertuples())
        return html.block(repr(self), html.table(["client", *map(str, clients.columns)], rows))


def _floating_dtype(dtype: torch.dtype | None, arguments: Arguments) -> torch.dtype:
    """The floating dtype of the computation: the user's, or the data's."""
    dtype = dtype or arguments.floating_dtype()
    if dtype not in (torch.float32, torch.float64):
        narrow = [
            name
            for name, leaf in zip(arguments.names, arguments.leaves, strict=True)
            if isinstance(leaf, Tensor) and leaf.dtype == dtype
        ]
        of = f", of argument(s) {listed(narrow)}: pass {narrow[0]}.float() or .double()" if narrow else ""
        raise SettingError(f"dtype must be torch.float32 or torch.float64, received {dtype}{of}")
    return dtype


def joint_plate_name(plate: str | Sequence[str], rows: Mapping[str, Any] | None) -> str:
    """The plate's name; for several plates that are split together, the name of the plate of all their rows."""
    plates = (plate,) if isinstance(plate, str) else tuple(plate)
    if not plates or len(set(plates)) < len(plates):
        raise SettingError(f"plate= names one plate, or several different ones, received {plate!r}")
    if len(plates) > 1 and rows:
        raise SettingError(f"rows= belongs to one plate of groups, but plate= names {list(plates)}")
    return AND.join(plates)


def _mark_split_arguments(
    arguments: Arguments,
    plate: str,
    sizes: Mapping[str, int],
    rows: Mapping[str, str | Sequence[str]] | None,
    shard: Shard,
) -> Arguments:
    """The arguments with the split ones marked: by a plate's rows, by those of several plates, or by groups."""
    if parts_of(plate):
        if shard is not None and not isinstance(shard, Mapping):
            raise SettingError(
                f"with several plates, shard= names the arguments of each, {{'plate': ('x', 'y')}}, received {shard!r}"
            )
        return several_arguments(arguments, parts_of(plate), sizes, shard)
    if rows:
        return group_arguments(arguments, plate, sizes, rows, shard)
    return choose_shards(arguments, sizes[plate], shard)


def _split_as(arguments: Arguments) -> Shard:
    """The value of `shard=` that splits arguments as these are split."""
    if not arguments.axes:
        return arguments.row_names
    return {
        name: arguments.axes.get(i, 0) if i in arguments.sharded else None
        for i, (name, leaf) in enumerate(zip(arguments.names, arguments.leaves, strict=True))
        if isinstance(leaf, Tensor) and leaf.dim()
    }


def _why_not_left_out(keep: list[int], arguments: Arguments) -> str:
    if not keep:
        return "no client would be left"
    if arguments.nested_plates and not arguments.nested_by_name:
        return "its rows are in several plates: make a federation of the clients that remain, with `start=` as here"
    return "" if arguments.split else "the model indexes its own data: no argument is split by rows"
