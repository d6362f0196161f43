"""Posteriors of averages over the rows, which stay where they are: standardisation, contrasts, subgroups.

For each posterior draw z_s, each setting d of the rows' columns, and each group g of rows, the estimand is

    θ_s(d, g) = Σ_k S_k / Σ_k n_k(g),    S_k = Σ_{i at client k, in g} f(z_s, x_i(d)),    n_k(g) = rows of g at client k

where x_i(d) are row i's own values with those of d in place of some. With f = E[y | x, z], the default, and a treatment
in d, this is standardisation (the g-formula; Robins 1986, *A new approach to causal inference in mortality studies with
a sustained exposure period*), and differences of θ between settings are marginal effects. Of client k the sums S_k
(S, d, g) and counts n_k (g,) are used alone: `client_sums` computes them where the rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.predicting.drawing import draw
from pyro_fed.analysis.predicting.own_rows import ClientRun, client_run, position_among, with_own_latents
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.conventions.spelling import closest
from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.rows.labelled import labelled
from pyro_fed.errors import DataError, SettingError, listed, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data

#: A function of one draw's values by site, and of a client's columns by name, to one number a row (n,).
OfRows = Callable[[Mapping[str, Tensor], Mapping[str, Any]], Tensor]
#: The dimension of clients, if these are the groups, and the name of the estimand in the result.
CLIENT, ESTIMAND = "client", "estimand"


@dataclass(frozen=True)
class Question:
    """What is averaged over the rows.

    Attributes:
        of_rows: f; None for the expected observations of `site`.
        site: the observed site.
        settings: values in place of columns' own, one dictionary for each setting.
        by: the column whose labels or whole numbers are the groups; None for one group.
        fewest: a client's group of fewer rows is left out.
    """

    of_rows: OfRows | None
    site: str
    settings: tuple[Mapping[str, Any], ...]
    by: str | None
    fewest: int


class ClientSums(NamedTuple):
    """What is used of one client.

    Args:
        sums: S_k by group, (S, settings) each.
        counts: n_k by group.
        small: groups of fewer rows than `fewest`, which are left out.
    """

    sums: dict[Any, Tensor]
    counts: dict[Any, int]
    small: list[Any]


@checked
@explained(DataError, "estimand: it cannot be computed on these rows")
def estimand(
    idata: InferenceData,
    federation: Federation,
    f: OfRows | None = None,
    *,
    do: Mapping[str, Any] | None = None,
    by: str | None = None,
    site: str | None = None,
    fewest: int = 1,
    seed: int = 0,
) -> InferenceData:
    """The posterior of an average over the rows: expected outcomes, contrasts, risk differences, subgroup effects.

    Each client adds up f over its rows, at each posterior draw; only sums and numbers of rows are combined.

    Args:
        idata: result of `pyro_fed.run`.
        federation: the model and its rows.
        f: f(draw, rows) → one number a row (n,). `draw` maps sites to values of one posterior draw, with those of the
            client's own groups; `rows` maps the arguments' names, such as `x` or `data['age']`, to the client's rows.
            Columns of text compare with their labels. By default f is the expected observation, the mean of the
            observed site's distribution in the model.
        do: values that all rows get in place of their own, by the argument's name: `{"treated": [0, 1]}` has a
            dimension `treated` of two settings, `{"treated": 1}` has none. Several lists are combined.
        by: the argument whose labels or whole numbers are the groups, or "client"; the result has a dimension of it.
        site: the observed site, if there are several.
        fewest: a client's group of fewer rows is left out, and a warning says at how many clients.
        seed: seed of the draws of groups' own latents, if the result has none.

    Returns:
        InferenceData with the group `posterior`: `estimand` (chain, draw, then a dimension of each list in `do`, and of
        `by`), and `rows` (by), the number of rows that it averages. Differences and ratios of its entries are
        posteriors of contrasts, draw by draw.

    Raises:
        DataError: f returns other than one finite number a row; the observed site has no mean; rows are not here.
        SettingError: an argument, site or label that the model does not have.

    References:
        Robins (1986), *A new approach to causal inference in mortality studies with a sustained exposure period*.

    Example:
        >>> pf.estimand(idata, fed, by="client").posterior["estimand"]      # expected outcomes of each client's rows
        >>> pf.estimand(idata, fed, do={"treated": [0, 1]}, by="sex")       # risks with and without a treatment, by sex
    """
    if not federation.holds_data:
        raise DataError("estimand: the rows are at the clients: it is computed there")
    if fewest < 1:
        raise SettingError(f"estimand: fewest must be at least 1, received {fewest}")
    arguments, levels = federation.problem.arguments, _levels(do or {})
    for name in levels:
        _check_name(arguments, name, "do")
    if by not in (None, CLIENT):
        _check_name(arguments, str(by), "by")
    settings = tuple(dict(zip(levels, values, strict=True)) for values in product(*levels.values()))
    question = Question(f, _observed(federation, site), settings, by, fewest)
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars):
        posterior = with_own_latents(posterior, federation, seed)
    found = [
        client_sums(question, posterior, hidden, federation, k)
        for k, rows in enumerate(federation.client_rows)
        if len(rows)
    ]
    _warn_of_small_groups(question, found)
    return _combined(question, found, posterior, {name: values for name, values in levels.items() if len(values) > 1})


def client_sums(
    question: Question, posterior: xr.Dataset, hidden: frozenset[str], federation: Federation, client: int
) -> ClientSums:
    """One client's sums over its rows.

    Args:
        question: what is summed.
        posterior: draws of all latents (chain, draw, ...).
        hidden: names of the latents inside the plate.
        federation: which holds the rows.
        client: the client's number.

    Raises:
        DataError: f returns other than one finite number a row.
    """
    each, places = [], dict[str, Tensor]()
    for setting in question.settings:
        arguments = _with_values(federation.problem.arguments, setting)
        found = client_run(posterior, hidden, federation, client, arguments, expected=True)
        if found is None:
            return ClientSums({}, {}, [])
        each.append(_row_values(question, arguments, found))
        places = found.places  # the same for all settings
    values = torch.stack(each, 1)  # (S, settings, n)
    keys = _groups(question, federation, client, places, values.shape[2])
    sums, counts, small = {}, {}, []
    for key in dict.fromkeys(keys):
        own = torch.tensor([one == key for one in keys])
        if int(own.sum()) < question.fewest:
            small.append(key)
            continue
        sums[key], counts[key] = values[:, :, own].double().sum(2), int(own.sum())
    return ClientSums(sums, counts, small)


def _levels(do: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values of each column that is set."""
    found = {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        for name, value in do.items()
    }
    if empty := [name for name, values in found.items() if not values]:
        raise SettingError(f"estimand: do has no value for {listed(empty)}")
    return found


