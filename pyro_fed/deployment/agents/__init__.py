"""Agents without a server: processes with their own rows that talk only to their neighbours, over TLS.

    peers              the file that all agents share: who they are, where they are, and the graph; waiting times
    certificates       an authority and the agents' certificates, for a rehearsal
    statements         signatures of what agents say of themselves, which passes through others
    outbox             the messages that neighbours may still ask for, which links are down, and farewells
    wire               gRPC with mutual TLS; encoded messages, nothing unpickled
    links              answers to neighbours, and what has passed over each link
    neighbours         the round loop's network: consensus with those that answer
    agent_federation   the federation and the executors as one agent knows them
    agent              one agent's run, from its rows to its own InferenceData

Every agent runs the one round loop (`runtime.rounds`) and the algorithm's own functions; what differs from a simulation
is `neighbours`, which has one row of W in the place of all.
"""

from pyro_fed.deployment.agents.agent import Agent, run_agent
from pyro_fed.deployment.agents.certificates import Identity, write_certificates
from pyro_fed.deployment.agents.peers import LinkSettings, Peers, load_peers
from pyro_fed.deployment.agents.wire import Unwelcome
from pyro_fed.deployment.rows import load_rows

__all__ = [
    "Agent",
    "Identity",
    "LinkSettings",
    "Peers",
    "Unwelcome",
    "load_peers",
    "load_rows",
    "run_agent",
    "write_certificates",
]
