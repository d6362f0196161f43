"""The choice of an algorithm's open settings for a model, with reasons: a table of rules for each kind of algorithm.

No other package uses the sizes, shapes and costs of a model to choose settings. A rule is a function of the model's
traits (`Problem.traits`) and returns a value with its reason. Settings of the user are not changed.

    resolving    resolve: an algorithm without open settings; the phases and stages of a run; its threads and draws
    choice       the inputs and outputs of a rule; tables of rules; models that an algorithm cannot be run on
    explanation  pf.explain: what will be run, and why
    audit        what the audit computes, and leaves out
    results      what a result contains, and how its integrals are checked
    gaussian ep stein sampling peers    the tables, by family
"""

from pyro_fed.policy.choice import Choice, Resolved, Setup
from pyro_fed.policy.resolving import (
    begins_at_another_mode,
    chain_of,
    phases_of,
    resolve,
    resolve_for_run,
    stages_of,
    why_not_from,
)

__all__ = [
    "Choice",
    "Resolved",
    "Setup",
    "begins_at_another_mode",
    "chain_of",
    "phases_of",
    "resolve",
    "resolve_for_run",
    "stages_of",
    "why_not_from",
]
