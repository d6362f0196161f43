"""Runs of the Pyro model, with given values of its latents and with plates under this layer's control."""
