"""Settings are chosen once, before a run, by what the model is: each choice says why, and what is set stays."""

import json
from dataclasses import dataclass, fields

import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import ALGORITHMS, unequal_lines
from pyro.infer.autoguide import AutoIAFNormal

import pyro_fed as pf
from pyro_fed.algorithm import Algorithm
from pyro_fed.density.traits import Traits
from pyro_fed.policy import Setup, chain_of, resolve

QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": 0}

IMPROPER = "are improper: only Newton's method run to its end shows whether there is a mode"


def regression(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def median(x, y):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Laplace(x @ w, 1.0), obs=y)


def flat(x, y):
    w = pyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), (x.shape[1],)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def network(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], 4]).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=torch.tanh(x @ w) @ v), obs=(y > 0).to(x))


def over(model, rows=30, columns=3, clients=3):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return pf.Federation(model, (x, x.sum(1)), plate="data", num_clients=clients, seed=0)


def reasons(found):
    return {choice.setting: choice.reason for choice in found.choices}


@pytest.mark.parametrize(
    ("model", "columns", "start", "reason"),
    [
        (regression, 3, "fedep", "3 parameters, for which FedEP has a full covariance"),
        (median, 3, None, "rows without second derivatives"),
        (flat, 3, None, "the priors of ['w'] are improper"),
        (network, 300, None, "a network or another large model"),
    ],
)
def test_a_guide_is_fitted_first_to_a_gaussian_where_one_can_be_had(model, columns, start, reason):
    fed = over(model, columns=columns)
    found = resolve(pf.infer.SFVI(), fed.problem.traits)
    assert found.algorithm.surrogates == start and reasons(found)["surrogates"].startswith(reason)
    if model is network:
        with pytest.raises(pf.errors.SettingError, match="use bound='elbo'"):
            resolve(pf.infer.SFVI(bound="iwae"), fed.problem.traits)


@pytest.mark.parametrize("guide", [AutoIAFNormal, AutoIAFNormal(regression)])
@pytest.mark.parametrize("kind", [pf.infer.SFVI, pf.infer.P2PSFVI])
def test_a_flow_begins_at_its_own_start(kind, guide):
    """Its optimum depends on where it begins, and pooled SVI begins there; a Gaussian is taken where one is set."""
    traits = over(regression).problem.traits
    found = resolve(kind(guide=guide), traits)
    assert found.algorithm.surrogates is None and found.algorithm.default_rounds(3) == found.algorithm.num_steps
    assert reasons(found)["surrogates"].startswith("a flow")
    asked = {"surrogates": "laplace" if kind is pf.infer.SFVI else "p2pvi"}
    assert resolve(kind(guide=guide, **asked), traits).algorithm.steps_without_rounds == 1000


def is_open(value):
    return isinstance(value, str) and value == "auto"


@pytest.mark.parametrize(("name", "factory", "federation"), ALGORITHMS)
def test_nothing_is_left_open_in_any_phase_and_resolving_again_changes_nothing(name, factory, federation):
    fed = federation()
    traits = fed.problem.traits
    for one in chain_of(factory().delegate(), fed.problem):
        left = [field.name for field in fields(one) if is_open(getattr(one, field.name))]
        left = [setting for setting in left if not (setting == "curvature" and isinstance(one, pf.P2PVI))]
        assert not left, f"{name}: {type(one).__name__} leaves {left} open"
        assert resolve(one, traits).algorithm is one


@pytest.mark.parametrize(
    ("model", "columns", "start", "reason"),
    [
        (regression, 3, "laplace", "3 parameters: Newton's method finds the mode in few rounds"),
        (regression, 130, "laplace", "130 parameters: Newton's method finds the mode in few rounds"),
        (median, 3, "prior", "the scores of rows are discontinuous: a curvature at a point is not informative"),
        (flat, 3, "mode", f"the priors of ['w'] {IMPROPER}"),
        (network, 300, "fedavg", "stochastic gradients start from federated averaging"),
    ],
)
def test_fedep_says_where_it_starts_and_why(model, columns, start, reason):
    found = resolve(pf.FedEP(), over(model, columns=columns).problem.traits)
    assert found.algorithm.start == start and reasons(found)["start"] == reason
    assert all(choice.override for choice in found.choices if choice.setting == "start")


