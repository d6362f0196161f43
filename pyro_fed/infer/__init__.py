"""Inference algorithms, one module each."""

from pyro_fed.infer.dsgld import DSGLD
from pyro_fed.infer.dsvgd import DSVGD
from pyro_fed.infer.dsvgd_paper import PaperDSVGD
from pyro_fed.infer.fald import FALD
from pyro_fed.infer.fedais import FedAIS
from pyro_fed.infer.fedavg import FedAvg
from pyro_fed.infer.fedep import FedEP
from pyro_fed.infer.fedlaplace import FedLaplace
from pyro_fed.infer.fedpa import BCM, FedPA
from pyro_fed.infer.fedsep import FedSEP
from pyro_fed.infer.fsgld import FSGLD
from pyro_fed.infer.local_sgld import LocalSGLD
from pyro_fed.infer.nuts import NUTS
from pyro_fed.infer.p2p_ep import P2PEP
from pyro_fed.infer.p2p_fedavg import P2PFedAvg
from pyro_fed.infer.p2p_vi import P2PVI
from pyro_fed.infer.pdsvgd import ParallelDSVGD
from pyro_fed.infer.pdsvgd_paper import PaperParallelDSVGD
from pyro_fed.infer.pvi import PVI
from pyro_fed.infer.sgld import SGLD
from pyro_fed.infer.surrogates import Given
from pyro_fed.infer.svgd import SVGD
from pyro_fed.infer.svgd_paper import PaperSVGD
from pyro_fed.infer.svi import SVI
from pyro_fed.infer.udsvgd import UDSVGD

__all__ = [
    "BCM",
    "DSGLD",
    "DSVGD",
    "FALD",
    "FSGLD",
    "NUTS",
    "P2PEP",
    "P2PVI",
    "PVI",
    "SGLD",
    "SVGD",
    "SVI",
    "UDSVGD",
    "FedAIS",
    "FedAvg",
    "FedEP",
    "FedLaplace",
    "FedPA",
    "FedSEP",
    "Given",
    "LocalSGLD",
    "P2PFedAvg",
    "PaperDSVGD",
    "PaperParallelDSVGD",
    "PaperSVGD",
    "ParallelDSVGD",
]
