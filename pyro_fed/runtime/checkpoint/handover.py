"""Clients that join or leave for good: their sites are added to or removed from an earlier run's answer.

Where every client keeps a site, the answer is q ∝ t_0 Π_k t_k. So a client is removed by leaving out its site, and
running until the others' sites have settled again:

    pf.run(pf.FedEP(), fed, checkpoint="before")
    pf.run(pf.FedEP(), fed.without("3"), start="before")

The second run converges to the same answer as a run on the remaining clients from the start, in fewer rounds. Messages
and draws of the first run that others have received cannot be taken back.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from pyro_fed.algorithm.capabilities import SiteKeeping, no_sites
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.federation import Federation
from pyro_fed.runtime.checkpoint.fingerprint import require_model
from pyro_fed.runtime.checkpoint.folder import Blamed, latest


def hand_over(algorithm: Algorithm, federation: Federation, folder: Path) -> Start:
    """The final states of an earlier run, with the sites of this federation's clients.

    Clients are matched to the earlier ones by name; new ones begin with a flat site.

    Raises:
        CheckpointError: the folder holds no state, or that of another algorithm or model.
        SettingError: the algorithm's clients keep no sites.
    """
    marks, saved = latest(folder)
    require_model(folder, marks, algorithm, federation)
    if not isinstance(algorithm, SiteKeeping):
        raise no_sites(algorithm)
    with Blamed(folder):
        before = json.loads(marks["clients"])
        origin = torch.tensor([before.index(name) if name in before else -1 for name in federation.client_names])
        return Start(*algorithm.regroup(federation.problem, saved.shared, saved.local, origin))
