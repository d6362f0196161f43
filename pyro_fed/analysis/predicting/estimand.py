"""Posteriors of averages over the rows, which stay where they are: standardisation, contrasts, subgroups.

For each posterior draw z_s, each setting d of the rows' columns, and each group g of rows, the estimand is

    θ_s(d, g) = Σ_k S_k / Σ_k n_k(g),    S_k = Σ_{i at client k, in g} f(z_s, x_i(d)),    n_k(g) = rows of g at client k

where x_i(d) are row i's own values with those of d in place of some. With f = E[y | x, z], the default, and a treatment
in d, this is standardisation (the g-formula; Robins 1986, *A new approach to causal inference in mortality studies with
a sustained exposure period*), and differences of θ between settings are marginal effects. Of client k the sums S_k
(S, d, g) and counts n_k (g,) are used alone: `row_sums` computes them where the rows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from pyro_fed.algorithm.states import State, prefixed
from pyro_fed.analysis.predicting.drawing import flat
from pyro_fed.analysis.predicting.one_round import answers
from pyro_fed.analysis.predicting.own_rows import with_own_latents
from pyro_fed.analysis.predicting.row_sums import (
    CLIENT,
    DRAWS,
    ESTIMAND,
    OBSERVED,
    OF,
    PREDICTED,
    REPLICATED,
    WITHHELD,
    By,
    ClientSums,
    OfRows,
    Question,
    RowSums,
    client_sums,
    levels_of,
    replication_seed,
    row_values,
)
from pyro_fed.conventions import seeding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.errors import DataError, listed, warn_user
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.ops.entries import evenly
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import make_inference_data
from pyro_fed.runtime.executors.base import MAX_ASKED_DRAWS

if TYPE_CHECKING:
    from pyro_fed.runtime.executors import Executor


@checked
@explained(DataError, "estimand: it cannot be computed on these rows")
def estimand(
    idata: InferenceData,
    federation: Federation,
    f: OfRows | None = None,
    *,
    do: Mapping[str, Any] | None = None,
    by: By | None = None,
    site: str | None = None,
    fewest: int = 1,
    replicated: bool = False,
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
            `{"sex": ["female", "male"]}` asks for these groups alone. `{"predicted": [0.1, 0.2, 0.5, 1.0]}` is for
            calibration, of observations that are 0 or 1: the groups are bins (a, b] of the rows' posterior means of f,
            by their ends, up to 1, of each client. Rows that the model masks are left out, as if `replicated`.
        site: the observed site, if there are several; an f of your own needs it by "predicted" or `replicated` alone.
        fewest: a client withholds a group of fewer rows, and those from which its number of rows would follow. A
            warning names them.
        replicated: whether the result is of a posterior predictive check: `draw` then has observations under the
            observed site's name, in one setting replicated by the model at that draw and in the other as they were
            observed, and f is a statistic of them whose averages are compared. By default f is the observation.
        seed: seed of the draws of groups' own latents, if the result has none, and of replications.

    Returns:
        InferenceData with the group `posterior`: `estimand` (chain, draw, then a dimension of each list in `do`, and of
        `by`), and `rows` (by), the number of rows that it averages. Differences and ratios of its entries are
        posteriors of contrasts, draw by draw. If `replicated`, there is a dimension `of`, "replicated" and "observed".
        By "predicted" there is a dimension `client` too, and `observed`, the share of ones:
        `pf.metrics.calibration_table` and `pf.plots.plot_calibration` show it.

    Raises:
        DataError: f returns other than one finite number a row; the observed site has no mean; rows are not here; a
            replicated f is 0 or 1 and takes latents of the draw, with `fewest` above 1.
        SettingError: an argument, site or label that the model does not have.

    References:
        Robins (1986), *A new approach to causal inference in mortality studies with a sustained exposure period*.

    Example:
        >>> pf.estimand(idata, fed, by="client").posterior["estimand"]      # expected outcomes of each client's rows
        >>> pf.estimand(idata, fed, do={"treated": [0, 1]}, by="sex")       # risks with and without a treatment, by sex
    """
    if not federation.holds_data:
        raise DataError(
            "estimand: the rows are at the clients: name it in ESTIMANDS of the model's file, and ask for it by that "
            "name (pyro-fed study ask; the key estimands over Flower)"
        )
    problem, numbers = federation.problem, list(range(federation.num_clients))
    question = Question.of(problem, f, do, by, site, fewest, replicated)
    posterior, hidden = group_of(idata, "posterior"), frozenset(idata.attrs.get("local_sites", "").split())
    if hidden - set(posterior.data_vars):
        posterior = with_own_latents(posterior, federation, seed)
    seeds = [int(replication_seed(one)) for one in seeding.torch_generators(seed, seeding.client_keys(0, numbers))]
    found = {
        name: client_sums(question, row_values(question, posterior, hidden, problem, rows, name, own))
        for name, rows, own in zip(federation.client_names, federation.client_rows, seeds, strict=True)
        if len(rows)
    }
    return combined(question, found, posterior, levels_of(do or {}))


