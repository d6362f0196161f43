"""Whether answers can be trusted: posteriors with references, and what a run said of each answer."""
