"""Robust losses in place of the rows' log densities: generalised Bayes for data with outliers or wrong labels.

Source: Mildner, Hamelijnck, Giampouras & Damoulas (2025), *Federated generalised variational inference* (FedGVI);
Knoblauch, Jewson & Damoulas (2022), *An optimization-centric view on Bayes' rule*; Ghosh & Basu (2016) for the density
power; Zhang & Sabuncu (2018) for the generalised cross entropy.

    posterior(θ) ∝ p_0(θ) exp(-Σ_i L(θ, y_i) / α)                                                            (1)

    density power:               L = -(p(y | θ)^β - 1) / β + ∫ p(z | θ)^(1+β) dz / (1 + β)                    (2)
    generalised cross entropy:   L = (1 - p(y | θ)^δ) / δ,    y one of finitely many values                   (3)

The density power is a proper score: the true p minimises its mean. The generalised cross entropy is not proper: if the
true probabilities are π, its mean is least at p(y) ∝ π(y)^(1/(1-δ)), with logits 1/(1-δ) times as large (Zhang &
Sabuncu predict classes, not probabilities). As β or δ tends to 0 both tend to -log p(y | θ), up to a constant. An
improbable row contributes the gradient p^β ∇ log p, which vanishes; in ordinary Bayes it contributes ∇ log p, which
does not.

FedGVI is partitioned variational inference with such a loss at the clients. Here the loss belongs to the model, so that
Eq. (1) is the target of every algorithm, its checks and the audit. A weighted Kullback-Leibler divergence,
1/w KL(q ‖ p), is the algorithms' `temperature`, α above. Deviation: FedGVI's other divergences (Rényi's) are not
implemented.

The integral of Eq. (2) has a closed form if the power of a density is proportional to a density of the same family, and
is a sum for finitely many values. Other distributions are refused by name.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions import MaskedDistribution, TorchDistribution, Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Distribution,
    Exponential,
    Gamma,
    Independent,
    Laplace,
    MultivariateNormal,
    Normal,
)

from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.setting_checks import check_between, check_positive
from pyro_fed.density.running.trace_sites import without_event_dims
from pyro_fed.errors import ModelError, SettingError, shown

__all__ = ["DensityPower", "GeneralisedCrossEntropy", "Loss", "with_loss"]
__dir__ = public_dir(__all__)

#: Exponential families with a constant carrier measure, whose log normaliser A gives ∫ p^c = exp(A(c η) - c A(η)).
FLAT_FAMILIES = (Bernoulli, Exponential, Normal)


class Loss(ABC):
    """A loss L in place of a row's negative log density: -L = (p^power - 1) / power - penalty."""

    @property
    @abstractmethod
    def power(self) -> float:
        """The power of the row's density."""

    @abstractmethod
    def penalty(self, observation: Any) -> Tensor | float:
        """The term of L without the row's own density, of the batch shape; ModelError without a closed form."""


@dataclass(frozen=True, kw_only=True)
class DensityPower(Loss):
    """The density power loss, Eq. (2): robust against outliers, for continuous and discrete observations.

    Args:
        beta: β > 0. Larger values are more robust and less efficient: without outliers the sampling variance of a
            Gaussian mean is (1 + β²/(1 + 2β))^1.5 times the usual one, 1.04 times for 0.2 and 1.19 times for 0.5.

    Raises:
        SettingError: beta is not positive.

    References:
        Basu, Harris, Hjort & Jones (1998); Ghosh & Basu (2016), Robust Bayes estimation using the density power
        divergence.

    Example:
        >>> pf.losses.DensityPower(beta=0.2)
    """

    beta: float = 0.2

    def __post_init__(self) -> None:
        check_positive(self, "beta")

    @property
    def power(self) -> float:
        """β."""
        return self.beta

    def penalty(self, observation: Any) -> Tensor:
        """∫ p(z | θ)^(1+β) dz / (1 + β), of the distribution's batch shape."""
        return log_integral(observation, 1 + self.beta).exp() / (1 + self.beta)


@dataclass(frozen=True, kw_only=True)
class GeneralisedCrossEntropy(Loss):
    """The generalised cross entropy, Eq. (3): robust against wrong labels, for observations with finitely many values.

    Use it for classification: fitted probabilities are too extreme, with logits 1/(1 - δ) times the true ones. Use
    `DensityPower` for weights and probabilities.

    Args:
        delta: δ in (0, 1]. The limit 0 is the cross entropy; 1 is the mean absolute error, 1 - p.

    Raises:
        SettingError: delta is outside (0, 1].

    References:
        Zhang & Sabuncu (2018), Generalized cross entropy loss for training deep neural networks with noisy labels.

    Example:
        >>> pf.losses.GeneralisedCrossEntropy(delta=0.7)
    """

    delta: float = 0.7

    def __post_init__(self) -> None:
        check_between(self, "delta", 0.0, 1.0, "(]")

    @property
    def power(self) -> float:
        """δ."""
        return self.delta

    def penalty(self, observation: Any) -> float:
        """Zero, for observations with finitely many values."""
        base = without_event_dims(observation)
        if not base.has_enumerate_support:
            raise ModelError(
                f"GeneralisedCrossEntropy takes observations with finitely many values, such as Bernoulli and "
                f"Categorical; received {type(base).__name__}. Use pf.losses.DensityPower"
            )
        return 0.0


