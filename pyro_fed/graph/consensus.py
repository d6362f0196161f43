"""How the agents of a fixed graph come together in few steps: polynomials of W, a circuit, and a tree.

Source: Xiao & Boyd (2004), *Fast linear iterations for distributed averaging*; Montijano, Montijano & Sagues (2013),
*Chebyshev polynomials in distributed consensus applications*; Kibangou (2012), *Graph Laplacian based matrix design for
finite-time distributed average consensus*. Golub & Van Loan, Section 11.2, for the polynomials.

    x ← p(W) x,    p(λ) = Π_s (λ - r_s) / (1 - r_s),    p(1) = 1

A step takes the weights (W - r I) / (1 - r): the same links and numbers as one of W, and rows that sum to one. With
v = v W also v p(W) = v, so that Σ_i v_i x_i is unchanged in every step and each datum counts once, whatever the
shifts r are. What is left of the disagreement is max |p(λ)| over W's other eigenvalues, which are real where W is
reversible:

    plain        r = 0: |λ_2|^k
    Chebyshev    r the zeros of T_k on [λ_min, λ_2]: 1 / T_k(ρ), ρ = (2 - λ_2 - λ_min) / (λ_2 - λ_min)
    finite       r the eigenvalues themselves, each once: nothing, in as many steps as there are (5 on a ring of ten)

The fewest are taken. Steps are in Leja's order, in which no partial product is much larger than the whole. All three
are at most one on [λ_min, 1], where the eigenvalues go when links of a reversible W fail: an agent that is asleep for a
round makes consensus slower, never unstable. Graphs that change, and W that are not reversible, keep the plain form.

*Circuit*: one step over all links, and the others along a circuit through all agents, of which C has three links each,

    x ← W x,    then x ← p(C) x,    C_ij = 1/3 for the agents before and after i on the circuit, and for i itself

A circuit's eigenvalues are pairs, so that A/2 steps leave nothing of the disagreement: 36 + 5 x 20 messages in place of
9 x 36 on a random graph of ten agents. Equally central agents are so for C, too. Where agents are missing what is left
is that of the step over all links. Circuits are searched for as by Pósa (1976), *Hamiltonian circuits in random
graphs*: a path is extended, and turned where it can go no further, by the link that has turned it least often, with
neither chance nor a clock, as all agents must find the same.

*Tree*: sums by the fewest messages, 2 (A - 1), for rounds in which nobody may be missing, up a flat tree and down:

    up      x_i ← (v_i x_i + Σ_c V_c x_c) / V_i,    V_i = v_i + Σ_c V_c      c the children of i
    down    x_c ← x_i                               every agent holds Σ_i v_i x_i, the same bits
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.limits import SAME_SHARE
from pyro_fed.graph import analysis
from pyro_fed.graph.analysis import both_ways

#: Eigenvalues that are nearer to each other than this count as one; what is left of the pair is as small.
EIGENVALUE_TOLERANCE = 1e-12
#: Largest tolerance, as a share of the initial disagreement: a larger remainder is not a consensus.
MAX_TOLERANCE = 0.99
#: Share of the tolerance that rounding may take.
ROUNDING_SHARE = 0.1
#: Points of [λ_min, 1], for each degree, at which a polynomial is evaluated.
POINTS_A_DEGREE = 64
#: Turns of the path's end for each pair of agents, before the search is given up.
TURNS_A_PAIR = 4


@dataclass(frozen=True)
class Consensus(metaclass=Checked):
    """The consensus steps of a round.

    Args:
        shifts: r_s of each step; zero is a step of W itself.

    Example:
        >>> pf.graph.Consensus((0.0, 0.0)).steps
        2
    """

    shifts: tuple[float, ...]

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.shifts)

    @property
    def tells_all(self) -> bool:
        """Whether every agent sends to all its neighbours in every step, so that they know what it sent before."""
        return True

    @property
    def among_some(self) -> Consensus:
        """The steps if some agents are asleep in every round."""
        return self

    def mixing(self, step: int, weights: sparse.csr_array) -> tuple[sparse.csr_array, float]:
        """The matrix that step number `step` mixes by, and its shift r; `weights` are W (C, C)."""
        return weights, self.shifts[step]

    def of_step(self, step: int, weights: sparse.csr_array) -> sparse.csr_array:
        """The matrix (W - r I) / (1 - r) of step number `step`; `weights` are W (C, C)."""
        return shifted_weights(*self.mixing(step, weights))


def shifted_weights(weights: sparse.csr_array, shift: float) -> sparse.csr_array:
    """(W - r I) / (1 - r)."""
    if shift == 0.0:
        return weights
    turned = sparse.csr_array(weights - shift * sparse.eye_array(weights.shape[0], format="csr"))
    turned.data /= 1.0 - shift
    return turned


def unshifted_steps(steps: int) -> Consensus:
    """A number of steps of W."""
    return Consensus((0.0,) * steps)


def fastest(matrix: sparse.csr_array, tolerance: float, plain_steps: float) -> Consensus:
    """The fewest steps that leave a share `tolerance` of the disagreement of W (A, A), which needs `plain_steps`."""
    others = analysis.real_spectrum(matrix)
    if others is None or not len(others) or plain_steps <= 1 or others[0] >= 1:
        return unshifted_steps(int(plain_steps))
    candidates = [chebyshev_shifts(float(others[-1]), float(others[0]), tolerance)]
    if len(others) == matrix.shape[0] - 1:
        candidates.insert(0, others[np.append(True, np.diff(others) < -EIGENVALUE_TOLERANCE)])
    sound = [_leja(shifts) for shifts in candidates if len(shifts) < plain_steps]
    sound = [shifts for shifts in sound if _is_sound(shifts, others, tolerance)]
    if not sound:
        return unshifted_steps(int(plain_steps))
    best = min(sound, key=len)
    return Consensus(tuple(best.tolist()))


def chebyshev_shifts(lowest: float, highest: float, tolerance: float) -> np.ndarray:
    """Zeros of the polynomial that is smallest on [λ_min, λ_2], of the least degree with 1 / T_k(ρ) <= tolerance."""
    centre, half = (lowest + highest) / 2, (highest - lowest) / 2
    if half <= EIGENVALUE_TOLERANCE:
        return np.array([centre])
    degree = max(1, math.ceil(math.acosh(1 / tolerance) / math.acosh((1 - centre) / half)))
    return centre + half * np.cos((np.arange(1, degree + 1) - 0.5) * math.pi / degree)


def left_of(shifts: np.ndarray, at: np.ndarray) -> np.ndarray:
    """p(λ) at some λ."""
    value = np.ones_like(at)
    for shift in shifts:
        value = value * (at - shift) / (1 - shift)
    return value


def _amplification(shifts: np.ndarray, others: np.ndarray) -> float:
    """The largest growth of a rounding error in the remaining steps, and of values in the steps so far."""
    largest, begun, ahead = 1.0, np.ones_like(others), np.ones_like(others)
    for first, last in zip(shifts, shifts[::-1], strict=True):
        begun, ahead = begun * (others - first) / (1 - first), ahead * (others - last) / (1 - last)
        largest = max(largest, float(np.abs(begun).max()), float(np.abs(ahead).max()))
    return largest


def _is_sound(shifts: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
    """Whether rounding is harmless, and no eigenvalue of W with failed links grows."""
    between = np.linspace(others[-1], 1.0, POINTS_A_DEGREE * len(shifts))
    rounding = float(np.finfo(np.float64).eps) * _amplification(shifts, others)
    stable = bool(np.abs(left_of(shifts, between)).max() <= 1 + SAME_SHARE)
    return stable and rounding <= ROUNDING_SHARE * tolerance


def _leja(shifts: np.ndarray) -> np.ndarray:
    """The shifts in Leja's order, in which each is as far from the earlier ones as possible."""
    left = np.asarray(shifts, dtype=np.float64)
    order = [int(np.abs(left).argmax())]
    distance = np.zeros(len(left))
    while len(order) < len(left):
        with np.errstate(divide="ignore"):
            distance += np.log(np.abs(left - left[order[-1]]))  # minus infinity for those that are taken
        order.append(int(distance.argmax()))
    return left[order]


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
    matrix = sparse.csr_array(sparse.coo_array(entries, shape=(len(own), len(own))))
    matrix.sort_indices()
    return matrix


