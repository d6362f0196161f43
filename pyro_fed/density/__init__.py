"""An ordinary Pyro model as log densities of a flat, unconstrained vector, split into prior and rows.

`build` checks a model and makes its `Problem`; everything above this storey works with the `Problem`, and with the
`Batch` and `ClientData` that hold rows.
"""

from pyro_fed.density.build import build
from pyro_fed.density.derivatives.scores import likelihood_scores, prior_scores
from pyro_fed.density.forms import JointProblem, NonCentred
from pyro_fed.density.latents.quadrature import Quadrature
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import BATCHES, CLIENTS, Batch, ClientData

__all__ = [
    "BATCHES",
    "CLIENTS",
    "Batch",
    "ClientData",
    "JointProblem",
    "NonCentred",
    "Problem",
    "Quadrature",
    "build",
    "likelihood_scores",
    "prior_scores",
]
