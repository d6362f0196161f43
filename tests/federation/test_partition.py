"""Every partition keeps its contract, and each has the skew that its docstring promises."""

import itertools

import numpy as np
import pytest
import torch

from pyro_fed.federation import partition as pt

NUM_ROWS, NUM_LABELS = 60, 4
LABELS = np.random.default_rng(1).permutation(np.arange(NUM_ROWS) % NUM_LABELS)
BALANCED = np.arange(4000) % NUM_LABELS
GROUPS = np.array([f"user{i}" for i in range(NUM_ROWS)])  # a group a row: any number of clients is possible

PARTITIONS = [
    pt.IID(),
    pt.QuantitySkew(0.3),
    pt.QuantitySkew(0.3, min_rows=0),
    pt.Dirichlet(0.05),
    pt.Dirichlet(100.0, by=LABELS),
    pt.LabelShards(NUM_LABELS),
    pt.MajorityShare(0.8),
    pt.SortedBy(),
    pt.SortedBy(by=np.sin(np.arange(NUM_ROWS))),
    pt.ByGroup(by=GROUPS),
    pt.FeatureSkew(feature=np.cos(np.arange(NUM_ROWS))),
]


def rng(seed=0):
    return np.random.default_rng(seed)


def split(partition, num_rows=NUM_ROWS, num_clients=4, labels=LABELS, seed=0):
    return partition.split(num_rows, num_clients, rng(seed), labels)


def label_counts(parts, labels):
    """(clients, labels) table of rows."""
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in parts])


@pytest.mark.parametrize("num_clients", [1, 2, 7, NUM_ROWS])
@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_every_row_goes_to_exactly_one_client(partition, num_clients):
    parts = split(partition, num_clients=num_clients)
    assert len(parts) == num_clients
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(NUM_ROWS))


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_the_same_seed_gives_the_same_split(partition):
    for first, second in zip(split(partition, seed=3), split(partition, seed=3), strict=True):
        np.testing.assert_array_equal(first, second)


RANDOM = [p for p in PARTITIONS if not isinstance(p, pt.SortedBy | pt.ByGroup | pt.FeatureSkew)]


@pytest.mark.parametrize("partition", RANDOM, ids=repr)
def test_another_seed_gives_another_split(partition):
    first, second = split(partition, seed=0), split(partition, seed=1)
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_iid_sizes_differ_by_one_row_at_most():
    sizes = [len(rows) for rows in split(pt.IID(), num_clients=7)]
    assert max(sizes) - min(sizes) <= 1


def test_quantity_skew_gives_every_client_its_minimum():
    sizes = [len(rows) for rows in split(pt.QuantitySkew(0.01, min_rows=5), num_clients=7)]
    assert min(sizes) == 5
    assert max(sizes) > 5 + 20  # at alpha 0.01 nearly all of the 25 spare rows sit at one client


def test_quantity_skew_tends_to_equal_sizes():
    sizes = [len(rows) for rows in split(pt.QuantitySkew(1e8), num_rows=700, num_clients=7)]
    assert max(sizes) - min(sizes) <= 2


def test_dirichlet_tends_to_the_pooled_mix_of_labels():
    counts = label_counts(split(pt.Dirichlet(1e8), 4000, 5, BALANCED), BALANCED)
    assert np.abs(counts - 200).max() <= 1


def test_dirichlet_shares_have_the_mean_and_variance_of_the_distribution():
    """Shares of a label at client 0 over 2,000 seeds against mean 1/K, var (K-1) / (K^2 (alpha K + 1)).

    The tolerance is 5 standard errors (4th moment bounded by that of the Beta marginal): a false alarm for
    one seed in a million, and the seeds are fixed.
    """
    alpha, num_clients, repeats = 0.5, 5, 2000
    labels = np.zeros(1000, dtype=int)
    shares = np.array(
        [len(split(pt.Dirichlet(alpha), 1000, num_clients, labels, seed)[0]) / 1000 for seed in range(repeats)]
    )
    mean, variance = 1 / num_clients, (num_clients - 1) / (num_clients**2 * (alpha * num_clients + 1))
    assert abs(shares.mean() - mean) < 5 * np.sqrt(variance / repeats)
    fourth = np.mean((shares - mean) ** 4)
    assert abs(shares.var() - variance) < 5 * np.sqrt((fourth - variance**2) / repeats)


def test_dirichlet_with_small_alpha_puts_a_label_at_one_client():
    """A share below 0.99 has probability about alpha (K-1) log(100): 2e-5 a label."""
    counts = label_counts(split(pt.Dirichlet(1e-6), 4000, 5, BALANCED), BALANCED)
    assert (counts.max(axis=0) > 990).all()
    assert (counts.sum(axis=1) == 0).any()  # four labels over five clients: one is left without rows


