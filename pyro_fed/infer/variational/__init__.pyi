from .p2p_sfvi import P2PSFVI as P2PSFVI
from .sfvi import SFVI as SFVI
