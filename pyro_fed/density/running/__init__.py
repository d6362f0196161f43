"""Runs of the Pyro model, with its latents filled in and its plates under this layer's control."""
