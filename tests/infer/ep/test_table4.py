"""Table 4 of Guo et al. on 20 draws, and what it says of FedPA and FedAvg."""

import pytest
from late import late

table4 = late("benchmarks.papers.table4")


@pytest.fixture(scope="module")
def found():
    return table4.distances(20)


def test_fedep_finds_the_true_mean(found):
    assert float(found["FedEP"].mean()) <= 1e-6


def test_one_shot_methods_are_biased_and_fedpa_less_than_fedavg(found):
    """Means over 20 draws; the paper has 0.26 and 0.54 over 200."""
    assert 0.1 < float(found["FedPA"].mean()) < float(found["FedAvg"].mean()) < 1.5
