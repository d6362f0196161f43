"""What is one for all threads is as it was before, in whatever order they end."""

import threading

import pytest
import torch

from pyro_fed.density.running.handlers import default_of, run_by_pyro


def interleaved(first, second):
    """Enter the first, then the second in another thread; leave the first, then the second."""
    entered, may_end = threading.Event(), threading.Event()

    def other():
        with second():
            entered.set()
            may_end.wait(10)

    thread = threading.Thread(target=other)
    with first():
        thread.start()
        entered.wait(1)  # it is not, where the two take turns
    may_end.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("session", [torch.float32, torch.float64])
def test_the_default_dtype_is_the_session_s_again(session):
    before = torch.get_default_dtype()
    torch.set_default_dtype(session)
    try:
        interleaved(lambda: default_of(torch.float32), lambda: default_of(torch.float32))
        assert torch.get_default_dtype() == session
        with default_of(torch.float32):
            with default_of(torch.float64):
                assert torch.get_default_dtype() == session
            assert torch.get_default_dtype() == torch.float32
        assert torch.get_default_dtype() == session
    finally:
        torch.set_default_dtype(before)


def test_distributions_check_their_values_again():
    check = torch.distributions.Distribution._validate_sample
    interleaved(lambda: run_by_pyro(torch.float64, {}), lambda: run_by_pyro(torch.float64, {}))
    now = torch.distributions.Distribution._validate_sample
    torch.distributions.Distribution._validate_sample = check
    assert now is check
