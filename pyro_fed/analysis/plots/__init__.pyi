# The figures: a new one is one line here, and `pyro_fed` offers it too.
from .comparison import plot_comparison as plot_comparison
from .consensus import plot_consensus as plot_consensus
from .convergence import plot_convergence as plot_convergence
from .criticism import plot_checks as plot_checks
from .criticism import plot_influence as plot_influence
from .graph import plot_graph as plot_graph
from .particles import plot_particles as plot_particles
from .partition import plot_partition as plot_partition
from .reliability import plot_reliability as plot_reliability
