"""Masks of secure aggregation: a cryptographic stream of the whole seed, at both ends, and none of Flower's own."""

import hashlib
import hmac
import os
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import scipy.stats

from pyro_fed.errors import SettingError

pytestmark = [
    pytest.mark.flower,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs Flower"),
]

RANGE = 2**32


@pytest.fixture
def masks():
    from pyro_fed.deployment.flower import masks

    return masks


def masks_by_flower(seed, count):
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    return pseudo_rand_gen(seed, RANGE, [(count,)])[0]


def test_seeds_that_flower_folds_to_the_same_bits_have_other_masks(masks):
    """Its generator has a seed of 32 bits: the exclusive or of all words. A word changed in two places leaves it."""
    seed = bytes(range(32))
    changed = bytearray(seed)
    for place in (3, 19):
        changed[place] ^= 0x5A
    assert np.array_equal(masks_by_flower(seed, 50), masks_by_flower(bytes(changed), 50))
    one, other = (masks.masks(bytes(part), RANGE, [(50,)])[0] for part in (seed, changed))
    assert (one != other).all()
    for bit in range(256):
        flipped = bytearray(seed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert (masks.masks(bytes(flipped), RANGE, [(50,)])[0] != one).mean() > 0.9


def test_the_stream_is_chacha20_of_the_derived_key(masks):
    """By another library, and RFC 5869 by hand."""
    from Crypto.Cipher import ChaCha20

    seed = os.urandom(44)
    extracted = hmac.digest(bytes(32), seed, hashlib.sha256)
    key = hmac.digest(extracted, masks.PURPOSE + b"\x01", hashlib.sha256)
    stream = ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(4 * 31))
    found = masks.masks(seed, RANGE, [(2, 3), (), (24,)])
    assert [one.shape for one in found] == [(2, 3), (), (24,)]
    assert np.array_equal(np.concatenate([one.ravel() for one in found]), np.frombuffer(stream, "<u4"))
    assert all(one.dtype == np.int64 for one in found)


def test_masks_are_uniform(masks):
    """In 64 cells, with a false alarm in 1e10; the seed is fixed."""
    for size in (RANGE, 2**10):
        numbers = masks.masks(bytes(32), size, [(100_000,)])[0]
        assert 0 <= numbers.min() <= numbers.max() < size
        counts = np.bincount(numbers * 64 // size, minlength=64)
        assert scipy.stats.chisquare(counts).pvalue > 1e-10


@pytest.mark.parametrize(
    ("seed", "size", "words"),
    [(b"12345678" * 2, RANGE, "has 128 bits; expected at least 256"), (bytes(32), 1000, "a power of two")],
)
def test_weak_masks_are_refused(masks, seed, size, words):
    with pytest.raises(SettingError, match=words):
        masks.masks(seed, size, [(3,)])


@pytest.mark.parametrize("lost", [[], [(1, 2)]], ids=["all stay", "one leaves"])
def test_neither_end_draws_masks_by_numpy(flower, tmp_path, monkeypatch, lost):
    """Flower's generator, which seeds NumPy's, is out of order; the sum is that of the other runs."""
    from flwr.client.mod import secaggplus_mod
    from flwr.common.secure_aggregation import secaggplus_utils

    model, recipes = flower.write_case(tmp_path, {"FedSEP": '[settings]\nstart = "prior"\n[run]\nnum_rounds = 3'})

    def run():
        given = {"num-clients": 3, "timeout": 0.05, "compile": "off", "audit": False}
        grid = flower.Watching(flower.make_client(model, recipes.values()), lost)
        settings = flower.read_configuration(given | {"secure-aggregation": "{largest = 1e5}"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return flower.serve(grid, model, recipes["FedSEP"], settings).posterior["w"].values

    expected = run()
    own = secaggplus_utils.pseudo_rand_gen
    monkeypatch.setattr(secaggplus_utils, "np", None)
    assert np.array_equal(run(), expected)
    assert secaggplus_utils.pseudo_rand_gen is own  # Flower is as it was
    assert secaggplus_mod.__globals__["pseudo_rand_gen"] is own


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"pseudo_rand_gen": lambda key, count: []},
            r"use pseudo_rand_gen\(seed, num_range, dimensions_list\)",
        ),
        ({"_collect_masked_vectors": lambda *args: {}}, "does not use pseudo_rand_gen"),
        ({"_collect_masked_vectors": None}, "does not use _collect_masked_vectors"),
    ],
)
def test_a_flower_that_makes_its_masks_otherwise_is_refused(masks, monkeypatch, change, words):
    from flwr.client.mod import secaggplus_mod

    for name, other in change.items():
        monkeypatch.setitem(secaggplus_mod.__globals__, name, other)
    with pytest.raises(SettingError, match=words):
        masks.client_mod()
