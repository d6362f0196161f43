"""What the tests of Flower share."""

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module")
def flower():
    """All that imports Flower, which takes longer than to collect all tests: imported by the first test that runs."""
    import flower_case

    return flower_case


@pytest.fixture(scope="session", autouse=True)
def deployed(request, tmp_path_factory):
    """What `superlink` runs, where its test is among those that are run: begun before the first test of the group."""
    if not any("test_superlink" in item.nodeid for item in request.session.items):
        yield None
        return
    import superlink

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(superlink.prepared(tmp_path_factory.mktemp("deployment")))
