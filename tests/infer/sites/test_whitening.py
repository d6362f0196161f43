"""Coordinates that whiten one Gaussian, and those in which a factor of it is diagonal besides."""

import pytest
import torch

from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian
from pyro_fed.ops.whitening import Coordinates, diagonal_coordinates

DIM = 4
GENERATOR = torch.Generator().manual_seed(0)
Z = torch.randn(50, DIM, generator=GENERATOR, dtype=torch.float64)


def precision():
    half = torch.randn(DIM, DIM, generator=GENERATOR, dtype=torch.float64)
    return half @ half.T + torch.eye(DIM, dtype=torch.float64)


@pytest.mark.parametrize("dense", [True, False])
def test_a_turn_leaves_the_points_and_densities_and_makes_the_factor_diagonal(dense):
    eta = torch.arange(1.0, DIM + 1, dtype=torch.float64)
    q, factor = (FullGaussian(precision(), scale * eta) for scale in (1.0, -0.3))
    if not dense:
        q, factor = (DiagGaussian(one.precision.diagonal(), one.eta) for one in (q, factor))
    whitened = Coordinates.of(q)
    site = whitened.site(factor)
    coordinates, diagonal, turn = diagonal_coordinates(whitened, site)
    assert isinstance(diagonal, DiagGaussian) and (turn is None) is not dense
    there = Z if turn is None else Z @ turn
    torch.testing.assert_close(coordinates.model(there), whitened.model(Z))
    torch.testing.assert_close(diagonal.log_factor(there), site.log_factor(Z))
    torch.testing.assert_close(coordinates.site(factor).log_factor(there), site.log_factor(Z))
    torch.testing.assert_close(coordinates.site(q).log_factor(there), -Z.square().sum(-1) / 2)
