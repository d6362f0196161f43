"""Settings of the algorithms that papers compare with, and of those on pooled data."""

from __future__ import annotations

import inspect

from pyro.infer.autoguide import AutoGuide

from pyro_fed.errors import SettingError
from pyro_fed.infer.papers.p2p_finite import P2PFinite
from pyro_fed.infer.papers.pmd import PMD
from pyro_fed.infer.pooled.svi import SVI
from pyro_fed.policy.choice import Case, Table
from pyro_fed.policy.refusals import proper_prior

DRAWN_PARTICLES = proper_prior("its particles begin as draws of the prior", "use DSVGD")
DRAWN_CANDIDATES = proper_prior(
    "its candidates are draws of the prior where none are given",
    "give candidates",
    lambda case: case.algorithm.candidates is None,
)


def support_stands_still(case: Case) -> None:
    """Refuse supports that move, because automatic guides use the support of their first draw.

    Raises:
        SettingError: names the guide, the latent and the cures.
    """
    guide, moving = case.algorithm.guide, case.traits.moving_supports
    kind = guide if inspect.isclass(guide) else type(guide)
    if not moving or not issubclass(kind, AutoGuide):
        return
    name, on = next(iter(moving.items()))
    raise SettingError(
        f"{type(case.algorithm).__name__}: {kind.__name__} takes the support of '{name}' as it is at its first draw, "
        f"and it moves with {on}, so that it would draw impossible values. Write the site in units of its bounds, "
        f"u ~ Uniform(0, 1) and {name} = low + (high - low) * u, or take GVI or FedEP, whose scale moves along"
    )


TABLES = {
    P2PFinite: Table(checks=(DRAWN_CANDIDATES,)),
    PMD: Table(checks=(DRAWN_PARTICLES,)),
    SVI: Table(checks=(support_stands_still,)),
}
