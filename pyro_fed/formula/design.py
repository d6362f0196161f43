"""The design of a formula: columns of fixed effects, and for each grouping factor its groups and their columns.

`formulae` parses the formula and computes the columns. The levels of categories and the constants of `scale(...)` are
those of all rows together.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from pyro_fed.errors import DataError, SettingError, listed


@dataclass(frozen=True)
class Factor:
    """The effects of one grouping factor."""

    name: str  # such as "ward", as a name of Python
    groups: tuple[str, ...]  # labels of its groups (J,)
    columns: tuple[str, ...]  # names of the effects that each group has, "Intercept" or of a column (k,)
    of_rows: np.ndarray  # each row's group (n,), text; groups of new rows may be others than `groups`
    values: np.ndarray  # the effects' columns (n, k)


@dataclass(frozen=True)
class Design:
    """What a formula makes of rows."""

    response: np.ndarray | None  # y (n,), or None if new rows have none
    trials: np.ndarray | None  # numbers of trials (n,); None if the response is no proportion
    columns: tuple[str, ...]  # names of the fixed effects (p,)
    x: np.ndarray  # their columns (n, p)
    offset: np.ndarray | None  # (n,)
    factors: tuple[Factor, ...]

    @property
    def known_response(self) -> np.ndarray:
        """y (n,) of the clients' own rows."""
        return cast(np.ndarray, self.response)


class Formula:
    """A formula with the levels and constants of the rows that it was made from."""

    def __init__(self, text: str, frame: pd.DataFrame) -> None:
        """Parse a formula on a frame of all rows; SettingError if it is wrong, DataError for missing values."""
        try:
            self._formulae: Any = importlib.import_module("formulae")
        except ImportError as error:
            raise ImportError("pf.glm reads formulas by formulae: pip install 'pyro_fed[formula]'") from error
        self.text = text
        try:
            used = sorted(name for name in self._formulae.model_description(text).var_names if name.isidentifier())
        except Exception as error:  # of the parser, of any kind
            raise SettingError(f"glm: the formula {text!r} cannot be read: {error}") from error
        if unknown := [name for name in used if name not in frame.columns]:
            raise SettingError(f"glm: the formula has {listed(unknown)}, and the frames have {listed(frame.columns)}")
        missing = frame[used].isna().sum()
        if int(missing.sum()):
            counts = ", ".join(f"'{name}' {int(count)}" for name, count in missing.items() if count)
            raise DataError(f"glm: columns have missing values, in so many rows: {counts}. Drop or impute these rows")
        try:
            self._matrices = self._formulae.design_matrices(text, frame, na_action="error")
        except Exception as error:  # of a function in the formula, of any kind
            raise SettingError(f"glm: the formula {text!r} cannot be computed: {error}") from error
        if self._matrices.response is None:
            raise SettingError(f"glm: the formula {text!r} has no response: write it as 'y ~ ...'")
        response, group = text.partition("~")[0], self._matrices.group
        names = dict.fromkeys(term.factor.name for term in group.terms.values()) if group is not None else {}
        self.factors, self.used = tuple(names), used
        self._combinations = {
            name: self._formulae.design_matrices(f"{response} ~ 0 + (1|{name})", frame).group
            for name in names
            if name not in frame.columns
        }
        self.own = self._design(frame, True, self._matrices.common, group)

    def on(self, frame: pd.DataFrame) -> Design:
        """The design of other rows, which need no response; DataError for unknown levels, or without a column."""
        common, group = self._matrices.common, self._matrices.group
        known = frame.copy()  # columns of effects do not depend on the group, which may be a new one
        for factor in self.own.factors:
            if factor.name in frame.columns:
                groups = frame[factor.name].astype(str)
                known[factor.name] = groups.where(groups.isin(factor.groups), factor.groups[0])
        try:
            common = None if common is None else common.evaluate_new_data(frame)
            group = None if group is None else group.evaluate_new_data(known)
        except Exception as error:  # of formulae, or of a function in the formula
            raise DataError(f"glm: the formula {self.text!r} cannot be computed on these rows: {error}") from error
        return self._design(frame, False, common, group)

    def _design(self, frame: pd.DataFrame, with_response: bool, common: Any, group: Any) -> Design:
        columns: list[str] = []
        offset, parts = None, []
        for name, term in ({} if common is None else common.terms).items():
            block = np.array(common[name], dtype=float).reshape(len(frame), -1)
            if term.kind == "offset":
                offset = block[:, 0] if offset is None else offset + block[:, 0]
                continue
            columns += list(term.labels)
            parts.append(block)
        x = np.concatenate(parts, 1) if parts else np.zeros((len(frame), 0))
        response, trials = self._response() if with_response else (None, None)
        return Design(response, trials, tuple(columns), x, offset, self._factors(frame, group))

    def _response(self) -> tuple[np.ndarray, np.ndarray | None]:
        """y (n,), and the trials (n,) of a proportion."""
        found = self._matrices.response
        values = np.array(found.design_matrix, dtype=float)
        if found.kind == "proportion":
            return values[:, 0], values[:, 1]
        if values.ndim == 2:
            name = self.text.partition("~")[0].strip()
            raise SettingError(
                f"glm: the response '{name}' is text: say which level counts as 1, {name}[{found.levels[-1]!r}] ~ ..."
            )
        return values, None

    def _factors(self, frame: pd.DataFrame, group: Any) -> tuple[Factor, ...]:
        """The grouping factors; terms of one factor are put together."""
        found = []
        for name in self.factors:
            terms = [term for term in self._matrices.group.terms.values() if term.factor.name == name]
            columns: list[str] = []
            values = []
            for term in terms:
                data = _dense(group[term.name]).reshape(len(frame), len(term.groups), -1)
                own = [label.partition("|")[0] for label in term.labels[: data.shape[2]]]
                columns += ["Intercept" if label == "1" else label for label in own]
                values.append(data.sum(1))
            known = tuple(map(str, terms[0].groups))
            if name in self._combinations:
                member = _dense(self._combinations[name].evaluate_new_data(frame).design_matrix)
                of_rows = np.array(known, dtype=object)[member.argmax(1)]
            else:
                of_rows = frame[name].astype(str).to_numpy(object)
            found.append(Factor(re.sub(r"\W", "_", name), known, tuple(columns), of_rows, np.concatenate(values, 1)))
        return tuple(found)


def _dense(matrix: Any) -> np.ndarray:
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=float)


def pooled(clients: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, np.ndarray]:
    """All clients' rows, and each row's client; DataError without rows, or for columns of different kinds."""
    if not clients or not sum(len(frame) for frame in clients.values()):
        raise DataError("glm: there are no rows")
    kinds: dict[str, dict[str, list[str]]] = {}
    for name, frame in clients.items():
        for column in frame.columns:
            kind = "numbers" if pd.api.types.is_numeric_dtype(frame[column]) else "labels"
            kinds.setdefault(str(column), {}).setdefault(kind, []).append(str(name))
    for column, by_kind in kinds.items():
        if len(by_kind) > 1:
            codings = "; ".join(f"{kind} at {listed(names)}" for kind, names in by_kind.items())
            raise DataError(f"glm: column {column!r} has {codings}: code it in one way")
    names: Sequence[str] = [str(name) for name, frame in clients.items() for _ in range(len(frame))]
    return pd.concat(clients.values(), ignore_index=True), np.array(names, dtype=object)
