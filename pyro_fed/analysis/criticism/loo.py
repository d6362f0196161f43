"""PSIS-LOO and WAIC of a federated result, computed where the rows are, by one round of messages.

For row i and draws z_1 … z_S of the posterior

    loo_i  = log Σ_s w_is p(y_i | z_s) / Σ_s w_is,   w_is ∝ 1 / p(y_i | z_s), Pareto smoothed      (PSIS-LOO)
    lppd_i = log 1/S Σ_s p(y_i | z_s)
    waic_i = lppd_i - Var_s log p(y_i | z_s)

Each client gets the draws, and answers with sums over its rows (`SUMS`), and with each row's own numbers if these are
asked for. A row whose log density is zero everywhere is not counted: a mask says that nothing was observed there.

Sources: Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and
WAIC; Vehtari et al. (2024), Pareto smoothed importance sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
import torch
import xarray as xr
from torch import Tensor

from pyro_fed.algorithm.contract import LocalResult, Noise
from pyro_fed.algorithm.states import State
from pyro_fed.analysis.criticism.influence import checked_draws, require_result
from pyro_fed.analysis.judging.metrics import MIN_LOO_DRAWS
from pyro_fed.analysis.predicting.one_round import OneRound, answers
from pyro_fed.conventions.calls import checked_but
from pyro_fed.density.observations import observed_rows
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.errors import DataError, SettingError
from pyro_fed.ops.arviz_versions import elpd_data, elpd_se, ess, group_of, leave_out_weights
from pyro_fed.ops.importance import LARGEST_PARETO_K

if TYPE_CHECKING:
    from pyro_fed.federation.federation import Federation
    from pyro_fed.results.inference_data import InferenceData
    from pyro_fed.runtime.executors import Executor

#: A Pareto k above this is very bad: the weights have no mean.
VERY_BAD_PARETO_K = 1.0
#: A row whose log density varies more than this over the draws makes WAIC unreliable (Vehtari et al. 2017).
MAX_WAIC_VARIANCE = 0.4
#: The numbers that a client sends. `varied` counts the rows whose variance is above `MAX_WAIC_VARIANCE`.
SUMS = ("loo", "loo_squares", "waic", "waic_squares", "lppd", "variance", "varied", "rows", "good", "bad", "very_bad")
#: The entries of the server's state that clients download; the other entries are the clients' answers.
SENT = ("draws", "efficiency", "good_k")


class Terms(NamedTuple):
    """Log-likelihoods (S, n) of each row at each draw, the observed sites that they are of, and the rows' plate."""

    log_lik: Tensor
    names: tuple[str, ...]
    plate: str


@dataclass(frozen=True, kw_only=True)
class Pointwise(OneRound):
    """One round in which every client computes PSIS-LOO and WAIC of its own rows, from draws that it receives."""

    answer_kind: ClassVar[str] = "loo"
    site: str = ""
    pointwise: bool = False

    def download(self, shared: State, clients: Tensor) -> State:
        """The draws, their efficiency and the limit of Pareto's k."""
        return super().download({name: shared[name] for name in SENT}, clients)

    def local_step(self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise) -> LocalResult:
        """Each client's sums."""
        found = [self._of_client(problem, shared, data, client) for client in range(len(data.num_rows))]
        return {name: torch.stack([one[name] for one in found]) for name in found[0]}, local, {}

    def _of_client(self, problem: Problem, shared: State, data: ClientData, client: int) -> State:
        width = widest(problem, data, self.site)
        if not int(data.num_rows[client]):
            return self._message(dict.fromkeys(SUMS, 0.0), np.empty((3, 0)), np.empty(0, dtype=bool), width)
        at_draws = self._rows(problem, shared["draws"][client], data, client)
        seen = observed_rows(at_draws, lambda at: self._rows(problem, at, data, client), problem).cpu().numpy()
        log_lik = at_draws.double().cpu().numpy()
        if not seen.any():
            return self._message(dict.fromkeys(SUMS, 0.0), np.empty((3, 0)), seen, width)
        log_lik = log_lik[:, seen]
        if not np.isfinite(log_lik).all():
            raise DataError(
                f"the log-likelihood is not finite for {int((~np.isfinite(log_lik)).any(0).sum())} of "
                f"{log_lik.shape[1]} rows of a client, at some of the draws; the weights of a left-out row need "
                "finite values: check that the rows fit the model, and that the result is of a run on this model"
            )
        smoothed, k = leave_out_weights(log_lik, float(shared["efficiency"][client]))
        loo = _log_sum(smoothed + log_lik)
        lppd = _log_sum(log_lik) - np.log(len(log_lik))
        variance = log_lik.var(0)
        waic, limit = lppd - variance, float(shared["good_k"][client])
        good, very_bad = int((k <= limit).sum()), int((~(k <= VERY_BAD_PARETO_K)).sum())
        sums = {
            "loo": loo.sum(),
            "loo_squares": np.square(loo).sum(),
            "waic": waic.sum(),
            "waic_squares": np.square(waic).sum(),
            "lppd": lppd.sum(),
            "variance": variance.sum(),
            "varied": (variance > MAX_WAIC_VARIANCE).sum(),
            "rows": len(loo),
            "good": good,
            "bad": len(k) - good - very_bad,
            "very_bad": very_bad,
        }
        return self._message(sums, np.stack([loo, waic, k]), seen, width)

    def _rows(self, problem: Problem, draws: Tensor, data: ClientData, client: int) -> Tensor:
        index = data.row_index[client][: int(data.num_rows[client])]
        return row_terms(problem, draws.to(problem.dtype), tuple(leaf[index] for leaf in data.rows), self.site).log_lik

    def _message(self, sums: dict[str, Any], rows: np.ndarray, seen: np.ndarray, width: int) -> State:
        found = {name: torch.tensor(float(value), dtype=torch.float64) for name, value in sums.items()}
        if self.pointwise:
            largest = np.finfo(np.float64).max  # messages hold finite numbers, and some k are infinite
            padded = np.zeros((4, width))
            padded[:3, : len(seen)][:, seen] = np.clip(np.nan_to_num(rows, nan=np.inf), -largest, largest)
            padded[3, : len(seen)] = seen
            found["by_row"] = torch.from_numpy(padded)
        return found


