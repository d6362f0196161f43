"""Streams made at once are those made singly."""

import numpy as np
import pytest

from pyro_fed.conventions import seeding


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**40 + 7, 2**70 + 3])
@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_many_streams_are_the_single_ones(seed, length):
    drawn = np.random.default_rng(0).integers(0, 2**32, (seeding.AT_ONCE, length))
    keys = [(0,) * length, *(tuple(map(int, key)) for key in drawn)]
    singly = [seeding.torch_generator(seed, *key).initial_seed() for key in keys]
    assert [one.initial_seed() for one in seeding.torch_generators(seed, keys)] == singly


def test_a_client_that_stands_there_twice_has_two_streams():
    assert seeding.client_keys(3, [5, 1, 5]) == [(seeding.CLIENT, 3, *key) for key in [(5, 0), (1, 0), (5, 1)]]
