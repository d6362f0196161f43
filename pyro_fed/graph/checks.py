"""What a mixing matrix must be, before anything runs.

Assumption 1 of Wang et al.: W is a stochastic matrix, irreducible and aperiodic; over a window of rounds
where the graph changes. Every check names the worst row, or the components.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from pyro_fed.errors import GraphError, shown

#: How far a row of W may be from summing to one.
ROW_SUM_TOLERANCE = 1e-9
#: Agents and links, together, that a graph is built of at most: about 2 GB while it is made.
MAX_AGENTS_AND_LINKS = 5_000_000
#: Components, and agents of each, that a message lists.
LISTED = 8


def check_size(num_agents: int, num_links: float) -> int:
    """The number of agents of a graph that can be built; `num_links` is the approximate number of undirected links.

    Raises:
        GraphError: no agents, or more of all than `MAX_AGENTS_AND_LINKS`.
    """
    if num_agents < 1:
        raise GraphError(f"a graph needs at least 1 agent, received {num_agents}")
    if num_agents + num_links > MAX_AGENTS_AND_LINKS:
        raise GraphError(
            f"a graph of {num_agents:.3g} agents and about {num_links:.3g} links is too large: "
            f"{MAX_AGENTS_AND_LINKS:,} agents and links can be held at most; take fewer agents, or a sparser graph"
        )
    return num_agents


def as_matrix(weights: Any) -> sparse.csr_array:
    """W (A, A) as sparse rows in float64, without stored zeros, from an array, nested list or SciPy sparse matrix.

    Raises:
        GraphError: not square, not finite, negative, or a row that does not sum to one.
    """
    if np.iscomplexobj(weights):
        raise GraphError(f"W must be a matrix of real numbers, received {shown(weights)}, which is complex")
    try:
        matrix = sparse.csr_array(weights if sparse.issparse(weights) else np.asarray(weights, dtype=np.float64))
        matrix = matrix.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"W must be a matrix of numbers, received {shown(weights)}: {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise GraphError(f"W must be square, one row and one column an agent; received shape {matrix.shape}")
    _check_entries(matrix)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > ROW_SUM_TOLERANCE:
        raise GraphError(
            f"row {worst} of W sums to {sums[worst]:.12g}, expected 1 (the worst of "
            f"{int((np.abs(sums - 1) > ROW_SUM_TOLERANCE).sum())} such rows); divide each row by its sum"
        )
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _check_entries(matrix: sparse.csr_array) -> None:
    bad = ~np.isfinite(matrix.data) | (matrix.data < 0)
    if bad.any():
        first = int(bad.argmax())
        row = int(np.searchsorted(matrix.indptr, first, side="right")) - 1
        raise GraphError(
            f"W[{row}, {matrix.indices[first]}] is {matrix.data[first]:g}: weights must be finite and "
            f"not negative ({int(bad.sum())} entries are not)"
        )


def components(matrix: sparse.csr_array) -> np.ndarray:
    """The number (A,) of the strongly connected component that each agent is in, from 0."""
    labels: np.ndarray = csgraph.connected_components(matrix, directed=True, connection="strong")[1]
    return labels


def check_connected(matrix: sparse.csr_array, where: str = "W") -> None:
    """Require one strongly connected component (W irreducible).

    Raises:
        GraphError: lists the components.
    """
    labels = components(matrix)
    if labels.max() > 0:
        raise GraphError(
            f"{where} is not strongly connected: {list_components(labels)}. Add links between them, or "
            "run each component by itself"
        )


def list_components(labels: np.ndarray) -> str:
    """The number of components, and the members of the first few."""
    count = int(labels.max()) + 1
    listed = "; ".join(_members(labels, k) for k in range(min(count, LISTED)))
    more = f"; and {count - LISTED} more" if count > LISTED else ""
    return f"{count} components {listed}{more}"


def _members(labels: np.ndarray, component: int) -> str:
    members = np.flatnonzero(labels == component).tolist()
    more = f", ... {len(members)} agents" if len(members) > LISTED else ""
    return "[" + ", ".join(map(str, members[:LISTED])) + more + "]"


def period(matrix: sparse.csr_array) -> int:
    """Greatest common divisor of the lengths of all cycles of an irreducible matrix; 1 is aperiodic."""
    if np.any(matrix.diagonal() > 0):
        return 1
    depth = csgraph.shortest_path(matrix, indices=0, unweighted=True).astype(np.int64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    steps = np.unique(np.abs(depth[rows] + 1 - depth[matrix.indices]))
    return gcd(*steps.tolist())


def check_aperiodic(matrix: sparse.csr_array, where: str = "W") -> None:
    """Require an irreducible matrix to have period one.

    Raises:
        GraphError: the period.
    """
    found = period(matrix)
    if found != 1:
        raise GraphError(
            f"{where} has period {found}: beliefs would swap between agents for ever instead of meeting. "
            "Give agents a self-weight, as in pf.graph.lazy(W)"
        )
