"""What some algorithms can do besides the contract: small classes, each taken up by those that need it.

    class P2PVI(Algorithm, OnGraph): ...

The round loop asks by `isinstance`. What a capability does not say has a default that does nothing.

    OnGraph        works without a server: one state an agent, mixed over a graph
    Indicators     answers a schedule that asks how important each client is
    Chains         several chains, each at a client of its own in a round
    SiteKeeping    its clients keep what the server made of their messages
    Sites          its answer is the prior's Gaussian site times one of each client
    Bounding       what one client's message does can be held to what the others' do
    Moving         how far each client's message moves the answer in a round is known
    NoiseTracking  what becomes in its server's state of noise that came with messages is known
    NoiseWithin    noise that came with messages is part of its own randomness
"""

from pyro_fed.algorithm.capabilities.graphs import OnGraph
from pyro_fed.algorithm.capabilities.messages import Bounding, Held, Moving, Sent
from pyro_fed.algorithm.capabilities.noise import NoiseTracking, NoiseWithin, NoisyRound
from pyro_fed.algorithm.capabilities.rounds import Chains, Indicators, LocalRounds
from pyro_fed.algorithm.capabilities.site_keeping import SiteKeeping, Sites, no_sites
from pyro_fed.algorithm.capabilities.taken_up import check_taken_up

__all__ = [
    "Bounding",
    "Chains",
    "Held",
    "Indicators",
    "LocalRounds",
    "Moving",
    "NoiseTracking",
    "NoiseWithin",
    "NoisyRound",
    "OnGraph",
    "Sent",
    "SiteKeeping",
    "Sites",
    "check_taken_up",
    "no_sites",
]