@pytest.mark.parametrize(("classes", "num_clients", "num_labels"), [(1, 10, 10), (3, 27, 9), (2, 5, 10), (4, 3, 4)])
def test_label_shards_hold_just_their_number_of_classes(classes, num_clients, num_labels):
    labels = np.arange(100 * num_labels) % num_labels
    counts = label_counts(split(pt.LabelShards(classes), len(labels), num_clients, labels), labels)
    assert ((counts > 0).sum(axis=1) == classes).all()
    holders = (counts > 0).sum(axis=0)
    assert holders.max() - holders.min() <= 1
    for label in range(num_labels):
        held = counts[:, label][counts[:, label] > 0]
        assert held.max() - held.min() <= 1


def test_majority_share_is_the_forty_and_ten_percent_of_the_dsvgd_paper():
    labels = np.arange(1000) % 2
    counts = label_counts(split(pt.MajorityShare(0.8), 1000, 4, labels), labels)
    np.testing.assert_array_equal(counts, [[200, 50], [50, 200], [200, 50], [50, 200]])


def test_majority_share_is_the_one_to_nine_of_the_client_selection_paper():
    labels = np.arange(6000) % 2
    counts = label_counts(split(pt.MajorityShare(0.9), 6000, 30, labels), labels)
    np.testing.assert_array_equal(np.sort(counts, axis=1), np.tile([20, 180], (30, 1)))


def test_majority_share_gives_every_label_a_home_where_labels_outnumber_clients():
    counts = label_counts(split(pt.MajorityShare(1.0), 4000, 2, BALANCED), BALANCED)
    np.testing.assert_array_equal(counts, [[1000, 0, 1000, 0], [0, 1000, 0, 1000]])


def test_by_group_gives_each_group_a_client_by_default():
    by = np.array(["b", "a", "c", "a"])
    partition = pt.ByGroup(by)
    assert partition.default_num_clients() == 3
    parts = partition.split(4, None, rng())
    assert [rows.tolist() for rows in parts] == [[1, 3], [0], [2]]


def test_by_group_packs_whole_groups_evenly():
    by = np.repeat([0, 1, 2, 3, 4], [5, 4, 3, 3, 3])
    parts = pt.ByGroup(by).split(18, 2, rng())
    assert sorted(len(rows) for rows in parts) == [8, 10]
    assert not set(by[parts[0]]) & set(by[parts[1]])


def test_sorted_by_cuts_contiguous_ranges():
    by = rng().normal(size=NUM_ROWS)
    parts = split(pt.SortedBy(by), num_clients=5)
    assert all(by[left].max() <= by[right].min() for left, right in itertools.pairwise(parts))


def test_explicit_takes_the_lists_as_they_are():
    parts = pt.Explicit([[2, 0], [], torch.tensor([1])]).split(3, None, rng())
    assert [rows.tolist() for rows in parts] == [[0, 2], [], [1]]


@pytest.mark.parametrize(
    "by", [LABELS.tolist(), torch.tensor(LABELS), torch.tensor(LABELS, dtype=torch.float32).reshape(-1, 1)]
)
def test_by_takes_sequences_and_tensors(by):
    for ours, theirs in zip(split(pt.Dirichlet(0.3, by=by)), split(pt.Dirichlet(0.3)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_partitions_compare_by_their_settings():
    by = np.arange(3)
    assert pt.Dirichlet(0.3, by=by) == pt.Dirichlet(0.3, by=by.copy())
    assert pt.Dirichlet(0.3, by=by) != pt.Dirichlet(0.3, by=by + 1)
    assert pt.Dirichlet(0.3, by=by) != pt.Dirichlet(0.3)
    assert pt.Dirichlet(0.3) != pt.QuantitySkew(0.3)
    assert pt.Explicit([[0], [1, 2]]) != pt.Explicit([[0, 1], [2]])
    assert len({pt.IID(), pt.IID(), pt.Explicit([[0]])}) == 2


def test_settings_are_frozen():
    by = np.arange(3)
    partition = pt.SortedBy(by)
    by[0] = 9  # the partition keeps its own copy
    assert partition.by.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        partition.by[0] = 1


def test_feature_skew_keeps_the_mix_of_labels_and_parts_the_feature():
    feature = np.sin(np.arange(4000.0))
    parts = pt.FeatureSkew(feature=feature, by=BALANCED).split(4000, 5, rng())
    for label in range(NUM_LABELS):
        blocks = [feature[rows[BALANCED[rows] == label]] for rows in parts]
        assert [len(block) for block in blocks] == [200] * 5
        assert all(a.max() <= b.min() for a, b in itertools.pairwise(blocks))


@pytest.mark.parametrize("feature", [np.zeros((4, 2)), [1.0, np.nan], ["a", "b"]])
def test_feature_skew_needs_a_number_a_row(feature):
    with pytest.raises(ValueError, match=r"FeatureSkew.*feature"):
        pt.FeatureSkew(feature=feature)


def test_feature_skew_of_other_rows():
    with pytest.raises(ValueError, match="feature has 3 values for 4 rows"):
        pt.FeatureSkew(feature=[1.0, 2.0, 3.0]).split(4, 2, rng(), np.array([0, 1, 0, 1]))