def row_terms(problem: Problem, draws: Tensor, rows: tuple[Any, ...], site: str = "") -> Terms:
    """Log-likelihoods (S, n) at draws (S, D) of the rows of a site's plate; `rows` are those of the split plate."""
    count = len(rows[0])
    if problem.local_dim:
        name = "_".join(problem.layout.observed)
        chosen_site({name: problem.plate}, site)
        pieces = in_chunks(draws, count * problem.num_nodes)
        return Terms(torch.cat([problem.pointwise_log_lik(piece, rows) for piece in pieces]), (name,), problem.plate)
    plates = observed_plates(problem)
    name = chosen_site(plates, site)
    members = problem.arguments.members(rows[: len(problem.arguments.rows)])
    valid = members[plates[name]].valid if plates[name] in members else torch.ones(count, dtype=torch.bool)
    mapped = problem.vmap(lambda z: problem.plate_terms(z, rows)[name][1])
    pieces = in_chunks(draws, max(count, len(valid)))
    return Terms(torch.cat([mapped(piece) for piece in pieces])[:, valid], (name,), plates[name])


def observed_plates(problem: Problem) -> dict[str, str]:
    """The plate of each observed site. Sites that share latents of the plate have one entry, by joined name."""
    hidden = {"", *problem.layout.local}
    return {name: plate for name, plate in problem.term_plates().items() if name not in hidden}


def chosen_site(sites: Mapping[str, Any], site: str) -> str:
    """The observed site that a user means by name, or the only one for ""; DataError if there is none, or several."""
    if site and site not in sites:
        raise DataError(f"there is no observed site {site!r}; the model has {list(sites)}: pass one of them")
    if not site and len(sites) != 1:
        raise DataError(f"the model has {len(sites)} observed sites, {list(sites)}: name one by var_name")
    return site or next(iter(sites))


def widest(problem: Problem, data: ClientData, site: str) -> int:
    """The largest number of rows that any client has in the plate of the observed site."""
    nested = dict(zip(problem.arguments.nested_plates, getattr(problem.arguments, "capacities", ()), strict=True))
    if problem.local_dim or not nested:
        return int(data.row_index.shape[1])
    plates = observed_plates(problem)
    return int(nested.get(plates[chosen_site(plates, site)], data.row_index.shape[1]))


def _log_sum(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp.reduce(values, 0))


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
    """PSIS-LOO and WAIC by one round of messages, each as an `arviz.ELPDData`; arguments and errors as for `loo`."""
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
                "pointwise=True gives one number for each row in the original order, which only a federation that "
                "holds the rows knows; this one does not: leave pointwise out"
            )
        local = set(federation.problem.layout.local)
        if local and local <= set(idata["posterior"].data_vars):
            federation = federation.joint
        draws = checked_draws(idata, federation)
        if len(draws) < MIN_LOO_DRAWS:
            raise SettingError(
                f"leaving out a row takes at least {MIN_LOO_DRAWS} draws, received {len(draws)}: run with a larger "
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
