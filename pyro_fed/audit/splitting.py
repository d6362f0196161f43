"""Whether the clients' log-likelihoods add up to the log-likelihood of all rows, at the result's draws.

A run samples or approximates the prior times Π_k L_k, where L_k comes from the model with client k's rows alone. When a
federation is made, single rows and pairs of rows are compared at a few points. Here whole clients are compared, at
draws of the result and in float64:

    D(z) = Σ_k log L_k(z) - log L(z)

D is zero for a model that splits. Otherwise the result has exp(D) times the posterior's density: D is its error in
nats. Each client's rows go through the model by themselves, without the padding of a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fed.audit.evidence import Evidence
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.checks.blame import blame
from pyro_fed.density.problem import Problem
from pyro_fed.errors import PyroFedError
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import FEWEST_COMPARED_DRAWS

#: The most clients that are compared: the largest, the smallest, and others in between.
MOST_CLIENTS = 12

Terms = dict[str, Tensor]
#: Where a term belongs: "outside" or "inside" the plate, and its site's name ("": the support of a latent site).
Key = tuple[str, str]

#: Errors that a model raises if it cannot be run on some of the rows.
NOT_RUN = (PyroFedError, RuntimeError, ValueError, IndexError)


def splitting(evidence: Evidence) -> list[Finding]:
    """One finding on clients whose log-likelihoods do not add up to that of all rows, or none.

    It names the site, the client and the difference.
    """
    problem = evidence.problem.doubled()
    points = evidence.points[evidence.points.isfinite().all(1)].double()
    if not len(points):
        return []
    z = points[evenly(len(points), FEWEST_COMPARED_DRAWS)]
    generator = torch.Generator().manual_seed(0)
    local = torch.randn(problem.bound.num_rows, problem.local_dim, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        return _splitting_findings(evidence, problem, z, local)


def _splitting_findings(evidence: Evidence, problem: Problem, z: Tensor, local: Tensor) -> list[Finding]:
    """Compare the clients' terms at draws z (S, D) with those of the same rows among all rows: one finding, or none.

    The densities are in float64; `local` are values of the rows' own latents (N, D_local).
    """
    outside, inside = _terms(problem, z, problem.all_rows, local)
    off: dict[Key, Tensor] = {}
    worst: dict[Key, tuple[float, int]] = {}
    client_rows = evidence.federation.client_rows
    chosen = _compared_clients(evidence.federation.row_counts)
    together = _terms_by_equal_rows(problem, z, local, client_rows, chosen)
    for k in chosen:
        at = client_rows[k]
        try:
            own_outside, own = together.get(k) or _terms(problem, z, _of(problem, at), local[at])
        except NOT_RUN as error:
            name, line = evidence.federation.client_names[k], str(error).splitlines()[0]
            return [sentences.model_does_not_run_alone(client=name, error=line)]
        found = {("inside", name): _difference(own[name], terms[:, at]).sum(1) for name, terms in inside.items()}
        found |= {("outside", name): _difference(own_outside[name], value) for name, value in outside.items()}
        for key, difference in found.items():
            off[key] = off[key] + difference if key in off else difference
            largest = float(difference.abs().max())
            worst[key] = max(worst.get(key, (-1.0, k)), (largest, k))
    key = max(off, key=lambda key: float(off[key].abs().max()))
    apart, client = float(off[key].abs().max()), worst[key][1]
    if not apart > NEGLIGIBLE:
        return []
    site = f"site '{key[1]}'" if key[1] else "the support of a latent site"
    return [
        sentences.model_does_not_split(
            plate=problem.plate,
            clients=len(chosen),
            difference=apart,
            site=site,
            client=evidence.federation.client_names[client],
            cause=_cause(problem, z[0], local, client_rows[client], key),
        )
    ]


def _cause(problem: Problem, z: Tensor, local: Tensor, rows: Tensor, key: Key) -> str:
    """A sentence on the line of the model that makes a client's rows (m,) differ, at z (D,); "" if it has all rows."""
    if len(rows) == problem.bound.num_rows:
        return ""
    kind, name = key
    return blame(problem, z, problem.rows, local, rows, name, kind).where


def _terms(problem: Problem, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Terms, Terms]:
    """Log densities by site: of the sites outside the plate (S,), and of those inside it (S, m)."""
    found: tuple[Terms, Terms] = problem.vmap(lambda one: problem.log_terms(one, rows, local))(z)
    return found


def _terms_by_equal_rows(
    problem: Problem, z: Tensor, local: Tensor, client_rows: Sequence[Tensor], chosen: list[int]
) -> dict[int, tuple[Terms, Terms]]:
    """Terms of clients that have equally many rows, computed together; each client sees its own rows alone.

    A client has no entry if no other one has as many rows, or if the model cannot be mapped over clients. It is then
    run by itself.
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
    """Rows by their indices, (m,), or (C, m) of several clients."""
    return tuple(leaf[at] for leaf in problem.rows)


def _difference(one: Tensor, two: Tensor) -> Tensor:
    """one - two; zero if both are the same infinity or both NaN, infinite if only one of them is."""
    same = (one == two) | (one.isnan() & two.isnan())
    return torch.where(same, 0.0, (one - two).nan_to_num(torch.inf))


def _compared_clients(counts: Tensor) -> list[int]:
    """Clients with rows: all, or `MOST_CLIENTS` from the smallest to the largest."""
    order = [int(k) for k in counts.argsort() if counts[k]]
    return [order[int(i)] for i in evenly(len(order), MOST_CLIENTS)]
