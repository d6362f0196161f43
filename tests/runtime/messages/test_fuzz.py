"""10,000 mutated messages and checkpoints: a good one back, or one error; never memory, never time."""

import contextlib
import json
import random
import struct
import time
import tracemalloc

import pytest
import torch

import pyro_fed as pf
from pyro_fed.runtime.checkpoint import Checkpoint, Saved
from pyro_fed.runtime.messages import Header, Message, decode, encode, spec_of, token

STATE = {
    "precision": torch.eye(12, dtype=torch.float64),
    "eta": torch.arange(12.0),
    "usable": torch.tensor(True),
}
#: What headers are edited with.
VALUES = [
    *(-1, 0, 1, 2**31, 2**62, 2**63, 10**30, 1.5, True, None, "", "F64", "I64", "x" * 1000),
    *([], [0], [-1, 5], [2**40, 2**40], [0, 1, 2], {}, {"dtype": "F64"}, [[0]], "../", "é"),
]


def flip(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def cut(data, rng):
    return data[: rng.randrange(len(data))]


def lengthen(data, rng):
    return data + rng.randbytes(rng.randrange(1, 50))


def claim(data, rng):
    return struct.pack("<Q", rng.choice([0, 1, 7, 200, 2**20, 2**31, 2**63, 2**64 - 1])) + data[8:]


def splice(data, rng):
    first, last = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:first] + rng.randbytes(rng.randrange(20)) + data[last:]


def not_finite(data, rng):
    at = len(data) - 8 * rng.randrange(1, 12)
    return data[:at] + struct.pack("<d", rng.choice([float("nan"), float("inf")])) + data[at + 8 :]


def edit(data, rng):
    """The JSON header with a value changed, a key taken, doubled or added."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    part = header[rng.choice(sorted(header))]
    part[rng.choice([*part, "more"])] = rng.choice(VALUES)
    if rng.random() < 0.3:
        header[rng.choice([*header, "more"])] = rng.choice(VALUES)
    raw = json.dumps(header).encode()
    if rng.random() < 0.2:
        raw = raw[:-1] + b"," + raw[1:]  # every key twice
    return struct.pack("<Q", len(raw)) + raw + data[8 + length :]


MUTATIONS = [flip, cut, lengthen, claim, splice, not_finite, edit, edit]


def mutants(data, number, seed):
    rng = random.Random(seed)
    for _ in range(number):
        mutant = data
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            try:
                mutant = rng.choice(MUTATIONS)(mutant or b"\x00", rng)
            except (ValueError, AttributeError, struct.error, TypeError, LookupError):
                continue  # two mutations that do not fit: the header is gone already
        yield mutant


@pytest.fixture
def watched():
    """Memory from here on, in bytes, at its peak."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def test_9000_mutated_messages(watched):
    data, expected = encode(Message(Header("reply", token(), 3, "0", token()), STATE)), spec_of(STATE)
    cap, refused, slowest = 10**5, 0, 0.0
    for mutant in mutants(data, 9000, seed=1):
        tracemalloc.reset_peak()
        before, began = watched(), time.perf_counter()
        try:
            back = decode(mutant, expected, cap)
        except pf.errors.ProtocolError as error:
            assert len(str(error)) < 1000
            refused += 1
        else:
            assert spec_of(back.tensors) == expected
            assert all(bool(value.isfinite().all()) for value in back.tensors.values())
        slowest = max(slowest, time.perf_counter() - began)
        assert watched() - before < 2 * cap
    assert slowest < 1.0
    assert 7000 < refused < 9000  # a flipped bit of a number is another number


def test_1000_mutated_checkpoints(tmp_path, watched):
    marks = {"seed": "0", "model": "m"}
    with contextlib.closing(Checkpoint(tmp_path, marks, resume=False)) as folder:
        folder.save(Saved(0, 1, STATE, {"site": torch.ones(3)}, {"rounds": [1]}))
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    slowest = 0.0
    for mutant in mutants(data, 1000, seed=2):
        path.write_bytes(mutant)
        tracemalloc.reset_peak()
        before, began = watched(), time.perf_counter()
        if mutant == data:
            continue
        with (
            contextlib.closing(Checkpoint(tmp_path, marks, resume=True)) as folder,
            pytest.raises(pf.errors.ProtocolError),
        ):
            folder.load()
        slowest = max(slowest, time.perf_counter() - began)
        assert watched() - before < 2 * 10**5
    assert slowest < 1.0
