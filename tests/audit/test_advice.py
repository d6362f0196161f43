"""What to do about a Gaussian without correlations depends on whether a full covariance can be had."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import pyro_fed as pf
from pyro_fed.audit.advice import cure
from pyro_fed.density.size import LARGE_DIM


def advice(dim):
    """Of a diagonal Gaussian of so many parameters."""
    record = SimpleNamespace(latest={}, failed=list, converged=None)
    shared = {"precision": torch.ones(dim), "eta": torch.zeros(dim)}
    layout = SimpleNamespace(observed=[], factors=[], improper=[])
    compiler = SimpleNamespace(kept=lambda key, find, problem: False)  # rows without layers
    problem = SimpleNamespace(dim=dim, evaluations=1, local_dim=0, layout=layout, compiler=compiler)
    return cure(SimpleNamespace(record=record, shared=shared, problem=problem, algorithm=pf.FedEP()))


def test_a_full_covariance_is_advised_only_where_there_is_room_for_it():
    assert advice(LARGE_DIM).endswith("take covariance='full'")
    wide = advice(LARGE_DIM + 1)
    assert "covariance='full'" not in wide and "1,001 parameters" in wide and "test_metrics" in wide
