"""One table of several results: their distance from a reference, predictions, costs, and doubts about them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from pyro_fed.analysis.judging import distances, metrics, moments
from pyro_fed.analysis.judging.calibration import calibration_errors
from pyro_fed.analysis.judging.density import (
    against_density,
    laplace_sds,
    on_unconstrained_scale,
    thin_posterior,
    transformed_columns,
)
from pyro_fed.analysis.judging.draws import Draws
from pyro_fed.analysis.judging.metrics import loo
from pyro_fed.analysis.judging.moments import reference_doubts
from pyro_fed.analysis.numbers import digits, number_text, percent, readable_bytes, readable_seconds
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding, texts
from pyro_fed.conventions.calls import checked_but
from pyro_fed.errors import DataError, SettingError, StoppedError, listed
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.importance import LARGEST_PARETO_K
from pyro_fed.results.data_groups import unlike_federation, unlike_result
from pyro_fed.results.inference_data import InferenceData, flag, recorded_findings
from pyro_fed.results.to_arviz import unconstrained_draws


class Column(NamedTuple):
    """A displayed column: its heading, and a function that turns its numbers into text."""

    heading: str
    write: Callable[[float], str]


class Table(NamedTuple):
    """A part of the comparison that is shown as one table; `columns` by their names in the table of `compare`."""

    title: str
    note: str
    columns: Mapping[str, Column]

    def written(self, found: pd.DataFrame) -> dict[str, list[str]]:
        """The cells of this part as text by heading, for the table `found` of `pyro_fed.compare`, in its order."""
        shown = {name: column for name, column in self.columns.items() if name in found}
        return {
            column.heading: [number_text(value, column.write) for value in found[name]]
            for name, column in shown.items()
        }


#: The spread is not compared with the Laplace approximation in more dimensions: the Hessian would cost too much.
MAX_LAPLACE_DIM = 300

#: Figures by column name, and findings, for a group of columns of one result.
Found = tuple[dict[str, Any], list[Finding]]

#: Notes above the tables, on how to read them.
CLOSENESS = """
Mean error: the largest error of a posterior mean, in SDs of the reference; a good result is below 0.25.
SD ratio: the smallest and largest posterior SD over the reference's; 1 is right, below 0.8 the result is too sure of
itself, above 1.25 not sure enough. Sliced Wasserstein distance and MMD² are zero for equal distributions.
"""
OWN_DENSITY = """
KSD measures the distance to the model's own density, without a reference; it speaks against a result above its limit,
which is what chance and small errors explain. It may be slightly negative. Prior count: how often the result has
counted the prior (± one standard error); 1 is right, and a large ± means that the draws do not tell.
"""
PREDICTIONS = """
ELPD: expected log density of a new row for each training row, summed, by PSIS-LOO, with its standard error;
with many rows of a large Pareto k it is not reliable. The rest is measured on the test data. ECE and MCE
are the average and the largest gap between confidence and accuracy. Of rows with several labels, precision and recall
are over all labels, micro F1 is that of their sums, macro F1 the labels' mean.
"""
COSTS = """
Bytes of all clients together. The reference works on the pooled data and sends nothing. Seconds are those
of the simulation in one process.
"""

#: All columns but the warnings, in the order in which they are shown. To add a column, add it here, measure it in a
#: function of this file, and describe it in the docstring of `compare`.
TABLES = (
    Table(
        "How close to the reference",
        CLOSENESS,
        {
            "mean_error": Column("mean error", digits(2)),
            "sd_ratio_min": Column("SD ratio, least", digits(2)),
            "sd_ratio_max": Column("SD ratio, largest", digits(2)),
            "sliced_wasserstein": Column("sliced Wasserstein", digits(2)),
            "mmd2": Column("MMD²", digits(3)),
        },
    ),
    Table(
        "How close to the model's density",
        OWN_DENSITY,
        {
            "ksd": Column("KSD", digits(3)),
            "ksd_limit": Column("its limit", digits(3)),
            "prior_count": Column("prior count", digits(2)),
            "prior_count_se": Column("±", digits(2)),
        },
    ),
    Table(
        "How good at predicting",
        PREDICTIONS,
        {
            "elpd_loo": Column("ELPD (LOO)", digits(1)),
            "elpd_loo_se": Column("± SE", digits(1)),
            "bad_pareto_k": Column(f"rows with Pareto k > {LARGEST_PARETO_K}", digits(0)),
            "test_log_density": Column("test log density a row", digits(3)),
            "accuracy": Column("accuracy", percent),
            "rmse": Column("RMSE", digits(3)),
            "ece": Column("ECE", digits(3)),
            "mce": Column("MCE", digits(2)),
            "precision": Column("precision", percent),
            "recall": Column("recall", percent),
            "micro_f1": Column("micro F1", digits(3)),
            "macro_f1": Column("macro F1", digits(3)),
        },
    ),
    Table(
        "What it cost",
        COSTS,
        {
            "rounds": Column("rounds", digits(0)),
            "bytes_up": Column("sent by clients", readable_bytes),
            "bytes_down": Column("received by them", readable_bytes),
            "seconds": Column("time", readable_seconds),
        },
    ),
)

#: All columns of the comparison.
COLUMNS = (*(name for part in TABLES for name in part.columns), "warnings")


@checked_but("results", "federation")
def compare(
    results: Mapping[str, InferenceData],
    reference: str | None = None,
    *,
    federation: Federation | None = None,
    test: Any = None,
) -> pd.DataFrame:
    """Compare results of the same model and data.

    A result that cannot be measured, for instance because its run has diverged, has a row whose warning says so.

    Args:
        results: InferenceData by name: results of `pyro_fed.run`, results read back from a file, the `.result` of an
            error that stopped a run, or results of other libraries with the same variables.
        reference: the name of the result that the others are compared with, such as a long run of NUTS.
        federation: the federation of the runs. It adds KSD, the prior's count and the check of spreads. For results
            that their own run has not audited (`pf.run(..., audit=True)`) it also adds the audit of their draws.
        test: arguments of the model for test data, observations included. They add the predictive columns, and need
            the federation.

    Returns:
        A table with a row for each result and the columns

        - `mean_error`: largest error of a posterior mean, in SDs of the reference; `sd_ratio_min`, `sd_ratio_max`:
          smallest and largest ratio of an SD to the reference's; `sliced_wasserstein`, `mmd2`: distances to the
          reference, see `pyro_fed.analysis.judging.distances`;
        - `ksd`: distance to the model's density, which speaks against the result if it is above `ksd_limit`, see
          `pyro_fed.analysis.judging.ksd`; `prior_count`, `prior_count_se`: how often the prior was counted, with its
          standard error, see `pyro_fed.analysis.judging.doubts`;
        - `elpd_loo`, `elpd_loo_se`: PSIS-LOO on the training rows; `bad_pareto_k`: the number of rows that make it
          unreliable;
        - `test_log_density`, a mean over test rows; `accuracy`, `ece` and `mce` for classes, otherwise `rmse`; for
          rows with several labels `precision`, `recall`, `micro_f1` and `macro_f1`;
        - `rounds`, `bytes_up`, `bytes_down`, `seconds`; bytes are NaN if the run worked on pooled data;
        - `warnings`: what was found, separated by "; ". `findings` gives it as a list, with codes and figures.

        Figures that cannot be measured are NaN; distances to a reference that is doubtful itself, since its chains
        disagree, diverged or are short, are left out. A mean that is 0.25 reference SDs off, or an SD ratio outside
        0.8 to 1.25, gives a warning if the Monte Carlo errors of result and reference do not explain it, see
        `pyro_fed.analysis.judging.moments`.

    Raises:
        SettingError: `results` is not a mapping of results by name, or is empty; the reference is unknown; there are
            test data but no federation.
        DataError: the results have different parameters, or lack a site of the federation's model; the test data
            cannot be used.

    Example:
        >>> reference = pf.run(pf.NUTS(), fed)
        >>> table = pf.compare({"NUTS": reference, "FedEP": pf.run(pf.FedEP(), fed)}, "NUTS", federation=fed)
        >>> table[["mean_error", "sd_ratio_min", "bytes_up", "warnings"]]
    """
    names = check_inputs(results, reference, federation, test)
    read = {name: _result_draws(idata, names, federation) for name, idata in results.items()}
    doubted = [] if reference is None else reference_doubts(results[reference], read[reference].draws)
    sds = _laplace(federation)
    rows, findings = {}, {}
    for name, idata in results.items():
        row, found, draws = _cost(idata), _recorded_findings(idata), read[name].draws
        row |= dict.fromkeys(TABLES[0].columns, math.nan) if doubted else {}
        found += _of_other_data(idata, None if reference in (None, name) else results[str(reference)], federation)
        if name == reference:
            found += doubted
        found += [sentences.draws_unusable(why=draws.fault)] if draws.fault else []
        found += [sentences.no_uncertainty(what=draws.spreadless)] if draws.spreadless else []
        truth = read[reference] if reference is not None and name != reference and not doubted else None
        for values, more in _measurements(idata, read[name], truth, federation, test, sds):
            row |= values
            found += more
        findings[name] = [one for number, one in enumerate(found) if one not in found[:number]]
        rows[name] = row | {"warnings": "; ".join(texts(findings[name]))}
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("result")
    table = table[[name for name in COLUMNS if name in table]]
    table.attrs["findings"] = {name: [one.to_plain() for one in every] for name, every in findings.items()}
    return table


def findings_of(table: pd.DataFrame) -> dict[str, list[Finding]]:
    """What was found about each result, by its name, from the table of `compare` or some of its rows."""
    try:
        return {str(name): [Finding.from_plain(one) for one in table.attrs["findings"][name]] for name in table.index}
    except KeyError:
        raise SettingError(
            "findings takes the table that pf.compare returns, or rows of it, received a table with rows "
            f"{[str(name) for name in table.index]} without their findings: pass the table as pf.compare returned it"
        ) from None


@dataclass(frozen=True)
class _ResultDraws:
    """A result's draws; `inside`: those of bounded sites on the unconstrained scale, None if there are none to use."""

    draws: Draws
    inside: Draws | None


