"""Conventions of all storeys: seeds of random numbers, checks of settings, names of clients."""
