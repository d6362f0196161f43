"""Bayesian networks, federated: accuracy, calibration, time and memory by size."""