def _result_draws(idata: InferenceData, names: list[str], federation: Federation | None) -> _ResultDraws:
    draws = Draws.of(idata, names)
    if federation is None or draws.fault:
        return _ResultDraws(draws, None)
    inside = transformed_columns(on_unconstrained_scale(idata, federation.problem, draws.kind), draws)
    return _ResultDraws(draws, None if inside is None or inside.fault else inside)


def _measurements(
    idata: InferenceData,
    read: _ResultDraws,
    truth: _ResultDraws | None,
    federation: Federation | None,
    test: Any,
    sds: Tensor | None,
) -> list[Found]:
    """Figures and findings for each group of columns that can be measured on these draws."""
    if read.draws.fault:
        return []
    found = [loo(idata)]
    if truth is not None:
        found.append(_closeness(read, truth))
    if federation is not None and not read.draws.spreadless:
        found.append(against_density(idata, federation, sds))
    if federation is not None and test is not None:
        found.append(_predictive(idata, federation, test))
    return found


def _recorded_findings(idata: InferenceData) -> list[Finding]:
    """The run's findings about its result, and the reason if it stopped before its end."""
    stopped = "stopped" in idata.attrs
    own = [sentences.stopped_before_its_end(why=str(idata.attrs["stopped"]))] if stopped else []
    return own + recorded_findings(idata)


