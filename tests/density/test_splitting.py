"""Models whose rows need one another are refused, whatever their dtype, order and scale; those that split are not."""

import importlib
import warnings
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
import unsplit
from pyro.nn import PyroModule
from torch import nn
from torch.distributions import constraints
from zoo import CASES

import pyro_fed as pf

#: Rows in any order and sorted, with a column far from zero, and with targets whose densities are minus millions.
DATA = {
    "sorted float32": (torch.float32, {"count": 400, "order": "sorted"}),
    "float64": (torch.float64, {"count": 400}),
    "offset float32": (torch.float32, {"count": 400, "offset": 2000.0, "seed": 1}),
    "offset float64": (torch.float64, {"count": 400, "offset": 2000.0, "order": "sorted", "seed": 2}),
    "large targets float32": (torch.float32, {"count": 100, "target": 1000.0, "seed": 3}),
}
#: Their likelihood cannot be computed with columns or targets that far out.
NEEDS_MODERATE = {"softmax_over_rows", "attention", "normalised_weights"}


def arguments(dtype, options):
    x, y, g = unsplit.rows(**options)
    unsplit.OUTSIDE = torch.linspace(0, 1, len(y), dtype=torch.float64)
    return x.to(dtype), y.to(dtype), g


def refusal(model, args):
    """What is said when this model is refused; dtypes are given, so that none is chosen for its columns."""
    with pytest.raises(pf.errors.ModelError) as found:
        pf.Federation(model, args, plate="data", num_clients=2, shard=("x", "y", "g"), dtype=args[1].dtype)
    return str(found.value)


def marked(model):
    """The line of the model's source that is marked as the cause, None where none is."""
    lines = Path(unsplit.__file__).read_text().splitlines()
    first = model.__code__.co_firstlineno
    for number in range(first, len(lines)):
        if lines[number].startswith("def "):
            return None
        if lines[number].endswith("# here"):
            return number + 1
    return None


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("model", unsplit.INSIDE, ids=lambda m: m.__name__)
def test_rows_that_need_one_another(model, data):
    if model.__name__ in NEEDS_MODERATE and data.split()[0] in ("offset", "large"):
        data = "float64"
    said = refusal(model, arguments(*DATA[data]))
    assert "in plate 'data' does not factorise over rows: row " in said
    line = marked(model)
    if line is not None and data == "float64":
        assert f"(unsplit.py:{line})" in said, said


@pytest.mark.parametrize("data", ["sorted float32", "float64"])
@pytest.mark.parametrize("model", unsplit.CHANGEPOINTS, ids=lambda m: m.__name__)
def test_a_change_at_a_row(model, data):
    said = refusal(model, arguments(*DATA[data]))
    assert "does not factorise over rows" in said
    assert f"(unsplit.py:{marked(model)})" in said


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("model", unsplit.OUTSIDE_PLATE, ids=lambda m: m.__name__)
def test_priors_that_look_at_the_rows(model, data):
    said = refusal(model, arguments(*DATA[data]))
    assert "outside plate 'data'" in said
    line = marked(model)
    assert line is None or f"(unsplit.py:{line})" in said


@pytest.mark.parametrize("data", ["sorted float32", "float64"])
@pytest.mark.parametrize("model", unsplit.RANDOM, ids=lambda m: m.__name__)
def test_noise_inside_the_model(model, data):
    said = refusal(model, arguments(*DATA[data]))
    assert "draws random numbers" in said
    assert "draw them once before the model and pass them" in said
    if model is not unsplit.python_noise:  # no torch function draws
        assert f"(unsplit.py:{marked(model)})" in said


@pytest.mark.parametrize("data", ["sorted float32", "float64"])
@pytest.mark.parametrize("model", unsplit.SIZES, ids=lambda m: m.__name__)
def test_sizes_read_from_values(model, data):
    said = refusal(model, arguments(*DATA[data]))
    assert "pass it as an argument" in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "model",
    [m for m in unsplit.INSIDE if m not in (unsplit.group_means,)],  # three groups
    ids=lambda m: m.__name__,
)
def test_what_does_not_split_is_refused_at_three_rows(model, dtype):
    refusal(model, arguments(dtype, {"count": 3}))


@pytest.mark.parametrize(
    "model", [unsplit.centred, unsplit.small_trend, unsplit.scale_by_count, unsplit.empirical_prior, unsplit.lagged]
)
def test_what_does_not_split_is_refused_at_twenty_thousand_rows(model):
    refusal(model, arguments(torch.float32, {"count": 20_000}))


def test_the_argument_is_named():
    assert "through other rows' 'x'" in refusal(unsplit.centred, arguments(*DATA["float64"]))
    assert "through other rows' 'y', 'g'" in refusal(unsplit.group_means, arguments(*DATA["float64"]))


def test_a_client_that_has_its_rows_alone():
    """As a client of Flower makes its problem: it sees no other's rows."""
    x, y, _ = arguments(*DATA["sorted float32"])

    def centred(x, y):
        unsplit.linear(x - x.mean(0), y)

    with pytest.raises(pf.errors.ModelError, match="does not factorise over rows"):
        pf.Federation.from_clients(centred, {"north": (x[:30], y[:30])}, plate="data")


