"""What is wrong with the inputs of a network: out of the range of its units, or of no use to its predictions."""
