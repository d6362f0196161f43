"""Modes of many rows, climbed by few of them first: those of all rows, at their places, with their shares."""

import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.density.derivatives import few_rows
from pyro_fed.infer.stein.modes import Modes, modes_of

ROWS, DIM, FEW = 3000, 2, 300


def squared(x, y):
    """The sign of w can be told by its prior alone, which leans to one side."""
    w = pyro.sample("w", dist.Normal(0.5, 1.0).expand([DIM]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ w).square(), 1.0), obs=y)


def federation():
    """Three clients, each with a part of the range of outcomes."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(ROWS, generator=generator, dtype=torch.float64)
    y = (x @ torch.tensor([1.0, -0.4], dtype=torch.float64)).square() + noise
    order = y.argsort()
    clients = zip(x[order].tensor_split(3), y[order].tensor_split(3), strict=True)
    return pf.Federation.from_clients(squared, list(clients), plate="data")


def found(monkeypatch, rows):
    """Modes, precisions and shares, where so many rows stand for all, and how many points climbed at last."""
    monkeypatch.setattr(few_rows, "TRIED_ROWS", rows)
    states = []

    class Kept(Modes):
        def sample(self, shared, num_draws, generator):
            states.append(shared)
            return super().sample(shared, num_draws, generator)

    pf.run(Kept(), federation(), progress=False, audit=False, log_likelihood=False)
    return modes_of(states[-1], Modes.tolerance, Modes.same_mode), len(states[-1]["points"])


def test_they_are_those_of_all_rows(monkeypatch):
    few, left = found(monkeypatch, FEW)
    whole, count = found(monkeypatch, ROWS)
    assert left == 3  # the known mode, and the two that few rows have
    assert count == Modes.num_starts + 3  # and its images, with the places exchanged and with other signs
    assert len(few[0]) == len(whole[0]) == 2
    for one, other in zip(few, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert 0.05 < whole[2].min() < 0.45  # neither alone nor alike