# -- models that split ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_features_of_pyro_split_in_float32(case):
    """`zoo` builds them all in float64."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=case.warns or "nothing")
        pf.Federation(
            case.model, case.args, case.kwargs, plate="data", num_clients=2, shard=case.shard, dtype=torch.float32
        )


SHIPPED = sorted(path.stem for path in (Path(__file__).parents[2] / "models").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_split_in_either_dtype(name, dtype):
    module = importlib.import_module(f"models.{name}")
    rows = getattr(module, "ROWS", None)
    pf.Federation(module.model, module.load_data()[0], plate=module.PLATE, num_clients=2, dtype=dtype, rows=rows)


class Frozen(PyroModule):
    """A fixed network in float32 before a regression."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(2, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4).eval()

    def forward(self, x, y, g):
        unsplit.linear(self.norm(self.features(x.float())), y)


class FrozenInAny(Frozen):
    """The same, for rows of any precision."""

    def forward(self, x, y, g):
        unsplit.linear(self.norm(self.features(x.float())).to(y.dtype), y)


def rounded(x, y, g):
    unsplit.linear(x.float().sin().to(y.dtype), y)


def shared_summary(x, y, g, mean):
    unsplit.linear(x - mean, y)


def steep(x, y, g):
    """Densities of minus 1e12, and differences of large numbers."""
    w = pyro.sample("w", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(4.0, 1e4 * (x - 1999.5) @ w, 1e-4), obs=y)


def whole_numbers(x, y, g):
    rate = pyro.sample("rate", dist.HalfCauchy(1.0).expand([5]).to_event(1))
    with pyro.plate("data", len(g)):
        pyro.sample("n", dist.Poisson(rate[g] * (1e3 * x[:, 1]).exp().clamp(1e-3, 1e3)), obs=g.to(rate.dtype))


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(
    "model", [FrozenInAny().eval(), rounded, steep, whole_numbers], ids=["frozen", "rounded", "steep", "counts"]
)
@pytest.mark.filterwarnings("ignore:pyro.param statements:UserWarning")  # the frozen layer's
def test_what_rounds_splits(model, data):
    dtype, options = DATA[data]
    pf.Federation(model, arguments(dtype, options), plate="data", num_clients=2, dtype=dtype)


@pytest.mark.parametrize("data", [data for data in DATA if data.endswith("float32")])
@pytest.mark.filterwarnings("ignore:pyro.param statements:UserWarning")
def test_a_network_in_float32_splits(data):
    """Rows are compared in float64; its weights stay in float32, or follow."""
    dtype, options = DATA[data]
    pf.Federation(Frozen().eval(), arguments(dtype, options), plate="data", num_clients=2, dtype=dtype)


def test_summaries_of_the_data_as_an_argument():
    x, y, g = arguments(*DATA["offset float64"])
    pf.Federation(shared_summary, (x, y, g, x.mean(0)), plate="data", num_clients=2)


def column(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, None], 1.0), obs=y[:, None])


def one_event(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0).to_event(1), obs=y)


def column_of_events(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x[:, None], 1.0).to_event(1), obs=y)


def averaged(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)), pyro.poutine.scale(scale=1 / len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "cure"),
    [
        (averaged, r"divided by the number of rows, .*pf\.shared\('n', len\(x\)\)"),
        (column_of_events, r"values have the shape \(20,\), its distribution \(20, 1\) by \.to_event.* y\[:, None\]"),
        (column, r"has the shape \(20, 20\), all pairs of rows, .*a column \(20, 1\)\. .*y\.squeeze\(-1\)"),
        (one_event, r"Each of the 20 rows has all 20 as one value, by \.to_event\(1\): omit this"),
    ],
)
def test_what_is_wrong_with_all_rows_is_named(model, cure):
    x = torch.linspace(-1.0, 1.0, 20)
    with pytest.raises(pf.errors.ModelError, match=cure):
        pf.Federation(model, (x, x.cos()), plate="data", num_clients=2)


def detached(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x + level.detach(), 1.0), obs=y)


def as_number(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x + level.item(), 1.0), obs=y)


