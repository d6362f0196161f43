"""Stein variational gradient descent: particles that visit the clients in turn, or use pooled data.

In this room:

    dsvgd, parallel_dsvgd, svgd     the defaults of this package
    concave, modes, importance, survey, starting_points
                                    where particles start
    corrected_sites, pace, at_rest, particle_findings, dsvgd_start
                                    parts of dsvgd
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
