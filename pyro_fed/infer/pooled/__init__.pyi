from .gvi import GVI as GVI
from .npv import NPV as NPV
from .nuts import NUTS as NUTS
from .pmd import PMD as PMD
from .svi import SVI as SVI
