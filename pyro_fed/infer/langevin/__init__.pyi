from .dsgld import DSGLD as DSGLD
from .fald import FALD as FALD
from .fedhmc import FedHMC as FedHMC
from .fsgld import FSGLD as FSGLD
from .saga_ld import SAGALD as SAGALD
from .sgld import SGLD as SGLD
from .summed import SummedLangevin as SummedLangevin
