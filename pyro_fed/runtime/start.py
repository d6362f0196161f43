"""Where a run with `start=` begins: at the clients' sites of an earlier run, from its checkpoint or its result.

A result's group `sites` has the sites t_k and q ∝ t_0 Π_k t_k, and so t_0 too. The values of its prior say of which
model it is. Clients may have other rows now, and their groups other members: a site is where the rounds begin, and they
end where those of a fresh run do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from pyro_fed.algorithm.capabilities import SiteKeeping, no_sites
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.algorithm.states import State
from pyro_fed.density.fingerprint import difference, hash_tensors, prior_fingerprint
from pyro_fed.errors import CheckpointError
from pyro_fed.federation import Federation
from pyro_fed.infer.sites.gaussian_sites import as_state
from pyro_fed.ops.arviz_versions import group_of
from pyro_fed.results.record_dataset import kept_sites
from pyro_fed.runtime.checkpoint import blamed_state, latest
from pyro_fed.runtime.fingerprint import require_model


def start_states(algorithm: Algorithm, federation: Federation, start: Any) -> Start:
    """The states at the earlier run's sites, matched to this federation's clients by name."""
    if is_result(start):
        keeping = require_sites(algorithm, start)
        before, shared, local = _of_result(federation, start)
    else:
        marks, saved = latest(Path(start))
        require_model(Path(start), marks, algorithm, federation)
        keeping = require_sites(algorithm, start)
        before, shared, local = json.loads(marks["clients"]), saved.shared, saved.local
    with blamed_state(None if is_result(start) else Path(start)):
        origin = torch.tensor([before.index(name) if name in before else -1 for name in federation.client_names])
        return Start(*keeping.regroup(federation.problem, shared, local, origin))


def require_sites(algorithm: Any, start: Any) -> SiteKeeping:
    """The algorithm; refused if it cannot begin at sites, or if a result has none."""
    if is_result(start) and ("sites" not in start or "prior" not in group_of(start, "sites").attrs):
        raise CheckpointError(
            f"the result of {start.attrs.get('algorithm', 'something else')} cannot be the start: it has no sites of "
            "its clients. FedEP, PVI and FedLaplace keep them, without privacy and without limits on clients"
        )
    if not isinstance(algorithm, SiteKeeping):
        raise no_sites(algorithm)
    return algorithm


def read_start(start: Any) -> Any:
    """A `start`: the result in a file, which is read; a checkpoint's folder or a result as they are."""
    if is_result(start) or not Path(start).is_file():
        return start
    import arviz

    try:
        return arviz.from_netcdf(str(start)).load()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{start} cannot be read as a result: {error!s:.200}; start is a checkpoint's folder, a result, or the "
            "file that its to_netcdf has written"
        ) from error


def is_result(start: Any) -> bool:
    """Whether a `start` is a result, and not a path."""
    return hasattr(start, "attrs")


def start_text(start: Any) -> str:
    """What a run's fingerprint says of its start: the folder, or a hash of a result's sites."""
    if not is_result(start) or "sites" not in start:
        return str(start)
    group = group_of(start, "sites")
    return hash_tensors([torch.as_tensor(group[name].values) for name in sorted(group.data_vars, key=str)])


def _of_result(federation: Federation, result: Any) -> tuple[list[str], State, State]:
    """The names of a result's clients, and the states of the prior's site and theirs."""
    group = group_of(result, "sites")
    own_prior = prior_fingerprint(federation.problem, federation.problem.dim)
    if clause := difference(group.attrs["prior"], own_prior, same_rows=False):
        raise CheckpointError(f"the result cannot be the start: its model is another, {clause}")
    q, sites = kept_sites(group)
    prior = as_state(q.quotient(sites.product_over(0)), "prior_")
    return group["client"].values.tolist(), prior, as_state(sites)
