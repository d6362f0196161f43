"""What some algorithms can do besides the contract: small classes, each taken up by those that need it.

    class FedEP(Algorithm, SiteKeeping, ServerWork): ...

The round loop asks by `isinstance`. What a capability does not say has a default that does nothing.

    data
        Pooled         works on the pooled data, as those of a single client
        Tempered       its clients' rows count by one over its temperature
        OnCPU          its steps are computed on the CPU whatever the federation's device
    graphs
        OnGraph        works without a server: one state an agent, mixed over a graph
    rounds
        Indicators     answers a schedule that asks how important each client is
        ServerWork     the server's own work with the model, before and after a round
        Chains         several chains, each at a client of its own in a round
        Uninterrupted  rounds between which the server decides nothing, so that several may be done at once
    site_keeping
        SiteKeeping    its clients keep what the server made of their messages
        Sites          its answer is the prior's Gaussian site times one of each client
    messages
        Bounding       what one client's message does can be held to what the others' do
        Moving         how far each client's message moves the answer in a round is known
    noise
        NoiseTracking  what becomes in its server's state of noise that came with messages is known
        NoiseWithin    noise that came with messages is part of its own randomness
    answers
        KnownDensity   the log density that its draws come from is known
        OwnErrors      its figures tell how far off its answer may be
        Provisional    what its own figures have against its answer counts unless exact chains find that right
        DrawStats      more columns for `sample_stats`
        Advice         a cure of its own for an update that left the finite numbers
    choice
        Delegates      what a user names; by its settings another algorithm may be run in its place
        DrawsAhead     makes its draws during its rounds, and knows before them how many are wanted
"""

from pyro_fed.algorithm.capabilities.answers import Advice, DrawStats, KnownDensity, OwnErrors, Provisional
from pyro_fed.algorithm.capabilities.choice import Delegates, DrawsAhead, resolved
from pyro_fed.algorithm.capabilities.data import OnCPU, Pooled, Tempered
from pyro_fed.algorithm.capabilities.graphs import OnGraph
from pyro_fed.algorithm.capabilities.messages import Bounding, Held, Moving, Sent
from pyro_fed.algorithm.capabilities.noise import NoiseTracking, NoiseWithin, NoisyRound
from pyro_fed.algorithm.capabilities.rounds import Chains, Indicators, LocalRounds, ServerWork, Uninterrupted
from pyro_fed.algorithm.capabilities.site_keeping import SiteKeeping, Sites, no_sites
from pyro_fed.algorithm.capabilities.taken_up import check_taken_up

__all__ = [
    "Advice",
    "Bounding",
    "Chains",
    "Delegates",
    "DrawStats",
    "DrawsAhead",
    "Held",
    "Indicators",
    "KnownDensity",
    "LocalRounds",
    "Moving",
    "NoiseTracking",
    "NoiseWithin",
    "NoisyRound",
    "OnCPU",
    "OnGraph",
    "OwnErrors",
    "Pooled",
    "Provisional",
    "Sent",
    "ServerWork",
    "SiteKeeping",
    "Sites",
    "Tempered",
    "Uninterrupted",
    "check_taken_up",
    "no_sites",
    "resolved",
]
