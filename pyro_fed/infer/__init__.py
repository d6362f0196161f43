"""Inference algorithms, one module each."""

from pyro_fed.infer.averaging import optim
from pyro_fed.infer.averaging.fedavg import FedAvg
from pyro_fed.infer.ep import tilted
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.ep.fedpa import BCM, FedPA
from pyro_fed.infer.ep.fedsep import FedSEP
from pyro_fed.infer.ep.pvi import PVI
from pyro_fed.infer.ep.step_control import StepControl
from pyro_fed.infer.langevin.dsgld import DSGLD
from pyro_fed.infer.langevin.fald import FALD
from pyro_fed.infer.langevin.fsgld import FSGLD
from pyro_fed.infer.langevin.sgld import SGLD
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.peers import update
from pyro_fed.infer.peers.p2p_ep import P2PEP
from pyro_fed.infer.peers.p2p_fedavg import P2PFedAvg
from pyro_fed.infer.peers.p2p_vi import P2PVI
from pyro_fed.infer.pooled.nuts import NUTS
from pyro_fed.infer.pooled.svi import SVI
from pyro_fed.infer.stein.dsvgd import DSVGD
from pyro_fed.infer.stein.paper.dsvgd import PaperDSVGD
from pyro_fed.infer.stein.paper.parallel_dsvgd import PaperParallelDSVGD
from pyro_fed.infer.stein.paper.svgd import PaperSVGD
from pyro_fed.infer.stein.paper.udsvgd import UDSVGD
from pyro_fed.infer.stein.parallel_dsvgd import ParallelDSVGD
from pyro_fed.infer.stein.svgd import SVGD
from pyro_fed.infer.surrogates.fedais import FedAIS
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.infer.surrogates.surrogates import Given

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
    "StepControl",
    "optim",
    "tilted",
    "update",
]
