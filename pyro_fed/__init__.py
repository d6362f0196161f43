"""pyro_fed: federated Bayesian inference for ordinary Pyro models.

import pyro_fed as pf

fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
idata = pf.fit(fed)

The public names are those of `__init__.pyi`; each is loaded, with torch and Pyro, when it is first used.
"""

from pyro_fed.conventions.doors import door
from pyro_fed.conventions.version import MOVED, REMOVED_IN, VERSION

__version__ = VERSION
__getattr__, __dir__, __all__ = door(__name__, __file__, moved=MOVED, removed_in=REMOVED_IN)
