"""pyro_fed: federated Bayesian inference for ordinary Pyro models.

import pyro_fed as pf

fed = pf.Federation(model, (x, y), plate="data", num_clients=10)
idata = pf.run(pf.DSVGD(num_particles=100), fed)
"""

from pyro_fed import graph
from pyro_fed.algorithm import combination, schedule
from pyro_fed.algorithm.privacy import Private
from pyro_fed.analysis.judging.compare import compare
from pyro_fed.analysis.judging.ksd import ksd
from pyro_fed.analysis.judging.predict import predict
from pyro_fed.analysis.plots import (
    plot_comparison,
    plot_consensus,
    plot_convergence,
    plot_graph,
    plot_particles,
    plot_partition,
    plot_reliability,
)
from pyro_fed.conventions.version import VERSION
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.errors import (
    CheckpointError,
    DataError,
    DivergenceError,
    GraphError,
    ModelError,
    ProtocolError,
    PyroFedError,
    QuorumError,
    SettingError,
)
from pyro_fed.federation import partition
from pyro_fed.federation.federation import Federation
from pyro_fed.federation.standardise import column_sums, pooled_moments
from pyro_fed.infer import (
    BCM,
    DSGLD,
    DSVGD,
    FALD,
    FSGLD,
    NUTS,
    P2PEP,
    P2PVI,
    PVI,
    SGLD,
    SVGD,
    SVI,
    UDSVGD,
    FedAIS,
    FedAvg,
    FedEP,
    FedLaplace,
    FedPA,
    FedSEP,
    Given,
    LocalSGLD,
    P2PFedAvg,
    PaperDSVGD,
    PaperParallelDSVGD,
    PaperSVGD,
    ParallelDSVGD,
    StepControl,
    optim,
    tilted,
    update,
)
from pyro_fed.runtime import executors
from pyro_fed.runtime.run import run

__version__ = VERSION

__all__ = [
    "BCM",
    "DSGLD",
    "DSVGD",
    "FALD",
    "FSGLD",
    "NUTS",
    "P2PEP",
    "P2PVI",
    "PVI",
    "SGLD",
    "SVGD",
    "SVI",
    "UDSVGD",
    "CheckpointError",
    "DataError",
    "DivergenceError",
    "FedAIS",
    "FedAvg",
    "FedEP",
    "FedLaplace",
    "FedPA",
    "FedSEP",
    "Federation",
    "Given",
    "GraphError",
    "LocalSGLD",
    "ModelError",
    "P2PFedAvg",
    "PaperDSVGD",
    "PaperParallelDSVGD",
    "PaperSVGD",
    "ParallelDSVGD",
    "Private",
    "ProtocolError",
    "PyroFedError",
    "Quadrature",
    "QuorumError",
    "SettingError",
    "StepControl",
    "column_sums",
    "combination",
    "compare",
    "executors",
    "graph",
    "ksd",
    "optim",
    "partition",
    "plot_comparison",
    "plot_consensus",
    "plot_convergence",
    "plot_graph",
    "plot_particles",
    "plot_partition",
    "plot_reliability",
    "pooled_moments",
    "predict",
    "run",
    "schedule",
    "tilted",
    "update",
]
