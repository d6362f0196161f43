"""All that the goldens read of the package's inside: change these two functions when its inside moves."""

from __future__ import annotations

import json
from typing import Any

import torch

import pyro_fed as pf
from benchmarks.goldens.surface import settings_of
from pyro_fed.density.running.handlers import default_of
from pyro_fed.policy import chain_of, stages_of
from pyro_fed.results import InferenceData


def codes(idata: InferenceData) -> list[str] | None:
    """The codes of a result's findings, in their order; None of a package whose findings have no codes."""
    findings = idata.attrs.get("findings")
    return None if findings is None else [finding["code"] for finding in json.loads(findings)]


def phases(algorithm: Any, federation: pf.Federation, graph: pf.graph.Graph | None) -> list[list[Any]]:
    """What a run is made of: for each stage of a plan, or the one of an algorithm, its phases with their settings.

    A phase that is one of an earlier stage's is its algorithm's name alone.

    Args:
        algorithm: the algorithm or plan that a user names.
        federation: on what.
        graph: who talks to whom.
    """
    problem = federation.problem
    found: list[list[Any]] = []
    with default_of(problem.dtype), torch.no_grad():
        for stage in stages_of(algorithm, problem, graph):
            parts = [_phase(part) for part in chain_of(stage.algorithm, problem)]
            before = [part for one in found for part in one]
            found.append([part["algorithm"] if part in before else part for part in parts])
            if stage.noncentred:
                found[-1].append("noncentred")
    return found


def _phase(algorithm: Any) -> dict[str, Any]:
    """An algorithm's settings for a model; `structure` is what covariance="auto" has become."""
    phase = {"algorithm": type(algorithm).__name__, "settings": settings_of(algorithm)}
    if hasattr(algorithm, "structure"):
        phase["structure"] = algorithm.structure
    return phase
