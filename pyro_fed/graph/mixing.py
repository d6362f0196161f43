"""Mixing matrices of graphs, and what they must be before anything runs.

W_ij > 0 exactly where agent i receives from agent j (an edge j → i) or i = j; rows sum to one.

    uniform      W_ij = 1 / (d_i + 1), over the neighbours and itself      directed graphs too; v_i ∝ d_i + 1
    metropolis   W_ij = 1 / (1 + max(d_i, d_j))                            doubly stochastic: v_i = 1 / A
    max_degree   W_ij = 1 / (1 + max_k d_k)                                doubly stochastic: v_i = 1 / A
    lazy         h I + (1 - h) W                                           aperiodic; the same v

A consensus step (`mix`, Eq. 4 and 8 of Wang et al.) is every agent's weighted mean of what it receives, Σ_j W_ij
value_j.

Source: Metropolis-Hastings and maximum-degree weights as in Xiao & Boyd, *Fast linear iterations for
distributed averaging*, reference [30] of Wang et al. Self-weights take what is left of the row. Assumption 1 of Wang et
al.: W is stochastic, irreducible and aperiodic, over a window of rounds where the graph changes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import sparse
from scipy.sparse import csgraph
from torch import Tensor

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.errors import LISTED, GraphError, listed, shown

if TYPE_CHECKING:
    import networkx as nx


#: Largest number of agents and links together: building such a graph takes about 2 GB.
MAX_AGENTS_AND_LINKS = 5_000_000


def check_size(num_agents: int, num_links: float) -> int:
    """The number of agents of a graph that can be built, with about so many undirected links."""
    if num_agents < 1:
        raise GraphError(f"a graph needs at least 1 agent, received {num_agents}")
    if num_agents + num_links > MAX_AGENTS_AND_LINKS:
        raise GraphError(
            f"a graph of {num_agents:.3g} agents and about {num_links:.3g} links is too large: "
            f"at most {MAX_AGENTS_AND_LINKS:,} agents and links fit; take fewer agents, or a sparser graph"
        )
    return num_agents


def as_matrix(weights: Any) -> sparse.csr_array:
    """W (A, A) as sparse rows in float64, without stored zeros, from an array, nested list or SciPy sparse matrix."""
    if np.iscomplexobj(weights):
        raise GraphError(f"W must be a matrix of real numbers, received {shown(weights)}, which is complex")
    try:
        matrix = sparse.csr_array(weights if sparse.issparse(weights) else np.asarray(weights, dtype=np.float64))
        matrix = matrix.astype(np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"W must be a matrix of numbers, received {shown(weights)}: {error}") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise GraphError(f"W must be square, with one row and one column for each agent; received shape {matrix.shape}")
    _check_entries(matrix)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    worst = int(np.abs(sums - 1).argmax())
    if abs(sums[worst] - 1) > SAME_SHARE:
        raise GraphError(
            f"row {worst} of W sums to {sums[worst]:.12g}, expected 1 (the worst of "
            f"{int((np.abs(sums - 1) > SAME_SHARE).sum())} such rows); divide each row by its sum"
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
    """Require one strongly connected component (W irreducible); the error lists the components."""
    labels = components(matrix)
    if labels.max() > 0:
        raise GraphError(
            f"{where} is not strongly connected: {list_components(labels)}. Add links between them, or "
            "run each component by itself"
        )


def list_components(labels: np.ndarray) -> str:
    """The number of components, and the members of the first few."""
    count = int(labels.max()) + 1
    members = [f"[{listed(np.flatnonzero(labels == k))}]" for k in range(min(count, LISTED))]
    more = f"; and {count - LISTED} more" if count > LISTED else ""
    return f"{count} components {'; '.join(members)}{more}"


def period(matrix: sparse.csr_array) -> int:
    """Greatest common divisor of the lengths of all cycles of an irreducible matrix; 1 is aperiodic."""
    if np.any(matrix.diagonal() > 0):
        return 1
    depth = csgraph.shortest_path(matrix, indices=0, unweighted=True).astype(np.int64)
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    steps = np.unique(np.abs(depth[rows] + 1 - depth[matrix.indices]))
    return gcd(*steps.tolist())


def check_aperiodic(matrix: sparse.csr_array, where: str = "W") -> None:
    """Require an irreducible matrix to have period one."""
    length = period(matrix)
    if length != 1:
        raise GraphError(
            f"{where} has period {length}: beliefs would swap between agents for ever instead of converging. "
            "Give agents a self-weight, as in pf.graph.lazy(W)"
        )


@checked
def uniform(graph: nx.Graph, self_weight: float | None = None) -> sparse.csr_array:
    """Row-stochastic: equal weights over the neighbours and itself.

    Args:
        graph: of A nodes, directed or not; self-loops are ignored.
        self_weight: weight of an agent's own belief, in [0, 1); by default that of one neighbour. An agent
            without neighbours keeps weight one.

    Returns:
        W, (A, A).

    Raises:
        GraphError: a self_weight outside [0, 1), or no nodes.

    Example:
        >>> pf.graph.from_matrix(pf.graph.uniform(networkx.path_graph(3), self_weight=0.5)).centrality()
        array([0.25, 0.5 , 0.25])
    """
    received = _adjacency(graph, directed=True)
    degree = np.diff(received.indptr)
    if self_weight is None:
        own = 1.0 / (degree + 1)
    elif 0 <= self_weight < 1:
        own = np.where(degree > 0, self_weight, 1.0)
    else:
        raise GraphError(f"self_weight must be in [0, 1), received {self_weight}")
    share = (1.0 - own) / np.maximum(degree, 1)
    return as_matrix(sparse.diags_array(share) @ received + sparse.diags_array(own))


@checked
def metropolis(graph: nx.Graph) -> sparse.csr_array:
    """Metropolis-Hastings weights: symmetric, so doubly stochastic, from the degrees of both ends alone.

    Args:
        graph: undirected, of A nodes.

    Returns:
        W, (A, A).

    Raises:
        GraphError: a directed graph.

    Example:
        >>> pf.graph.metropolis(networkx.path_graph(3)).toarray()[0]
        array([0.66666667, 0.33333333, 0.        ])
    """
    links = _adjacency(graph, directed=False).tocoo()
    degree = np.bincount(links.row, minlength=links.shape[0])
    links.data = 1.0 / (1.0 + np.maximum(degree[links.row], degree[links.col]))
    return _with_self_weights(links.tocsr())


@checked
def max_degree(graph: nx.Graph) -> sparse.csr_array:
    """Equal weights on all links, 1 / (1 + the largest degree): symmetric, so doubly stochastic.

    Args:
        graph: undirected, of A nodes.

    Returns:
        W, (A, A).

    Raises:
        GraphError: a directed graph.

    Example:
        >>> pf.graph.max_degree(networkx.star_graph(3)).toarray()[1]
        array([0.25, 0.75, 0.  , 0.  ])
    """
    links = _adjacency(graph, directed=False)
    return _with_self_weights(links / (1.0 + np.diff(links.indptr).max()))


@checked
def lazy(weights: Any, holding: float = 0.5) -> sparse.csr_array:
    """h I + (1 - h) W: every agent keeps part of its own belief, so that W is aperiodic.

    Args:
        weights: W, (A, A).
        holding: h, in [0, 1).

    Returns:
        (A, A), with the same stationary distribution.

    Raises:
        GraphError: a holding outside [0, 1).

    Example:
        >>> pf.graph.lazy([[0.0, 1.0], [1.0, 0.0]], holding=0.5).toarray()[0]
        array([0.5, 0.5])
    """
    if not 0 <= holding < 1:
        raise GraphError(f"holding must be in [0, 1), received {holding}")
    matrix = as_matrix(weights)
    return as_matrix(holding * sparse.eye_array(matrix.shape[0]) + (1.0 - holding) * matrix)


#: Mixing rules by name.
MIXING: dict[str, Callable[[nx.Graph], sparse.csr_array]] = {
    "uniform": uniform,
    "metropolis": metropolis,
    "max_degree": max_degree,
}


def _adjacency(graph: nx.Graph, directed: bool) -> sparse.csr_array:
    """Ones where the row's agent receives from the column's."""
    import networkx as nx

    if not isinstance(graph, nx.Graph):
        raise GraphError(f"expected a graph of networkx, received {graph!r:.80}")
    if graph.is_directed() and not directed:
        raise GraphError("these weights need an undirected graph; use mixing='uniform' for a directed one")
    if graph.number_of_nodes() == 0:
        raise GraphError("the graph has no nodes")
    sent = sparse.csr_array(nx.to_scipy_sparse_array(graph, weight=None, dtype=np.float64))
    received = sparse.csr_array(sent.T)
    received.setdiag(0)
    received.eliminate_zeros()
    received.data[:] = 1.0
    return received


def _with_self_weights(links: sparse.csr_array) -> sparse.csr_array:
    own = 1.0 - np.asarray(links.sum(axis=1)).ravel()
    return as_matrix(links + sparse.diags_array(np.maximum(own, 0.0)))


def mix(weights: sparse.csr_array, values: Tensor) -> Tensor:
    """W (C, C), or some rows of it (R, C), times the agents' values (C, ...): the work grows with the links."""
    shape = (weights.shape[0], *values.shape[1:])
    flat = values.reshape(len(values), -1)
    if flat.device.type == "cpu":
        mixed = torch.from_numpy(weights.astype(flat.numpy().dtype, copy=False) @ flat.numpy())
        return mixed.reshape(shape)
    entries = weights.tocoo()
    where = torch.from_numpy(np.stack([entries.row, entries.col])).to(flat.device)
    data = torch.from_numpy(entries.data).to(flat)
    received: Tensor = torch.sparse.mm(torch.sparse_coo_tensor(where, data, weights.shape), flat)
    return received.reshape(shape)
