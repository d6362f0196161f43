"""Partitions from text, the forms that input may take, and the errors, which name the cure."""

import numpy as np
import pytest

from pyro_fed.federation import partition as pt

NUM_ROWS = 60
LABELS = np.arange(NUM_ROWS) % 4


def split(partition, num_rows=NUM_ROWS, num_clients=4, labels=LABELS):
    return partition.split(num_rows, num_clients, np.random.default_rng(0), labels)


@pytest.mark.parametrize(
    ("text", "partition"),
    [
        ("iid", pt.IID()),
        ("Dirichlet:0.3", pt.Dirichlet(0.3)),
        ("quantity:0.5", pt.QuantitySkew(0.5)),
        ("shards:2", pt.LabelShards(2)),
        ("majority:0.8", pt.MajorityShare(0.8)),
        ("sorted", pt.SortedBy()),
        ("sorted:1", pt.SortedBy(by=[1, 3, 5])),
        ("group", pt.ByGroup()),
        ("group:0", pt.ByGroup(by=[0, 2, 4])),
    ],
)
def test_parse(text, partition):
    assert pt.parse(text, columns=np.arange(6).reshape(3, 2)) == partition


def test_columns_go_by_name_too():
    named = {"Ward": np.array(["b", "a", "b"]), "age": np.array([3, 1, 2])}
    assert pt.parse("group:ward", named=named) == pt.ByGroup(by=["b", "a", "b"])
    assert pt.parse("sorted: AGE", named=named) == pt.SortedBy(by=[3, 1, 2])
    with pytest.raises(ValueError, match=r"there is no column 'wards'; there are \['Ward', 'age'\]"):
        pt.parse("group:wards", named=named)


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("iidd", None, "'iidd' cannot be parsed; write iid, dirichlet:ALPHA"),
        ("iid:3", None, "'iid:3' cannot be parsed"),
        ("dirichlet", None, "'dirichlet' cannot be parsed"),
        ("dirichlet:x", None, "'x' is not a number"),
        ("shards:1.5", None, "'1.5' is not a whole number"),
        ("sorted:", None, "'sorted:' cannot be parsed"),
        ("sorted:0", None, r"has shape \(\), expected \(rows, columns\)"),
        ("sorted:2", np.zeros((3, 2)), "columns run from 0 to 1"),
        ("dirichlet:-1", None, "alpha is -1.0, expected a finite number > 0"),
    ],
)
def test_parse_says_what_it_does_not_understand(text, columns, message):
    with pytest.raises(ValueError, match=message):
        pt.parse(text, columns)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: pt.Dirichlet(0.0), "Dirichlet: alpha is 0.0, expected a finite number > 0"),
        (lambda: pt.Dirichlet(float("nan")), "alpha is nan"),
        (lambda: pt.Dirichlet("0.3"), "alpha is '0.3'"),
        (lambda: pt.QuantitySkew(-1.0), "QuantitySkew: alpha is -1.0"),
        (lambda: pt.QuantitySkew(1.0, min_rows=-1), "min_rows is -1, expected a whole number of at least 0"),
        (lambda: pt.LabelShards(0), "classes_per_client is 0, expected a whole number of at least 1"),
        (lambda: pt.MajorityShare(1.1), r"share is 1.1, expected a number in \[0, 1\]"),
        (lambda: pt.SortedBy(np.zeros((3, 2))), r"SortedBy: by has shape \(3, 2\), expected one value for each row"),
        (lambda: pt.SortedBy([1.0, np.nan]), r"SortedBy: by\[1\] is nan \(1 missing in all\)"),
        (lambda: pt.ByGroup(["a", None]), r"ByGroup: by\[1\] is None \(1 missing in all\)"),
        (lambda: pt.Explicit([[0], [True, False]]), r"client 1 are bool.*np.flatnonzero\(mask\)"),
        (lambda: pt.Explicit([[0.5]]), "client 0 are float64, expected whole numbers"),
    ],
)
def test_a_bad_setting_is_refused_when_it_is_made(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("partition", "kwargs", "message"),
    [
        (pt.IID(), {"num_clients": 0}, "IID: num_clients is 0, expected a whole number of at least 1"),
        (pt.IID(), {"num_clients": 2.5}, "num_clients is 2.5"),
        (pt.IID(), {"num_clients": True}, "num_clients is True"),
        (pt.IID(), {"num_rows": 0}, "num_rows is 0"),
        (pt.IID(), {"num_clients": None}, "pass num_clients"),
        (pt.IID(), {"num_clients": 61}, "61 clients for 60 rows; take at most 60 clients or add rows"),
        (pt.QuantitySkew(1.0, min_rows=20), {}, "4 clients of at least 20 rows need 80 rows, there are 60"),
        (pt.QuantitySkew(1e308), {}, "alpha=1e[+]308 is outside the range of floating point"),
        (pt.Dirichlet(1.0), {"labels": None}, "Dirichlet: there are no labels; pass by="),
        (pt.Dirichlet(1.0), {"labels": LABELS[:5]}, "labels has 5 values for 60 rows"),
        (pt.Dirichlet(1.0, by=LABELS[:5]), {}, "by has 5 values for 60 rows"),
        (pt.Dirichlet(1.0), {"labels": np.linspace(0, 1, NUM_ROWS)}, "60 distinct values.*use SortedBy"),
        (pt.ByGroup(by=np.linspace(0, 1, NUM_ROWS)), {}, "fractions with 60 distinct values.*use SortedBy"),
        (pt.LabelShards(5), {}, "classes_per_client is 5, but the data have 4 labels; take at most 4"),
        (
            pt.LabelShards(1),
            {"num_clients": 3},
            "3 clients of 1 classes cannot hold 4 labels; raise classes_per_client to at least 2",
        ),
        (pt.ByGroup(), {"num_clients": 5}, "5 clients for 4 groups; take at most 4 clients"),
        (pt.Explicit([[0], [60]]), {"num_clients": 2}, "client 1 holds row 60, but rows run from 0 to 59"),
        (pt.Explicit([[-1]]), {"num_clients": 1}, "client 0 holds row -1"),
        (
            pt.Explicit([[0, 3], [3]]),
            {"num_clients": 2},
            "client 1 holds row 3, which client 0 already holds",
        ),
        (pt.Explicit([[4, 4]]), {"num_clients": 1}, "client 0 holds row 4 more than once"),
        (pt.Explicit([[0, 2], [3]]), {"num_clients": 2}, "57 of 60 rows belong to no client.*is row 1"),
        (pt.Explicit([[0]]), {"num_clients": 2}, "holds rows of 1 clients, but num_clients is 2"),
    ],
)
def test_what_cannot_be_split_is_refused_with_the_cure(partition, kwargs, message):
    with pytest.raises(ValueError, match=message):
        split(partition, **kwargs)


def test_a_seed_in_place_of_a_generator_is_refused():
    with pytest.raises(ValueError, match=r"rng is int; pass a generator: np.random.default_rng\(0\)"):
        pt.IID().split(3, 1, 0)


def test_integer_labels_may_have_many_classes():
    labels = np.arange(200) % 100
    parts = split(pt.Dirichlet(1.0), 200, 3, labels)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(200))


def test_a_partition_of_the_users_own_is_held_to_the_contract():
    class Forgetful(pt.Partition):
        def assign(self, num_rows, num_clients, rng, labels):
            return [np.arange(num_rows - 1), *[np.array([])] * (num_clients - 1)]

    with pytest.raises(ValueError, match="Forgetful: 1 of 60 rows belong to no client, the first is row 59"):
        split(Forgetful())


def test_row_numbers_of_a_users_partition_are_never_rounded():
    class Fractional(pt.Partition):
        def assign(self, num_rows, num_clients, rng, labels):
            return np.array_split(np.arange(num_rows) + 0.5, num_clients)

    with pytest.raises(ValueError, match="Fractional: the rows of client 0 are float64, expected whole numbers"):
        split(Fractional())