def _of_other_data(idata: InferenceData, truth: InferenceData | None, federation: Federation | None) -> list[Finding]:
    """A finding if a result is of other rows than the reference, or than the federation."""
    than_truth = unlike_result(idata, truth) if truth is not None else ""
    than_federation = unlike_federation(idata, federation) if federation is not None else ""
    differences = {"the reference": than_truth, "the federation": than_federation}
    return [sentences.other_data(than=what, how=unlike) for what, unlike in differences.items() if unlike]


def _cost(idata: InferenceData) -> dict[str, Any]:
    if "federation" not in idata or not {"bytes_up", "bytes_down", "seconds"} <= set(idata["federation"]):
        return {}
    record = idata["federation"]
    pooled = flag(idata.attrs, "centralized")
    up, down = (math.nan if pooled else float(np.nansum(record[name])) for name in ("bytes_up", "bytes_down"))
    seconds = float(np.nansum(record["seconds"]))
    return {"rounds": record.sizes["round"], "bytes_up": up, "bytes_down": down, "seconds": seconds}


def _closeness(mine: _ResultDraws, truth: _ResultDraws) -> Found:
    """Distances from the reference, and findings on moments: on the model's scale, else on the unconstrained one."""
    values = distances.against_reference(mine.draws.flat, truth.draws.flat)
    spread = not mine.draws.spreadless
    findings = moments.gap_warnings(moments.gaps(mine.draws, truth.draws), spread=spread)
    if not findings and mine.inside is not None and truth.inside is not None:
        found = moments.gaps(mine.inside, truth.inside)
        findings = moments.gap_warnings(found, spread=spread, where=" on the unconstrained scale")
    return values, findings


def _laplace(federation: Federation | None) -> Tensor | None:
    if federation is None or federation.problem.dim > MAX_LAPLACE_DIM:
        return None
    return laplace_sds(federation)


def _predictive(idata: InferenceData, federation: Federation, test: Any) -> Found:
    problem = federation.problem
    draws = unconstrained_draws(thin_posterior(idata, distances.MAX_COMPARED_DRAWS), problem)
    predictions = metrics.predict_rows(problem, draws, test)
    if predictions.nan_findings:
        return {}, predictions.nan_findings
    row = predictions.measures()
    row["test_log_density"] = row.pop("log_predictive_density")
    if predictions.probs is not None:
        row |= calibration_errors(predictions.probs, predictions.value)
    return row, []


