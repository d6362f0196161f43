"""PSIS-LOO and WAIC of a federated result, computed where the rows are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.analysis.criticism.influence import checked_draws, require_result
from pyro_fed.analysis.criticism.pointwise import Pointwise, observed_plates
from pyro_fed.analysis.predicting.one_round import answers
from pyro_fed.conventions.calls import checked_but
from pyro_fed.errors import SettingError
from pyro_fed.ops.arviz_versions import elpd_data, elpd_se, ess, group_of
from pyro_fed.ops.importance import LARGEST_PARETO_K

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData
    from pyro_fed.runtime.executors import Executor

#: With fewer draws PSIS has no tail of large weights to fit: it takes the largest fifth, and at least five of them.
FEWEST_DRAWS = 25


@checked_but("idata", "federation", "executor")
def loo(
    idata: InferenceData,
    federation: Federation,
    *,
    var_name: str | None = None,
    pointwise: bool = False,
    executor: str | Executor = "vectorised",
) -> Any:
    """Leave-one-out cross-validation by Pareto smoothed importance sampling, computed by the clients.

    The clients receive the draws and answer with sums and counts. The answer equals `arviz.loo` on all rows.

    Args:
        idata: result of `pyro_fed.run` on the federation. If it has draws of the latents inside the plate, a row is
            left out given these latents, as `arviz.loo` does; otherwise they are integrated out.
        federation: the model and its clients.
        var_name: the observed site; needed only if the model has several.
        pointwise: let the clients send each row's own numbers too, which `arviz.compare` needs.
        executor: where the clients' work is done, as for `pyro_fed.run`.

    Returns:
        arviz.ELPDData, with `elpd_loo`, `se`, `p_loo`, `warning` and `good_k`. `k_counts` are the numbers of rows whose
        Pareto k is good, bad (above `good_k`) and very bad (above 1). `by_client` is a table of each client's `rows`,
        `elpd`, `p` and counts. With `pointwise` there are also `loo_i` and `pareto_k`, in the original row order. Rows
        that a mask leaves out are not counted. ArviZ 1.x calls these fields `elpd`, `p` and `elpd_i`.

    Raises:
        SettingError: fewer than 25 draws, or `pointwise` for rows that are elsewhere.
        DataError: the result lacks a site, the model has several observed sites and `var_name` names none of them, or
            a log-likelihood is not finite.
        QuorumError: a client did not answer.

    Source: Vehtari, Gelman & Gabry (2017).

    Example:
        >>> pf.loo(idata, fed)
        >>> az.compare({name: pf.loo(each, fed, pointwise=True) for name, each in results.items()})
    """
    require_result("loo", idata, federation)
    return _Answers.of(idata, federation, var_name, pointwise, executor).elpd("loo")


@checked_but("idata", "federation", "executor")
def waic(
    idata: InferenceData,
    federation: Federation,
    *,
    var_name: str | None = None,
    pointwise: bool = False,
    executor: str | Executor = "vectorised",
) -> Any:
    """The widely applicable information criterion, computed by the clients.

    Args:
        idata: as for `loo`.
        federation: the model and its clients.
        var_name: the observed site; needed only if the model has several.
        pointwise: let the clients send each row's own numbers too.
        executor: where the clients' work is done.

    Returns:
        arviz.ELPDData, as from `loo`, with `elpd_waic`, `p_waic` and, with `pointwise`, `waic_i`. `warning` is True if
        the variance over the draws of some row's log density exceeds 0.4. ArviZ 1.x calls these fields `elpd`, `p` and
        `elpd_i`.

    Raises:
        SettingError: as for `loo`.
        DataError: as for `loo`.
        QuorumError: as for `loo`.

    Example:
        >>> pf.metrics.waic(idata, fed).elpd_waic
    """
    require_result("waic", idata, federation)
    return _Answers.of(idata, federation, var_name, pointwise, executor).elpd("waic")


def loo_and_waic(
    idata: InferenceData,
    federation: Federation,
    *,
    var_name: str | None = None,
    executor: str | Executor = "vectorised",
) -> tuple[Any, Any]:
    """PSIS-LOO and WAIC by one round of messages, each as an `arviz.ELPDData`; arguments and errors as for `loo`.

    Raises:
        SettingError: as for `loo`.
        DataError: as for `loo`.
        QuorumError: as for `loo`.
    """
    answers = _Answers.of(idata, federation, var_name, False, executor)
    return answers.elpd("loo"), answers.elpd("waic")


class _Answers:
    """The sums over their rows that the clients sent."""

    def __init__(self, federation: Federation, plate: str, shared: dict[str, Tensor]) -> None:
        self.federation, self.plate = federation, plate
        self.draws = len(shared["draws"])
        self.good_k = float(shared["good_k"])
        self.numbers = {name: value.cpu().numpy() for name, value in shared.items() if name != "draws"}

    @classmethod
    def of(
        cls,
        idata: InferenceData,
        federation: Federation,
        var_name: str | None,
        pointwise: bool,
        executor: str | Executor,
    ) -> _Answers:
        """Ask the clients by one round of messages; errors as for `loo`."""
        if pointwise and not federation.holds_data:
            raise SettingError(
                "pointwise=True puts the rows' numbers into the original row order, which only a federation that "
                "holds the rows knows, and this one does not: leave pointwise out"
            )
        local = set(federation.problem.layout.local)
        if local and local <= set(idata["posterior"].data_vars):
            federation = federation.joint
        draws = checked_draws(idata, federation)
        if len(draws) < FEWEST_DRAWS:
            raise SettingError(
                f"leaving out a row takes at least {FEWEST_DRAWS} draws, received {len(draws)}: run with a larger "
                "num_draws"
            )
        algorithm = Pointwise(site=var_name or "", pointwise=pointwise)
        shared = {
            "draws": draws,
            "efficiency": torch.tensor(_efficiency(idata), dtype=torch.float64),
            "good_k": torch.tensor(min(1 - 1 / np.log10(len(draws)), LARGEST_PARETO_K), dtype=torch.float64),
        }
        found = answers(algorithm, shared, federation, executor, 0, "rows")
        plates = observed_plates(federation.problem)
        return cls(federation, plates.get(var_name or "", next(iter(plates.values()))), found)

    def elpd(self, kind: str) -> Any:
        """The criterion `kind`, "loo" or "waic", as an `arviz.ELPDData`."""
        total = {name: float(value.sum()) for name, value in self.numbers.items() if value.ndim == 1}
        rows, value = int(total["rows"]), total[kind]
        variance = max(total[f"{kind}_squares"] / rows - (value / rows) ** 2, 0.0)
        effective = total["lppd"] - value if kind == "loo" else total["variance"]
        warning = total["bad"] + total["very_bad"] > 0 if kind == "loo" else total["varied"] > 0
        found: dict[str, Any] = {
            f"elpd_{kind}": value,
            "se": elpd_se(variance, rows),
            f"p_{kind}": effective,
            "n_samples": self.draws,
            "n_data_points": rows,
            "warning": bool(warning),
        }
        if "by_row" in self.numbers:
            by_row = self._by_row()
            found[f"{kind}_i"] = by_row[0 if kind == "loo" else 1].rename(f"{kind}_i")
            if kind == "loo":
                found["pareto_k"] = by_row[2].rename("pareto_shape")
        found["scale"] = "log"
        if kind == "loo":
            found["good_k"] = self.good_k
            found["k_counts"] = {name: int(total[name]) for name in ("good", "bad", "very_bad")}
        found["by_client"] = self._by_client(kind)
        return elpd_data(found)

    def _by_client(self, kind: str) -> pd.DataFrame:
        numbers = self.numbers
        effective = numbers["lppd"] - numbers["loo"] if kind == "loo" else numbers["variance"]
        table = {"rows": numbers["rows"].astype(int), "elpd": numbers[kind], "p": effective}
        if kind == "loo":
            table |= {name: numbers[name].astype(int) for name in ("good", "bad", "very_bad")}
        return pd.DataFrame(table, index=pd.Index(self.federation.client_names, name="client"))

    def _by_row(self) -> list[xr.DataArray]:
        """loo, waic and Pareto k of each observed row, in the original order."""
        federation, arguments = self.federation, self.federation.problem.arguments
        nested = self.plate if self.plate != federation.problem.plate else None
        rows = [arguments.rows_of(nested, groups) for groups in federation.client_rows]
        count = sum(map(len, rows))
        values = np.empty((4, count))
        for k, (index, numbers) in enumerate(zip(rows, self.numbers["by_row"], strict=True)):
            at = index if nested is None else _nested_row_numbers(arguments, nested, federation.client_rows[k])
            values[:, at.numpy()] = numbers[:, : len(index)]
        seen = values[3] > 0
        labels = np.asarray(federation.coords.get(self.plate, np.arange(count)))[seen]
        return [xr.DataArray(one[seen], dims=[self.plate], coords={self.plate: labels}) for one in values[:3]]


def _nested_row_numbers(arguments: Any, plate: str, groups: Tensor) -> Tensor:
    """Numbers of a client's rows of a nested plate, in the client's own order: group after group."""
    return torch.cat([arguments.rows_of(plate, groups[i : i + 1]) for i in range(len(groups))])


def _efficiency(idata: InferenceData) -> float:
    """Relative efficiency as in `arviz.loo`: mean effective sample size over the number of draws; 1 for one chain."""
    posterior = group_of(idata, "posterior")
    chains, each = posterior.sizes["chain"], posterior.sizes["draw"]
    if chains == 1:
        return 1.0
    values = [value.transpose("chain", "draw", ...).values for value in posterior.data_vars.values()]
    flat = np.concatenate([value.reshape(chains, each, -1).astype(float) for value in values], 2)
    return float(ess(flat, method="mean").mean() / (chains * each))
