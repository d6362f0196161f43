"""Records of states: which entries a field has, by its type, and that reading undoes writing."""

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from pyro_fed.algorithm.states import State
from pyro_fed.infer.sites.records import as_entries, entries_as
from pyro_fed.ops.gaussian import DiagGaussian, FullGaussian, Gaussian


class Inner(NamedTuple):
    mean: Tensor
    spread: Tensor


class Outer(NamedTuple):
    q: Annotated[Gaussian, ""]
    prior: Gaussian
    step: Annotated[Tensor, "count"]
    plain: Inner
    buffers: Annotated[Inner, "kept_"]
    optimiser: Annotated[State, "optim."]
    rest: State
    known: Tensor | None = None


def test_fields_are_the_entries_that_their_types_say():
    one, two, three = (torch.full((2,), value, dtype=torch.float64) for value in (1.0, 2.0, 3.0))
    full, diag = FullGaussian(torch.eye(2, dtype=torch.float64), one), DiagGaussian(two, three)
    record = Outer(full, diag, one[0], Inner(one, two), Inner(two, three), {"m.v": three}, {"own": two})
    state = as_entries(record)
    expected = {"precision": full.precision, "eta": one, "prior_precision": two, "prior_eta": three, "count": one[0]}
    expected |= {"mean": one, "spread": two, "kept_mean": two, "kept_spread": three, "optim.m.v": three, "own": two}
    assert state.keys() == expected.keys() and all(torch.equal(state[name], value) for name, value in expected.items())
    found = entries_as(Outer, state)
    assert type(found.q) is FullGaussian and type(found.prior) is DiagGaussian and found.known is None
    assert found.plain == record.plain and found.buffers == record.buffers
    assert found.optimiser == record.optimiser and found.rest == record.rest
    assert as_entries(found).keys() == state.keys()
    assert entries_as(Outer, {**state, "known": three}).known is three
