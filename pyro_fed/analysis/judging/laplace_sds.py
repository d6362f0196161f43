"""SDs of the Laplace approximation of the pooled posterior, with which a result's SDs are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_fed.errors import DivergenceError
from pyro_fed.federation.federation import Federation
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.runtime.run import final_state


@dataclass(frozen=True, kw_only=True)
class PooledLaplace(FedLaplace):
    """`FedLaplace` with a single client, which holds all rows: Newton's method on the pooled posterior."""

    pooled: ClassVar[bool] = True


def laplace_sds(federation: Federation) -> Tensor | None:
    """SDs (D,) of the Laplace approximation of the pooled posterior, on the unconstrained scale.

    None if Newton's method found no mode or the Hessian is not invertible there.
    """
    try:
        found = final_state(PooledLaplace(), federation)
    except DivergenceError:
        return None
    if not found.converged:
        return None
    sds = gaussian(found.shared).to_full().moments()[1].diagonal().sqrt()
    return sds if bool(sds.isfinite().all()) else None
