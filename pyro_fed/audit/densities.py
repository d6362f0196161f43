"""Whether the densities at the result's draws add up over the clients, and are precise enough.

**Splitting.** A run approximates the prior times Π_k L_k, where L_k comes from the model with client k's rows alone.
Whole clients are compared with all rows, at draws of the result and in float64:

    D(z) = Σ_k log L_k(z) - log L(z)

D is zero for a model that splits. Otherwise the result has exp(D) times the posterior's density: D is its error in
nats. Each client's rows go through the model by themselves, without the padding of a simulation.

**Precision.** Let e(z) be the error of the log density in float32, and d(z) that of the score in coordinates that
whiten the draws. There the posterior has about unit covariance, so that a Newton step is the score itself:

- the mean is off by at most E|d| SDs, and an SD by at most the share (E d²)^½, since |E d u| ≤ (E d²)^½ for E u² = 1;
- an error e that varies over z is noise in importance ratios and in acceptance rates.

Algorithms whose answer is a Gaussian also invert its precision. Relative errors of eps in the entries of a matrix with
the condition number c cause a relative error of eps·c in its smallest eigenvalue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import overrides
from pyro_fed.audit.evidence import Evidence
from pyro_fed.audit.target import TemperedDensity, density_cost, for_checks, scores_at, whitening_factor
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.limits import NEGLIGIBLE
from pyro_fed.density.checks.blame import blame
from pyro_fed.density.checks.points import FEW_DRAWS
from pyro_fed.density.problem import Problem
from pyro_fed.errors import PyroFedError
from pyro_fed.ops.batched import vmap
from pyro_fed.ops.entries import evenly
from pyro_fed.policy.audit import compared_draws, maps_points, may_round

#: The most clients that are compared: the largest, the smallest, and others in between.
MAX_COMPARED_CLIENTS = 12

Terms = dict[str, Tensor]
#: Where a term belongs: "outside" or "inside" the plate, and its site's name ("": the support of a latent site).
Key = tuple[str, str]

#: Errors that a model raises if it cannot be run on some of the rows.
NOT_RUN = (PyroFedError, RuntimeError, ValueError, IndexError)


def splitting(evidence: Evidence) -> list[Finding]:
    """One finding on clients whose log-likelihoods do not add up to that of all rows, or none."""
    problem = evidence.problem.doubled()
    points = evidence.points[evidence.points.isfinite().all(1)].double()
    if not len(points):
        return []
    z = points[evenly(len(points), FEW_DRAWS)]
    generator = torch.Generator().manual_seed(0)
    local = torch.randn(problem.bound.num_rows, problem.local_dim, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        return _splitting_findings(evidence, problem, z, local)


def _splitting_findings(evidence: Evidence, problem: Problem, z: Tensor, local: Tensor) -> list[Finding]:
    """The finding at draws z (S, D) in float64, with values of the rows' own latents `local` (N, D_local); or none."""
    outside, inside = _terms(problem, z, problem.all_rows, local)
    off: dict[Key, Tensor] = {}
    worst: dict[Key, tuple[float, int]] = {}
    client_rows = evidence.federation.client_rows
    counts = evidence.federation.row_counts
    order = [int(k) for k in counts.argsort() if counts[k]]
    chosen = [order[int(i)] for i in evenly(len(order), MAX_COMPARED_CLIENTS)]
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
    kind, name = key
    site, rows, cause = f"site '{name}'" if name else "the support of a latent site", client_rows[client], ""
    if len(rows) < problem.bound.num_rows:
        cause = blame(problem, z[0], problem.rows, local, rows, name, kind).where
    return [
        sentences.model_does_not_split(
            plate=problem.plate,
            clients=len(chosen),
            difference=apart,
            site=site,
            client=evidence.federation.client_names[client],
            cause=cause,
        )
    ]


def _terms(problem: Problem, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Terms, Terms]:
    """Log densities by site: of the sites outside the plate (S,), and of those inside it (S, m)."""
    found: tuple[Terms, Terms] = problem.vmap(lambda one: problem.log_terms(one, rows, local))(z)
    return found


def _terms_by_equal_rows(
    problem: Problem, z: Tensor, local: Tensor, client_rows: Sequence[Tensor], chosen: list[int]
) -> dict[int, tuple[Terms, Terms]]:
    """Terms of clients that have equally many rows, computed together; others have to be run by themselves."""
    found: dict[int, tuple[Terms, Terms]] = {}
    sizes: dict[int, list[int]] = {}
    for k in chosen:
        sizes.setdefault(len(client_rows[k]), []).append(k)
    for clients in sizes.values():
        if len(clients) == 1 or not maps_points(problem.traits):
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


def precision(evidence: Evidence) -> list[Finding]:
    """One finding on rounding errors of float32 that matter at the result's draws, or none."""
    if evidence.draws.shape[1] > 1 and bool((evidence.draws.std(1) == 0).any()):
        return []  # chains that never moved are not at the posterior: scores and their errors mean nothing there
    problem, draws = evidence.problem, evidence.draws.flatten(0, 1)
    finite = draws[draws.isfinite().all(1)]
    if not may_round(problem.traits) or len(finite) < 2:
        return []
    z = finite[evenly(len(finite), compared_draws(problem.traits, density_cost(problem)))]
    score, value = scores_at(for_checks(problem), z)
    single = score.double(), value.double()
    double = TemperedDensity().score_and_value(problem.doubled(), z.double(), (problem.doubled().all_rows, ()))
    factor = whitening_factor(finite.double())
    found = _errors(single, double, factor)
    if found is None and overrides(evidence.algorithm, "log_density"):
        found = _inversion(finite.double())
    if found is None:
        return []
    return [sentences.float32_is_not_enough(off=found)]


def _errors(single: tuple[Tensor, Tensor], double: tuple[Tensor, Tensor], factor: Tensor) -> str | None:
    """Errors of scores (S, D) and log densities (S,) in single precision, whitened by L, as a clause; None if small."""
    usable = double[1].isfinite() & double[0].isfinite().all(1)
    if not bool(usable.any()):
        return None
    broken = usable & ~(single[1].isfinite() & single[0].isfinite().all(1))
    if bool(broken.any()):
        return f"{int(broken.sum())} of {int(usable.sum())} draws have a density in float64 and none in float32"
    away = (single[0] - double[0])[usable]
    away = away * factor if factor.dim() == 1 else away @ factor
    score = float(away.square().mean(0).sqrt().max())
    if score > NEGLIGIBLE:
        return f"rounding errors of the scores at its draws are worth {score:.2g} SDs of a parameter"
    off = (single[1] - double[1])[usable]
    spread = float(off.std()) if len(off) > 1 else 0.0
    return (
        f"rounding errors of the log density vary by {spread:.2g} nats over its draws" if spread > NEGLIGIBLE else None
    )


def _inversion(draws: Tensor) -> str | None:
    """The cost of inverting the draws' correlation matrix in float32; None if it is small, or the draws are too few."""
    if len(draws) <= 2 * draws.shape[1] or draws.shape[1] < 2:
        return None
    values = torch.linalg.eigvalsh(draws.T.corrcoef().nan_to_num(0.0))
    condition = float(values[-1] / values[0].clamp(min=1e-300))
    error = torch.finfo(torch.float32).eps * condition
    if error / 2 <= NEGLIGIBLE:  # of the smallest SD
        return None
    return (
        f"its draws are so correlated (condition number {condition:.1g}) that a covariance inverted in float32 has a "
        f"relative error of {error:.2g} in its smallest variance"
    )
