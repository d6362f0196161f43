# The figures: a new one is one line here, under `pf.plots`.
from .chains import plot_chains as plot_chains
from .comparison import plot_comparison as plot_comparison
from .consensus import plot_consensus as plot_consensus
from .contributions import plot_contributions as plot_contributions
from .convergence import plot_convergence as plot_convergence
from .cost import plot_cost as plot_cost
from .criticism import plot_check_intervals as plot_check_intervals
from .criticism import plot_checks as plot_checks
from .criticism import plot_influence as plot_influence
from .forest import plot_client_forest as plot_client_forest
from .forest import plot_forest as plot_forest
from .graph import plot_graph as plot_graph
from .pair import plot_pair as plot_pair
from .particles import plot_particles as plot_particles
from .partition import plot_partition as plot_partition
from .reliability import plot_reliability as plot_reliability
from .survival import plot_kaplan_meier as plot_kaplan_meier
