"""Checks of the densities at the result's draws: do they add up over the clients, and are they precise enough?

**Splitting.** A run approximates the prior times Π_k L_k, where L_k is the likelihood of the model with client k's rows
alone. The check compares their sum with the log-likelihood L of all rows, at draws z of the result and in float64:

    D(z) = Σ_k log L_k(z) - log L(z)

D is zero for a model that splits. Otherwise the density that the run approximates is exp(D) times the posterior's: D is
its error in nats. The model runs on each client's rows alone, without the padding of a simulation.

**Precision.** Let e(z) be the error of the log density in float32, and d(z) that of the score in coordinates that
whiten the draws. In these the posterior has about unit covariance, so that a Newton step is the score itself:

- the mean is off by at most E|d| SDs, and an SD by at most the share (E d²)^½, since |E d u| ≤ (E d²)^½ for E u² = 1;
- an error e that varies over z adds noise to importance ratios and acceptance rates.

Algorithms whose answer is a Gaussian also invert its precision matrix. If the matrix has condition number c, relative
errors eps of its entries cause a relative error of eps·c in its smallest eigenvalue.
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

#: Largest number of clients that are compared: the largest, the smallest, and others in between.
MAX_COMPARED_CLIENTS = 12

Terms = dict[str, Tensor]
#: Position of a term, "outside" or "inside" the plate, and the name of its site ("": the support of a latent site).
Key = tuple[str, str]

#: Errors that a model may raise if it is run on some of the rows.
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
    """`splitting` at draws z (S, D) in float64, with values of the rows' own latents `local` (N, D_local)."""
    outside, inside = _terms(problem, z, problem.all_rows, local)
    differences: dict[Key, Tensor] = {}
    worst_clients: dict[Key, tuple[float, int]] = {}
    client_rows = evidence.federation.client_rows
    counts = evidence.federation.row_counts
    order = [int(k) for k in counts.argsort() if counts[k]]
    compared = [order[int(i)] for i in evenly(len(order), MAX_COMPARED_CLIENTS)]
    together = _terms_by_equal_rows(problem, z, local, client_rows, compared)
    for k in compared:
        at = client_rows[k]
        try:
            client_outside, client_inside = together.get(k) or _terms(problem, z, _rows_at(problem, at), local[at])
        except NOT_RUN as error:
            name, line = evidence.federation.client_names[k], str(error).splitlines()[0]
            return [sentences.model_does_not_run_alone(client=name, error=line)]
        client_differences = {
            ("inside", name): _difference(client_inside[name], terms[:, at]).sum(1) for name, terms in inside.items()
        }
        client_differences |= {
            ("outside", name): _difference(client_outside[name], value) for name, value in outside.items()
        }
        for key, difference in client_differences.items():
            differences[key] = differences[key] + difference if key in differences else difference
            largest = float(difference.abs().max())
            worst_clients[key] = max(worst_clients.get(key, (-1.0, k)), (largest, k))
    key = max(differences, key=lambda key: float(differences[key].abs().max()))
    largest_difference, client = float(differences[key].abs().max()), worst_clients[key][1]
    if not largest_difference > NEGLIGIBLE:
        return []
    kind, name = key
    site, rows, cause = f"site '{name}'" if name else "the support of a latent site", client_rows[client], ""
    if len(rows) < problem.bound.num_rows:
        cause = blame(problem, z[0], problem.rows, local, rows, name, kind).where
    return [
        sentences.model_does_not_split(
            plate=problem.plate,
            clients=len(compared),
            difference=largest_difference,
            site=site,
            client=evidence.federation.client_names[client],
            cause=cause,
        )
    ]


def _terms(problem: Problem, z: Tensor, rows: tuple[Any, ...], local: Tensor) -> tuple[Terms, Terms]:
    """Log densities by site: of the sites outside the plate (S,), and of those inside it (S, m)."""
    terms: tuple[Terms, Terms] = problem.vmap(lambda one: problem.log_terms(one, rows, local))(z)
    return terms


