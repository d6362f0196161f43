"""PSIS-LOO and WAIC by one round of messages: each client gets the draws, and answers with sums over its rows.

For row i and draws z_1 … z_S of the posterior

    loo_i  = log Σ_s w_is p(y_i | z_s) / Σ_s w_is,   w_is ∝ 1 / p(y_i | z_s), Pareto smoothed      (PSIS-LOO)
    lppd_i = log 1/S Σ_s p(y_i | z_s)
    waic_i = lppd_i - Var_s log p(y_i | z_s)

A client sends Σ loo_i, Σ loo_i², Σ waic_i, Σ waic_i², Σ lppd_i, Σ of the variances, the number of its rows, and how
many rows have a good, bad or very bad Pareto k. With `pointwise` it sends each row's numbers too, otherwise none. A row
whose log density is zero everywhere is not counted: a mask says that nothing was observed there.

`Pointwise` is an `Algorithm` of one round, so that it runs on every executor.

Sources: Vehtari, Gelman & Gabry (2017), Practical Bayesian model evaluation using leave-one-out cross-validation and
WAIC; Vehtari et al. (2024), Pareto smoothed importance sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Noise
from pyro_fed.algorithm.states import State
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.density.observations import observed_rows
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.errors import DataError
from pyro_fed.ops.arviz_versions import leave_out_weights

#: A Pareto k above this is very bad: the weights have no mean.
VERY_BAD = 1.0
#: A row whose log density varies more than this over the draws makes WAIC unreliable (Vehtari et al. 2017).
LARGEST_VARIANCE = 0.4
#: The numbers that a client sends. `varied` counts the rows whose variance is above `LARGEST_VARIANCE`.
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
    """One round in which every client computes PSIS-LOO and WAIC of its own rows, from draws that it receives.

    Args:
        site: the observed site, or the joined names of several that share latents; "" for the only one.
        pointwise: send each row's `loo`, `waic` and Pareto k besides the sums, and whether it is observed.
    """

    answer_kind: ClassVar[str] = "loo"
    site: str = ""
    pointwise: bool = False

    def download(self, shared: State, clients: Tensor) -> State:
        """The draws, their efficiency and the limit of Pareto's k."""
        return super().download({name: shared[name] for name in SENT}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
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
                f"{log_lik.shape[1]} rows of a client, at some of the draws; the weights of a left-out row need finite "
                "values: check the rows against the model, and that the result is of a run on this model"
            )
        smoothed, k = leave_out_weights(log_lik, float(shared["efficiency"][client]))
        loo = _log_sum(smoothed + log_lik)
        lppd = _log_sum(log_lik) - np.log(len(log_lik))
        variance = log_lik.var(0)
        waic, limit = lppd - variance, float(shared["good_k"][client])
        good, very_bad = int((k <= limit).sum()), int((~(k <= VERY_BAD)).sum())
        sums = {
            "loo": loo.sum(),
            "loo_squares": np.square(loo).sum(),
            "waic": waic.sum(),
            "waic_squares": np.square(waic).sum(),
            "lppd": lppd.sum(),
            "variance": variance.sum(),
            "varied": (variance > LARGEST_VARIANCE).sum(),
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
    """Log-likelihoods (S, n) at draws (S, D) of the rows of a site's plate; `rows` are those of the split plate.

    Raises:
        DataError: the model has no such site, or has several and `site` is "".
    """
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
    """The observed site that a user means by name; "" means the only site.

    Raises:
        DataError: there is no such site, or there are several and `site` is "".
    """
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
