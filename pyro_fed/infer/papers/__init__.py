"""Algorithms as published, for comparison: the published settings and the papers' own comparators.

dsvgd, parallel_dsvgd, svgd, udsvgd  Kassab and Simeone's four algorithms; this package's own forms are in `stein`
pmd, npv, gvi                        that paper's comparators on pooled data
p2p_finite                           Wang et al.'s agents on finitely many parameters; the others are in `peers`
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
