"""Algorithms as published, for comparison: the published settings and the papers' own comparators.

dsvgd, parallel_dsvgd, svgd, udsvgd  Kassab and Simeone's four algorithms; `stein` has the defaults of this package
pmd, npv, gvi                        on pooled data: the comparators of that paper
p2p_finite                           Wang et al.'s agents on finitely many parameters; `peers` has the others
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
