"""Inference algorithms by family, from those that need no other to those that build on several.

    sites                   what families share
    averaging, laplace      points; the mode and the curvature there
    ep, peers, pooled       Gaussian sites; agents on a graph; references on all data
    stein, surrogates       particles; surrogates of likelihoods
    langevin, variational   Markov chains; guides
    auto                    several of these in turn

An algorithm is one module in its family's folder and one line in the family's `__init__.pyi`: this package, `pyro_fed`,
the command line, the tests of the contract and the documentation read it from there.
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
