"""Sums over all agents of a fixed graph by the fewest messages: up a tree of its links, and down again.

    up      x_i ← (v_i x_i + Σ_c V_c x_c) / V_i,    V_i = v_i + Σ_c V_c      c the children of i
    down    x_c ← x_i

At the end every agent holds Σ_i v_i x_i, the same bits. That takes 2 (A - 1) messages, where polynomials of W (see
`graph.consensus`) take as many as there are links, in each step: 18 for 100 on a ring of ten. But on the way
Σ_i v_i x_i is not kept, and a link that fails leaves part of it out: it is for rounds in which nobody may be missing.

The tree is a breadth-first one from the middle of a path between two agents that are far apart, so that it is flat.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from pyro_fed.graph.analysis import both_ways
from pyro_fed.graph.consensus import Consensus


@dataclass(frozen=True, eq=False)
class Gathering(Consensus):
    """Consensus steps up a tree and down again; they have no shifts, but a matrix (A, A) for each step in `stages`."""

    shifts: tuple[float, ...] = ()
    stages: tuple[sparse.csr_array, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.stages)

    @property
    def tells_all(self) -> bool:
        return False

    def mixing(self, step: int, weights: sparse.csr_array) -> tuple[sparse.csr_array, float]:
        return self.stages[step], 0.0


def tree_steps(matrix: sparse.csr_array, centrality: np.ndarray) -> Gathering | None:
    """The steps up and down a tree of W (A, A); None if links in both directions do not connect the agents."""
    links = both_ways(matrix)
    order, parent = _tree(links, _middle(links))
    if len(order) < matrix.shape[0]:
        return None
    depth, mass = np.zeros(len(order), dtype=np.int64), centrality.copy()
    for i in order[1:]:
        depth[i] = depth[parent[i]] + 1
    for i in order[:0:-1]:
        mass[parent[i]] += mass[i]
    ups = [_up(np.flatnonzero(depth == level), parent, mass, centrality) for level in range(int(depth.max()), 0, -1)]
    downs = [_down(np.flatnonzero(depth == level), parent) for level in range(1, int(depth.max()) + 1)]
    return Gathering(stages=(*ups, *downs))


def _tree(links: sparse.csr_array, root: int) -> tuple[np.ndarray, np.ndarray]:
    """Agents in breadth-first order, and the parent of each, (A,)."""
    order, parent = csgraph.breadth_first_order(links, root, directed=False)
    return order, parent


def _middle(links: sparse.csr_array) -> int:
    """The agent in the middle of the path between two that are far apart."""
    far = int(_tree(links, 0)[0][-1])
    order, parent = _tree(links, far)
    path = [int(order[-1])]
    while path[-1] != far:
        path.append(int(parent[path[-1]]))
    return path[len(path) // 2]


def _up(children: np.ndarray, parent: np.ndarray, mass: np.ndarray, centrality: np.ndarray) -> sparse.csr_array:
    """The steps in which children's means go into their parents'."""
    parents = parent[children]
    own = np.ones(len(parent))
    own[parents] = centrality[parents] / mass[parents]
    return _matrix(own, parents, children, mass[children] / mass[parents])


def _down(children: np.ndarray, parent: np.ndarray) -> sparse.csr_array:
    """The steps in which children adopt their parents' values."""
    own = np.ones(len(parent))
    own[children] = 0.0
    return _matrix(own, children, parent[children], np.ones(len(children)))


def _matrix(own: np.ndarray, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> sparse.csr_array:
    """A sparse matrix of the diagonal and other entries, in the order of columns."""
    kept = np.flatnonzero(own)
    entries = (np.append(own[kept], values), (np.append(kept, rows), np.append(kept, columns)))
    found = sparse.csr_array(sparse.coo_array(entries, shape=(len(own), len(own))))
    found.sort_indices()
    return found
