"""The site's policy: rules on what may leave a site, set by the hospital and enforced by the site's own process.

    rules      the policy of the file `policy.toml`, the kinds of messages, and the largest share of one row
    gate       the place that every message passes before it is sent, and the ledger with a line for each
    approval   what a site has approved
    report     what will leave, before a run, and what has left, from the ledger

Flower's clients, agents and files that are exchanged by hand use the same gate.
"""

from pyro_fed.deployment.policy.gate import Gate, Ledger, Outgoing, verify
from pyro_fed.deployment.policy.rules import KINDS, Policy, largest_share

__all__ = ["KINDS", "Gate", "Ledger", "Outgoing", "Policy", "largest_share", "verify"]
