"""What a network's inputs are: out of its units' range, or of no use to its answer."""

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_fed.audit.network_inputs import range_findings, useless_input_findings
from pyro_fed.codes.finding import texts
from pyro_fed.federation.federation import Federation

UNITS, COLUMNS, ROWS = 3, 4, 200


def found_out_of_range(posed):
    return range_findings(posed, lambda: posed.init(64, torch.Generator().manual_seed(0), checked=False))


def observed(x, y, w):
    """tanh(x W) v, and noise of 0.5."""
    v = pyro.sample("v", dist.Normal(x.new_zeros(UNITS), 1.0).to_event(1))
    mean = torch.tanh(x @ w) @ v
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def network(x, y):
    observed(x, y, pyro.sample("w", dist.Normal(x.new_zeros(COLUMNS, UNITS), 1.0).to_event(2)))


def narrow(x, y):
    """The same by weights of 0.001, for columns in the thousands."""
    observed(x, y, pyro.sample("w", dist.Normal(x.new_zeros(COLUMNS, UNITS), 0.001).to_event(2)))


def horseshoe(x, y):
    """Weights whose scales have no mean."""
    t = pyro.sample("t", dist.HalfCauchy(x.new_ones(())))
    lam = pyro.sample("lam", dist.HalfCauchy(x.new_ones(COLUMNS, UNITS)).to_event(2))
    observed(x, y, pyro.sample("w", dist.Normal(x.new_zeros(COLUMNS, UNITS), t * lam).to_event(2)))


def linear(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(COLUMNS), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def filters(x, y):
    """A convolution of 6 × 6 pixels, and the mean of its units."""
    k = pyro.sample("k", dist.Normal(x.new_zeros(2, 1, 3, 3), 1.0).to_event(4))
    v = pyro.sample("v", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
    mean = torch.tanh(torch.nn.functional.conv2d(x, k)).mean((2, 3)) @ v
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def rows(scale=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(ROWS, COLUMNS, generator=generator)
    y = torch.tanh(z[:, 0]) + 0.5 * torch.randn(ROWS, generator=generator)
    z[:, 1] = z[:, 1] * scale + shift
    return z, y


def problem(model, x, y):
    return Federation(model, (x, y), plate="data", num_clients=2).problem


@pytest.mark.parametrize(
    ("model", "scale", "shift", "said"),
    [
        (network, 1.0, 0.0, ""),
        (network, 10.0, 0.0, ""),
        (network, 1000.0, 0.0, "column 1 of argument 'x'"),
        (network, 10.0, 2000.0, "values are of size 2e+03"),
        (narrow, 1000.0, 2000.0, ""),
        (horseshoe, 1.0, 0.0, ""),
        (horseshoe, 1000.0, 2000.0, "column 1 of argument 'x'"),
        (linear, 1000.0, 2000.0, ""),
    ],
)
def test_a_column_beyond_what_weights_can_take_is_named(model, scale, shift, said):
    found = found_out_of_range(problem(model, *rows(scale, shift)))
    assert bool(found) == bool(said) and said in "".join(texts(found))


@pytest.mark.parametrize(("most", "said"), [(1.0, ""), (255.0, "an input of argument 'x' is out of range")])
def test_a_convolution_is_told_of_its_pixels(most, said):
    generator = torch.Generator().manual_seed(0)
    x = most * torch.rand(ROWS, 1, 6, 6, generator=generator)
    found = found_out_of_range(problem(filters, x, torch.randn(ROWS, generator=generator)))
    assert bool(found) == bool(said) and said in "".join(texts(found))


def test_weights_that_know_the_curve_are_told_from_those_that_do_not():
    """Draws around w and v of the curve that the rows were drawn from; v = 0; and another column's curve."""
    x, y = rows()
    posed = problem(network, x, y)
    noise = 0.1 * torch.randn(10, posed.dim, generator=torch.Generator().manual_seed(1))
    w = torch.zeros(COLUMNS, UNITS)
    w[0, 0] = 1.0
    v = torch.tensor([1.0, 0.0, 0.0])
    assert useless_input_findings(posed, noise + torch.cat([w.flatten(), v])) == []
    for wrong in (torch.zeros(posed.dim), torch.cat([w.roll(2, 0).flatten(), v])):
        (said,) = useless_input_findings(posed, 0 * noise + wrong)
        assert said.code == "inputs_tell_nothing" and "the inputs tell this network nothing of 'y'" in said.text


def test_other_models_are_not_asked():
    x, y = rows()
    posed = problem(linear, x, y)
    assert useless_input_findings(posed, torch.zeros(10, posed.dim)) == []


def decoder(y):
    """A code of each row's own, which a network makes its outcomes of."""
    w = pyro.sample("w", dist.Normal(y.new_zeros(2, UNITS), 1.0).to_event(2))
    v = pyro.sample("v", dist.Normal(y.new_zeros(UNITS, y.shape[1]), 1.0).to_event(2))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Normal(y.new_zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(torch.tanh(z @ w) @ v, 0.5).to_event(1), obs=y)


def test_codes_of_the_rows_own_are_no_inputs():
    """What NUTS and SVI found of a decoder was lost: the audit asked for rows' densities without their codes."""
    fed = Federation(decoder, (rows()[0],), plate="data", num_clients=1)
    posed = fed.joint.problem
    assert useless_input_findings(posed, torch.zeros(10, posed.dim)) == []
