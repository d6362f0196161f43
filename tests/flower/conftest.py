"""What the tests of Flower share."""

import pytest


@pytest.fixture(scope="module")
def flower():
    """All that imports Flower, which takes longer than to collect all tests: imported by the first test that runs."""
    import flower_case

    return flower_case
