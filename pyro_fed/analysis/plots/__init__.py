"""Figures."""

from pyro_fed.analysis.plots.comparison import plot_comparison
from pyro_fed.analysis.plots.consensus import plot_consensus
from pyro_fed.analysis.plots.convergence import plot_convergence
from pyro_fed.analysis.plots.graph import plot_graph
from pyro_fed.analysis.plots.particles import plot_particles
from pyro_fed.analysis.plots.partition import plot_partition
from pyro_fed.analysis.plots.reliability import plot_reliability

__all__ = [
    "plot_comparison",
    "plot_consensus",
    "plot_convergence",
    "plot_graph",
    "plot_particles",
    "plot_partition",
    "plot_reliability",
]
