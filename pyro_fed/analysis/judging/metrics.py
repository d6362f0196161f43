"""How well a posterior predicts rows that it has not seen.

With S posterior draws z_s and test rows y_i:

    log predictive density   (1/n) sum_i log( (1/S) sum_s p(y_i | z_s) )
    accuracy                 (1/n) #{i: argmax_c (1/S) sum_s p(c | z_s) = y_i}
    RMSE                     sqrt( (1/n) sum_i ( (1/S) sum_s E[y_i | z_s] - y_i )^2 )
    precision, recall, F1    of labels whose probability (1/S) sum_s p(y_il = 1 | z_s) is above one half

Decisions are taken from the average predictive distribution (Kassab and Simeone, Section 7), never from the
average parameter. The accuracy is given where the observation is a class, the RMSE otherwise.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_fed.conventions.calls import checked, explained
from pyro_fed.conventions.doors import listing
from pyro_fed.density.observations import observation
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DataError
from pyro_fed.federation.federation import Federation
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import unconstrained_draws

__all__ = ["accuracy", "log_predictive_density", "multilabel", "rmse", "test_metrics"]
__dir__ = listing(__all__)

#: How many draws are evaluated in one batch: it bounds the memory, and changes no result.
DRAWS_AT_ONCE = 64


class Predictions(NamedTuple):
    """What S draws say about n rows.

    Args:
        log_prob: (S, n), log-density of each observed row.
        value: (n, ...), what was observed.
        mean: (n, ...), mean of the observation, averaged over the draws; None where it is a class, or has no mean that
            torch knows.
        probs: (n, C), class probabilities, averaged over the draws; None where it is no class.
        labels: (n, L), the probability of each of a row's labels, averaged over the draws; None where it has no such.
    """

    log_prob: Tensor
    value: Tensor
    mean: Tensor | None
    probs: Tensor | None
    labels: Tensor | None = None

    @property
    def lost(self) -> str:
        """At how many draws the density of a row is no number, as a sentence; "" where at none."""
        lost = int(self.log_prob.isnan().any(1).sum())
        return f"the density of the test data is no number at {lost} of {len(self.log_prob)} draws" if lost else ""


@checked
@explained(DataError, "test_metrics: the result or the test data do not fit the model")
def test_metrics(idata: InferenceData, federation: Federation, test: tuple[Any, ...]) -> dict[str, float]:
    """Measure a result on test data.

    Args:
        idata: result of `pyro_fed.run`.
        federation: that it was run on.
        test: arguments of the model for the test data, in the order of the training arguments.

    Returns:
        ``num_rows``; ``log_predictive_density``, a mean per row; ``accuracy`` in [0, 1] for classes, else
        ``rmse`` in the units of the observation, where torch knows its mean; for rows with several labels of 0 or 1
        those of `multilabel` too.

    Raises:
        DataError: the test data have no rows, or hold a NaN; or their log density is no number at some of the draws.

    Example:
        >>> pf.metrics.test_metrics(pf.run(pf.FedEP(), fed), fed, (x_test, y_test))["log_predictive_density"]
    """
    predictions = predict_rows(federation.problem, unconstrained_draws(idata, federation.problem), test)
    if lost := predictions.lost:
        raise DataError(lost)
    metrics = {
        "num_rows": float(predictions.log_prob.shape[1]),
        "log_predictive_density": log_predictive_density(predictions.log_prob),
    }
    if predictions.probs is not None:
        metrics["accuracy"] = accuracy(predictions.probs, predictions.value)
    if predictions.mean is not None:
        metrics["rmse"] = rmse(predictions.mean, predictions.value)
    if predictions.labels is not None:
        metrics |= multilabel(predictions.labels, predictions.value)
    return metrics


test_metrics.__test__ = False  # type: ignore[attr-defined]  # pytest takes what a test file imports by such a name for a test


@checked
@explained(DataError, "the test data do not fit the model")
def predict_rows(problem: Problem, draws: Tensor, args: tuple[Any, ...]) -> Predictions:
    """Evaluate the observations of a model under posterior draws.

    Args:
        problem: the model's densities.
        draws: (S, D), unconstrained.
        args: arguments of the model, with n rows.

    Returns:
        What the draws say of each row.

    Raises:
        DataError: there are no rows, or a value is NaN, or a row's log density at every draw; where it is no number at
            some of them, `log_prob` says so.

    Example:
        >>> predict_rows(fed.problem, unconstrained_draws(idata, fed.problem), (x_test, y_test)).probs
    """
    chunks = [_evaluate(problem, chunk, args) for chunk in torch.split(draws, DRAWS_AT_ONCE)]
    value = chunks[0]["value"][0]
    if value.is_floating_point() and bool(value.isnan().any()):
        count = int(value.isnan().sum())
        raise DataError(f"{count} observed values of the test data are NaN; remove those rows.")
    log_prob = torch.cat([chunk["log_prob"] for chunk in chunks])
    unknown = log_prob.isnan().all(0)
    if bool(unknown.any()):
        raise DataError(
            f"the log density of {int(unknown.sum())} of {len(unknown)} test rows is NaN, of row "
            f"{int(unknown.nonzero()[0])} first: remove rows that have a NaN among their arguments, or impute these."
        )
    return Predictions(
        log_prob=log_prob,
        value=value,
        mean=_mean_over_draws(chunks, "mean"),
        probs=_mean_over_draws(chunks, "probs"),
        labels=_mean_over_draws(chunks, "labels"),
    )


def _evaluate(problem: Problem, draws: Tensor, args: tuple[Any, ...]) -> dict[str, Tensor]:
    def one(z: Tensor) -> dict[str, Tensor]:
        return observation(problem, z, args)

    with torch.no_grad():
        found: dict[str, Tensor] = problem.vmap(one)(draws)
        return found


def _mean_over_draws(chunks: list[dict[str, Tensor]], key: str) -> Tensor | None:
    return torch.cat([chunk[key] for chunk in chunks]).mean(0) if key in chunks[0] else None


@checked
def log_predictive_density(log_prob: Tensor) -> float:
    """The mean over rows of the log of the density averaged over draws.

    Args:
        log_prob: (S, n), log-density of row i under draw s.

    Returns:
        The log predictive density of a row.

    Raises:
        DataError: no matrix, or an empty one.

    Example:
        >>> pf.metrics.log_predictive_density(torch.zeros(100, 5))
        0.0
    """
    if log_prob.dim() != 2 or not log_prob.numel():
        raise DataError(f"log_predictive_density takes (draws, rows), of one or more, received {tuple(log_prob.shape)}")
    return (torch.logsumexp(log_prob, 0) - math.log(log_prob.shape[0])).mean().item()


@checked
def accuracy(probs: Tensor, value: Tensor) -> float:
    """The share of rows whose most probable class is the observed one.

    Args:
        probs: (n, C), averaged over the draws.
        value: (n,), observed classes 0..C-1.

    Returns:
        The share, in [0, 1].

    Raises:
        DataError: the shapes do not fit.

    Example:
        >>> pf.metrics.accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
        0.5
    """
    if probs.dim() < 2 or not probs.numel() or value.shape != probs.shape[:-1]:
        raise DataError(
            f"accuracy takes probabilities (n, C) and classes (n,), received {tuple(probs.shape)} and "
            f"{tuple(value.shape)}"
        )
    return (probs.argmax(-1) == value.long()).double().mean().item()


@checked
def multilabel(probs: Tensor, value: Tensor, threshold: float = 0.5) -> dict[str, float]:
    """Precision, recall and F1 where a row has several labels, each there or not.

    With TP_l, FP_l, FN_l of label l: micro figures are of their sums over the labels, the macro F1 is the mean over the
    labels of 2 TP_l / (2 TP_l + FP_l + FN_l). What has no denominator is zero.

    Args:
        probs: (n, L), averaged over the draws.
        value: (n, L), 0 or 1.
        threshold: a label is predicted where its probability is above.

    Returns:
        ``precision``, ``recall`` and ``micro_f1`` over all labels, and ``macro_f1``.

    Raises:
        DataError: the shapes differ.

    References:
        Guo et al. (2023), Table 3.

    Example:
        >>> pf.metrics.multilabel(torch.tensor([[0.9, 0.2], [0.8, 0.6]]), torch.tensor([[1, 0], [0, 1]]))["precision"]
        0.6666666666666666
    """
    if probs.shape != value.shape or probs.dim() != 2:
        raise DataError(f"probabilities of labels have shape {tuple(probs.shape)}, labels {tuple(value.shape)}.")
    said, true = probs > threshold, value > 0
    hit, wrong, missed = ((a & b).sum(0).double() for a, b in ((said, true), (said, ~true), (~said, true)))

    def f1(hit: Tensor, wrong: Tensor, missed: Tensor) -> Tensor:
        return 2 * hit / (2 * hit + wrong + missed).clamp_min(1)

    return {
        "precision": float(hit.sum() / (hit + wrong).sum().clamp_min(1)),
        "recall": float(hit.sum() / (hit + missed).sum().clamp_min(1)),
        "micro_f1": float(f1(hit.sum(), wrong.sum(), missed.sum())),
        "macro_f1": float(f1(hit, wrong, missed).mean()),
    }


@checked
def rmse(mean: Tensor, value: Tensor) -> float:
    """The root mean squared error of the posterior predictive mean.

    Args:
        mean: (n, ...), averaged over the draws.
        value: (n, ...), observed.

    Returns:
        The error, in the units of the observation.

    Raises:
        DataError: the shapes differ, where broadcasting would give a number that means nothing.

    Example:
        >>> pf.metrics.rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -1.0]))
        3.0
    """
    if mean.shape != value.shape:
        raise DataError(f"predicted mean has shape {tuple(mean.shape)}, observed value {tuple(value.shape)}.")
    return (mean.double() - value.double()).square().mean().sqrt().item()
