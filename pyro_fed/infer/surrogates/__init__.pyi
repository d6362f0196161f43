from .fedais import FedAIS as FedAIS
from .local_sgld import LocalSGLD as LocalSGLD
from .surrogates import Given as Given
