"""Clients' steps on a device: whatever forgets it fails on the emulated one, and draws are those of the CPU.

Where torch sees a GPU, the same runs are made there, too, and their draws are those of the CPU but for rounding.
"""

import functools
from contextlib import contextmanager
from dataclasses import dataclass, replace

import algorithms
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from algorithms import ALGORITHMS, CHAIN
from contract import short_run
from emulated_device import DEVICE, There, emulated_device, in_modes

import pyro_fed as pf
from pyro_fed.density.running import torch_modes
from pyro_fed.density.running.torch_modes import OnDevice
from pyro_fed.federation.arguments import device_of

#: Rows whose steps are those of another row with minibatches or of another schedule; or that are computed on the CPU.
SAME_STEPS = {"SVGD", "PaperSVGD", "DSVGD", "ParallelDSVGD", "PaperDSVGD", "UDSVGD", "FedSEP", "SGLD", "DSGLD", "NUTS"}
SAME_STEPS |= {"ConsensusMC", "SVI", "FSGLD, surrogates from draws", "P2PVI, published", "FedEP, diagonal", "GVI"}


@dataclass(frozen=True, kw_only=True)
class OneRoundFirst(pf.P2PVI):
    """Agents that average for one round before they refine their points, in place of forty."""

    def warm_start(self, problem):
        return replace(super().warm_start(problem), rounds=1)


MORE = {
    "FedEP, for networks": lambda: pf.FedEP(
        client=pf.infer.tilted.IVON(steps=2), covariance="diag", start=pf.infer.Averaging(rounds=1)
    ),
    "FedSEP, for networks": lambda: pf.infer.FedSEP(client=pf.infer.tilted.IVON(steps=2), covariance="diag"),
    "BayesADMM, for networks": lambda: pf.infer.BayesADMM(client=pf.infer.tilted.IVON(steps=2), covariance="diag"),
    "P2PVI, for networks": lambda: OneRoundFirst(update=pf.infer.update.IVON(steps=2), covariance="diag"),
    "FSGLD, for networks": lambda: pf.FSGLD(
        surrogates=pf.FedEP(covariance="diag"), batch_size=3, num_chains=3, local_steps=4, burn_in=0
    ),
    "DSVGD, for networks": lambda: pf.DSVGD(num_particles=5, local_steps=3, batch_size=3, step_size=0.02),
    "FedPA, tempered": lambda: pf.infer.FedPA(client=pf.infer.tilted.MCMC(**CHAIN), temperature=2.0),
}
CASES = {name: make for name, make, _ in ALGORITHMS if name not in SAME_STEPS} | MORE


#: Of draws on a GPU from those of the CPU, in float64: sums are in another order, and a run's rounds build on it.
ROUNDING = 1e-6


@contextmanager
def gpu():
    yield torch.device("cuda")


def same_bits(there, here):
    np.testing.assert_array_equal(there, here)


def same_but_for_rounding(there, here):
    np.testing.assert_allclose(there, here, rtol=ROUNDING, atol=ROUNDING)


#: What stands for a device, and how its numbers are compared with the CPU's.
DEVICES = {"emulated": (emulated_device, same_bits)}
if torch.cuda.is_available():
    DEVICES["GPU"] = (gpu, same_but_for_rounding)


@pytest.fixture(params=DEVICES)
def elsewhere(request):
    return DEVICES[request.param]


def lines(device=None):
    parts = pf.partition.Explicit([list(range(3)), list(range(3, 10)), list(range(10, 23))])
    return pf.Federation(algorithms.line, algorithms.line_data(), plate="data", partition=parts, device=device)


def groups(device=None):
    """Seven groups with rows of a nested plate, whose effects are integrated out."""

    def model(owner, y):
        mean = pyro.sample("mean", dist.Normal(0.0, 3.0))
        with pyro.plate("group", 7):
            effect = pyro.sample("effect", dist.Normal(mean, 1.0))
        with pyro.plate("obs", len(y)):
            pyro.sample("y", dist.Normal(effect[owner], 0.5), obs=y)

    owner = torch.arange(20) % 7
    y = torch.linspace(-1, 2, 20, dtype=torch.float64)
    return pf.Federation(
        model, (owner, y), plate="group", rows={"obs": "owner"}, num_clients=3, device=device, dtype=torch.float64
    )


