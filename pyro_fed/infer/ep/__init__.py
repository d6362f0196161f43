"""Expectation propagation and its kin: Gaussian sites, one a client, refined against each other or alone.

In this room:

    fedep               expectation propagation over clients, with sites kept or not
    pvi                 partitioned variational inference, in many turns or one
    bayes_admm, fedlap  the same by ADMM: Bayesian duality, and Laplace's form of it
    fedpa               posterior averaging and the Bayesian committee machine: no client looks at another
    guided              FedEP and PVI whose approximation is a guide's, not a Gaussian
    tilted/             how a client approximates its likelihood times the cavity
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
