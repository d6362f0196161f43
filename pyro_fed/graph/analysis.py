"""What a mixing matrix does in the long run: centrality, spectral gap, rounds to consensus.

Source: Wang et al., Theorem 1, Eq. (5) and Lemma 2.

    v W = v,  Σ_i v_i = 1       eigenvector centrality v, the stationary distribution of W
    [W^t]_ij → v_j              what agent j once put in ends in every belief with weight v_j
    gap = 1 - |λ_2(W)|          beliefs approach each other by |λ_2| a round
    Σ_t Σ_j |[W^t]_ij - v_j| <= 4 log N / (1 - λ_max(W))      Lemma 2

Deviation: the paper's λ_max is the largest of the other eigenvalues; |λ_2| here is the largest in magnitude,
which is what bounds the rate where W has negative eigenvalues.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import ndimage, sparse
from scipy.sparse import csgraph
from scipy.sparse import linalg as sparse_linalg

from pyro_fed.conventions.calls import checked
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.errors import GraphError, listed
from pyro_fed.graph.mixing import components

#: Agents up to which eigenvalues are computed densely.
DENSE_AGENTS = 400
#: Eigenvalues that ARPACK computes for larger graphs: of only two it sometimes misses the second.
ARPACK_VALUES = 6


@checked
def stationary_distribution(matrix: sparse.csr_array) -> np.ndarray:
    """Eigenvector centrality v of each agent, v W = v, summing to one over each connected component.

    Args:
        matrix: W, (A, A); its strongly connected components must be closed.

    Returns:
        (A,), positive.

    Raises:
        GraphError: agents that are listened to by nobody who is listened to in turn (v would be zero).

    Example:
        >>> round(float(pf.graph.stationary_distribution(pf.graph.star(9, confidence=0.5).matrix)[0]), 6)
        0.36
    """
    reversible = detailed_balance(matrix)
    if reversible is not None:
        return reversible
    labels = components(matrix)
    v = np.zeros(matrix.shape[0])
    for k in range(int(labels.max()) + 1):
        inside = np.flatnonzero(labels == k)
        block = matrix[inside][:, inside]
        if abs(block.sum() - len(inside)) > SAME_SHARE * len(inside):
            raise GraphError(
                f"agents {listed(inside)} receive from others but nobody receives from them: their "
                "centrality is zero and their data would never count. Add links from them"
            )
        v[inside] = _perron(block)
    return v


def _perron(block: sparse.csr_array) -> np.ndarray:
    """Stationary distribution of an irreducible block: fix v_0 = 1 and solve for the others."""
    size = block.shape[0]
    if size == 1:
        return np.ones(1)
    flow = sparse.csc_array(sparse.eye_array(size) - block.T)
    rest = sparse_linalg.spsolve(flow[1:, 1:], -flow[1:, [0]].toarray().ravel())
    v: np.ndarray = np.concatenate([[1.0], np.atleast_1d(rest)])
    centrality: np.ndarray = v / v.sum()
    return centrality


def both_ways(matrix: sparse.csr_array) -> sparse.csr_array:
    """The links (A, A) of W that carry messages in both directions, each with the smaller of its weights."""
    return sparse.csr_array(matrix.minimum(matrix.T))


def detailed_balance(matrix: sparse.csr_array) -> np.ndarray | None:
    """Centrality v (A,) of a reversible W, v_i W_ij = v_j W_ji, summing to one over each component; None if W is not.

    A link of a reversible W may fail (its weight goes to both ends' self-weights) without changing v.
    """
    count, labels = csgraph.connected_components(matrix, directed=True, connection="strong")
    log_v = np.zeros(matrix.shape[0])
    lookup = matrix.todok()
    for root in np.unique(labels, return_index=True)[1]:
        order, parent = csgraph.breadth_first_order(matrix, root, directed=True)
        for node in order[1:]:
            back = lookup.get((node, parent[node]), 0.0)
            if back == 0.0:
                return None
            log_v[node] = log_v[parent[node]] + math.log(lookup[parent[node], node] / back)
    v = np.exp(log_v - ndimage.maximum(log_v, labels, np.arange(count))[labels])
    v /= np.bincount(labels, weights=v, minlength=count)[labels]
    flow = sparse.diags_array(v) @ matrix
    return v if abs(flow - flow.T).max() <= SAME_SHARE * flow.max() else None


def second_eigenvalue(matrix: sparse.csr_array) -> float:
    """The second largest magnitude of the eigenvalues of W (A, A), |λ_2| in [0, 1]; zero for a single agent."""
    size = matrix.shape[0]
    if size == 1:
        return 0.0
    symmetric = _symmetric(matrix)
    solvers: tuple[Any, Any] = np.linalg.eigvals, sparse_linalg.eigs
    if symmetric is not None:
        matrix, solvers = symmetric, (np.linalg.eigvalsh, sparse_linalg.eigsh)
    dense, iterative = solvers
    if size <= DENSE_AGENTS:
        values = dense(matrix.toarray())
    else:
        values = iterative(matrix, k=ARPACK_VALUES, v0=_arpack_start(size), return_eigenvectors=False)
    return float(np.sort(np.abs(values))[-2])


def real_spectrum(matrix: sparse.csr_array) -> np.ndarray | None:
    """The eigenvalues of a reversible W (A, A) but for one that is 1, from the largest down; None if W is not.

    With more than `DENSE_AGENTS` agents these are some at both ends.
    """
    symmetric, size = _symmetric(matrix), matrix.shape[0]
    if symmetric is None:
        return None
    if size <= DENSE_AGENTS:
        values = np.linalg.eigvalsh(symmetric.toarray())
    else:
        values = sparse_linalg.eigsh(
            symmetric, k=2 * ARPACK_VALUES, which="BE", v0=_arpack_start(size), return_eigenvectors=False
        )
    spectrum: np.ndarray = np.sort(values)[::-1][1:]
    return spectrum


def _symmetric(matrix: sparse.csr_array) -> Any:
    """A symmetric matrix with the eigenvalues of a reversible W; None if W is not."""
    v = detailed_balance(matrix)
    if v is None:
        return None
    half = sparse.diags_array(np.sqrt(v)) @ matrix @ sparse.diags_array(1.0 / np.sqrt(v))
    return (half + half.T) / 2


def _arpack_start(size: int) -> np.ndarray:
    """The start of ARPACK, whose own start is random, so that a second run might take other consensus steps."""
    start: np.ndarray = np.random.default_rng(0).normal(size=size)
    return start


@checked
def spectral_gap(matrix: sparse.csr_array) -> float:
    """How fast beliefs approach each other, 1 - |λ_2(W)|.

    Args:
        matrix: W, (A, A).

    Returns:
        The gap, in [0, 1]: zero where the graph falls apart, one where a single round is enough.

    Example:
        >>> round(pf.graph.spectral_gap(pf.graph.complete(4).matrix), 6)
        1.0
    """
    return min(1.0, max(0.0, 1.0 - second_eigenvalue(matrix)))


@checked
def consensus_rounds(gap: float, tolerance: float) -> float:
    """Rounds after which disagreement has shrunk, log(tolerance) / log(1 - gap).

    Args:
        gap: of `spectral_gap`.
        tolerance: the share of the disagreement that may be left, in (0, 1).

    Returns:
        A whole number of rounds; infinite for a gap of zero.

    Raises:
        GraphError: a tolerance outside (0, 1).

    Example:
        >>> pf.graph.consensus_rounds(gap=0.5, tolerance=1e-3)
        10
    """
    if not 0 < tolerance < 1:
        raise GraphError(f"tolerance must be in (0, 1), received {tolerance}")
    if gap <= 0:
        return math.inf
    return 1.0 if gap >= 1 - tolerance else math.ceil(math.log(tolerance) / math.log1p(-gap))


@checked
def mixing_bound(num_agents: int, gap: float) -> float:
    """Lemma 2's bound on Σ_t Σ_j |[W^t]_ij - v_j|, 4 log N / gap.

    Args:
        num_agents: N.
        gap: of `spectral_gap`.

    Returns:
        The bound, infinite for a gap of zero.

    Raises:
        GraphError: there is no agent.

    Example:
        >>> pf.graph.mixing_bound(1, gap=0.5)
        0.0
    """
    if num_agents < 1:
        raise GraphError(f"mixing_bound: num_agents must be at least 1, received {num_agents}")
    return math.inf if gap <= 0 else 4 * math.log(num_agents) / gap
