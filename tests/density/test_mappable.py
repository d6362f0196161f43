"""What stands for functions that `vmap` lacks has their values and derivatives, and models with them are mapped."""

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, vmap

import pyro_fed as pf
from pyro_fed.density.compiling.tracing import to_graph
from pyro_fed.density.derivatives.scores import likelihood_scores
from pyro_fed.density.rows.batches import Batch
from pyro_fed.density.running import torch_modes
from pyro_fed.density.running.torch_modes import Replacing, replacing

SEQUENCE = torch.sin(torch.arange(30.0, dtype=torch.float64)).reshape(2, 5, 3)
POINTS = torch.cos(torch.arange(12.0, dtype=torch.float64)).reshape(4, 3)


@pytest.mark.parametrize("values", [(-40.0, -5.0, -1.5), (-1.0, -0.999, 0.0), (3.0, 12.0, 50.0)])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_log_normal_cdf(values, order):
    """Derivatives by the Mills ratio, φ/Φ = λ: λ and -λ (λ + x), from the scaled complementary error function."""
    x = torch.tensor(values, dtype=torch.float64)
    ratio = math.sqrt(2 / math.pi) / torch.special.erfcx(-x / math.sqrt(2))
    expected = (torch.special.log_ndtr(x), ratio, -ratio * (ratio + x))[order]
    function = torch_modes.log_normal_cdf
    for _ in range(order):
        function = grad(function)
    torch.testing.assert_close(vmap(function)(x), expected, rtol=1e-11, atol=1e-300 if order == 0 else 1e-11)


@pytest.mark.parametrize(
    "function",
    [
        lambda z: torch.take(z, torch.tensor([[1, -1], [5, 0]])),
        lambda z: z.take(torch.tensor([2])),
        lambda z: (2 * z).clamp_(-0.5, max=0.5),
        lambda z: (2 * z).clamp_(min=torch.zeros(3, dtype=z.dtype)),
        lambda z: z.unfold(0, 2, 1),
        lambda z: z.unfold(-1, 2, 1).unfold(0, 3, 1),
        lambda z: torch.cdist(z, z[:2] + 1),
        lambda z: torch.cdist(z, z[:2] + 1, p=1.0),
        lambda z: nn.functional.scaled_dot_product_attention(z[None], z[None], z[None], is_causal=True),
        lambda z: nn.functional.scaled_dot_product_attention(z, z, z, torch.ones(4, 4).tril().bool(), scale=0.3),
        lambda z: nn.functional.scaled_dot_product_attention(z, z, z, torch.eye(4, dtype=torch.float64)),
    ],
)
def test_values_and_derivatives_are_those_of_torch(function):
    def replaced(z):
        with replacing():
            return function(z)

    def slope(one):
        return lambda z: grad(lambda z: one(z).sin().sum())(z)

    torch.testing.assert_close(replaced(POINTS), function(POINTS))
    torch.testing.assert_close(slope(replaced)(POINTS), slope(function)(POINTS))
    both = torch.stack([POINTS, 2 * POINTS])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = vmap(slope(replaced))(both)
    torch.testing.assert_close(found, torch.stack([slope(function)(z) for z in both]))


def test_distances_between_points_at_one_place_have_derivatives():
    curvature = hessian(lambda scale: torch_modes.distances(POINTS * scale, POINTS * scale).square().sum())
    expected = 2 * (POINTS[:, None] - POINTS).square().sum()
    torch.testing.assert_close(curvature(torch.tensor(1.5, dtype=torch.float64)), expected)
    assert bool(hessian(lambda z: torch_modes.distances(z, z).sum())(POINTS).isfinite().all())


LAYERS = [
    (kind, options)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for options in (
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "num_layers": 2, "dropout": 0.5},
    )
] + [(nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"proj_size": 2})]


@pytest.mark.parametrize(("kind", "options"), LAYERS)
def test_recurrent_layers_are_those_of_torch(kind, options):
    torch.manual_seed(0)
    layer = kind(3, 4, dtype=torch.float64, **options).eval()

    def run(replaced):
        def loss(weights, x):
            if not replaced:
                output, last = functional_call(layer, weights, (x,))
            else:
                with Replacing():
                    output, last = functional_call(layer, weights, (x,))
            ends = last if isinstance(last, tuple) else (last,)
            return output.sin().sum() + sum(end.cos().sum() for end in ends)

        return loss

    weights = {name: value.detach() for name, value in layer.named_parameters()}
    torch.testing.assert_close(run(True)(weights, SEQUENCE), run(False)(weights, SEQUENCE))
    theirs = {name: value.clone().requires_grad_() for name, value in weights.items()}
    expected = torch.autograd.grad(run(False)(theirs, SEQUENCE), list(theirs.values()))
    if "proj_size" not in options:
        several = {name: torch.stack([value, value]) for name, value in weights.items()}
        found = vmap(grad(run(True)), (0, None))(several, SEQUENCE)
        for name, slope in zip(weights, expected, strict=True):
            torch.testing.assert_close(found[name], torch.stack([slope, slope]))


