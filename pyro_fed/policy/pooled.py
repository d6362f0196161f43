"""Settings of algorithms on pooled data."""

from __future__ import annotations

from pyro_fed.infer.pooled.pmd import PMD
from pyro_fed.policy.choice import Table
from pyro_fed.policy.refusals import proper_prior

DRAWN_PARTICLES = proper_prior("its particles begin as draws of the prior", "use DSVGD")
TABLES = {
    PMD: Table(checks=(DRAWN_PARTICLES,)),
}