def kinked(x, y):
    """Its gradient is right wherever it is taken."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        t = 3 * w + 100 * x.sign()
        straight = t.floor() + (t - t.floor())  # in pieces that meet
        pyro.sample("y", dist.Normal((w * x).relu() + straight + w.clamp(-0.1, 0.1), 1.0), obs=y)


@pytest.mark.parametrize("model", [detached, as_number])
def test_a_gradient_that_is_not_the_densitys(model):
    x = torch.linspace(-1.0, 1.0, 20)
    with pytest.raises(
        pf.errors.ModelError, match=r"gradient of .* in 'level' is not that of its values: .*\.detach\(\)"
    ):
        pf.Federation(model, (x, x.cos()), plate="data", num_clients=2)


ROUNDED = 5 * torch.round((11 + 1.2 * torch.randn(20, generator=torch.Generator().manual_seed(1))).double() / 5)


def between(y, sd, floor=1e-30):
    """Data rounded to multiples of 5: 1 - F(8) is zero in float64, and a slope of 4e14 beside the floor."""
    m = pyro.sample("m", dist.Normal(10.0, sd))
    s = pyro.sample("s", dist.HalfNormal(5.0 if sd > 1 else 0.01))
    cdf = torch.distributions.Normal(0.0, 1.0).cdf
    with pyro.plate("data", len(y)):
        pyro.factor("l", torch.log(cdf((y + 2.5 - m) / s) - cdf((y - 2.5 - m) / s) + floor))


def test_a_difference_that_underflows_is_no_break_in_the_graph():
    fed = pf.Federation(between, (ROUNDED, 10.0), plate="data", num_clients=2, seed=0)
    assert fed.problem.dim == 2


def test_a_value_out_of_the_graph_is_found_by_its_line_and_without_one():
    class Halved(torch.autograd.Function):
        """x, with half of its gradient."""

        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return 0.5 * gradient

    def model(y, halved):
        m = pyro.sample("m", dist.Normal(0.0, 5.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(Halved.apply(m) if halved else m.detach(), 1.0), obs=y)

    line = r"`pyro.sample\(.*m.detach.*\(test_splitting.py:\d+\)"
    for halved, cause in ((False, line), (True, "an operation of the model")):
        with pytest.raises(pf.errors.ModelError, match=rf"in 'm' is not that of its values: {cause}"):
            pf.Federation(model, (ROUNDED, halved), plate="data", num_clients=2, seed=0)


def test_a_likelihood_that_is_lost_in_rounding_everywhere_is_told_so():
    with pytest.raises(
        pf.errors.ModelError, match=r"the likelihood is the same at all examined points.* from log-cdfs"
    ):
        pf.Federation(between, (ROUNDED + 13.0, 0.1, 1e-300), plate="data", num_clients=2, seed=0)


def test_kinks_are_no_wrong_gradients():
    x = torch.linspace(-1.0, 1.0, 20)
    assert pf.Federation(kinked, (x, x.cos()), plate="data", num_clients=2).num_clients == 2


def stepped(make):
    """A latent through an operation that makes steps of it."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        rate = pyro.sample("rate", dist.LogNormal(0.5, 0.5))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x + make(rate, x), 0.5), obs=y)

    return model


STEPPED = {
    "cast": lambda rate, x: rate.long() * x,
    "number": lambda rate, x: int(rate) * x,
    "rounded": lambda rate, x: rate.round() + 0.1 * rate * x,
    "compared": lambda rate, x: torch.where(x > rate - 2.0, 1.0, 0.0),
    "branch": lambda rate, x: x if rate > 2.0 else 0.0 * x,
    "looked_up": lambda rate, x: torch.arange(20.0)[rate.long()] * x,
    "no_gradient": lambda rate, x: rate.detach().floor() * x if rate.requires_grad else rate.floor() * x,
    "remainder": lambda rate, x: rate % 1.0 * x,
}


@pytest.mark.parametrize("make", STEPPED.values(), ids=STEPPED)
def test_steps_of_a_latent_are_named_by_site_line_and_cure(make):
    x = torch.linspace(-1.0, 1.0, 20)
    with pytest.warns(UserWarning, match=r"jumps along 'rate', at `.*rate.*\(test_splitting.py:\d+\): .*sigmoid"):
        pf.Federation(stepped(make), (x, x.cos()), plate="data", num_clients=2)


def test_what_no_algorithm_can_follow_is_told_at_the_end_too():
    x = torch.linspace(-1.0, 1.0, 20)
    with pytest.warns(UserWarning, match="jumps along 'rate'"):
        fed = pf.Federation(stepped(STEPPED["cast"]), (x, 2 * x), plate="data", num_clients=2)
        idata = pf.run(pf.FedEP(), fed, progress=False, log_likelihood=False)
    assert "The log density jumps along 'rate'" in idata.attrs["doubts"] and "FSGLD" not in idata.attrs["doubts"]


def test_steps_of_latents_of_rows_are_named():
    def model(y):
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            e = pyro.sample("e", dist.Normal(m, 1.0))
            pyro.sample("y", dist.Normal(e.ceil(), 0.5), obs=y)

    with pytest.warns(UserWarning, match=r"jumps along 'e', at `.*e\.ceil"):
        pf.Federation(model, (torch.linspace(-1.0, 1.0, 8),), plate="data", num_clients=2)


@pytest.mark.parametrize(
    ("density", "name"),
    [
        (lambda y, a: torch.heaviside(y - a, torch.zeros(())), "heaviside"),
        (lambda y, a: torch.special.gammainc(a.exp(), y.exp()).log(), "igamma"),
    ],
    ids=["steps", "censored_gamma"],
)
def test_an_operation_without_a_derivative_is_named_by_its_line(density, name):
    def model(y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.factor("l", density(y, a))

    with pytest.raises(pf.errors.ModelError, match=rf"no derivative of {name} at `\(lambda.*\(test_splitting.py:\d+\)"):
        pf.Federation(model, (torch.linspace(0.1, 1.0, 8),), plate="data", num_clients=2)
