"""Consensus of fewer messages: one step over all links, and the others along a circuit through all agents.

    x ← W x,    then x ← p(C) x,    C_ij = 1/3 for the agents before and after i on the circuit, and for i itself

A polynomial of W needs about as many steps as W has different eigenvalues, nine on a random graph of ten agents, and
each step sends over every link. A circuit has two links an agent, and its eigenvalues are pairs: A/2 steps leave
nothing of the disagreement. On that graph these are 36 + 5 x 20 messages in place of 9 x 36. Agents that are equally
central are so for C, too, and each datum still counts once.

An agent that is missing cuts the circuit, and two of them cut it in two. What is left of the disagreement then is that
of the step over all links, whose present agents bring the rest together, round by round: slower, not wrong.

Circuits through all agents ("Hamiltonian") are hard to find in general, and there need not be one. The search extends a
path, and turns its end where it can go no further, always by the link that has turned it least often: with neither
chance nor a clock, as all agents must find the same.

Source: Pósa (1976), *Hamiltonian circuits in random graphs*, for the turns; `graph.consensus` for the polynomials.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from pyro_fed.graph import analysis
from pyro_fed.graph.consensus import Consensus, fastest

#: Weight of each of the three on a circuit.
WEIGHT = 1 / 3
#: Relative difference up to which agents are equally central.
EQUAL = 1e-9
#: Turns of the path's end for each pair of agents, before the search is given up.
TURNS_A_PAIR = 4


@dataclass(frozen=True, eq=False)
class AlongCircuit(Consensus):
    """A step of W, and the steps of a polynomial of a circuit's matrix.

    Args:
        shifts: zero for the first step, and those of the polynomial.
        circuit: C, (A, A).
        over_all: the steps that replace it if agents are asleep.
    """

    circuit: sparse.csr_array
    over_all: Consensus

    def mixing(self, step: int, weights: sparse.csr_array) -> tuple[sparse.csr_array, float]:
        return (self.circuit if step else weights), self.shifts[step]

    @property
    def among_some(self) -> Consensus:
        return self.over_all


def along_circuit(
    matrix: sparse.csr_array, centrality: np.ndarray, over_all: Consensus, tolerance: float
) -> Consensus | None:
    """The steps along a circuit of W (A, A) with centrality v (A,); None if there is none, or `over_all` is better.

    The steps over all links are better unless the messages that a circuit saves are a larger share than the steps that
    it adds, one after another: by messages times steps.
    """
    agents = int(matrix.shape[0])
    links = int(matrix.nnz - np.count_nonzero(matrix.diagonal()))

    def price(steps: int) -> int:
        return (1 + steps) * (links + 2 * agents * steps)

    own = over_all.steps**2 * links
    if agents < 3 or np.ptp(centrality) > EQUAL * centrality.max() or price(agents // 2) >= own:
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
    """C of a circuit."""
    here = np.array(order)
    rows, columns = np.tile(here, 3), np.concatenate([here, np.roll(here, 1), np.roll(here, -1)])
    found = sparse.csr_array(sparse.coo_array((np.full(len(rows), WEIGHT), (rows, columns))))
    found.sort_indices()
    return found
