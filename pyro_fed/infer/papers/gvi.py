"""Global variational inference in closed form: natural-gradient steps on the pooled data, the "GVI" of the DSVGD paper.

Source: Bui et al. (2018), Property 4; Kassab & Simeone, Appendix C.1, "PVI and GVI implementation".

    q ← arg min_q KL(q ‖ p_0 p),    Λ ← E_q[-∇² log p_0 p],   η ← E_q[∇ log p_0 p] + Λ m

Partitioned variational inference with one client that has all rows: the local free energy is the global one, and the
site's expected Newton step is a natural gradient of step one. `SVI` is the same by Adam, for any guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from pyro_fed.algorithm.capabilities import Pooled
from pyro_fed.conventions.nested_settings import explains_unknown, refuse_unused
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.guided import GuidedFedEP
from pyro_fed.infer.ep.tilted import Newton


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GVI(FedEP, Pooled):
    """Global variational inference: a Gaussian fitted to the pooled data by natural-gradient steps.

    Args:
        covariance: of q: "full", "diag", or "auto": full up to `full_dim` parameters.
        full_dim: largest D for which "auto" takes a full covariance, and exact Hessians.
        curvature: of the likelihood: "hessian", "fisher" (never negative), or "auto": Hessians up to `full_dim`
            parameters.
        num_points: Sobol points for expectations under q; even.
        tolerance: the run has converged when no mean moves by more than this many SDs in a round, and no SD by
            more than this share.
        guide: in place of `covariance`, an automatic Gaussian guide of Pyro, class or instance; a function is refused.
        num_guide_draws: refused, as guides that are functions are.
        client: `pf.tilted.Newton` or its name alone, which is the natural gradient.
        start: "prior" alone.
        averaging: refused, as a warm start is.
        warm_tolerance: refused, as a warm start is.
        damping: δ, in (0, 1]; None takes 1.
        min_fraction: a change of q is skipped where less than this share of it can be taken.
        margin: smallest eigenvalue that one round may leave of q's precision, relative to what it was.
        min_curvature: smallest eigenvalue of a scaled curvature where it is not positive definite.
        step_control: how Newton steps are accelerated and held back.
        server_optimiser: refused: the steps are those of the natural gradient.
        client_optimiser: refused, likewise.
        changes: refused: it is what a server's optimiser is given.
        temperature: α of generalised Bayes; the likelihood is raised to 1/α.

    Raises:
        SettingError: a setting out of its range, unknown, or without effect beside the others.

    References:
        Bui et al. (2018), Property 4. Khan & Nielsen (2018).

    Example:
        >>> idata = pf.run(pf.GVI(), fed)
    """

    guided: ClassVar[type[GuidedFedEP] | None] = None

    start: Literal["auto", "laplace", "prior", "fedavg", "few_rows"] = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "it begins at the prior", "start", "averaging", "warm_tolerance")
        refuse_unused(self, "the steps are those of the natural gradient", "server_optimiser", "client_optimiser")
        if not isinstance(self.client, Newton):
            raise SettingError(f"GVI: client must be 'newton', the natural gradient, received {self.client!r}; use SVI")
