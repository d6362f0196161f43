"""The averaging that networks begin with: its rate rises, so that no unit of a layer dies in its first round."""

import dataclasses
import importlib
import pkgutil

import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import unequal_lines

import pyro_fed as pf
from pyro_fed import infer
from pyro_fed.infer.averaging.fedavg import BurnIn
from pyro_fed.infer.peers.p2p_fedavg import PeerBurnIn
from pyro_fed.policy import resolve

HIDDEN, CLIENTS, SEEDS = 5, 10, 3
#: A unit that is above zero for fewer rows than this share of all is dead.
ALIVE = 0.01


def network(x, y):
    """One hidden layer of a few ReLU units, of which each counts; 385 parameters."""
    w1 = pyro.sample("w1", dist.Normal(x.new_zeros(64, HIDDEN), 1.0).to_event(2))
    b1 = pyro.sample("b1", dist.Normal(x.new_zeros(HIDDEN), 1.0).to_event(1))
    w2 = pyro.sample("w2", dist.Normal(x.new_zeros(HIDDEN, 10), 1.0).to_event(2))
    b2 = pyro.sample("b2", dist.Normal(x.new_zeros(10), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=torch.relu(x @ w1 + b1) @ w2 + b2), obs=y)


@pytest.fixture(scope="module")
def feds():
    pixels, labels = importlib.import_module("sklearn.datasets").load_digits(return_X_y=True)
    data = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
    skew = pf.partition.Dirichlet(0.5, by=data[1])
    return [
        pf.Federation(network, data, plate="data", num_clients=CLIENTS, partition=skew, seed=seed)
        for seed in range(SEEDS)
    ]


def dead_units(averaging, federation, seed):
    """How many units the averaging leaves above zero for hardly any row."""
    graph = {"graph": pf.graph.ring(CLIENTS)} if isinstance(averaging, PeerBurnIn) else {}
    run = {"log_likelihood": False, "audit": False, "progress": False, "compile": "off"}
    found = pf.run(averaging, federation, num_rounds=1, seed=seed, **run, **graph)["posterior"]
    w1, b1 = (torch.tensor(found[name].values[0, 0]).float() for name in ("w1", "b1"))
    return int(((federation.problem.rows[0] @ w1 + b1 > 0).float().mean(0) < ALIVE).sum())


@pytest.mark.parametrize("kind", [BurnIn, PeerBurnIn])
def test_no_unit_dies_in_the_first_round(kind, feds):
    """At the full rate from the start one or two of the five units do, for two of the three seeds."""
    assert sum(dead_units(kind(rising=1), fed, seed) for seed, fed in enumerate(feds)) > 0
    assert sum(dead_units(kind(), fed, seed) for seed, fed in enumerate(feds)) == 0


def test_the_rate_rises_linearly_and_is_full_then():
    """Adam's first step from fresh moments is as long as its rate, in every parameter whose gradient is not tiny."""
    fed = unequal_lines()
    averaging = BurnIn(chain_steps=1, rising=4, batch_size=None)
    shared, _ = averaging.init(fed.problem, fed.num_clients, torch.Generator().manual_seed(0), None)
    everybody, lengths = torch.arange(fed.num_clients), []
    for _ in range(6):
        received = averaging.download(shared, everybody)
        messages, _, _ = averaging.local_step(fed.problem, received, {}, fed.client_data(), ())
        lengths.append(float(messages["delta"].abs().amax()) / averaging.step_size)
        shared = averaging.combine(shared, messages, torch.full((fed.num_clients,), 1 / fed.num_clients))
    assert lengths == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0], rel=1e-6)


def test_a_setting_of_two_bases_has_the_default_of_the_nearest_that_names_it():
    """A dataclass takes the first base's fields whole, those that this one only inherits among them."""
    wrong = [
        f"{kind.__name__}.{field.name}"
        for kind in dataclasses_of(infer)
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING and field.default != getattr(kind, field.name, field.default)
    ]
    assert not wrong


def dataclasses_of(package):
    """Every dataclass that a module of the package defines."""
    names = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    ]


def curve(hidden):
    """A regression by one hidden layer and a known noise of 0.05."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(x.new_zeros(3, hidden), 1.0).to_event(2))
        b = pyro.sample("b", dist.Normal(x.new_zeros(hidden), 1.0).to_event(1))
        v = pyro.sample("v", dist.Normal(x.new_zeros(hidden), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(torch.tanh(x @ w + b) @ v, 0.05), obs=y)

    return model


def curves(hidden, clients=10):
    noise = torch.Generator().manual_seed(0)
    x = torch.randn(800, 3, generator=noise)
    y = torch.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.05 * torch.randn(800, generator=noise)
    fed = pf.Federation(curve(hidden), (x[:400], y[:400]), plate="data", num_clients=clients, seed=0)
    return fed, (x[400:], y[400:])


@pytest.mark.filterwarnings("ignore:the SDs still changed", "ignore:q moved by")  # of single weights
@pytest.mark.parametrize("algorithm", [pf.FedEP(), pf.P2PVI()], ids=["FedEP", "P2PVI"])
def test_a_curve_with_little_noise_is_followed(algorithm):
    """By 40 rounds of averaging its log density is -1.9 to -4 after the 200 that follow; at the noise itself 1.58."""
    fed, held = curves(25)  # 125 parameters
    graph = {"graph": pf.graph.ring(10)} if isinstance(algorithm, pf.P2PVI) else {}
    idata = pf.run(algorithm, fed, seed=0, audit=False, log_likelihood=False, progress=False, **graph)
    assert pf.metrics.test_metrics(idata, fed, held)["log_predictive_density"] > -0.5


def test_curves_of_small_networks_have_more_rounds_of_averaging(feds):
    cases = [curves(25)[0], feds[0], curves(300)[0]]  # a small curve, labels, 1,500 parameters
    assert [resolve(BurnIn(), fed.problem.traits).algorithm.rounds for fed in cases] == [100, 40, 40]


def test_diagonal_sites_of_a_model_with_full_ones_are_refused_by_name():
    with pytest.raises(pf.errors.SettingError, match="covariance='diag'"):
        pf.run(pf.FedEP(start="fedavg"), unequal_lines(), progress=False)
