"""Settings of the algorithms that papers compare with."""

from __future__ import annotations

from pyro_fed.infer.papers.p2p_finite import P2PFinite
from pyro_fed.infer.papers.pmd import PMD
from pyro_fed.policy.choice import Table
from pyro_fed.policy.refusals import proper_prior

DRAWN_PARTICLES = proper_prior("its particles begin as draws of the prior", "use DSVGD")
DRAWN_CANDIDATES = proper_prior(
    "its candidates are draws of the prior where none are given",
    "give candidates",
    lambda case: case.algorithm.candidates is None,
)
TABLES = {
    P2PFinite: Table(checks=(DRAWN_CANDIDATES,)),
    PMD: Table(checks=(DRAWN_PARTICLES,)),
}
