"""Rows as a step sees them: minibatches, padding, and clients without rows."""

import itertools

import numpy as np
import pytest
import torch
from algorithms import PAPER, line, line_data, unequal_lines
from short_runs import quiet, values

import pyro_fed as pf
from pyro_fed.density.rows.batches import (
    SORTED_ROWS,
    ClientData,
    draw_epochs,
    draw_independent_minibatches,
    draw_minibatches,
)

MANY = 2 * SORTED_ROWS


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


@pytest.mark.parametrize("share", [0.01, 0.45, 0.7, 2.5], ids=lambda share: f"{share}_of_the_rows")
def test_minibatches_of_many_rows_are_the_beginning_of_random_permutations(share):
    """No row twice in a pass; each step's rows as often as all others.

    Sums of rows in ten groups, over 400 draws, beside the hypergeometric variance: a group beyond 5 SDs has probability
    6e-7, one of the 400 that are looked at 3e-4.
    """
    steps, generator = 10, torch.Generator().manual_seed(0)
    size = int(share * MANY) // steps
    counts = torch.zeros(steps, 10)
    for _ in range(400):
        picks = draw_minibatches(MANY, size, steps, generator, torch.float64)
        assert picks.weight.eq(MANY / size).all()
        for part in picks.position.flatten().split(MANY):
            assert len(part.unique()) == len(part)
        counts += torch.stack([torch.bincount(row // (MANY // 10), minlength=10) for row in picks.position])
    mean, variance = 400 * size / 10, 400 * size * 0.09 * (MANY - size) / (MANY - 1)
    assert (counts - mean).abs().max() < 5 * variance**0.5


@pytest.mark.parametrize("size", [3, 800])
def test_minibatches_drawn_anew_from_many_rows(size):
    """No row twice in one, and rows of one beside those of the next as independent as they are to be.

    The rows that two have in common are hypergeometric, n m²/n² in the mean; of 900 pairs, within 5 of its SDs.
    """
    picks = draw_independent_minibatches(MANY, size, 901, torch.Generator().manual_seed(0), torch.float64)
    sets = [set(row) for row in picks.position.tolist()]
    assert all(len(one) == size for one in sets)
    common = np.mean([len(a & b) for a, b in itertools.pairwise(sets)])
    mean = size**2 / MANY
    sd = (mean * (1 - size / MANY) * (MANY - size) / (MANY - 1)) ** 0.5
    assert abs(common - mean) < 5 * sd / 30


def test_an_epoch_of_many_rows_takes_each_once():
    picks = draw_epochs(MANY + 7, 64, 2, torch.Generator().manual_seed(0), torch.float64)
    for position, weight in zip(picks.position.chunk(2), picks.weight.chunk(2), strict=True):
        assert sorted(position[weight > 0].tolist()) == list(range(MANY + 7))


def test_an_empty_client_adds_nothing():
    """It takes part with a flat site: SVGD's answer with it is the answer without it."""
    with pytest.warns(UserWarning, match="clients 2 have no rows"):
        parts = pf.partition.Explicit([list(range(10)), list(range(10, 23)), []])
        fed = pf.Federation(line, line_data(), plate="data", partition=parts)
    batch = ClientData(*fed.client_data([2])[:1], fed.client_data([2]).row_index[0], torch.tensor(0)).full_batch()
    assert float(fed.problem.log_lik(torch.ones(2, dtype=torch.float64), batch)) == 0
    result = quiet(pf.papers.PaperDSVGD(**PAPER, batch_size=4), fed, num_rounds=3)
    assert np.isfinite(values(result)).all()


def test_padding_carries_no_weight():
    fed = unequal_lines()
    data = fed.client_data()
    for k, index in enumerate(fed.client_rows):
        batch = ClientData(data.rows, data.row_index[k], data.num_rows[k]).full_batch()
        assert float(batch.weight.sum()) == len(index)
        z = torch.tensor([0.3, -0.1], dtype=torch.float64)
        torch.testing.assert_close(fed.problem.log_lik(z, batch), fed.problem.pointwise_log_lik(z)[index].sum())