def check_inputs(
    results: Mapping[str, InferenceData], reference: str | None, federation: Federation | None, test: Any
) -> list[str]:
    """The sorted names of the posterior's variables, after all checks of the arguments of `compare`."""
    if isinstance(results, InferenceData) or not isinstance(results, Mapping):
        raise SettingError(f"compare takes results by name, such as {{'FedEP': idata}}, received {_kind(results)}")
    if not results:
        raise SettingError("compare needs at least one result, received none")
    odd = [name for name in results if not isinstance(name, str)]
    if odd:
        raise SettingError(f"compare takes results under names that are strings, received {odd[0]!r} ({_kind(odd[0])})")
    if reference is not None and reference not in results:
        raise SettingError(f"reference {reference!r} is not among the results {list(results)}: name one of them")
    if federation is not None and not isinstance(federation, Federation):
        raise SettingError(f"compare: expected federation to be a pf.Federation, received {_kind(federation)}")
    if federation is not None and not federation.holds_data:
        raise SettingError(
            "compare computes densities on all rows, but this federation does not hold them: leave federation out, "
            "or pass one that was made with data"
        )
    if test is not None and federation is None:
        raise SettingError("test data need the federation, which holds the model: compare(..., federation=fed)")
    shapes = {name: _shapes(name, idata) for name, idata in results.items()}
    names = _common(shapes)
    if federation is not None:
        _check_model(shapes, federation)
    return names


def _shapes(name: str, idata: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a result's variables, without chains and draws."""
    if isinstance(idata, StoppedError):
        none = "" if idata.result is not None else ". Here it is None, since the run had no state yet: leave it out"
        raise SettingError(
            f"result {name!r} is a {_kind(idata)}: pass its `.result`, which holds the last good state{none}"
        )
    if not isinstance(idata, InferenceData):
        raise SettingError(f"result {name!r} is no InferenceData, as pf.run returns it, but {_kind(idata)}")
    if "posterior" not in idata:
        raise DataError(
            f"result {name!r} has no group 'posterior', so there is nothing to compare: pass a result of pf.run, "
            "or of another library with its draws"
        )
    posterior = idata["posterior"]
    if not len(posterior.data_vars):
        raise DataError(
            f"the posterior of result {name!r} has no variables, so there is nothing to compare: leave it out"
        )
    shapes = {}
    for variable, values in posterior.data_vars.items():
        if not {"chain", "draw"} <= set(values.dims):
            raise DataError(
                f"result {name!r}: '{variable}' has the dimensions {tuple(values.dims)}, expected 'chain' and 'draw' "
                "among them"
            )
        if not (np.issubdtype(values.dtype, np.number) or values.dtype == bool) or values.dtype.kind == "c":
            raise DataError(f"result {name!r}: '{variable}' holds {values.dtype}, expected real numbers")
        shapes[str(variable)] = tuple(n for dim, n in values.sizes.items() if dim not in ("chain", "draw"))
    return shapes


def _common(shapes: Mapping[str, Mapping[str, tuple[int, ...]]]) -> list[str]:
    common = set.intersection(*(set(each) for each in shapes.values()))
    odd = {name: sorted(set(each) - common) for name, each in shapes.items() if set(each) != common}
    if odd:
        raise DataError(
            f"the results have different parameters: {odd} are not in all of them. Compare results of one model, or "
            "leave those out: idata['posterior'] = idata['posterior'].drop_vars([...]), on ArviZ 1.x "
            "idata['posterior'].to_dataset().drop_vars([...])"
        )
    for variable in sorted(common):
        found = {name: each[variable] for name, each in shapes.items()}
        if len(set(found.values())) > 1:
            raise DataError(f"the results have different shapes of '{variable}': {found}; compare results of one model")
    return sorted(common)


def _check_model(shapes: Mapping[str, Mapping[str, tuple[int, ...]]], federation: Federation) -> None:
    """Check the first result against the federation's model; all results have the same variables."""
    name, each = next(iter(shapes.items()))
    sites = federation.problem.sites
    missing = [site for site in sites if site not in each]
    if missing:
        raise DataError(
            f"result {name!r} has no values for {listed(missing)}, latent sites of the federation's model; it has "
            f"{listed(each)}. Was it run on another model?"
        )
    for site, layout in sites.items():
        if each[site] != tuple(layout.shape):
            raise DataError(
                f"result {name!r} has '{site}' of shape {each[site]}, the federation's model {tuple(layout.shape)}: "
                "was it run on other data or another model?"
            )


def _kind(value: Any) -> str:
    return type(value).__name__
