"""Errors in the inputs of a network: out of range of its units, or of no use to its predictions."""
