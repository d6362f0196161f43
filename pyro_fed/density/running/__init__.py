"""Runs of the Pyro model with given values of its latents and on given rows of its plates."""