def test_what_a_user_sets_wins_and_is_said_to_be_set():
    traits = over(median).problem.traits
    found = resolve(pf.FedEP(start="laplace", covariance="diag"), traits)
    said = {choice.setting: (choice.reason, choice.override) for choice in found.choices}
    assert (found.algorithm.start, found.algorithm.covariance) == ("laplace", "diag")
    assert said["start"] == said["covariance"] == ("as it is set", "")
    assert said["curvature"][1] == "curvature='hessian' or 'fisher'"


def test_a_setting_written_as_its_default_is_set_however_often_settings_are_resolved():
    """P2PVI(damping=1.0) had half of each change made, as its second resolution knew it no longer for set."""
    fed = over(median)
    graph = pf.graph.ring(3)
    once = resolve(pf.P2PVI(damping=1.0), fed.problem.traits, Setup(graph)).algorithm
    assert once.damping == resolve(once, fed.problem.traits, Setup(graph)).algorithm.damping == 1.0
    assert resolve(pf.P2PVI(), fed.problem.traits, Setup(graph)).algorithm.damping == 0.5


def test_a_private_run_has_no_rounds_by_fewer_rows():
    traits = over(network, rows=17_000).problem.traits
    private = pf.Private(norm=1.0, noise_multiplier=1.0)
    assert resolve(pf.FedEP(), traits).algorithm.start == "few_rows"
    assert resolve(pf.FedEP(), traits, Setup(combination=private)).algorithm.start == "laplace"
    assert resolve(pf.FedEP(start="few_rows"), traits, Setup(combination=private)).algorithm.start == "laplace"


def test_groups_that_take_turns_and_bounds_change_where_agents_begin():
    traits = over(regression).problem.traits
    bounded = Setup(pf.graph.ring(3), pf.combination.Bounded())
    assert resolve(pf.P2PVI(), traits, Setup(pf.graph.ring(3))).algorithm.start == "consensus"
    assert resolve(pf.P2PVI(), traits, bounded).algorithm.start == "local"
    assert resolve(pf.DSVGD(), traits, bounded).algorithm.start == "gaussian"


@dataclass(frozen=True, kw_only=True)
class Strange(Algorithm):
    """A stranger's, which no table knows."""

    start: str = "auto"

    def default_rounds(self, num_clients):
        return 1

    def init(self, problem, num_clients, generator, start):
        return {}, {}

    def local_step(self, problem, shared, local, data, noise):
        return {}, {}, {}

    def combine(self, shared, messages, weights):
        return shared

    def sample(self, shared, num_draws, generator):
        return torch.zeros(1, num_draws, 3)


def test_an_algorithm_that_no_table_knows_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(Traits, "large", lambda *sizes: pytest.fail("a rule"))
    algorithm = Strange()
    found = resolve(algorithm, over(regression).problem.traits)
    assert found.algorithm is algorithm and found.choices == ()


def test_a_subclass_is_resolved_as_what_it_is_derived_from():
    @dataclass(frozen=True, kw_only=True)
    class Mine(pf.FedEP):
        extra: int = 3

    found = resolve(Mine(extra=4), over(median).problem.traits).algorithm
    assert (type(found), found.extra, found.start, found.covariance) == (Mine, 4, "prior", "full")


def test_an_algorithm_with_open_settings_says_who_chooses_them():
    fed = over(regression)
    with pytest.raises(
        pf.errors.SettingError, match=r"FedEP: covariance='auto' has not been chosen yet.*policy\.resolve"
    ):
        pf.FedEP().init(fed.problem, 3, torch.Generator(), None)


def test_a_result_keeps_the_choices_of_all_that_was_run():
    idata = pf.run(pf.FedEP(), over(regression), **QUIET)
    choices = json.loads(idata.attrs["choices"])
    assert choices == json.loads(idata["posterior"].attrs["choices"])
    assert list(dict.fromkeys(one["algorithm"] for one in choices)) == ["FedLaplace", "FedEP"]
    start = next(one for one in choices if (one["algorithm"], one["setting"]) == ("FedEP", "start"))
    assert start["value"] == "'laplace'" and start["reason"] and "start=" in start["override"]


def test_the_stages_of_a_plan_keep_theirs():
    idata = pf.run(pf.Auto(max_rounds=40), unequal_lines(), **{**QUIET, "audit": True})
    assert {one["algorithm"] for one in json.loads(idata.attrs["choices"])} >= {"FedLaplace", "FedEP"}
