"""A study by files instead of a network: each exchange is one signed file a site, mailed by hand.

    letter        the files: a JSON header, a safetensors body, a signature
    study         the coordinator's folder: a journal of exchanges
    coordinator   `init_study`, `combine` and `ask_sites`, and the executor whose clients answer days later
    site          `answer_request`, at a site, with the site's own folder
    words         what people are shown

The round loop is the core's; clients and orders are those of `deployment.remote`, as over Flower. Needs the extra
`files`.
"""

from pyro_fed.deployment.files.coordinator import Combined, ask_sites, combine, init_study
from pyro_fed.deployment.files.site import answer_request

__all__ = ["Combined", "answer_request", "ask_sites", "combine", "init_study"]
