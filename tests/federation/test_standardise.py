"""Standardising by all clients' rows, from their sums."""

import pytest
import torch

import pyro_fed as pf
from pyro_fed.errors import DataError


@pytest.mark.parametrize("shift", [0.0, 1e9])
def test_the_clients_sums_give_the_pooled_moments(shift):
    """Also where squares would cancel; a client without rows and a constant column do not matter."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator, dtype=torch.float64) + shift
    x[:, 2] = 4.0
    parts = [pf.column_sums(part) for part in (x[:7], x[7:7], x[7:8], x[8:])]
    mean, sd = pf.pooled_moments(parts)
    torch.testing.assert_close(mean, x.mean(0), rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(sd[:2], x[:, :2].std(0, correction=0), rtol=1e-6, atol=0)
    assert float(sd[2]) == 1.0


def test_without_rows_there_is_nothing_to_standardise_by():
    with pytest.raises(DataError, match="no client has any row"):
        pf.pooled_moments([pf.column_sums(torch.zeros(0, 2))])
