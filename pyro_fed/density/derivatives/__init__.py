"""Value, score and curvature of the clients' log densities, averaged over points: what algorithms ask a model for.

How they are computed is the model's business: rows with linear predictors take a few passes over them, layers take
composed derivatives, scores that jump take values, and no algorithm knows which. In this room:

    scores             log-likelihoods, scores and curvatures at points, of clients and of the prior
    derivatives        `Derivatives`: averages over points, of likelihoods and of the prior
    rowwise, row_sums  rows with linear predictors, in a few passes over them
    composed_rows      rows whose predictors come out of layers
    integrated         rows whose own latents are integrated out, by their predictors
    other_curvatures   the Fisher information, a prior's whose score jumps, and whether rows are concave
    nodes              how many points an expectation takes
    few_rows           log-likelihoods by few rows of each client, and what they miss
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
