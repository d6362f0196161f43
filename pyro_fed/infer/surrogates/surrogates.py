"""Gaussian surrogates q_s of the clients' likelihoods (el Mekkaoui et al., Section 3.1), and their product.

    q(θ) = Π_s q_s(θ),    q_s(θ) ≈ p(x_s | θ) up to a constant

FSGLD is unbiased with all surrogates, so a surrogate need not be proper; better surrogates reduce the variance between
clients (Theorem 2). Every algorithm that leaves a Gaussian site at each client (in the format of
`sites.gaussian_sites`) can compute them. It runs as a separate phase, and the sites are sent once:

    FedEP()                 expected curvature under q (the default if its covariance is full)
    FedLaplace()            curvature at the joint mode (the default otherwise)
    LocalSGLD()             mean and covariance of local draws, as in the paper
    Given(precision, eta)   analytic, without a phase

They are kept in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pyro_fed.algorithm.contract import Algorithm, Start
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.setting_checks import check_choice
from pyro_fed.density.derivatives import Derivatives
from pyro_fed.density.problem import Problem
from pyro_fed.errors import ModelError, SettingError
from pyro_fed.infer.ep.fedep import FedEP
from pyro_fed.infer.laplace.fedlaplace import FedLaplace
from pyro_fed.infer.sites.gaussian_sites import gaussian
from pyro_fed.infer.surrogates.local_sgld import LocalSGLD
from pyro_fed.ops.backtrack import MAX_ITERATIONS, NEGLIGIBLE_STEP, halved
from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian, Gaussian
from pyro_fed.ops.matrices import positive_part, times


@dataclass(frozen=True, eq=False)
class Given(metaclass=Checked):
    """Surrogates in natural parameters.

    Args:
        precision: (K, D, D), or (K, D) for diagonal ones; symmetric, need not be positive definite.
        eta: precision times mean, (K, D).

    Raises:
        SettingError: shapes that do not fit, or values that are not finite.

    References:
        El Mekkaoui et al., Federated stochastic gradient Langevin dynamics, Section 3.1.

    Example:
        >>> given = pf.infer.Given.from_moments(means, covariances)  # (K, D) and (K, D, D)
        >>> idata = pf.run(pf.FSGLD(surrogates=given), fed)
    """

    precision: Tensor
    eta: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.eta.shape)
        if self.eta.ndim != 2 or tuple(self.precision.shape) not in (shape, (*shape, shape[-1])):
            raise SettingError(
                "Given: expected eta (K, D) and precision (K, D, D) or (K, D), received "
                f"{shape} and {tuple(self.precision.shape)}"
            )
        finite = torch.isfinite(self.eta).all(-1) & torch.isfinite(self.precision.flatten(1)).all(-1)
        if not bool(finite.all()):
            bad = (~finite).nonzero().flatten().tolist()
            raise SettingError(f"Given: the surrogates of clients {bad} are not finite")

    @classmethod
    def from_moments(cls, means: Tensor, covariances: Tensor) -> Given:
        """Surrogates of given moments.

        Args:
            means: (K, D).
            covariances: (K, D, D), or variances (K, D) for diagonal surrogates; positive definite.
        """
        structure = DiagGaussian if covariances.ndim == 2 else FullGaussian
        sites = structure.from_moments(means.double(), covariances.double())
        sites.require_proper("Given.from_moments")
        return cls(sites.precision, sites.eta)

    @property
    def dim(self) -> int:
        """D, the dimension of the surrogates."""
        return self.eta.shape[-1]

    def sites(self) -> Gaussian:
        """One factor a client, batch (K,), float64."""
        return gaussian({"precision": self.precision.double(), "eta": self.eta.double()})


def fitted_surrogates(problem: Problem, surrogates: object, start: Start | None) -> tuple[Gaussian, Gaussian]:
    """The clients' surrogates, batch (K,), and p(θ) Π q_s(θ), from `Given` or from a phase's final states `start`."""
    if isinstance(surrogates, Given):
        sites = surrogates.sites()
        return sites, posterior_gaussian(problem, sites)
    if start is None or not {"precision", "eta"} <= start.local.keys():
        name = type(surrogates).__name__
        raise SettingError(f"surrogates: {name} leaves no Gaussian site at the clients; use FedLaplace() or Given()")
    sites = gaussian(start.local)
    posterior = gaussian(start.shared) if "precision" in start.shared else None
    if posterior is None or not bool(posterior.is_proper()):
        posterior = posterior_gaussian(problem, sites)
    return sites, posterior


def visit_shares(probabilities: tuple[float, ...] | None, num_clients: int) -> Tensor:
    """f_s, (K,), float64; uniform by default."""
    if probabilities is None:
        return torch.full((num_clients,), 1 / num_clients, dtype=torch.float64)
    if len(probabilities) != num_clients:
        raise SettingError(f"probabilities: received {len(probabilities)} probabilities for {num_clients} clients")
    return torch.tensor(probabilities, dtype=torch.float64)


def require_one_per_client(sites: Gaussian, num_clients: int) -> Gaussian:
    """The surrogates; refuses numbers other than one for each client."""
    if len(sites.eta) != num_clients:
        raise SettingError(f"surrogates: received {len(sites.eta)} surrogates for {num_clients} clients")
    return sites


def posterior_gaussian(problem: Problem, sites: Gaussian) -> Gaussian:
    """The Gaussian at the mode of p(θ) Π_s q_s(θ), by Newton's method; ModelError if it is not proper."""
    product = sites.product_over()
    z = product.mean()
    if not bool(torch.isfinite(z).all()):
        z = torch.zeros_like(z)
    derivatives = Derivatives("full" if product.dense else "diag", "hessian")
    for _ in range(MAX_ITERATIONS):
        _, score, curvature = (part[0] for part in derivatives.of_prior(problem, z[None, None]))
        curvature = positive_part(curvature) if product.dense else curvature.clamp_min(0)
        # In displacements from z: precision of the posterior, eta equal to its score at z.
        around = type(product)(product.precision + curvature, score + product.score(z))
        if not bool(around.is_proper()):
            raise ModelError(
                "prior and surrogates together leave a direction without curvature: the posterior is improper, or "
                "the surrogates are too poor; give the model a proper prior, or other surrogates"
            )
        move = _uphill(problem, product, z, around.mean())
        z = z + move
        if float((move * around.eta).sum().abs().sqrt()) < NEGLIGIBLE_STEP:
            break
    return type(product)(around.precision, times(around.precision, z))


