"""The record of a run as a dataset, the group `federation` of the result: variables over (round, client)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr

from pyro_fed.algorithm.record import Record
from pyro_fed.density.fingerprint import prior_fingerprint
from pyro_fed.density.problem import Problem
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.ops.gaussian import Gaussian

#: Largest number of cells of a table over (round, client). A larger record is over (round, slot), with the clients'
#: numbers as a variable.
MAX_CELLS = 2_000_000


class _Table(NamedTuple):
    """The layout of the record's table, and the cells of each round's clients."""

    full: bool  # whether columns are clients; otherwise positions of clients within their round
    rounds: int
    width: int
    clients: np.ndarray  # clients of all rounds, in order
    cells: np.ndarray  # their flat indices, row by row
    counts: np.ndarray  # number of clients of each round (rounds,)

    @property
    def dims(self) -> tuple[str, str]:
        return "round", "client" if self.full else "slot"

    def of_rounds(self, which: np.ndarray) -> np.ndarray:
        """The cells of the rounds selected by flags (rounds,)."""
        found: np.ndarray = self.cells[np.repeat(which, self.counts)]
        return found

    def empty(self, *shape: int) -> np.ndarray:
        return np.full((self.rounds, self.width, *shape), np.nan)


def federation_group(record: Record) -> xr.Dataset:
    """The record of a run as variables over (round, client), NaN where a client did not take part.

    If several chains visit a client in one round, bytes and seconds are sums over them, and figures are means. If a
    schedule asks all clients for indicators, those that are not chosen have the bytes of this exchange.

    Returns:
        The group `federation`; over (round, slot) if the table would have more than `MAX_CELLS` cells.
    """
    table = _shape(record)
    shapes = {name: value.shape[1:] for one in record.rounds for name, value in one.info.items()}
    data = _participation(record, table) | _traffic(record, table)
    for name in sorted(shapes):
        data[name] = _traces(record, table, name, shapes[name]) if shapes[name] else _means(record, table, name)
    data |= _failures(record) | _series(record)
    coords: dict[str, object] = {
        "round": np.arange(table.rounds),
        "phase": ("round", [one.phase for one in record.rounds]),
    }
    if table.full:
        coords["client"] = record.client_names
    return xr.Dataset(data, coords=coords)


def audit_group(record: Record) -> xr.Dataset:
    """The audit's errors of means, in posterior SDs, and ratios of SDs, over `parameter`; empty without an audit."""
    data = {name: ("parameter", values) for name, values in record.measured.items() if name != "parameter"}
    return xr.Dataset(data, coords={"parameter": record.measured["parameter"]} if data else {})


def sites_group(record: Record, problem: Problem) -> xr.Dataset:
    """The clients' Gaussian sites on the unconstrained scale, and their product q with the prior's site, or empty."""
    if not record.sites:
        return xr.Dataset()
    names = [problem.name_of(number) for number in range(record.sites["eta"].shape[-1])]  # without rows' own latents
    data = {}
    for name, value in record.sites.items():
        parts = ["parameter", "parameter_"] if value.dim() - (not name.startswith("q_")) == 2 else ["parameter"]
        data[name] = ([*([] if name.startswith("q_") else ["client"]), *parts], value.cpu().numpy())
    coords: dict[str, Any] = {"client": record.client_names, "parameter": names}
    return xr.Dataset(
        data, coords=coords, attrs={"algorithm": record.sites_of, "prior": prior_fingerprint(problem, len(names))}
    )


def kept_sites(group: xr.Dataset) -> tuple[Gaussian, Gaussian]:
    """The Gaussian posterior q and the K clients' sites, read from a result's group `sites`."""
    state = {str(name): torch.from_numpy(np.array(value.values)) for name, value in group.data_vars.items()}
    return gaussian(state, "q_"), gaussian(state)


