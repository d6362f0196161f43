"""Settings of algorithms on pooled data."""

from __future__ import annotations

from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.pooled.gvi import GVI
from pyro_fed.infer.pooled.pmd import PMD
from pyro_fed.policy import ep
from pyro_fed.policy.choice import Table
from pyro_fed.policy.refusals import affordable_rows, proper_prior

DRAWN_PARTICLES = proper_prior("its particles begin as draws of the prior", "use DSVGD")
TABLES = {
    GVI: Table(ep.TABLES[FedEP].rows, (affordable_rows, ep.ONLY_PRIOR)),
    PMD: Table(checks=(DRAWN_PARTICLES,)),
}
