"""Whether the rows were dealt out to the clients by their outcome, so that clients differ by that alone.

A split of one data set by its labels (`Dirichlet`, `LabelShards`, `MajorityShare`), or by a sorted outcome, is a choice
of whoever simulates clients. A client whose rows all have large outcomes disagrees with the others under any model of
the outcome: `influence` judges a disagreement by the distribution for rows that do not depend on the client, given the
covariates. Measured with FedEP, 4 and 10 clients of 200 rows, eight regressions, three seeds each: clients stand apart
in 28 of 48 runs on rows sorted by the outcome, in 26 of 48 on Dirichlet(0.3), and in none of 96 on rows dealt out by
chance or by the covariate.
"""

from __future__ import annotations

import numpy as np

from pyro_fed.density.observations import observed_values
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.labelled import plain
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.labels import row_labels


def by_the_outcome(federation: Federation, problem: Problem) -> bool:
    """Whether the partition dealt rows out by an outcome, or by a function of it, such as labels or `y > 0`.

    Which of its arguments a `pyro.factor` takes for the outcome is not known: each of the rows' columns may be it.
    """
    count = problem.num_rows
    by = federation.partition.dealt_by(count, row_labels(problem.arguments))
    if by is None:
        return False
    values = [*observed_values(problem).values()]
    if problem.layout.factors:
        values += [leaf for _, nested, leaf in problem.arguments.columns if nested is None]
    outcomes = [plain(value).detach().cpu() for value in values]
    of_rows = [value.reshape(count, -1).numpy() for value in outcomes if value.dim() and len(value) == count]
    return any(is_function(by, column) for value in of_rows for column in value.T)


def is_function(by: np.ndarray, outcome: np.ndarray) -> bool:
    """Whether one value a row (N,) is a function of the outcome (N,), by more than chance.

    It must be equal where the outcome is equal. If the outcome has few different values, each has to occur often; else
    the value has to rise or fall with the outcome.
    """
    if by.dtype.kind == "f" and outcome.dtype.kind == "f":
        by = by.astype(outcome.dtype)  # the model's precision, in which different values may be equal
    code = np.unique(by, return_inverse=True)[1]
    values, place = np.unique(outcome, return_inverse=True)
    if len(np.unique(code)) < 2:
        return False
    lowest = np.full(len(values), len(code))
    np.minimum.at(lowest, place, code)
    if (code != lowest[place]).any():
        return False
    steps = np.diff(lowest)
    return 2 * len(values) <= len(code) or bool((steps >= 0).all() or (steps <= 0).all())
