from .dsgld import DSGLD as DSGLD
from .fald import FALD as FALD
from .fsgld import FSGLD as FSGLD
from .sgld import SGLD as SGLD
