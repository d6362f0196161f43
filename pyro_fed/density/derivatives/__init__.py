"""Value, score and curvature of the clients' log densities, averaged over points.

The computation depends on the model: a few passes over rows with linear predictors, composed derivatives for shared
functions of the parameters, values for scores that jump. Algorithms do not depend on it. Modules:

    scores             log-likelihoods, scores and curvatures at points, of clients and of the prior
    derivatives        `Derivatives`: averages over points, of likelihoods and of the prior
    rowwise, row_sums  rows with linear predictors, in a few passes over them
    composed_rows      rows whose predictors come out of layers
    integrated         rows whose own latents are integrated out, by their predictors
    other_curvatures   the Fisher information, curvatures of priors with jumping scores, and concavity of rows
    nodes              numbers of points in expectations
    few_rows           log-likelihoods by a few rows of each client, with a correction
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
