"""Whether the clients' log-likelihoods add up to that of all rows, where the result is.

What a run samples or approximates is prior times Π_k L_k, with L_k from a model that sees client k's rows alone. The
check when a federation is made has compared rows and pairs of rows at a few points; here it is the clients themselves,
at draws of the result, in float64:

    D(z) = Σ_k log L_k(z) - log L(z)

is zero for a model that splits. Else the result has the density of exp(D) times the posterior, so that D in nats is
what it is wrong by. Each client's rows go through the model by themselves, without the padding that a simulation has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.density.checks.blame import blame
from pyro_fed.density.compiling.batched import vmap
from pyro_fed.density.problem import Problem
from pyro_fed.errors import PyroFedError
from pyro_fed.ops.entries import evenly

#: Draws at which it is looked, and where the model is run one draw at a time.
DRAWS, LOOPED_DRAWS = 5, 2
#: Clients that are looked at, at most: the largest, the smallest, and others in between.
MOST_CLIENTS = 12
#: A difference of so many nats moves a posterior mean by less than a tenth of its SD.
LARGEST_DIFFERENCE = 0.1
#: Densities of rows computed for this, at most, where more than one draw is looked at.
MOST_DENSITIES = 5_000_000

Terms = dict[str, Tensor]

#: What a model raises that cannot be run on some rows.
NOT_RUN = (PyroFedError, RuntimeError, ValueError, IndexError)


def splitting(evidence: Evidence) -> list[str]:
    """Clients that do not add up.

    Args:
        evidence: the result.

    Returns:
        One sentence, which names the site, the client and the difference; or none.
    """
    problem = evidence.problem.doubled()
    points = evidence.points[evidence.points.isfinite().all(1)].double()
    if not len(points):
        return []
    most = min(LOOPED_DRAWS if problem.looped else DRAWS, max(1, MOST_DENSITIES // problem.evaluations))
    z = points[evenly(len(points), most)]
    generator = torch.Generator().manual_seed(0)
    local = torch.randn(problem.bound.num_rows, problem.local_dim, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        return _compared(evidence, problem, z, local)


def _compared(evidence: Evidence, problem: Problem, z: Tensor, local: Tensor) -> list[str]:
    outside, inside = _terms(problem, z, problem.all_rows, local)
    off: dict[tuple[str, str], Tensor] = {}
    worst: dict[tuple[str, str], tuple[float, int]] = {}
    client_rows = evidence.federation.client_rows
    chosen = _chosen(evidence.federation.row_counts)
    together = _alike(problem, z, local, client_rows, chosen)
    for k in chosen:
        at = client_rows[k]
        try:
            own_outside, own = together.get(k) or _terms(problem, z, _of(problem, at), local[at])
        except NOT_RUN as error:
            return [
                f"the model does not run on the rows of client {evidence.federation.client_names[k]} alone, as it "
                f"would there: {str(error).splitlines()[0]}"
            ]
        found = {("inside", name): _difference(own[name], terms[:, at]).sum(1) for name, terms in inside.items()}
        found |= {("outside", name): _difference(own_outside[name], value) for name, value in outside.items()}
        for key, difference in found.items():
            off[key] = off[key] + difference if key in off else difference
            largest = float(difference.abs().max())
            worst[key] = max(worst.get(key, (-1.0, k)), (largest, k))
    kind, name = max(off, key=lambda key: float(off[key].abs().max()))
    apart = float(off[kind, name].abs().max())
    if not apart > LARGEST_DIFFERENCE:
        return []
    return [_sentence(evidence, problem, z, local, kind, name, apart, worst[kind, name][1], len(chosen))]


def _terms(problem: Problem, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Terms, Terms]:
    """Densities outside the plate (S,), and inside it (S, m)."""
    found: tuple[Terms, Terms] = problem.vmap(lambda one: problem.log_terms(one, rows, local))(z)
    return found


def _alike(
    problem: Problem, z: Tensor, local: Tensor, client_rows: Sequence[Tensor], chosen: list[int]
) -> dict[int, tuple[Terms, Terms]]:
    """Terms of the clients with as many rows as another, each with its rows alone, from one run for all of a number.

    Where the model cannot be mapped over clients there are none: they are run one by one.
    """
    found: dict[int, tuple[Terms, Terms]] = {}
    sizes: dict[int, list[int]] = {}
    for k in chosen:
        sizes.setdefault(len(client_rows[k]), []).append(k)
    for clients in sizes.values():
        if problem.looped or len(clients) == 1:
            continue
        at = torch.stack([client_rows[k] for k in clients])
        mapped = vmap(lambda rows, own: _terms(problem, z, rows, own))
        try:
            outside, inside = mapped(_of(problem, at), local[at])
        except NOT_RUN:
            continue
        for place, k in enumerate(clients):
            found[k] = (
                {name: value[place] for name, value in outside.items()},
                {name: value[place] for name, value in inside.items()},
            )
    return found


def _of(problem: Problem, at: Tensor) -> tuple[Any, ...]:
    """These rows, of indices (m,); or of several clients, (C, m)."""
    return tuple(leaf[at] for leaf in problem.rows)


def _difference(one: Tensor, two: Tensor) -> Tensor:
    """one - two; zero where both are the same infinity or no number, infinite where one is."""
    same = (one == two) | (one.isnan() & two.isnan())
    return torch.where(same, 0.0, (one - two).nan_to_num(torch.inf))


def _chosen(counts: Tensor) -> list[int]:
    """Clients with rows: all, or `MOST_CLIENTS` from the smallest to the largest."""
    order = [int(k) for k in counts.argsort() if counts[k]]
    return [order[int(i)] for i in evenly(len(order), MOST_CLIENTS)]


def _sentence(
    evidence: Evidence,
    problem: Problem,
    z: Tensor,
    local: Tensor,
    kind: str,
    name: str,
    difference: float,
    client: int,
    looked_at: int,
) -> str:
    federation = evidence.federation
    cause = ""
    if len(federation.client_rows[client]) < problem.bound.num_rows:
        found = blame(problem, z[0], problem.rows, local, federation.client_rows[client], name, kind)
        cause = found.where
    site = f"site '{name}'" if name else "the support of a latent site"
    return (
        f"the model does not split over plate '{problem.plate}': at the result's draws the log densities of "
        f"{looked_at} clients, each with its rows alone, and those of the same rows among all differ by "
        f"{difference:.3g} in {site}, most of all at client {federation.client_names[client]}: this is no posterior of "
        f"all rows. {cause}Each row's term may depend on that row, its own latents and the latents outside the plate "
        "alone"
    )
