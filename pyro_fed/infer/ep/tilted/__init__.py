"""Client inferences of FedEP by the names of its `client` setting, one module each."""

from pyro_fed.infer.ep.tilted.base import Client, Received, Tilted
from pyro_fed.infer.ep.tilted.chain import MCMC, Identity
from pyro_fed.infer.ep.tilted.laplace import Laplace
from pyro_fed.infer.ep.tilted.newton import Newton
from pyro_fed.infer.ep.tilted.ngvi import NGVI
from pyro_fed.infer.ep.tilted.svi import SVIClient

#: The classes by the setting `client`.
CLIENTS: dict[str, type[Client]] = {
    "newton": Newton,
    "identity": Identity,
    "mcmc": MCMC,
    "laplace": Laplace,
    "ngvi": NGVI,
    "svi": SVIClient,
}

__all__ = ["CLIENTS", "Client", "Received", "Tilted"]
