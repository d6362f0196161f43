"""The site's policy: what may leave a site, in the hospital's hands, enforced by the site's own process.

    rules      the policy of the file `policy.toml`, and the kinds of messages
    gate       the place that every message passes before it is sent: permitted, or refused by the name of a rule
    shares     the largest share of one row in what leaves
    ledger     `what_left.jsonl`: a hash-chained line for each message

Flower's clients, agents and files that are exchanged by hand use the same gate.
"""

from pyro_fed.deployment.policy.gate import Gate, Outgoing
from pyro_fed.deployment.policy.ledger import Ledger, verify
from pyro_fed.deployment.policy.rules import KINDS, Policy
from pyro_fed.deployment.policy.shares import largest_share

__all__ = ["KINDS", "Gate", "Ledger", "Outgoing", "Policy", "largest_share", "verify"]
