"""Parts of a run that few algorithms have: small classes, each a second base class of the algorithms that need it.

    class P2PVI(Algorithm, OnGraph): ...

The round loop asks by `isinstance`. What else an algorithm may do is a method of `Algorithm` with a default, or of its
`contributions`.

    OnGraph      works without a server: one state an agent, mixed over a graph
    Indicators   answers a schedule that asks how important each client is
    Chains       several chains, each at a client of its own in a round; rounds that may be done at once
    SiteKeeping  its clients keep what the server made of their messages
"""

from pyro_fed.algorithm.capabilities.graphs import OnGraph
from pyro_fed.algorithm.capabilities.method_checks import check_taken_up
from pyro_fed.algorithm.capabilities.rounds import Chains, Indicators, LocalRounds
from pyro_fed.algorithm.capabilities.site_keeping import SiteKeeping, no_distribution_left, no_sites

__all__ = [
    "Chains",
    "Indicators",
    "LocalRounds",
    "OnGraph",
    "SiteKeeping",
    "check_taken_up",
    "no_distribution_left",
    "no_sites",
]