def with_loss(model: Callable[..., Any], loss: Loss) -> Callable[..., Any]:
    """The model with a robust loss in place of the log densities of its rows.

    Args:
        model: a Pyro model. The loss applies to its observed sites within plates; priors, latent variables,
            `pyro.factor` and observed sites outside of plates do not change.
        loss: `pf.losses.DensityPower` or `pf.losses.GeneralisedCrossEntropy`.

    Returns:
        A Pyro model with the same arguments. Predictions use the model's own distributions; leave-one-out scores use
        the loss.

    Raises:
        SettingError: `loss` is not a loss.
        ModelError: raised when the model runs: it observes nothing within a plate, or the loss has no closed form for
            a distribution.

    References:
        Mildner, Hamelijnck, Giampouras & Damoulas (2025), Federated generalised variational inference.

    Notes:
        The posterior variance is that of Eq. (1) in the module's header, which differs from the sampling variance of
        the posterior mean. The algorithms' `temperature` scales it.

    Example:
        >>> robust = pf.losses.with_loss(model, pf.losses.DensityPower(beta=0.2))
        >>> fed = pf.Federation(robust, (x, y), plate="data", num_clients=10)
    """
    if not isinstance(loss, Loss):
        raise SettingError(
            f"with_loss: expected loss to be a pf.losses.DensityPower or a pf.losses.GeneralisedCrossEntropy, received "
            f"{shown(loss)}"
        )

    @functools.wraps(model)
    def robust(*args: Any, **kwargs: Any) -> Any:
        handler = LossOfObservations(loss)
        with handler:
            result = model(*args, **kwargs)
        if not handler.replaced:
            raise ModelError(
                "with_loss: the model observes nothing within a plate, so that there is no density to replace; observe "
                "the rows by pyro.sample(..., obs=...) in their plate"
            )
        return result

    return robust


class LossOfObservations(Messenger):
    """Give the observed sites within plates the density exp(-L)."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss, self.replaced = loss, 0

    def _pyro_sample(self, msg: Any) -> None:
        fn = msg["fn"]
        if not (msg["is_observed"] and msg["cond_indep_stack"]) or isinstance(fn, Unit):
            return
        if isinstance(fn, MaskedDistribution):
            msg["fn"] = MaskedDistribution(RobustObservation(fn.base_dist, self.loss), fn._mask)
        else:
            msg["fn"] = RobustObservation(fn, self.loss)
        self.replaced += 1


class RobustObservation(TorchDistribution):
    """A distribution that draws from `base` and scores by a loss."""

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # torch declares it so

    def __init__(self, base: Any, loss: Loss) -> None:
        self.base, self.loss, self.penalty = base, loss, loss.penalty(base)
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """The support of the base."""
        return self.base.support

    @property
    def mean(self) -> Tensor:
        """The mean of the base."""
        mean: Tensor = self.base.mean
        return mean

    def expand(self, batch_shape: Any, _instance: Any = None) -> RobustObservation:
        """The same distribution with another batch shape."""
        return RobustObservation(self.base.expand(batch_shape), self.loss)

    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008  # torch's own default
        """Draws of the base."""
        draws: Tensor = self.base.sample(sample_shape)
        return draws

    def log_prob(self, value: Tensor) -> Tensor:
        """-L(θ, value)."""
        density: Tensor = self.base.log_prob(value)
        return torch.expm1(self.loss.power * density) / self.loss.power - self.penalty


def log_integral(observation: Any, power: float) -> Tensor:
    """log ∫ p(z)^c dz, of a distribution's batch shape; ModelError without a closed form or finitely many values."""
    if isinstance(observation, Independent):
        inner: Tensor = log_integral(observation.base_dist, power)
        return inner.flatten(inner.dim() - observation.reinterpreted_batch_ndims).sum(-1)
    if isinstance(observation, FLAT_FAMILIES):
        natural = observation._natural_params
        power_normalizer: Tensor = observation._log_normalizer(*(power * part for part in natural))
        normalizer: Tensor = observation._log_normalizer(*natural)
        return power_normalizer - power * normalizer
    if isinstance(observation, Gamma):  # the integral is infinite if the power's shape is not positive
        shape = power * (observation.concentration - 1) + 1
        power_normalizer = torch.lgamma(shape) - shape * (power * observation.rate).log()
        normalizer = torch.lgamma(observation.concentration) - observation.concentration * observation.rate.log()
        return torch.where(shape > 0, power_normalizer - power * normalizer, torch.inf)
    if isinstance(observation, Laplace):
        return (1 - power) * (2 * observation.scale).log() - math.log(power)
    if isinstance(observation, MultivariateNormal):
        return _of_multivariate_normal(observation, power)
    if isinstance(observation, Distribution) and observation.has_enumerate_support:
        values = observation.enumerate_support()
        return torch.logsumexp(power * observation.log_prob(values), 0)
    raise ModelError(
        f"DensityPower has no closed form for {type(observation).__name__}: it takes Normal, MultivariateNormal, "
        "Laplace, Gamma, Exponential, and distributions with finitely many values, such as Bernoulli, Categorical and "
        "Binomial with one total_count"
    )


def _of_multivariate_normal(observation: MultivariateNormal, power: float) -> Tensor:
    """log ∫ p^c of a multivariate normal: (1 - c)/2 log |2πΣ| - D/2 log c."""
    dim = observation.event_shape[0]
    half_log_det: Tensor = observation.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return (1 - power) * (half_log_det + dim / 2 * math.log(2 * math.pi)) - dim / 2 * math.log(power)