def _check_name(arguments: Arguments, name: str, where: str) -> None:
    known = list(_columns(arguments)) if where == "by" else [column for column, _, _ in arguments.columns]
    if name not in known:
        raise SettingError(f"estimand: {where} names {name!r}, which has no rows in the model; {closest(name, known)}")


def _columns(arguments: Arguments) -> dict[str, tuple[str | None, Tensor]]:
    """Nested plate (None: the partitioned one) and values of each argument with rows, by name."""
    leaves = dict(zip(arguments.names, arguments.leaves, strict=False))
    owners = {names[0]: (plate, leaves[names[0]]) for plate, names in arguments.nested_by_name.items()}
    return owners | {name: (plate, values) for name, plate, values in arguments.columns}


def _observed(federation: Federation, site: str | None) -> str:
    """The observed site: the named one, or the only one."""
    known = [name for name in federation.problem.layout.observed if name not in federation.problem.layout.factors]
    if site is None and len(known) == 1:
        return known[0]
    if site is None:
        raise SettingError(f"estimand: the model observes {listed(known) or 'no distribution'}: say which by site=")
    if site not in known:
        raise SettingError(f"estimand: the model does not observe {site!r}; {closest(site, known)}")
    return site


def _with_values(arguments: Arguments, setting: Mapping[str, Any]) -> Arguments:
    """The arguments with one value in all rows of some columns.

    Raises:
        SettingError: a column of text has no such label.
    """
    leaves = list(arguments.leaves)
    for name, value in setting.items():
        at, labels = arguments.names.index(name), arguments.labels.get(name)
        if labels is not None:
            if value not in labels:
                raise SettingError(f"estimand: do sets {name!r} to {value!r}, which is none of {listed(labels)}")
            value = labels.index(value)
        leaves[at] = torch.full_like(leaves[at], value)
    return replace(arguments, leaves=tuple(leaves))


