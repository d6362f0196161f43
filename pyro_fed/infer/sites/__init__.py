"""Gaussian sites, which most families share: how they are made of a client's log-likelihood, and what q they give.

In this room:

    gaussian_sites      what algorithms of Gaussian sites share
    derivatives         value, score and curvature of log densities, averaged over points
    rowwise             the same where rows have linear predictors, for a few passes over them
    fisher              the Fisher information of a row's observations
    power_iteration     the largest curvature of a client's log-likelihood
    prior_gaussian      a Gaussian for the prior
    whitening           coordinates in which q is the standard normal
"""