def _terms_by_equal_rows(
    problem: Problem, z: Tensor, local: Tensor, client_rows: Sequence[Tensor], chosen: list[int]
) -> dict[int, tuple[Terms, Terms]]:
    """Terms of those clients that share their number of rows with another, computed together."""
    terms: dict[int, tuple[Terms, Terms]] = {}
    sizes: dict[int, list[int]] = {}
    for k in chosen:
        sizes.setdefault(len(client_rows[k]), []).append(k)
    for clients in sizes.values():
        if len(clients) == 1 or not maps_points(problem.traits):
            continue
        at = torch.stack([client_rows[k] for k in clients])
        mapped = vmap(lambda rows, own: _terms(problem, z, rows, own))
        try:
            outside, inside = mapped(_rows_at(problem, at), local[at])
        except NOT_RUN:
            continue
        for place, k in enumerate(clients):
            terms[k] = (
                {name: value[place] for name, value in outside.items()},
                {name: value[place] for name, value in inside.items()},
            )
    return terms


def _rows_at(problem: Problem, at: Tensor) -> tuple[Any, ...]:
    """Rows by their indices, (m,), or (C, m) of several clients."""
    return tuple(leaf[at] for leaf in problem.rows)


def _difference(one: Tensor, two: Tensor) -> Tensor:
    """one - two; zero if both are the same infinity or both NaN, infinite if only one of them is."""
    same = (one == two) | (one.isnan() & two.isnan())
    return torch.where(same, 0.0, (one - two).nan_to_num(torch.inf))


def precision(evidence: Evidence) -> list[Finding]:
    """One finding on rounding errors of float32 that matter at the result's draws, or none."""
    if evidence.draws.shape[1] > 1 and bool((evidence.draws.std(1) == 0).any()):
        return []  # chains that never moved are not at the posterior: errors of scores there mean nothing
    problem, draws = evidence.problem, evidence.draws.flatten(0, 1)
    finite = draws[draws.isfinite().all(1)]
    if not may_round(problem.traits) or len(finite) < 2:
        return []
    z = finite[evenly(len(finite), compared_draws(problem.traits, density_cost(problem)))]
    score, value = scores_at(for_checks(problem), z)
    single = score.double(), value.double()
    double = TemperedDensity().score_and_value(problem.doubled(), z.double(), (problem.doubled().all_rows, ()))
    factor = whitening_factor(finite.double())
    error = _rounding_error(single, double, factor)
    if error is None and overrides(evidence.algorithm, "log_density"):
        error = _inversion_error(finite.double())
    if error is None:
        return []
    return [sentences.float32_is_not_enough(off=error)]


def _rounding_error(single: tuple[Tensor, Tensor], double: tuple[Tensor, Tensor], factor: Tensor) -> str | None:
    """A clause on float32 errors of scores (S, D), whitened by L, or of log densities (S,); None if they are small."""
    usable = double[1].isfinite() & double[0].isfinite().all(1)
    if not bool(usable.any()):
        return None
    broken = usable & ~(single[1].isfinite() & single[0].isfinite().all(1))
    if bool(broken.any()):
        return f"{int(broken.sum())} of {int(usable.sum())} draws have a density in float64 but not in float32"
    score_error = (single[0] - double[0])[usable]
    score_error = score_error * factor if factor.dim() == 1 else score_error @ factor
    score = float(score_error.square().mean(0).sqrt().max())
    if score > NEGLIGIBLE:
        return f"rounding errors of the scores at its draws shift a parameter by {score:.2g} SDs"
    value_error = (single[1] - double[1])[usable]
    spread = float(value_error.std()) if len(value_error) > 1 else 0.0
    return (
        f"rounding errors of the log density vary by {spread:.2g} nats over its draws" if spread > NEGLIGIBLE else None
    )


def _inversion_error(draws: Tensor) -> str | None:
    """A clause on the error of inverting the draws' correlation matrix in float32; None if small, or few draws."""
    if len(draws) <= 2 * draws.shape[1] or draws.shape[1] < 2:
        return None
    values = torch.linalg.eigvalsh(draws.T.corrcoef().nan_to_num(0.0))
    condition = float(values[-1] / values[0].clamp(min=1e-300))
    error = torch.finfo(torch.float32).eps * condition
    if error / 2 <= NEGLIGIBLE:  # error / 2 is the relative error of the smallest SD
        return None
    return (
        f"its draws are so correlated (condition number {condition:.1g}) that a covariance inverted in float32 has a "
        f"relative error of {error:.2g} in its smallest variance"
    )
