"""What the audit looks at: how many draws it takes of a distribution."""

from types import SimpleNamespace

import pytest
import torch

from pyro_fed.audit.evidence import FEWEST_DRAWS, MANY_DRAWS, MANY_NUMBERS, Evidence


@pytest.mark.parametrize(("dim", "expected"), [(2, MANY_DRAWS), (1_000, MANY_NUMBERS // 1_000), (50_000, FEWEST_DRAWS)])
def test_the_audits_own_draws_are_bounded_in_numbers(dim, expected):
    algorithm = SimpleNamespace(
        draws_are="independent",
        sample=lambda shared, num_draws, generator: torch.zeros(1, 1).expand(num_draws, dim)[None],
    )
    evidence = Evidence(
        algorithm=algorithm,
        federation=None,
        problem=SimpleNamespace(dim=dim),
        shared={"eta": torch.zeros(1)},
        draws=torch.zeros(1, 10, dim),
        record=None,
        seed=0,
    )
    assert evidence.flat.shape == (expected, dim)
