# The algorithms: a new one is one line here, and `pyro_fed` offers it too.
from .averaging import optim as optim
from .averaging.fedavg import FedAvg as FedAvg
from .ep import tilted as tilted
from .ep.fedep import FedEP as FedEP
from .ep.fedpa import BCM as BCM
from .ep.fedpa import FedPA as FedPA
from .ep.fedsep import FedSEP as FedSEP
from .ep.pvi import PVI as PVI
from .ep.step_control import StepControl as StepControl
from .langevin.dsgld import DSGLD as DSGLD
from .langevin.fald import FALD as FALD
from .langevin.fsgld import FSGLD as FSGLD
from .langevin.sgld import SGLD as SGLD
from .laplace.fedlaplace import FedLaplace as FedLaplace
from .peers.p2p_ep import P2PEP as P2PEP
from .peers.p2p_fedavg import P2PFedAvg as P2PFedAvg
from .peers.p2p_vi import P2PVI as P2PVI
from .pooled.nuts import NUTS as NUTS
from .pooled.svi import SVI as SVI
from .stein.dsvgd import DSVGD as DSVGD
from .stein.paper.dsvgd import PaperDSVGD as PaperDSVGD
from .stein.paper.parallel_dsvgd import PaperParallelDSVGD as PaperParallelDSVGD
from .stein.paper.svgd import PaperSVGD as PaperSVGD
from .stein.paper.udsvgd import UDSVGD as UDSVGD
from .stein.parallel_dsvgd import ParallelDSVGD as ParallelDSVGD
from .stein.svgd import SVGD as SVGD
from .surrogates.fedais import FedAIS as FedAIS
from .surrogates.local_sgld import LocalSGLD as LocalSGLD
from .surrogates.surrogates import Given as Given

__all__: list[str]
