"""What FedEP and its kin take by default on a large model, such as a network (see `density.size`).

    client   `tilted.IVON`: minibatches, an antithetic pair of draws a step, diagonal sites from scores alone
    start    "fedavg": sites at the point that averaging finds
    order    of PVI: all clients at once

Only what a user has not set is taken so; with a full covariance, or another curvature or client, all stays as it was.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from pyro_fed.algorithm import message_limits
from pyro_fed.conventions.nested_settings import given
from pyro_fed.density.problem import Problem
from pyro_fed.density.size import is_large
from pyro_fed.infer.ep.tilted.ivon import IVON
from pyro_fed.infer.ep.tilted.newton import Newton
from pyro_fed.ops.gaussian import Gaussian

#: Settings that say how the exact steps are taken: who sets one of them wants these.
EXACT = frozenset({"client", "curvature", "step_control"})


def fitted(algorithm: Any, problem: Problem) -> Any:
    """The algorithm with the settings that the model's size asks for.

    Args:
        algorithm: FedEP or one of its kin, as a user has set it.
        problem: the model's densities.
    """
    own = given(algorithm)
    large = is_large(problem, algorithm.num_points, algorithm.full_dim)
    newton = isinstance(algorithm.client, Newton)
    if not large or not newton or own & EXACT or algorithm.structure(problem) == "full":
        return algorithm
    settings: dict[str, Any] = {"client": IVON()}
    if not own & {"start", "warm_tolerance"}:
        settings["start"] = "fedavg"
    if "order" not in own and any(field.name == "order" for field in dataclasses.fields(algorithm)):
        settings["order"] = "synchronous"
    return dataclasses.replace(algorithm, **settings)


def large_objections(q: Gaussian, deltas: Gaussian) -> message_limits.Objections:
    """`message_limits.natural` with means over the other clients for medians, which would sort every parameter.

    Args:
        q: what the clients received, (C,).
        deltas: changes of their diagonal sites, (C,).
    """
    own, mean = q.precision[0], q.mean()[0]
    size = deltas.precision.abs()
    scale = own + (size.sum(0) - size) / max(1, len(size) - 1)
    change = deltas.precision / scale
    step = (deltas.eta - deltas.precision * mean) / scale.sqrt()
    return {
        **message_limits.outlying(_largest(change), "change of the precision"),
        **message_limits.outlying(_largest(step), "step"),
        "its precision has the wrong sign": (deltas.precision < -message_limits.LARGEST_FALL * scale).any(-1),
    }


def _largest(value: Tensor) -> Tensor:
    return torch.linalg.vector_norm(value.double(), torch.inf, dim=-1)
