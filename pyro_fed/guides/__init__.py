"""Pyro's guides as approximations that can be federated.

gaussian_guides   automatic Gaussian guides, by the Gaussian family that they span, and their fit by Adam
written           a hand-written guide as a product of exponential families
program           any guide, as a function of its parameters and a seed; its part inside the plate
guide_runs        what all guides share: checks against the model's sites, a param store, stored draws
"""
