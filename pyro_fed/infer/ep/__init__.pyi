from . import tilted as tilted
from .fedep import FedEP as FedEP
from .fedpa import BCM as BCM
from .fedpa import FedPA as FedPA
from .fedsep import FedSEP as FedSEP
from .pvi import PVI as PVI
from .step_control import StepControl as StepControl
