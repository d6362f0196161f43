"""Stein variational gradient descent: particles that visit the clients in turn, or use pooled data.

dsvgd, parallel_dsvgd, svgd          the default algorithms of this package
survey                               the start of particles, after `modes` and `importance`
states, at_rest, contributions       parts of dsvgd
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
