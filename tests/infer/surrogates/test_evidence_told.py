"""The evidence stands beside the answer that it is of, whatever was run after it; where it is unknown that is said."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.runtime.checks import evidence

QUIET = {"progress": False, "log_likelihood": False, "compile": "off", "seed": 0}


def skewed(y):
    rate = pyro.sample("rate", dist.Gamma(y.new_tensor(0.3), 0.1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Poisson(rate).expand([len(y)]), obs=y)


COUNTS = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)


def exact():
    """log p(y) of Gamma-Poisson, by its conjugate formula."""
    a, b, n, s = 0.3, 0.1, len(COUNTS), float(COUNTS.sum())
    gone = sum(math.lgamma(y + 1) for y in COUNTS.tolist())
    return a * math.log(b) - math.lgamma(a) + math.lgamma(a + s) - (a + s) * math.log(b + n) - gone


def test_the_chosen_answers_evidence_is_in_the_attributes():
    fed = pf.Federation(skewed, (COUNTS,), plate="data", num_clients=3)
    idata = pf.fit(fed, **QUIET)
    assert idata.attrs["chosen"].startswith("FedAIS")
    assert abs(idata.attrs["log_evidence"] - exact()) < 5 * idata.attrs["log_evidence_se"] < 0.5
    steps = [step["algorithm"] for step in json.loads(idata.attrs["steps"]) if step["doubts"] is not None]
    if steps[-1] != idata.attrs["chosen"]:
        assert math.isnan(idata["federation"]["log_evidence"].values[-1])


def test_an_algorithm_without_it_has_none():
    fed = pf.Federation(skewed, (COUNTS,), plate="data", num_clients=3)
    assert "log_evidence" not in pf.run(pf.FedLaplace(), fed, **QUIET | {"audit": False}).attrs


@pytest.mark.parametrize(("error", "said"), [(0.1, False), (2.0, True), (np.inf, True)])
def test_an_evidence_that_is_not_known_is_said_to_be_that(error, said):
    record = Record(["a"], figures=[{"log_evidence": -3.0, "log_evidence_se": error, "pareto_k": 1.2}])
    notes = evidence(SimpleNamespace(record=record, doubts=[]))
    assert [one.code for one in notes] == ["evidence_not_known"] * said
    assert all("log_evidence is not known" in note.text and not note.is_doubt for note in notes)
