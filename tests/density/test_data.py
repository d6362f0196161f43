"""Rows as a step sees them: minibatches, padding, and clients without rows."""

import itertools

import numpy as np
import pytest
import torch
from algorithms import PAPER, line, line_data, unequal_lines
from short_runs import quiet, values

import pyro_fed as pf
from pyro_fed.density.rows.batches import ClientData, draw_minibatches


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_minibatches_are_unbiased_exactly(num_rows, batch_size, monkeypatch):
    """The weighted sum of a batch, averaged over every order of a pass, is the sum of all rows."""
    rows = torch.arange(1.0, num_rows + 1, dtype=torch.float64) ** 2
    data = ClientData((rows,), torch.arange(num_rows), torch.tensor(num_rows))
    sums = []
    for order in itertools.permutations(range(num_rows)):
        keys = torch.empty(num_rows)
        keys[list(order)] = torch.arange(num_rows, dtype=torch.float32)
        monkeypatch.setattr(torch, "rand", lambda passes, n, generator, keys=keys: keys.expand(passes, n))
        picks = draw_minibatches(num_rows, batch_size, 3, torch.Generator(), torch.float64)
        assert picks.position.shape == picks.weight.shape == (3, batch_size)
        for position, weight in zip(*picks, strict=True):
            batch = data.take(type(picks)(position, weight))
            sums.append(float((batch.rows[0] * batch.weight).sum()))
    assert np.mean(sums) == pytest.approx(float(rows.sum()), rel=1e-12)


def test_an_empty_client_adds_nothing():
    """It takes part with a flat site: SVGD's answer with it is the answer without it."""
    with pytest.warns(UserWarning, match="clients 2 have no rows"):
        parts = pf.partition.Explicit([list(range(10)), list(range(10, 23)), []])
        fed = pf.Federation(line, line_data(), plate="data", partition=parts)
    batch = ClientData(*fed.client_data([2])[:1], fed.client_data([2]).row_index[0], torch.tensor(0)).full_batch()
    assert float(fed.problem.log_lik(torch.ones(2, dtype=torch.float64), batch)) == 0
    result = quiet(pf.PaperDSVGD(**PAPER, batch_size=4), fed, num_rounds=3)
    assert np.isfinite(values(result)).all()


def test_padding_carries_no_weight():
    fed = unequal_lines()
    data = fed.client_data()
    for k, index in enumerate(fed.client_rows):
        batch = ClientData(data.rows, data.row_index[k], data.num_rows[k]).full_batch()
        assert float(batch.weight.sum()) == len(index)
        z = torch.tensor([0.3, -0.1], dtype=torch.float64)
        torch.testing.assert_close(fed.problem.log_lik(z, batch), fed.problem.pointwise_log_lik(z)[index].sum())
