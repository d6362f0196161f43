"""Global variational inference in closed form: natural-gradient steps on the pooled data, the "GVI" of the DSVGD paper.

Source: Bui et al. (2018), Property 4; Kassab & Simeone, Appendix C.1, "PVI and GVI implementation".

    q ← arg min_q KL(q ‖ p_0 p),    Λ ← E_q[-∇² log p_0 p],   η ← E_q[∇ log p_0 p] + Λ m

This is partitioned variational inference with one client that has all rows: the local free energy is the global one,
and the site's expected Newton step is a natural-gradient step of size one. `SVI` does the same by Adam, for any guide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pyro_fed.conventions.nested_settings import explains_unknown
from pyro_fed.errors import SettingError
from pyro_fed.infer.ep.settings import Controlled, Converging, Damped


@explains_unknown
@dataclass(frozen=True, kw_only=True)
class GVI(Converging, Damped, Controlled):
    """Global variational inference: a Gaussian fitted to the pooled data by natural-gradient steps.

    Args:
        client: `pf.infer.tilted.Newton` or its name, the natural gradient; no other is accepted.
        damping: δ, in (0, 1]; None takes 1.

    References:
        Bui et al. (2018), Property 4. Khan & Nielsen (2018).

    Example:
        >>> idata = pf.run(pf.papers.GVI(), fed)
    """

    pooled: ClassVar[bool] = True
    without: ClassVar[Mapping[str, str]] = {
        "start": "it begins at the prior",
        "optimisers": "the steps are those of the natural gradient",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.solver.newton_steps:
            raise SettingError(f"GVI: client must be 'newton', the natural gradient, received {self.client!r}; use SVI")
