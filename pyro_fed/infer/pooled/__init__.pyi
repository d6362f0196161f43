from .nuts import NUTS as NUTS
from .svi import SVI as SVI
