"""Measures of how well a posterior predicts test rows.

With S posterior draws z_s and test rows y_i:

    log predictive density   (1/n) sum_i log( (1/S) sum_s p(y_i | z_s) )
    accuracy                 (1/n) #{i: argmax_c (1/S) sum_s p(c | z_s) = y_i}
    RMSE                     sqrt( (1/n) sum_i ( (1/S) sum_s E[y_i | z_s] - y_i )^2 )
    precision, recall, F1    of labels whose probability (1/S) sum_s p(y_il = 1 | z_s) is above one half

Decisions are taken from the average predictive distribution (Kassab and Simeone, Section 7), never from the
average parameter. The accuracy is given if the observation is a class, the RMSE otherwise.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyro_fed.analysis.judging.draws import DRAWS_AT_ONCE
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.conventions.calls import checked, explained
from pyro_fed.conventions.doors import public_dir
from pyro_fed.conventions.limits import MATTERS
from pyro_fed.density.observations import observation
from pyro_fed.density.problem import Problem
from pyro_fed.errors import DataError
from pyro_fed.federation.federation import Federation
from pyro_fed.ops.arviz_versions import leave_out_weights
from pyro_fed.ops.importance import LARGEST_PARETO_K
from pyro_fed.results.inference_data import InferenceData
from pyro_fed.results.to_arviz import unconstrained_draws

__all__ = ["accuracy", "log_predictive_density", "multilabel", "rmse", "test_metrics"]
__dir__ = public_dir(__all__)


class Predictions(NamedTuple):
    """Predictions of n rows by S draws.

    Args:
        log_prob: (S, n), log density of each observed row under each draw.
        value: (n, ...), the observations.
        mean: (n, ...), predictive means, averaged over the draws; None if the observation is a class, or if torch has
            no mean for its distribution.
        probs: (n, C), class probabilities, averaged over the draws; None if the observation is not a class.
        labels: (n, L), probability of each label, averaged over the draws; None if rows do not have several labels.
    """

    log_prob: Tensor
    value: Tensor
    mean: Tensor | None
    probs: Tensor | None
    labels: Tensor | None = None

    @property
    def nan_findings(self) -> list[Finding]:
        """A finding if the log density of some row is NaN at some draws, or none."""
        lost = int(self.log_prob.isnan().any(1).sum())
        return [sentences.test_density_not_finite(draws=lost, of_draws=len(self.log_prob))] if lost else []

    def measures(self) -> dict[str, float]:
        """The log predictive density, and accuracy, RMSE or the measures of `multilabel`, as the observation is."""
        found = {"log_predictive_density": log_predictive_density(self.log_prob)}
        if self.probs is not None:
            found["accuracy"] = accuracy(self.probs, self.value)
        if self.mean is not None:
            found["rmse"] = rmse(self.mean, self.value)
        return found | (multilabel(self.labels, self.value) if self.labels is not None else {})


@checked
@explained(DataError, "test_metrics: the result or the test data do not fit the model")
def test_metrics(idata: InferenceData, federation: Federation, test: tuple[Any, ...]) -> dict[str, float]:
    """Measure a result on test data.

    Args:
        idata: result of `pyro_fed.run`.
        federation: the federation of the run.
        test: arguments of the model for the test data, in the order of the training arguments.

    Returns:
        ``num_rows``; ``log_predictive_density``, a mean over rows; ``accuracy`` in [0, 1] if the observation is a
        class, otherwise ``rmse`` in the units of the observation, if torch has the mean of its distribution; for rows
        with several labels of 0 or 1 also the measures of `multilabel`.

    Raises:
        DataError: the test data have no rows, or hold a NaN, or their log density is NaN at some of the draws.

    Example:
        >>> pf.metrics.test_metrics(pf.run(pf.FedEP(), fed), fed, (x_test, y_test))["log_predictive_density"]
    """
    predictions = predict_rows(federation.problem, unconstrained_draws(idata, federation.problem), test)
    if lost := predictions.nan_findings:
        raise DataError(
            f"test_metrics: {lost[0].text}; look for draws far from all others in the result, or run the model in "
            "float64"
        )
    return {"num_rows": float(predictions.log_prob.shape[1]), **predictions.measures()}


test_metrics.__test__ = False  # type: ignore[attr-defined]  # pytest takes what a test file imports by such a name for a test


@checked
@explained(DataError, "the test data do not fit the model")
def predict_rows(problem: Problem, draws: Tensor, args: tuple[Any, ...]) -> Predictions:
    """Predictions of the rows of a model's arguments under unconstrained draws (S, D); DataError without rows."""
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
    def observation_at(z: Tensor) -> dict[str, Tensor]:
        return observation(problem, z, args)

    with torch.no_grad():
        found: dict[str, Tensor] = problem.vmap(observation_at)(draws)
        return found


def _mean_over_draws(chunks: list[dict[str, Tensor]], key: str) -> Tensor | None:
    return torch.cat([chunk[key] for chunk in chunks]).mean(0) if key in chunks[0] else None


