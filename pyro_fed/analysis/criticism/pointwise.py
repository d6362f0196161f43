"""Pointwise criticism as a round of messages: each client gets the draws, and answers with sums over its rows.

    loo_i  = log Σ_s w_is p(y_i | z_s) / Σ_s w_is,   w_is ∝ 1 / p(y_i | z_s), Pareto smoothed      (PSIS-LOO)
    waic_i = log 1/S Σ_s p(y_i | z_s) - Var_s log p(y_i | z_s)

A client sends, over its rows i, Σ loo_i, Σ loo_i², Σ waic_i, Σ waic_i², Σ of the log densities and of the variances,
how many rows it has, and how many have which Pareto k. A row whose log density is zero at every draw is none: a mask
says that nothing was observed there. No row's own number leaves it, unless `pointwise` is asked for.
It is an algorithm of the ordinary contract, of one round, so that it runs wherever a run does.

Sources: Vehtari, Gelman & Gabry (2017); Vehtari et al. (2024), Pareto smoothed importance sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.contract import Algorithm, Noise, Start, started
from pyro_fed.algorithm.states import State
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData, in_chunks
from pyro_fed.errors import DataError
from pyro_fed.ops.arviz_versions import psis
from pyro_fed.results.to_arviz import observed

#: From this Pareto k on an estimate is very bad: the weights have no mean.
VERY_BAD = 1.0
#: A row whose log density varies more than this over the draws makes WAIC unreliable (Vehtari et al. 2017).
LARGEST_VARIANCE = 0.4
#: What a client sends, each a number.
SUMS = ("loo", "loo_squares", "waic", "waic_squares", "lppd", "variance", "varied", "rows", "good", "bad", "very_bad")
#: What is downloaded; the rest of the server's state are the clients' answers.
SENT = ("draws", "efficiency", "good_k")


class Terms(NamedTuple):
    """A client's rows.

    Args:
        log_lik: (S, n).
        names: the observed sites whose terms they are.
        plate: of the rows.
    """

    log_lik: Tensor
    names: tuple[str, ...]
    plate: str


@dataclass(frozen=True, kw_only=True)
class Pointwise(Algorithm):
    """One round in which every client computes PSIS-LOO and WAIC of its own rows, from draws that it receives.

    Args:
        site: the observed site, or the joined names of several that share latents; "" for the only one.
        pointwise: send each row's `loo`, `waic` and Pareto k besides the sums, and whether it is observed.
    """

    draws_are: ClassVar[str] = "chains"
    needs_all: ClassVar[bool] = True

    site: str = ""
    pointwise: bool = False

    def default_rounds(self, num_clients: int) -> int:
        """One."""
        return 1

    def init(
        self, problem: Problem, num_clients: int, generator: torch.Generator, start: Start | None
    ) -> tuple[State, State]:
        """The draws (S, D), the share of them that independent ones would be worth, and the limit of Pareto's k."""
        return started(start, self)

    def download(self, shared: State, clients: Tensor) -> State:
        """What the clients' computation needs."""
        return super().download({name: shared[name] for name in SENT}, clients)

    def local_step(
        self, problem: Problem, shared: State, local: State, data: ClientData, noise: Noise
    ) -> tuple[State, State, State]:
        """Each client's sums."""
        found = [self._of_client(problem, shared, data, client) for client in range(len(data.num_rows))]
        return {name: torch.stack([one[name] for one in found]) for name in found[0]}, local, {}

    def objections(self, received: State, messages: State) -> message_limits.Objections:
        """None: sums have no size that would be dishonest."""
        return {}

    def combine(self, shared: State, messages: State, weights: Tensor) -> State:
        """The answers, a row a client."""
        return {**shared, **messages}

    def sample(self, shared: State, num_draws: int, generator: torch.Generator) -> Tensor:
        """The draws that the clients were asked about, (1, S, D)."""
        return shared["draws"][None]

    def _of_client(self, problem: Problem, shared: State, data: ClientData, client: int) -> State:
        width = widest(problem, data, self.site)
        if not int(data.num_rows[client]):
            return self._message(dict.fromkeys(SUMS, 0.0), np.empty((3, 0)), np.empty(0, dtype=bool), width)
        log_lik = self._rows(problem, shared["draws"][client], data, client).double().cpu().numpy()
        seen = observed(log_lik)
        if not seen.any():
            return self._message(dict.fromkeys(SUMS, 0.0), np.empty((3, 0)), seen, width)
        log_lik = log_lik[:, seen]
        if not np.isfinite(log_lik).all():
            raise DataError(
                f"the log-likelihood is not finite for {int((~np.isfinite(log_lik)).any(0).sum())} of "
                f"{log_lik.shape[1]} rows of a client, at some of the draws: nothing can be left out"
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
    """Log-likelihood of each of some rows, of one observed site.

    Args:
        problem: the model's densities.
        draws: (S, D), unconstrained.
        rows: row tensors, each (m, ...), m >= 1.
        site: which one; "" for the only one.

    Returns:
        (S, n): of rows of the partitioned plate, or of the one nested in it that the site is in.

    Raises:
        DataError: there is no such site, or there are several.
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
    """The plate of rows of each observed site's terms, or of several sites' together."""
    hidden = {"", *problem.layout.local}
    return {name: plate for name, plate in problem.term_plates().items() if name not in hidden}


def chosen_site(plates: Mapping[str, str], site: str) -> str:
    """The observed site that is meant.

    Args:
        plates: of `observed_plates`.
        site: its name; "" for the only one.

    Raises:
        DataError: there is no such site, or there are several.
    """
    if site and site not in plates:
        raise DataError(f"there is no observed site {site!r}; the model has {list(plates)}")
    if not site and len(plates) > 1:
        raise DataError(f"the model has several observed sites, {list(plates)}: say which by var_name")
    return site or next(iter(plates))


def widest(problem: Problem, data: ClientData, site: str) -> int:
    """Rows that the terms of any client have at most."""
    nested = dict(zip(problem.arguments.nested_plates, getattr(problem.arguments, "capacities", ()), strict=True))
    if problem.local_dim or not nested:
        return int(data.row_index.shape[1])
    plates = observed_plates(problem)
    return int(nested.get(plates[chosen_site(plates, site)], data.row_index.shape[1]))


def leave_out_weights(log_lik: np.ndarray, efficiency: float) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed log weights (S, n) of the draws for each row left out, normalised, and the Pareto k (n,) of each.

    Args:
        log_lik: (S, n).
        efficiency: draws that independent ones would be worth, over S.
    """
    smoothed = [psis(-row, efficiency) for row in log_lik.T]
    return np.stack([weights for weights, _ in smoothed], 1), np.array([k for _, k in smoothed], dtype=float)


def _log_sum(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp.reduce(values, 0))
