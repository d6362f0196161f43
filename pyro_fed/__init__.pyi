# The public face: every `pf.` name, read by type checkers and by `conventions.doors`; a name is one line here. Names
# that stood here before are in `conventions.version`.
from . import codebook as codebook
from . import errors as errors
from . import graph as graph
from . import infer as infer
from .algorithm import combination as combination
from .algorithm import schedule as schedule
from .algorithm.privacy import Private as Private
from .analysis import *
from .conventions import progress as progress
from .density.latents.quadrature import Quadrature as Quadrature
from .density.running import losses as losses
from .density.running.model_calls import shared as shared
from .errors import PyroFedError as PyroFedError
from .federation import partition as partition
from .federation.federation import Federation as Federation
from .federation.standardise import column_sums as column_sums
from .federation.standardise import pooled_moments as pooled_moments
from .formula.regression import glm as glm
from .infer import papers as papers
from .infer.auto import Auto as Auto
from .infer.averaging import FedAvg as FedAvg
from .infer.ep import FedEP as FedEP
from .infer.langevin import FSGLD as FSGLD
from .infer.laplace import FedLaplace as FedLaplace
from .infer.peers import P2PVI as P2PVI
from .infer.pooled import NUTS as NUTS
from .infer.stein import DSVGD as DSVGD
from .infer.surrogates import FedAIS as FedAIS
from .policy.explanation import explain as explain
from .runtime import executors as executors
from .runtime.fit import fit as fit
from .runtime.run import run as run

__version__: str
