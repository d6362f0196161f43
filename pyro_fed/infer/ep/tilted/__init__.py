"""Tilted inferences: how a client approximates its likelihood times the cavity by a Gaussian.

    Newton      expected Newton steps: the default, without randomness
    Laplace     mode and curvature of the tilted density ("L" of Guo et al. with an exact mode)
    Fisher      mean of a chain's samples, the Fisher information there as curvature ("L" as published)
    MCMC        mean and covariance of a chain's samples ("M")
    Identity    mean of a chain's samples, covariance a multiple of the identity ("I")
    NGVI        mean of a chain's samples, covariance by natural gradients ("V")
    SVI         a Gaussian guide fitted by Adam
    IVON        diagonal sites from scores alone, on minibatches: for networks

Each has its own settings, and a name that selects their defaults:

    pf.FedEP(client=pf.infer.tilted.MCMC(steps=500, thin=5))
    pf.FedEP(client="mcmc")

All are imported here, not on first use: `TiltedInference.kinds` lists the imported ones.
"""

from pyro_fed.conventions.doors import public_dir
from pyro_fed.infer.ep.tilted.base import Numerics, Received, Tilted, TiltedInference
from pyro_fed.infer.ep.tilted.chain import MCMC, NGVI, Chain, Fisher, Identity
from pyro_fed.infer.ep.tilted.newton import Laplace, Newton
from pyro_fed.infer.ep.tilted.stochastic import IVON, SVI

__all__ = [
    "IVON",
    "MCMC",
    "NGVI",
    "SVI",
    "Chain",
    "Fisher",
    "Identity",
    "Laplace",
    "Newton",
    "Numerics",
    "Received",
    "Tilted",
    "TiltedInference",
]
__dir__ = public_dir(__all__)