def draws_of(make, federation, **options):
    idata = short_run(make, federation, num_rounds=1, **options)
    return {name: value.values for name, value in idata.posterior.data_vars.items()}


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in CASES.items()])
def test_every_algorithm_on_a_device_draws_as_on_the_cpu(make, elsewhere):
    on_device, same = elsewhere
    here = draws_of(make, lines)
    with on_device() as device:
        there = draws_of(make, lambda: lines(device))
    for name, value in here.items():
        same(there[name], value)


def judged(device):
    """What is said of a default run, and what analyses that ask the federation find."""
    fed = lines(device)
    idata = pf.run(pf.FedEP(), fed, seed=0, progress=False)
    found = {
        "doubts": idata.attrs["doubts"],
        "audited": idata.attrs["audited"],
        "predictions": pf.predict(idata, fed, seed=0),
        "metrics": pf.metrics.test_metrics(idata, fed, algorithms.line_data()),
        "left out": pf.loo(idata, fed),
        "influence": pf.influence(idata, fed),
        "contributions": pf.contributions(idata, fed),
    }
    return idata.log_likelihood["y"].values, {name: str(value) for name, value in found.items()}


def test_a_run_on_a_device_is_judged_as_on_the_cpu(elsewhere):
    on_device, same = elsewhere
    log_lik, said = judged(None)
    with on_device() as device:
        log_lik_there, said_there = judged(device)
    same(log_lik_there, log_lik)
    assert said_there == said or same is same_but_for_rounding


def test_rows_of_nested_plates_and_their_integrals_on_a_device(elsewhere):
    on_device, same = elsewhere
    here = draws_of(pf.FedLaplace, groups, executor="sequential", collect_local=True)
    with on_device() as device:
        there = draws_of(pf.FedLaplace, lambda: groups(device), executor="sequential", collect_local=True)
    assert set(here) == {"mean", "effect"}
    for name, value in here.items():
        same(there[name], value)


def test_the_clients_steps_are_computed_on_the_device(elsewhere):
    seen = []

    def model(x, y):
        seen.append(x.device.type)
        algorithms.line(x, y)

    with elsewhere[0]() as device:
        fed = pf.Federation(model, algorithms.line_data(), plate="data", num_clients=2, device=device)
        assert set(seen) == {"cpu"}  # checks
        short_run(pf.FedAvg, lambda: fed, num_rounds=1)
    assert device.type in seen


def test_a_model_may_hold_tensors_and_arrays_of_the_cpu(elsewhere):
    on_device, same = elsewhere
    scale, shift = torch.tensor([2.0, 3.0], dtype=torch.float64), np.array([0.5, -0.5])

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        offset = torch.zeros(2)
        offset[0] = 1.0
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ (w * scale + offset) + torch.from_numpy(shift).sum(), 1.0), obs=y)

    def federation(device=None):
        return pf.Federation(model, algorithms.line_data(), plate="data", num_clients=2, device=device)

    here = draws_of(pf.FedLaplace, federation)
    with on_device() as device:
        same(draws_of(pf.FedLaplace, lambda: federation(device))["w"], here["w"])


def test_a_model_may_hold_tensors_of_the_device(elsewhere, monkeypatch):
    """It is checked and judged on the CPU, and asked there for predictions; sums of rows are in another order."""
    on_device, _ = elsewhere
    monkeypatch.setattr(torch_modes, "has_other_devices", lambda: True)

    def held(device=None):
        mean, scale = (torch.tensor(value, dtype=torch.float64) for value in ([0.5, 1.0], [1.0, 2.0]))
        if device is not None:
            mean, scale = (There(value) if device == DEVICE else value.to(device) for value in (mean, scale))

        def model(x, y):
            w = pyro.sample("w", dist.Normal(mean, scale).to_event(1))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(x @ (w * scale), 1.0), obs=y)

        fed = pf.Federation(model, algorithms.line_data(), plate="data", num_clients=2, device=device)
        idata = short_run(pf.FedLaplace, lambda: fed, num_rounds=1)
        return idata.posterior["w"].values, pf.predict(idata, fed, seed=0).posterior_predictive["y"].values

    here = held()
    with on_device() as device:
        there = held(device)
    for value, other in zip(there, here, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-12)


