# The public face: every `pf.` name, read by type checkers and by `conventions.doors`; a name is one line here.
from . import codebook as codebook
from . import graph as graph
from . import testing as testing
from .algorithm import combination as combination
from .algorithm import schedule as schedule
from .algorithm.privacy import Private as Private
from .analysis import *
from .conventions.progress import Progress as Progress
from .conventions.progress import set_progress as set_progress
from .density.latents.quadrature import Quadrature as Quadrature
from .density.running.shared import shared as shared
from .errors import CheckpointError as CheckpointError
from .errors import ContractError as ContractError
from .errors import DataError as DataError
from .errors import DivergenceError as DivergenceError
from .errors import GraphError as GraphError
from .errors import InterruptedRun as InterruptedRun
from .errors import ModelError as ModelError
from .errors import ProtocolError as ProtocolError
from .errors import PyroFedError as PyroFedError
from .errors import QuorumError as QuorumError
from .errors import SettingError as SettingError
from .errors import TimeLimitError as TimeLimitError
from .federation import partition as partition
from .federation.federation import Federation as Federation
from .federation.standardise import column_sums as column_sums
from .federation.standardise import pooled_moments as pooled_moments
from .formula.regression import GLM as GLM
from .formula.regression import glm as glm
from .infer import *
from .policy.explanation import explain as explain
from .results.inference_data import InferenceData as InferenceData
from .runtime import executors as executors
from .runtime.fit import fit as fit
from .runtime.run import run as run

__version__: str
