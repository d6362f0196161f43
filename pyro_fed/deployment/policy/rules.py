"""The site's policy: what may leave, in a file `policy.toml` that only the hospital writes.

A key that is left out permits everything, as a site without the file does; a key that does not exist is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pyro_fed.conventions.names import closest
from pyro_fed.conventions.nested_settings import SettingsRepr, changed_settings
from pyro_fed.conventions.setting_checks import check_at_least, check_between, check_positive
from pyro_fed.errors import SettingError
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
    "log_likelihood": "the log-likelihood of all rows together at given draws, for the audit and for influence",
    "loo": "eleven sums over the rows, for leave-one-out and WAIC",
    "table": "counts, means and SDs of columns by group",
    "estimate": "sums of an estimand of the model's file at given draws, numbers of rows and of ones, by group",
    "notice": "that the site has failed or leaves: its name, an exception's class, file and line of code",
}
#: Kinds that are computed from the rows' values, to which the rules on numbers of rows, shares and rounds apply.
COMPUTED = ("update", "state", "masked", "indicator", "log_likelihood", "loo", "statement", "table", "estimate")


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

    Raises:
        SettingError: a value out of its range, or a kind that does not exist.

    Example:
        >>> Policy(min_rows=20, max_numbers_per_row=0.2, kinds=("description", "update")).permits("loo")
        False
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
        """The policy in a TOML file.

        Raises:
            SettingError: the file cannot be read, has an unknown key (names the nearest), or a value out of its range.

        Example:
            >>> policy = Policy.read(Path("/etc/trial/policy.toml"))
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingError(f"{path} cannot be read as a policy: {error}") from error
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
        return f"rules on what may leave: {changed}" if changed else "no rules: all that the run asks for may leave"

    def rules(self) -> dict[str, object]:
        """All rules by name, as JSON has them."""
        return {**dataclasses.asdict(self), "kinds": sorted(self.kinds)}

    @property
    def digest(self) -> str:
        """SHA-256 of all rules, those at their defaults too."""
        return hashlib.sha256(json.dumps(self.rules(), sort_keys=True).encode()).hexdigest()
