from . import step as step
from .conducive import Conducive as Conducive
from .dsgld import DSGLD as DSGLD
from .fald import FALD as FALD
from .fsgld import FSGLD as FSGLD
from .saga_ld import SAGALD as SAGALD
from .sgld import SGLD as SGLD
from .summed import SummedLangevin as SummedLangevin
