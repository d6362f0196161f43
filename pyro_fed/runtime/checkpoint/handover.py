"""Clients that join and leave for good: their sites are put in or taken out of an earlier run's answer.

Where every client keeps a site, the answer is q ∝ t_0 Π_k t_k, so that a client is unlearned by leaving out its site
and letting the others settle:

    pf.run(pf.FedEP(), fed, checkpoint="before")
    pf.run(pf.FedEP(), fed.without("3"), start="before")

The second run ends where a run on the remaining clients ends; it only gets there in fewer rounds. What has left the
server already, messages and draws of the first run, is not taken back.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from pyro_fed.algorithm.capabilities import SiteKeeping, no_sites
from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.federation import Federation
from pyro_fed.runtime.checkpoint.fingerprint import require_model
from pyro_fed.runtime.checkpoint.folder import latest


def hand_over(algorithm: Algorithm, federation: Federation, folder: Path) -> Start:
    """The final states of an earlier run, with the sites of this federation's clients.

    Args:
        algorithm: the earlier run's, with the same settings.
        federation: its clients are matched to the earlier ones by name; new ones begin with a flat site.
        folder: the earlier run's checkpoint.

    Raises:
        CheckpointError: the folder holds no state, or that of another algorithm or model.
        SettingError: the algorithm's clients keep no sites.
    """
    marks, saved = latest(folder)
    require_model(folder, marks, algorithm, federation)
    before = json.loads(marks["clients"])
    origin = torch.tensor([before.index(name) if name in before else -1 for name in federation.client_names])
    if not isinstance(algorithm, SiteKeeping):
        raise no_sites(algorithm)
    return Start(*algorithm.regroup(federation.problem, saved.shared, saved.local, origin))
