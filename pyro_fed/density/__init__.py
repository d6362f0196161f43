"""An ordinary Pyro model as log densities of a flat, unconstrained vector, split into prior and rows."""
