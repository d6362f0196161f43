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


def test_keys_of_rounds_are_those_of_each_round():
    rounds = np.random.default_rng(1).integers(0, 4, (6, 5))
    singly = [key for number, clients in enumerate(rounds) for key in seeding.client_keys(3 + number, clients.tolist())]
    assert list(map(tuple, seeding.keys_of_rounds(3, rounds).tolist())) == singly


#: Every form of key in use, with the numbers that it has at the least; (SCHEDULE, draw) and (SCHEDULE, draw, slot) are
#: the choice of clients of one phase, which has either.
FORMS = {
    seeding.SERVER: [(0,), (1,)],
    seeding.SCHEDULE: [(0, 0), (0, 1), (1, 0), (1, 1)],
    seeding.CLIENT: [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)],
    seeding.DRAWS: [(), (1,), (2,)],
    seeding.GRAPH: [(0,), (1,)],
    seeding.LOCALS: [()],
    seeding.ASSIGNMENTS: [()],
    seeding.FAULTS: [(0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)],
    seeding.AUDIT: [(), *((number,) for number in range(1, 8))],
}


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**70 + 3])
def test_no_two_keys_in_use_are_the_same_stream(seed):
    """`SeedSequence` pads short keys with zeros, so that (DRAWS,) and (DRAWS, 0) would be."""
    keys = [(domain, *rest) for domain, forms in FORMS.items() for rest in forms]
    streams = {tuple(seeding.sequence(seed, *key).generate_state(4)) for key in keys}
    assert len(streams) == len(keys)
