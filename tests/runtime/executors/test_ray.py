"""Ray: the sequential answer at any number of workers, states at the workers, and workers that die or are late."""

import os
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import line, line_data, unequal_lines
from arviz_results import criterion
from families import FAMILIES, assert_same, run, sequential

import pyro_fed as pf
from pyro_fed.algorithm.schedule import Schedule
from pyro_fed.errors import QuorumError, SettingError, StoppedError
from pyro_fed.runtime.executors.ray import pickle_model
from pyro_fed.runtime.executors.remote import share_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray"),
]


@pytest.fixture(scope="module")
def workers():
    """Two workers of the module's Ray, as a user may have started it; imported here, for that takes its time."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    with pf.executors.Ray(2) as executor:
        yield executor
    assert ray.is_initialized(), "it was not ours to shut down"
    ray.shutdown()


def test_an_own_ray_is_shut_down_again_and_one_worker_vectorises_all_clients():
    """Up to rounding."""
    import ray

    with pf.executors.Ray(1, within="vectorised") as executor:
        found = run("FedEP", executor)
    np.testing.assert_allclose(found.posterior["w"], sequential("FedEP").posterior["w"], rtol=1e-9, atol=1e-9)
    assert not ray.is_initialized()


@pytest.mark.parametrize("family", FAMILIES)
def test_same_answer_where_a_worker_has_one_client_and_the_other_two(workers, family):
    assert_same(run(family, workers), sequential(family))


def test_a_worker_without_clients(workers):
    alone = pf.Federation(line, line_data(), plate="data", num_clients=1)
    options = {"num_rounds": 4, "progress": False, "compile": "off", "audit": False}
    here = pf.run(pf.FedEP(), alone, executor="sequential", **options)
    assert_same(pf.run(pf.FedEP(), alone, executor=workers, **options), here)


def test_sums_over_rows_are_those_of_the_sequential_executor(workers):
    fed = unequal_lines()
    found, expected = pf.loo(sequential("FedEP"), fed, executor=workers), pf.loo(sequential("FedEP"), fed)
    assert criterion(found, "elpd") == criterion(expected, "elpd")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of short runs, and of Pareto's k by ArviZ
@pytest.mark.parametrize("name", ["eight_schools", "radon", "negative_binomial"])
def test_leave_one_out_over_workers_is_that_of_arviz(workers, name):
    """Results of two of them have the groups' own latents, in the order of all rows; `test_loo` has others."""
    import arviz as az

    from pyro_fed.recipes import library

    module = library.load_model(name)
    args = tuple(a.double() if torch.is_tensor(a) and a.is_floating_point() else a for a in module.load_data()[0])
    fed = pf.Federation(module.model, args, plate=module.PLATE, rows=getattr(module, "ROWS", None), num_clients=3)
    idata = pf.run(pf.FedEP(), fed, num_rounds=1, num_draws=100, progress=False, audit=False)
    found, expected = pf.loo(idata, fed, executor=workers), az.loo(idata)
    for field in ("elpd", "se", "p"):
        assert criterion(found, field) == pytest.approx(criterion(expected, field), abs=1e-6)


def test_late_workers_stop_a_run_that_asks_for_a_quorum(workers, monkeypatch):
    """And the next run waits, and is none the worse for the answers that came late."""
    options = {"num_rounds": 4, "progress": False, "audit": False}
    with monkeypatch.context() as patch:
        patch.setattr(workers, "timeout", 1e-4)
        with pytest.raises(QuorumError, match=r"no answer from worker 0 within 0\.0001 s"):
            pf.run(pf.FedEP(), unequal_lines(), executor=workers, min_clients=1, **options)
    assert_same(run("FedEP", workers), sequential("FedEP"))


@dataclass(frozen=True)
class Killing(Schedule):
    """All clients, and the end of a worker before the second round."""

    executor: object

    def select(self, round, num_clients, rng):
        if round == 1:
            import ray

            ray.kill(self.executor._actors[1])
        return list(range(num_clients))


def test_a_dead_worker_is_started_again(workers, tmp_path):
    """Within a run whose clients keep nothing, or whose checkpoint has their states; else for the next run."""
    fed, options = unequal_lines(), {"num_rounds": 4, "progress": False, "audit": False}
    for algorithm, more in [(pf.infer.FedSEP(start="prior"), {}), (pf.FedEP(start="prior"), {"checkpoint": tmp_path})]:
        whole = pf.run(algorithm, fed, **options, executor=workers)
        killed = pf.run(algorithm, fed, **options, **more, executor=workers, schedule=Killing(workers))
        assert killed.federation["participated"].values.all()
        assert whole.posterior.equals(killed.posterior)
    with pytest.warns(UserWarning, match="its worker died"):
        alone = pf.run(pf.FedEP(start="prior"), fed, **options, executor=workers, schedule=Killing(workers))
    took_part = alone.federation["participated"].values
    assert took_part[:1].all()
    assert took_part[1:, [0, 2]].all(), "worker 0 goes on"
    assert not took_part[1:, 1].any()
    with pytest.raises(StoppedError, match=r"clients \[1\]: its worker died; their states are needed"):
        workers.collect()
    again = pf.run(pf.FedEP(start="prior"), fed, **options, executor=workers)
    assert whole.posterior.equals(again.posterior)


def test_a_worker_gets_its_own_clients_rows_alone():
    fed = unequal_lines()
    share = share_of(fed.problem, fed.client_data(), [0, 2], torch.tensor([0, 2]))
    own = torch.cat([fed.client_args(k)[0][1] for k in (0, 2)])
    assert torch.equal(share.arguments.rows[1].sort().values, own.sort().values)
    problem, own_data = share.build(fed.problem.model)
    z = torch.tensor([0.3, -0.7], dtype=torch.float64)
    for place, client in enumerate((0, 2)):
        data = fed.client_data([client]).full_batch()
        batch = own_data._replace(row_index=own_data.row_index[place], num_rows=own_data.num_rows[place])
        whole = type(data)(tuple(leaf[0] for leaf in data.rows), data.weight[0])
        assert torch.equal(problem.log_lik(z, batch.full_batch()), fed.problem.log_lik(z, whole))
    assert problem.num_rows == fed.num_rows


def test_a_worker_has_the_form_of_the_problem():
    fed = pf.Federation(one_effect, (torch.ones(4, dtype=torch.float64),), plate="data", num_clients=2).noncentred
    share = share_of(fed.problem, fed.client_data(), [1], torch.tensor([1]))
    problem, _ = share.build(fed.problem.model)
    z = torch.tensor([0.3, -0.7], dtype=torch.float64)
    assert torch.equal(problem.log_prior(z), fed.problem.log_prior(z))
    assert torch.equal(problem.constrain(z)["x"], (0.3 * torch.ones(()).double()).exp() * -0.7)


def one_effect(y):
    s = pyro.sample("s", dist.LogNormal(y.new_tensor(0.0), 1.0))
    x = pyro.sample("x", dist.Normal(y.new_tensor(0.0), s))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)


def test_a_model_of_no_installed_module_travels_with_its_code():
    from ray import cloudpickle

    def model(y):
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    assert b"unequal_lines" not in pickle_model(model)
    assert callable(cloudpickle.loads(pickle_model(model)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 0}, "num_workers must be a whole number of at least 1, received 0"),
        ({"num_workers": 1, "timeout": 0}, "timeout must be positive, received 0"),
        ({"num_workers": 1, "within": "threads"}, r"within must be one of \['sequential', 'vectorised'\]"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(SettingError, match=message):
        pf.executors.Ray(**settings)