def _shape(record: Record) -> _Table:
    counts = np.array([len(one.clients) for one in record.rounds], dtype=np.int64)
    clients = np.array([client for one in record.rounds for client in one.clients], dtype=np.int64)
    full = len(counts) * len(record.client_names) <= MAX_CELLS
    width = len(record.client_names) if full else int(counts.max(initial=0))
    columns = clients if full else np.arange(len(clients)) - np.repeat(counts.cumsum() - counts, counts)
    cells = np.repeat(np.arange(len(counts)), counts) * width + columns
    return _Table(full, len(counts), width, clients, cells, counts)


def _participation(record: Record, table: _Table) -> dict[str, Any]:
    took_part = np.zeros((table.rounds, table.width), dtype=bool)
    numbers = np.full((table.rounds, table.width), -1)
    took_part.flat[table.cells] = True
    numbers.flat[table.cells] = table.clients
    variables = {"participated": (table.dims, took_part)}
    return variables if table.full else {**variables, "client": (table.dims, numbers)}


def _traffic(record: Record, table: _Table) -> dict[str, Any]:
    """Bytes and seconds, summed over a client's visits in a round."""
    values = {name: table.empty() for name in ("bytes_down", "bytes_up", "seconds")}
    for i, one in enumerate(record.rounds):
        if one.asked:
            values["bytes_down"][i], values["bytes_up"][i] = one.asked
    at, counts = table.cells, table.counts
    visits = np.bincount(at, minlength=table.rounds * table.width)[at]
    each: dict[str, list[Any]] = {
        "bytes_down": [one.bytes_down for one in record.rounds],
        "bytes_up": [one.bytes_up + (one.asked or (0, 0))[1] for one in record.rounds],
        "seconds": [one.seconds for one in record.rounds],
    }
    for name, value in each.items():  # one number for all clients of a round, or one for each
        clients = [np.broadcast_to(np.asarray(one, dtype=float), n) for one, n in zip(value, counts, strict=True)]
        values[name].flat[at] = np.concatenate([np.zeros(0), *clients]) * visits
    return {name: (table.dims, value) for name, value in values.items()}


def _means(record: Record, table: _Table, name: str) -> Any:
    """A figure of the clients, as the mean over a client's visits in a round."""
    values = table.empty()
    known = [name in one.info for one in record.rounds]
    at = table.of_rounds(np.array(known))
    each = np.concatenate([one.info[name] for one in record.rounds if name in one.info])
    size = table.rounds * table.width
    visits = np.bincount(at, minlength=size)[at]
    values.flat[at] = np.bincount(at, weights=each, minlength=size)[at] / visits
    return table.dims, values


def _traces(record: Record, table: _Table, name: str, shape: tuple[int, ...]) -> Any:
    """A figure with one number for each client and parameter."""
    values = table.empty(*shape)
    known = np.array([name in one.info for one in record.rounds])
    each = [one.info[name] for one in record.rounds if name in one.info]
    values.reshape(-1, *shape)[table.of_rounds(known)] = np.concatenate(each)
    return (*table.dims, "parameter"), values


def _series(record: Record) -> dict[str, Any]:
    """The figures by round, of the last phase or of the chosen result."""
    until = len(record.rounds) if record.until is None else record.until
    offset, variables = until - len(record.figures), {}
    for name in sorted({name for figures in record.figures for name in figures}):
        series = np.full(len(record.rounds), np.nan)
        series[offset:until] = [figures.get(name, np.nan) for figures in record.figures]
        variables[name] = (("round",), series)
    return variables


def _failures(record: Record) -> dict[str, Any]:
    """Rounds, clients and reasons of failures, over a dimension of their own; empty if there are none."""
    listed = [
        (i, record.client_names[client], reason)
        for i, one in enumerate(record.rounds)
        for client, reason in one.failures
    ]
    if not listed:
        return {}
    columns = zip(("failure_round", "failure_client", "failure_reason"), zip(*listed, strict=True), strict=True)
    return {name: ("failure", list(values)) for name, values in columns}