def _uphill(problem: Problem, product: Gaussian, z: Tensor, move: Tensor) -> Tensor:
    """A Newton move, halved until log p(θ) + Σ log q_s(θ) does not fall; zero if no halving helps."""

    def value(z: Tensor) -> Tensor:
        return problem.log_prior(z.to(problem.dtype)).double() + product.log_factor(z)

    before = value(z)
    fraction = halved(lambda fraction: bool(value(z + fraction * move) >= before))
    return fraction * move if fraction else torch.zeros_like(move)


Name = Literal["auto", "laplace", "fedep", "local_sgld"]

BY_NAME: dict[str, Algorithm] = {"laplace": FedLaplace(), "fedep": FedEP(), "local_sgld": LocalSGLD()}
NAMES = ("auto", *BY_NAME)


#: Allowed values of a setting `surrogates`.
Surrogates = Algorithm | Given | Name | None


def check_surrogates(owner: Any, *, allow_none: bool = False) -> None:
    """Refuse `owner.surrogates` if it is not an algorithm, `Given`, a name, or None where that is allowed."""
    value = owner.surrogates
    if isinstance(value, str):
        check_choice(owner, "surrogates", NAMES)
    elif not isinstance(value, Algorithm | Given) and not (allow_none and value is None):
        raise SettingError(
            f"{type(owner).__name__}: surrogates must be an algorithm that leaves Gaussian sites, such as "
            f"FedLaplace(), Given(precision, eta), or one of {list(NAMES)}, received {value!r}"
        )


def surrogate_phase(surrogates: Surrogates, temperature: float = 1.0) -> Algorithm | None:
    """The algorithm that fits the surrogates, if they must be fitted; one given by name gets the temperature."""
    if isinstance(surrogates, str):
        named: Any = BY_NAME[surrogates]
        chosen: Algorithm = replace(named, temperature=temperature) if temperature != 1 else named
        return chosen
    return surrogates if isinstance(surrogates, Algorithm) else None
