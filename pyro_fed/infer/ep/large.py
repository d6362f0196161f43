"""What FedEP and its kin do on large models, whose clients follow stochastic gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.algorithm.record import Record
from pyro_fed.algorithm.states import State
from pyro_fed.codes import sentences
from pyro_fed.codes.finding import Finding
from pyro_fed.density.problem import Problem
from pyro_fed.infer.sites.gaussian_sites import FEWEST_POINTS, spread_points
from pyro_fed.ops.gaussian import Gaussian

#: Change of the prior's site, relative to it, that is single precision's rounding.
ROUNDING = 1e-4
#: Mean change of a log SD in a round from which on they have not settled.
SETTLED_GROWTH = 0.01
#: Rounds over which that is the mean.
RECENT = 5


def few_points(q: Gaussian, most: int) -> Tensor | None:
    """Points (S, C, D) that are enough for the means of a Gaussian prior, where an algorithm takes more of them.

    Args:
        q: (C,).
        most: points that it takes.
    """
    return spread_points(q, FEWEST_POINTS) if most > FEWEST_POINTS else None


def unchanged(prior: Gaussian, delta: Gaussian) -> bool:
    """Whether the prior's site is where it was, as a Gaussian prior's is at any q, up to rounding.

    Args:
        prior: its site.
        delta: the change of it that few points show.
    """
    own = prior.precision.diagonal() if prior.dense else prior.precision
    root = own.abs().sqrt()
    most = ROUNDING * (root.unsqueeze(-1) * root if prior.dense else own.abs())
    still = delta.eta.abs() <= ROUNDING * (prior.eta.abs() + root)  # not a number is not less
    return bool(still.all() and (delta.precision.abs() <= most).all())


def mean_growth(before: State, after: State) -> float:
    """Mean change of a log SD in a round.

    Args:
        before: the server's state before it.
        after: the state after it.
    """
    return float((before["precision"].log() - after["precision"].log()).mean() / 2)


def network_warnings(record: Record, problem: Problem) -> list[Finding]:
    """SDs that have not come to rest, and parameters that nothing holds.

    Args:
        record: of the run.
        problem: the model's densities.
    """
    notes = list[Finding]()
    recent = [figures["sd_growth"] for figures in record.figures[-RECENT:] if "sd_growth" in figures]
    growth = sum(recent) / max(1, len(recent))
    if abs(growth) > SETTLED_GROWTH:
        notes.append(sentences.sds_still_change(percent_a_round=100 * growth))
    if problem.layout.improper:
        notes.append(sentences.improper_priors(sites=sorted(problem.layout.improper)))
    return notes


def large_objections(q: Gaussian, deltas: Gaussian) -> message_limits.Objections:
    """`message_limits.natural` with means over the other clients for medians, which would sort every parameter.

    Args:
        q: what the clients received, (C,).
        deltas: changes of their diagonal sites, (C,).
    """
    own, mean, total = q.precision[0], q.mean()[0], deltas.precision.abs().sum(0)
    changes, steps, wrong = [], [], []
    for precision, eta in zip(deltas.precision, deltas.eta, strict=True):  # all at once would be many numbers
        scale = own + (total - precision.abs()) / max(1, len(deltas.eta) - 1)
        changes.append(_largest(precision / scale))
        steps.append(_largest((eta - precision * mean) / scale.sqrt()))
        wrong.append((precision < -message_limits.LARGEST_FALL * scale).any())
    return {
        **message_limits.outlying(torch.stack(changes), "change of the precision"),
        **message_limits.outlying(torch.stack(steps), "step"),
        "its precision has the wrong sign": torch.stack(wrong),
    }


def _largest(value: Tensor) -> Tensor:
    return value.double().abs().amax()