@dataclass(frozen=True, eq=False)
class AlongCircuit(Consensus):
    """A step of W, and the steps of a polynomial of a circuit's matrix."""

    circuit: sparse.csr_array  # C, (A, A)
    over_all: Consensus  # the steps that replace it if agents are asleep

    def mixing(self, step: int, weights: sparse.csr_array) -> tuple[sparse.csr_array, float]:
        return (self.circuit if step else weights), self.shifts[step]

    @property
    def among_some(self) -> Consensus:
        return self.over_all


def along_circuit(
    matrix: sparse.csr_array, centrality: np.ndarray, over_all: Consensus, tolerance: float
) -> Consensus | None:
    """The steps along a circuit of W (A, A) with centrality v (A,); None if there is none.

    There is none either where messages times steps are no fewer than those of `over_all`.
    """
    agents = int(matrix.shape[0])
    links = int(matrix.nnz - np.count_nonzero(matrix.diagonal()))

    def price(steps: int) -> int:
        return (1 + steps) * (links + 2 * agents * steps)

    own = over_all.steps**2 * links
    if agents < 3 or np.ptp(centrality) > SAME_SHARE * centrality.max() or price(agents // 2) >= own:
        return None
    order = circuit(matrix)
    if order is None:
        return None
    around = _around(order)
    plain = analysis.consensus_rounds(analysis.spectral_gap(around), tolerance)
    shifts = fastest(around, tolerance, plain).shifts
    return AlongCircuit((0.0, *shifts), around, over_all) if price(len(shifts)) < own else None


def circuit(matrix: sparse.csr_array) -> list[int] | None:
    """The agents in the order of a circuit through all of them, by links in both directions; None if none is found."""
    links = analysis.both_ways(matrix)
    near = [[int(j) for j in links[[i], :].indices if int(j) != i] for i in range(links.shape[0])]
    if min(map(len, near)) < 2:
        return None
    path, turned = [min(range(len(near)), key=lambda i: len(near[i]))], dict[tuple[int, int], int]()
    on = set(path)
    for _ in range(TURNS_A_PAIR * len(near) ** 2):
        while ahead := [j for j in near[path[-1]] if j not in on]:
            path.append(min(ahead, key=lambda j: sum(k not in on for k in near[j])))
            on.add(path[-1])
        end = path[-1]
        if len(path) == len(near) and path[0] in near[end]:
            return path
        at = min(near[end], key=lambda j: (turned.get((end, j), 0), j))
        turned[end, at] = turned.get((end, at), 0) + 1
        place = path.index(at) + 1
        path[place:] = path[: place - 1 : -1]
    return None


def _around(order: list[int]) -> sparse.csr_array:
    """C of a circuit: a third of each agent's weight is its own, and a third that of either neighbour."""
    here = np.array(order)
    third = np.full(len(here), 1 / 3)
    neighbours = np.concatenate([np.roll(here, 1), np.roll(here, -1)])
    return _matrix(third, np.tile(here, 2), neighbours, np.tile(third, 2))