def test_a_write_into_a_tensor_from_elsewhere_is_refused():
    table = torch.zeros(2)
    with OnDevice(DEVICE), pytest.raises(pf.errors.ModelError, match="writes into a tensor on the CPU"):
        table[1] = 1.0
    with OnDevice(DEVICE), pytest.raises(pf.errors.ModelError, match="omit device="):
        table.add_(1.0)
    with (
        OnDevice(torch.device("cpu")),
        pytest.raises(pf.errors.ModelError, match=r"on meta .* keep the tensor on the CPU"),
    ):
        There(table)[1] = 1.0


def test_torch_s_default_device_is_none_of_the_run_s():
    data = algorithms.line_data()

    def draws():
        fed = pf.Federation(algorithms.line, data, plate="data", num_clients=2)
        return short_run(pf.FedEP, lambda: fed, num_rounds=1).posterior["w"].values

    here = draws()
    with torch.device("meta"):
        there = draws()
    np.testing.assert_array_equal(there, here)


#: Whose rounds are had at once, where nothing is decided between them.
FUSED = {"FSGLD": pf.FSGLD, "FALD": pf.infer.FALD, "SAGALD": pf.infer.SAGALD}


@pytest.mark.parametrize("kind", [pytest.param(kind, id=name) for name, kind in FUSED.items()])
def test_rounds_that_are_had_at_once_on_a_device(kind, elsewhere):
    on_device, same = elsewhere
    make = functools.partial(kind, **algorithms.VISITS | {"thin": 4})
    here = short_run(make, lines, num_rounds=12)
    with on_device() as device:
        there = short_run(make, lambda: lines(device), num_rounds=12)
    same(there.posterior["w"].values, here.posterior["w"].values)


def test_what_pyro_samples_is_computed_on_the_cpu_and_says_so(elsewhere):
    with elsewhere[0]() as device:
        fed = lines(device)
        settings = {"num_steps": 5, "num_guide_draws": 10}
        with pytest.warns(UserWarning, match="SVI draws random numbers within its steps and was computed on the CPU"):
            pf.run(pf.infer.SVI(**settings), fed, progress=False, audit=False, log_likelihood=False, compile="off")
    assert all(kind.on_cpu for kind in (pf.NUTS, pf.infer.SVI, pf.infer.ConsensusMC))
    assert not pf.FedEP.on_cpu


def test_the_device_is_that_of_the_data_unless_it_is_named():
    data = tuple(value.to(torch.device("meta")) for value in (torch.zeros(4, 2), torch.zeros(4)))
    assert device_of(None, data) == DEVICE
    assert device_of("cpu", data) == torch.device("cpu")
    assert lines().problem.device == torch.device("cpu")
    with pytest.raises(pf.errors.SettingError, match="torch has no such device here"):
        lines("cuda:99")


@pytest.mark.parametrize(
    "forgetful",
    [
        lambda there: there + torch.zeros(3),
        lambda there: torch.cat([there, torch.zeros(1)]),
        lambda there: torch.func.vmap(lambda one: one * torch.arange(3))(there.expand(2, 3)),
        lambda there: torch.randn(3, device=there.device),
        lambda there: torch.randn(3, generator=torch.Generator(), device=there.device),
        lambda there: there.numpy(),
    ],
)
def test_the_emulated_device_refuses_what_a_gpu_refuses(forgetful):
    with pytest.raises(RuntimeError):
        in_modes(lambda: forgetful(There(torch.ones(3))))()
