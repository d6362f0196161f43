"""Expectation propagation and related algorithms: one Gaussian site for each client.

Modules:

    fedep               federated expectation propagation, with or without sites at the clients
    pvi                 partitioned variational inference, and streaming variational Bayes
    bayes_admm, fedlap  ADMM by Bayesian duality, and its Laplace approximation
    fedpa               posterior averaging and the Bayesian committee machine: clients work independently
    guided              FedEP and PVI with a hand-written guide in place of a Gaussian
    tilted/             how a client approximates its likelihood times the cavity
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
