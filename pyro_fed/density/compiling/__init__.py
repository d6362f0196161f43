"""Compilation of a model's densities: mapped over clients and particles, traced, and compiled."""
