"""A place that goes away without end stops the run, whatever the algorithm; one that jumps or grows as sums do, not."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.record import Record
from pyro_fed.runtime.run_errors import Growth


def watched(size, rounds=1000, entry="point", start=1.0):
    """Look at a state of the size that each round gives it; the round that ends the run, or None."""
    growth, record, algorithm = Growth(), Record(["a", "b"]), pf.FedAvg()
    growth.begin({entry: torch.tensor([start])})
    for done in range(1, rounds + 1):
        try:
            growth.look(algorithm, {entry: torch.tensor([size(done)], dtype=torch.float64)}, done, rounds, record)
        except pf.errors.DivergenceError as error:
            assert f"'{entry}' grows without end" in str(error) and error.state is not None
            return done
    return None


@pytest.mark.parametrize("factor", [1.05, 1.3, 2.0, 8.0])
def test_a_constant_factor_ends_the_run(factor):
    assert watched(lambda done: factor**done) is not None


def test_it_ends_where_nothing_of_the_beginning_is_left():
    assert 2.0 ** watched(lambda done: 2.0**done) >= 1 / torch.finfo(torch.float64).eps


def test_at_the_end_half_of_the_digits_are_enough():
    size = {"rounds": 100, "size": lambda done: 1.25**done}  # 5e9 at the end
    assert watched(**size) == 100
    assert watched(**size, start=1e3) is None  # of that a factor of 5e6


@pytest.mark.parametrize(
    "size",
    [
        lambda done: 1e30 if done > 3 else 1.0,  # a large unit of the data
        lambda done: 1e20 * (1 - 0.5**done),  # reached in damped steps
        lambda done: 4.0 ** min(done, 24),  # steps that grow until they are there
        lambda done: 1e6 * done**3,  # sums of rows, and of their powers
        lambda done: 1e20 / done,  # on its way down
        lambda done: 0.0,
    ],
)
def test_other_growth_does_not(size):
    assert watched(size) is None


@pytest.mark.parametrize("entry", ["precision", "damping", "step_size"])
def test_what_is_no_place_may_grow(entry):
    """A climb that stands still is damped by a factor in every round, and a mixture looked at so is right."""
    assert watched(lambda done: 2.0**done, entry=entry) is None


@pytest.mark.filterwarnings("ignore:the steps are too long")  # of the draws so far, which the error keeps
def test_a_chain_of_too_long_steps_ends_in_the_error_before_it_overflows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    x = x[x[:, 0].argsort()]  # clients by a covariate
    y = x @ torch.tensor([1.0, 2.0], dtype=torch.float64) + torch.randn(50, generator=generator, dtype=torch.float64)

    def model(x, y):
        slope = pyro.sample("slope", dist.Normal(x.new_zeros(2), 10.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ slope, 1.0), obs=y)

    fed = pf.Federation(model, (x, y), plate="data", num_clients=5, partition=pf.partition.SortedBy(x[:, 0]), seed=0)
    narrowest = float(torch.linalg.eigvalsh(x.T @ x)[-1])
    step = 4.4 / narrowest  # above 4 / λ each round multiplies by h λ / 2 - 1 = 1.2
    with pytest.raises(pf.errors.DivergenceError, match="grows without end") as caught:
        pf.run(pf.infer.SummedLangevin(step_size=step), fed, num_rounds=400, audit=False, progress=False)
    assert torch.isfinite(caught.value.state["position"]).all()
    assert float(caught.value.state["position"].abs().max()) < 1e30