@checked
def log_predictive_density(log_prob: Tensor) -> float:
    """The mean over rows of the logarithm of the density averaged over draws.

    Args:
        log_prob: (S, n), log-density of row i under draw s.

    Returns:
        The log predictive density of a row.

    Raises:
        DataError: `log_prob` is not a matrix, or is empty.

    Example:
        >>> pf.metrics.log_predictive_density(torch.zeros(100, 5))
        0.0
    """
    if log_prob.dim() != 2 or not log_prob.numel():
        raise DataError(
            "log_predictive_density takes log densities of shape (draws, rows), with at least one of each, received "
            f"shape {tuple(log_prob.shape)}"
        )
    return (torch.logsumexp(log_prob, 0) - math.log(log_prob.shape[0])).mean().item()


@checked
def accuracy(probs: Tensor, value: Tensor) -> float:
    """The share of rows whose most probable class is the observed one.

    Args:
        probs: (n, C), class probabilities averaged over the draws.
        value: (n,), observed classes 0..C-1.

    Returns:
        The share, in [0, 1].

    Raises:
        DataError: `value` has another shape than the rows of `probs`, or there are no rows.

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
    """Precision, recall and F1 for rows with several labels, each of which is present or absent.

    Let TP_l, FP_l and FN_l be the true positives, false positives and false negatives of label l. Precision, recall and
    micro F1 use their sums over the labels. The macro F1 is the mean over labels of 2 TP_l / (2 TP_l + FP_l + FN_l). A
    ratio whose denominator is zero counts as zero.

    Args:
        probs: (n, L), probability of each label, averaged over the draws.
        value: (n, L), 1 if the label is present, else 0.
        threshold: a label is predicted if its probability is above this.

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
        raise DataError(
            "multilabel takes probabilities and labels of the same shape (n, L), received probabilities of shape "
            f"{tuple(probs.shape)} and labels of shape {tuple(value.shape)}"
        )
    predicted, true = probs > threshold, value > 0
    hit, wrong, missed = (
        (a & b).sum(0).double() for a, b in ((predicted, true), (predicted, ~true), (~predicted, true))
    )

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
        mean: (n, ...), predictive means averaged over the draws.
        value: (n, ...), observations.

    Returns:
        The error, in the units of the observation.

    Raises:
        DataError: the shapes differ. Broadcasting them would give a meaningless number.

    Example:
        >>> pf.metrics.rmse(torch.tensor([1.0, 2.0]), torch.tensor([4.0, -1.0]))
        3.0
    """
    if mean.shape != value.shape:
        raise DataError(
            "rmse takes predicted means and observations of the same shape, received means of shape "
            f"{tuple(mean.shape)} and observations of shape {tuple(value.shape)}"
        )
    return (mean.double() - value.double()).square().mean().sqrt().item()


#: With fewer draws PSIS has no tail of large weights to fit: it takes the largest fifth, and at least five of them.
MIN_LOO_DRAWS = 25


def loo(idata: InferenceData) -> tuple[dict[str, float], list[Finding]]:
    """`elpd_loo`, `elpd_loo_se` and `bad_pareto_k`, the number of rows with a large Pareto k, by PSIS-LOO.

    With a note on these rows, if there are any. There are no figures if the result has no group `log_likelihood`, has
    too few draws, or is a single point.
    """
    if "log_likelihood" not in idata:
        return {}, []
    terms = [
        value.values.reshape(-1, int(np.prod(value.shape[2:]))) for value in idata["log_likelihood"].data_vars.values()
    ]
    total = sum(terms[1:], terms[0]) if len({one.shape for one in terms}) == 1 else np.concatenate(terms, 1)
    if len(total) < MIN_LOO_DRAWS:
        return {}, []
    lost = ~np.isfinite(total)
    if lost.any():
        return {}, [
            sentences.loo_not_finite(
                draws=int(lost.any(1).sum()),
                of_draws=len(total),
                rows=int(lost.any(0).sum()),
                of_rows=total.shape[1],
            )
        ]
    if np.ptp(total, axis=0).max() == 0:
        return {}, []  # a single point, repeated: no row can be left out
    smoothed, k = leave_out_weights(total)
    bad = k > LARGEST_PARETO_K
    without = np.logaddexp.reduce(total + smoothed, 0)
    costs = np.logaddexp.reduce(total, 0) - np.log(len(total)) - without
    values = {
        "elpd_loo": float(without.sum()),
        "elpd_loo_se": float((len(without) * without.var()) ** 0.5),
        "bad_pareto_k": int(bad.sum()),
    }
    if not bad.any():
        return values, []
    found, rows = int(bad.sum()), len(bad)
    cost, error = float(costs[bad].sum()), values["elpd_loo_se"]
    # What matters of a mean's error does of the sum's: a quarter, since unreliable weights show too small a loss.
    if cost <= MATTERS * error:
        share = cost / error if error else 0.0
        return values, [sentences.loo_rows_beyond(rows=found, of_rows=rows, limit=LARGEST_PARETO_K, share=share)]
    return values, [sentences.loo_not_reliable(rows=found, of_rows=rows, limit=LARGEST_PARETO_K)]