def test_attention_within_a_module_is_mapped():
    layer = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    x = torch.sin(torch.arange(24.0, dtype=torch.float64)).reshape(2, 3, 4)
    weights = {name: value.detach() for name, value in layer.named_parameters()}

    def loss(weights):
        return functional_call(layer, weights, (x, x, x), {"need_weights": False})[0].sin().sum()

    def replaced(weights):
        with replacing():
            return loss(weights)

    def nodes(count):
        several = [torch.stack([value] * count) for value in weights.values()]
        return to_graph(
            lambda *parts: vmap(lambda *one: replaced(dict(zip(weights, one, strict=True))))(*parts), several
        )

    torch.testing.assert_close(replaced(weights), loss(weights))
    assert len(nodes(2).graph.nodes) == len(nodes(16).graph.nodes)


def test_packed_sequences_are_left_to_torch():
    torch.manual_seed(0)
    layer = nn.GRU(3, 4, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(SEQUENCE, [5, 3], batch_first=True)
    with Replacing():
        found = layer(packed)[1]
    torch.testing.assert_close(found, layer(packed)[1])


def tobit(x, y):
    """Normal observations that are censored at zero."""
    w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    scale = pyro.sample("scale", dist.HalfNormal(2.0))
    with pyro.plate("data", len(y)):
        mean = x @ w
        seen = dist.Normal(mean, scale).log_prob(y)
        pyro.factor("y_seen", torch.where(y > 0, seen, torch.special.log_ndtr(-mean / scale)))


def test_a_model_with_the_normal_distribution_function_is_mapped():
    """A trace of 64 draws has the operations of one."""
    x = torch.stack([torch.ones(12), torch.linspace(-1, 1, 12)], 1).double()
    fed = pf.Federation(tobit, (x, (x[:, 1] * 2).clamp_min(0)), plate="data", num_clients=2)
    problem, sizes = fed.problem, []
    batch = Batch(problem.rows, torch.ones(12, dtype=torch.float64))
    for count in (2, 64):
        draws = torch.zeros(count, problem.dim, dtype=torch.float64)
        graph = to_graph(lambda z: likelihood_scores(problem, z, batch), (draws,))
        sizes.append(len(graph.graph.nodes))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_multinomials_of_latent_logits_are_mapped(dtype):
    """torch writes into a copy of the logits, one for all clients, by a mask of each one's rows."""

    def model(counts):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(counts)):
            pyro.sample("counts", dist.Multinomial(logits=w, validate_args=False), obs=counts)

    counts = torch.tensor([[2, 0, 3], [1, 4, 0], [0, 0, 6], [1, 1, 1]], dtype=dtype)
    problem = pf.Federation(model, (counts,), plate="data", num_clients=2).problem
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).to(problem.dtype)
    whole = [torch.distributions.Multinomial(int(row.sum()), logits=z) for row in counts]
    expected = sum(one.log_prob(row.to(z)) for one, row in zip(whole, counts, strict=True))
    torch.testing.assert_close(problem.vmap(problem.log_lik)(z), expected)
    assert not problem.looped


@pytest.mark.filterwarnings("error")
def test_choices_by_one_hot_vectors_are_mapped():
    """A softmax whose choice is picked by `one_hot`: it was run one particle at a time, a hundred times slower."""

    def model(x, choice):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            chosen = nn.functional.one_hot(choice, 4)
            pyro.factor("chosen", (torch.log_softmax((x * w).sum(-1), -1) * chosen).sum(-1))

    x = torch.randn(12, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    problem = pf.Federation(model, (x, torch.arange(12) % 4), plate="data", num_clients=2).problem
    z = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)).double()
    found = problem.vmap(problem.log_lik)(z)
    expected = torch.log_softmax((x * z[:, None, None]).sum(-1), -1)[:, torch.arange(12), torch.arange(12) % 4].sum(1)
    torch.testing.assert_close(found, expected)
    assert not problem.looped
