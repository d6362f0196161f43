"""The site's policy: what may leave, in a file `policy.toml` that only the hospital writes.

A key that is left out permits everything, as a site without the file does; a key that does not exist is refused.

The largest share of one row is the dominance rule of statistical disclosure control: a number Σ_i c_i to which row i
contributes c_i discloses row i if |c_i| / Σ_j |c_j| is large (the (1, k) rule; Hundepool et al. 2012, Statistical
Disclosure Control). For log-likelihoods at draws c_i is the row's own one. A recipe's message is a sum over rows for
some algorithms only, and for others a function of such sums. For all of them c_i is the row's score, the gradient of
its log-likelihood at the origin of the unconstrained parameters: there a label that one row alone has, or a covariate
far larger than all others, has a large share.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.analysis.predicting.one_round import OneRound
from pyro_fed.analysis.predicting.row_sums import RowSums, RowValues
from pyro_fed.conventions.names import closest
from pyro_fed.conventions.nested_settings import SettingsRepr, changed_settings
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.conventions.toml_files import read_toml
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.density.derivatives.scores import clients_likelihood_scores, clients_log_likelihoods
from pyro_fed.density.fingerprint import label_digests
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import ClientData
from pyro_fed.errors import SettingError
from pyro_fed.ops.entries import evenly
from pyro_fed.recipes.recipe import check_settings

#: What each kind of message tells, in words. `Policy.kinds` names those that may leave.
KINDS = {
    "description": "number of rows, shapes and types, names of columns, a hash of each text column's labels",
    "agreement": "what all agents must have in common: settings, versions, shapes, names of columns, hashes of labels",
    "statement": "an agent's number of rows, and its means and SDs of the parameters after each round",
    "update": "the recipe's message of a round: numbers computed from all rows together",
    "state": "the site's own state, such as its Gaussian site or its chains, alone or with the recipe's message",
    "masked": "the recipe's message under masks, of which the server learns the sum over the sites alone",
    "keys": "public keys, and shares of masks, of secure aggregation",
    "indicator": "one number that a schedule asks for, such as the size of a gradient",
    "log_likelihood": "the log-likelihood of all rows together at given draws, for the audit and questions on clients",
    "loo": "eleven sums over the rows, for leave-one-out and WAIC",
    "table": "counts, means and SDs of columns by group",
    "estimate": "sums of an estimand of the model's file at given draws, numbers of rows and of ones, by group",
    "effect": "mean and SD of the site's own effects given the shared parameters, by a person's consent",
    "notice": "that the site has failed or leaves: its name, an exception's class, file and line of code",
}
#: Kinds that are computed from the rows' values, to which the rules on numbers of rows, shares and rounds apply.
COMPUTED = (
    "update",
    "state",
    "masked",
    "indicator",
    "log_likelihood",
    "loo",
    "statement",
    "table",
    "estimate",
    "effect",
)


@dataclass(frozen=True, kw_only=True)
class Policy(SettingsRepr):
    """The rules of a site.

    Args:
        min_rows: fewest rows of the site; with fewer nothing leaves but notices.
        min_cell: fewest rows in each cell of a table that leaves; an empty cell may leave.
        min_level: fewest rows of each label of a text column, whose labels' hash leaves in the description.
        max_numbers_per_row: the most numbers in a message, divided by the site's rows; None for any.
        max_share: the largest share of one row in the sum of the absolute values that all rows contribute to a number
            (dominance rule); 1 for any. A message whose shares cannot be computed is then refused.
        kinds: kinds of messages that may leave, of `KINDS`. A notice always may.
        max_rounds: the most orders that are answered with numbers computed from the rows, over all runs under one
            approval, questions included; None for any.
        approval: whether a run needs the approval of this folder, see `pyro-fed node approve`.
        error_text: whether the text of an exception, which may have values of rows in it, may leave.
        keep_orders: whether the orders are kept beside the ledger, so that each message can be computed again.
    """

    min_rows: int = 0
    min_cell: int = 1
    min_level: int = 1
    max_numbers_per_row: float | None = None
    max_share: float = 1.0
    kinds: tuple[str, ...] = tuple(KINDS)
    max_rounds: int | None = None
    approval: bool = False
    error_text: bool = False
    keep_orders: bool = False

    def __post_init__(self) -> None:
        check_at_least(self, 1, "min_cell", "min_level")
        check_at_least(self, 0, "min_rows", "max_rounds", allow_none=True)
        check_positive(self, "max_numbers_per_row", allow_none=True)
        check_between(self, "max_share", 0.0, 1.0)
        for kind in self.kinds:
            if kind not in KINDS:
                raise SettingError(f"Policy: kinds has no {kind!r}; {closest(kind, KINDS)}")

    @classmethod
    def read(cls, path: Path) -> Policy:
        """The policy in a TOML file; SettingError for what cannot be read, an unknown key or a wrong value."""
        table = read_toml(path, "a policy")
        try:
            return cls(**check_settings(cls, table, str(path)))
        except SettingError as error:
            raise SettingError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    def permits(self, kind: str) -> bool:
        """Whether messages of a kind may leave."""
        return kind == "notice" or kind in self.kinds

    def in_words(self) -> str:
        """The rules that differ from their defaults, in a line."""
        changed = ", ".join(f"{name} = {value}" for name, value in changed_settings(self).items())
        return (
            f"rules on what may leave: {changed}" if changed else "no rules: everything that the run asks for may leave"
        )

    def rules(self) -> dict[str, object]:
        """All rules by name, as JSON has them."""
        return {**dataclasses.asdict(self), "kinds": sorted(self.kinds)}

    @property
    def digest(self) -> str:
        """SHA-256 of all rules, those at their defaults too."""
        return hashlib.sha256(json.dumps(self.rules(), sort_keys=True).encode()).hexdigest()


#: The most draws at which shares of log-likelihoods are computed.
MAX_SHARE_DRAWS = 64


def largest_share(contributions: Tensor) -> float | None:
    """The largest share of one row (1/n to 1) in P sums of parts (n, P); None if one is not finite, or all are zero."""
    parts = contributions.double().abs()
    total = parts.sum(0)
    if not bool(total.isfinite().all()) or not bool((total > 0).any()):
        return None
    return float((parts[:, total > 0] / total[total > 0]).max())


def rows_share(problem: Problem, data: ClientData, draws: Tensor | None = None) -> float | None:
    """The largest share of a row of one client in its scores at the origin, or in log-likelihoods at draws (S, D)."""
    index = data.row_index[0, : int(data.num_rows[0])]
    if not len(index):
        return None
    each = ClientData(data.rows, index[:, None], torch.ones(len(index), dtype=torch.int64))
    eager = replace(problem, compiler=Compiler("loop" if problem.looped else "off"))
    if draws is not None:
        some = draws[evenly(len(draws), MAX_SHARE_DRAWS)].to(problem.dtype)
        return largest_share(clients_log_likelihoods(eager, some.expand(len(index), *some.shape), each))
    origin = torch.zeros(len(index), 1, problem.dim, dtype=problem.dtype)
    return largest_share(clients_likelihood_scores(eager, origin, each)[:, 0])


def estimand_share(found: RowValues | None) -> float | None:
    """The largest share of a row in an estimand's sums over its group of rows."""
    if found is None:
        return None
    some = found.values[evenly(len(found.values), MAX_SHARE_DRAWS)]
    shares = []
    for group in set(found.groups):
        own = torch.tensor([one == group for one in found.groups])
        shares.append(largest_share(some[:, :, own].flatten(0, 1).T))
    return None if None in shares else max(filter(None, shares))


def answer_share(question: OneRound, problem: Problem, shared: State, data: ClientData) -> float | None:
    """The largest share of a row of one client in its answer to a question, at the draws that it got, if any."""
    if isinstance(question, RowSums):
        return estimand_share(question.values_of(problem, shared, data, 0))
    return rows_share(problem, data, shared["draws"][0] if "draws" in shared else None)


def level_counts(problem: Problem) -> dict[str, int]:
    """The number of rows of each label of the text columns whose labels' hash leaves, by column and label's number."""
    arguments = problem.arguments
    leaves = dict(zip(arguments.names, arguments.leaves, strict=True))
    counts: dict[str, int] = {}
    for name in label_digests(problem):
        codes = torch.as_tensor(leaves[name]).long().flatten()
        each = torch.bincount(codes, minlength=len(arguments.labels[name]))
        counts |= {f"{name} {number}": int(count) for number, count in enumerate(each)}
    return counts
