"""What to do about a Gaussian without correlations depends on whether a full covariance can be had."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import NONCENTRED, Record
from pyro_fed.audit.modes import missed_modes
from pyro_fed.audit.moment_findings import cure
from pyro_fed.density.size import LARGE_DIM

#: What `Auto` tries of a small model with latent scales.
PLANNED = frozenset({"FedEP", "FedAIS", "DSVGD", "FSGLD", NONCENTRED})


def advice(dim, shared=None, beyond=False, **more):
    """Of a diagonal Gaussian of so many parameters, or of another state of an algorithm."""
    record = Record(["a", "b"], **more)
    if shared is None:
        shared = {"precision": torch.ones(dim), "eta": torch.zeros(dim)}
    layout = SimpleNamespace(observed=[], factors=[], improper=[])
    compiler = SimpleNamespace(kept=lambda key, find, problem: False)  # rows without layers
    traits = SimpleNamespace(large=lambda: dim > LARGE_DIM, dim=dim, improper=frozenset())
    problem = SimpleNamespace(dim=dim, layout=layout, compiler=compiler, traits=traits)
    return cure(
        SimpleNamespace(record=record, shared=shared, problem=problem, algorithm=pf.FedEP(), jump_lines={}), beyond
    )


def test_a_full_covariance_is_advised_only_where_there_is_room_for_it():
    assert advice(LARGE_DIM).endswith("use covariance='full'")
    wide = advice(LARGE_DIM + 1)
    assert "covariance='full'" not in wide and "1,001 parameters" in wide and "test_metrics" in wide


def _provisional(record):
    """What DSVGD says of its particles, which counts unless exact chains find them right."""
    problem = SimpleNamespace(dim=2, evaluations=1, local_dim=0)
    (found,) = pf.DSVGD().warnings(record, problem)
    assert found.code in pf.DSVGD.provisional
    return found


#: What doubts advise, of a record.
ADVISED = {
    "draws": lambda record: advice(2, {}, planned=record.planned),
    "beyond": lambda record: advice(2, {}, beyond=True, planned=record.planned),
    "modes": lambda record: missed_modes._cure(SimpleNamespace(algorithm=pf.FedEP(), record=record)),
    "FedEP": lambda record: pf.FedEP(covariance="full").warnings(record, SimpleNamespace(dim=2))[0].text,
    "FedAIS": lambda record: pf.FedAIS().warnings(record, None)[0].text,
    "DSVGD": lambda record: _provisional(record).text,
}
#: Figures of rounds that all of them object to.
BAD = {
    **{"in_vain": 1.0, "answered": 1.0, "pareto_k": 1.0, "effective_draws": 1e9, "mean_error": math.inf, "apart": 0.0},
    **{"mean_off": 9.0, "sd_off": 9.0, "spread": 1.0},
}


@pytest.mark.parametrize("of", ADVISED)
def test_a_plan_is_not_advised_what_it_tries(of, monkeypatch):
    monkeypatch.setattr("pyro_fed.density.forms.funnel_hint", lambda problem: [f"the {NONCENTRED} form"])
    figures = [BAD] * 1000
    alone = ADVISED[of](Record(["a", "b"], figures=figures))
    assert "DSVGD" in alone or "FSGLD" in alone
    planned = ADVISED[of](Record(["a", "b"], figures=figures, planned=PLANNED))
    assert not [name for name in PLANNED if name in planned] and "NUTS" in planned