def estimand_by_rounds(
    idata: InferenceData, federation: Federation, asked: RowSums, do: Mapping[str, Any], executor: str | Executor
) -> InferenceData:
    """`estimand` by a round of messages, from clients that know it by name."""
    posterior, problem = group_of(idata, "posterior"), federation.problem
    known = {**problem.sites, **problem.layout.reported}
    shared = posterior[
        [name for name in posterior.data_vars if name in known and problem.plate not in known[name].dims]
    ]
    most = MAX_ASKED_DRAWS // shared.sizes["chain"]
    shared = shared.isel(draw=evenly(shared.sizes["draw"], most).numpy()).transpose("chain", "draw", ...)
    sent = {str(name): flat(np.asarray(value.values), problem.dtype) for name, value in shared.data_vars.items()}
    answered = answers(asked, prefixed(DRAWS, sent), federation, executor, 0, "rows")
    found = {
        name: _sums_in(
            asked.question, name, {part: answered[part][k] for part in ("sums", "rows", "ones") & answered.keys()}
        )
        for k, name in enumerate(federation.client_names)
    }
    return combined(asked.question, found, shared, levels_of(do))


def _sums_in(question: Question, name: str, answer: State) -> ClientSums:
    """A client's answer: sums (S, settings, groups), and numbers of rows (groups,) and of those that are one."""
    sums, rows, labels = answer["sums"], answer["rows"].tolist(), list(question.groups or ("",))
    if question.by == CLIENT:
        labels = [name]
    leaving = [i for i, count in enumerate(rows) if count > 0]
    return ClientSums(
        {labels[i]: sums[:, :, i] for i in leaving},
        {labels[i]: rows[i] for i in leaving},
        [labels[i] for i, count in enumerate(rows) if count == WITHHELD],
        {labels[i]: int(answer["ones"][i]) for i in leaving if "ones" in answer},
    )


def combined(
    question: Question, found: Mapping[str, ClientSums], posterior: xr.Dataset, levels: Mapping[str, list[Any]]
) -> InferenceData:
    """Averages over all clients' rows; `levels` are the values of each column that was set."""
    whole = question.by in (None, CLIENT)
    withheld = [
        name if whole else f"{name} {question.by}={group}" for name, one in found.items() for group in one.withheld
    ]
    if withheld:
        warn_user(
            "estimand: groups of too few rows, and groups from which their numbers of rows would follow, are withheld, "
            f"so that the average is over the other rows: {listed(withheld)}"
        )
    attrs = {"do": repr([dict(one) for one in question.settings]), "withheld": "; ".join(withheld)}
    keys = list(dict.fromkeys(key for one in found.values() for key in one.counts))
    if question.groups is None:
        keys = sorted(keys, key=lambda key: (isinstance(key, str), key))
    else:
        keys = [key for key in question.groups if key in keys]
    if not keys:
        raise DataError("estimand: no client has a group that is large enough to leave the client")
    if question.by == PREDICTED:
        data = _by_client(found, posterior, list(question.groups or ()))
        return make_inference_data({"posterior": data.assign_attrs(attrs)}, attrs)
    if question.replicated:
        levels = {OF: list(REPLICATED)}
    levels = {name: values for name, values in levels.items() if len(values) > 1}
    counts = np.array([sum(one.counts.get(key, 0) for one in found.values()) for key in keys])
    totals = [torch.stack([one.sums[key] for one in found.values() if key in one.sums]).sum(0) for key in keys]
    average = torch.stack(totals, -1).numpy() / counts
    group, shape = question.by or "all", (posterior.sizes["chain"], posterior.sizes["draw"])
    values = average.reshape(*shape, *(len(each) for each in levels.values()), len(keys))
    data = xr.Dataset(
        {ESTIMAND: (["chain", "draw", *levels, group], values), "rows": ([group], counts)},
        coords={**levels, group: keys},
    )
    if question.by is None:
        data = data.isel({group: 0}, drop=True)
    return make_inference_data({"posterior": data.assign_attrs(attrs)}, attrs)


def _by_client(found: Mapping[str, ClientSums], posterior: xr.Dataset, ends: list[Any]) -> xr.Dataset:
    """Means of f, shares of ones and numbers of rows of each client and bin; NaN and 0 where a client has none."""
    shape = (posterior.sizes["chain"], posterior.sizes["draw"])
    predicted, observed = np.full((*shape, len(found), len(ends)), np.nan), np.full((len(found), len(ends)), np.nan)
    rows = np.zeros((len(found), len(ends)), dtype=np.int64)
    for k, one in enumerate(found.values()):
        for end, count in one.counts.items():
            at = ends.index(end)
            rows[k, at], observed[k, at] = count, one.ones[end] / count
            predicted[:, :, k, at] = one.sums[end].numpy().reshape(shape) / count
    dims = (CLIENT, PREDICTED)
    return xr.Dataset(
        {ESTIMAND: (["chain", "draw", *dims], predicted), OBSERVED: (dims, observed), "rows": (dims, rows)},
        coords={CLIENT: list(found), PREDICTED: ends},
    )