def _row_values(question: Question, arguments: Arguments, found: ClientRun) -> Tensor:
    """f of each row at each draw (S, n)."""
    values = _values(question, arguments, found)
    if values.dim() != 2:
        what = f"the mean of '{question.site}'" if question.of_rows is None else "f"
        raise DataError(
            f"estimand: {what} must be one number a row, (n,), received {tuple(values.shape[1:])}: return one number, "
            "such as the probability of one category"
        )
    if not bool(values.isfinite().all()):
        cure = "pass f, such as a probability or a median" if question.of_rows is None else "mend f"
        raise DataError(f"estimand: there are values that are not finite: {cure}")
    return values


def _values(question: Question, arguments: Arguments, found: ClientRun) -> Tensor:
    """f (S, ...) of one client's rows."""
    of_rows, generator = question.of_rows, seeding.torch_generator(0, seeding.DRAWS)
    if of_rows is None:
        return draw(found.run, found.values, generator)[question.site]
    rows = _named_rows(arguments, found)
    return draw(lambda values: {ESTIMAND: torch.as_tensor(of_rows(values, rows))}, found.values, generator)[ESTIMAND]


def _named_rows(arguments: Arguments, found: ClientRun) -> dict[str, Any]:
    """A client's columns by name; those that hold each row's group count the client's own groups from 0."""
    owners = {owner for owner, *_ in arguments.nested_by_name.values()}
    rows: dict[str, Any] = dict(zip(arguments.names, arguments.leaves, strict=False))
    for name, (plate, column) in _columns(arguments).items():
        value = column[found.places[plate or found.plate]]
        if name in owners:
            value = position_among(found.places[found.plate], value)
        elif name in arguments.labels:
            value = labelled(value, arguments.labels[name], name)
        rows[name] = value
    return rows


def _groups(
    question: Question, federation: Federation, client: int, places: Mapping[str, Tensor], size: int
) -> list[Any]:
    """The group of each of a client's rows, as many as `size`, by the rows' own values: labels or whole numbers."""
    problem = federation.problem
    if question.by in (None, CLIENT):
        return [federation.client_names[client] if question.by else ""] * size
    plate, values = _columns(problem.arguments)[str(question.by)]
    codes = values[places[plate or problem.plate]]
    if codes.dim() != 1 or (codes.is_floating_point() and bool((codes != codes.round()).any())):
        raise SettingError(f"estimand: by={question.by!r} must be labels or whole numbers, one a row")
    if len(codes) != size:
        raise DataError(
            f"estimand: {question.by!r} has {len(codes)} rows at a client, and there are {size} numbers to average: "
            "groups must be those of the same plate's rows"
        )
    labels = problem.arguments.labels.get(str(question.by))
    return [labels[int(code)] if labels is not None else int(code) for code in codes]


def _warn_of_small_groups(question: Question, found: list[ClientSums]) -> None:
    many = sum(bool(one.small) for one in found)
    if many:
        warn_user(
            f"estimand: {many} of {len(found)} clients have groups of fewer than {question.fewest} rows, which are "
            "left out: the average is over the others' rows"
        )


def _combined(
    question: Question, found: list[ClientSums], posterior: xr.Dataset, levels: Mapping[str, list[Any]]
) -> InferenceData:
    """Averages over all clients' rows as InferenceData."""
    keys = list(dict.fromkeys(key for one in found for key in one.counts))
    keys = sorted(keys, key=lambda key: (isinstance(key, str), key))
    if not keys:
        raise DataError(f"estimand: no client has a group of at least {question.fewest} rows")
    counts = np.array([sum(one.counts.get(key, 0) for one in found) for key in keys])
    totals = torch.stack([torch.stack([one.sums[key] for one in found if key in one.sums]).sum(0) for key in keys], -1)
    average = totals.numpy() / counts
    group, shape = question.by or "all", (posterior.sizes["chain"], posterior.sizes["draw"])
    values = average.reshape(*shape, *(len(each) for each in levels.values()), len(keys))
    data = xr.Dataset(
        {ESTIMAND: (["chain", "draw", *levels, group], values), "rows": ([group], counts)},
        coords={**levels, group: keys},
    )
    if question.by is None:
        data = data.isel({group: 0}, drop=True)
    return make_inference_data({"posterior": data}, {"do": repr([dict(one) for one in question.settings])})
