"""Settings of the algorithms that papers compare with."""

from __future__ import annotations

from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.papers.gvi import GVI
from pyro_fed.infer.papers.p2p_finite import P2PFinite
from pyro_fed.infer.papers.pmd import PMD
from pyro_fed.policy import ep
from pyro_fed.policy.choice import Table
from pyro_fed.policy.refusals import affordable_rows, proper_prior

DRAWN_PARTICLES = proper_prior("its particles begin as draws of the prior", "use DSVGD")
DRAWN_CANDIDATES = proper_prior(
    "its candidates are draws of the prior where none are given",
    "give candidates",
    lambda case: case.algorithm.candidates is None,
)
TABLES = {
    GVI: Table(ep.TABLES[FedEP].rows, (affordable_rows, ep.ONLY_PRIOR)),
    P2PFinite: Table(checks=(DRAWN_CANDIDATES,)),
    PMD: Table(checks=(DRAWN_PARTICLES,)),
}
