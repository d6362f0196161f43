"""What the data's inputs are to a network: far out of its units' range, or nothing that it has made use of."""
