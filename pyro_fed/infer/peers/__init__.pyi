from . import update as update
from .p2p_ep import P2PEP as P2PEP
from .p2p_fedavg import P2PFedAvg as P2PFedAvg
from .p2p_vi import P2PVI as P2PVI
from .push_sum import P2PPushSum as P2PPushSum
