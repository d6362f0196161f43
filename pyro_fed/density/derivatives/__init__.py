"""Value, score and curvature of the clients' log densities, averaged over points: what algorithms ask a model for.

How they are computed is the model's business: rows with linear predictors take a few passes over them, layers take
composed derivatives, scores that jump take values, and no algorithm knows which.

In this room (its door has what algorithms use):

    scores           log-likelihoods and scores, of clients and of the prior
    looks            value, score and curvature at many points
    concavity        whether rows are concave in their predictors
    derivatives      `Derivatives`: averages over points, of likelihoods and of the prior
    rowwise          rows with linear predictors, in a few passes over them
    row_sums         sums over rows of products of predictors
    composed_rows    rows whose predictors come out of layers
    nodes            quadrature nodes along a row's predictors
    agreement        whether two ways of computing the same averages agree
    integrated       rows whose own latents are integrated out, by their predictors (Fisher, Louis)
    kinks            densities of the prior whose scores jump
    fisher           the Fisher information of a row's observations
    few_rows         log-likelihoods by few rows of each client, and what they miss
"""

from pyro_fed.conventions.doors import door

__getattr__, __dir__, __all__ = door(__name__, __file__)
