"""Combinations of messages: exact arithmetic, one attacker in ten, and what privacy costs."""

import functools
import sys
import warnings

import numpy as np
import pytest
import torch
from algorithms import line, line_data, unequal_lines

import pyro_fed as pf
from pyro_fed.algorithm.combination import Clipped, Median, TrimmedMean, clip
from pyro_fed.runtime.executors import Faulty

QUIET = {"progress": False, "compile": "trace", "log_likelihood": False, "num_draws": 4000, "audit": False}
FEDSEP = pf.infer.FedSEP(start="prior", damping=0.5)
FEDAVG = pf.FedAvg(step_size=0.05)
MESSAGES = {
    "a": torch.tensor([[3.0, 4.0], [0.0, 0.0], [-300.0, 400.0]], dtype=torch.float64),
    "b": torch.tensor([0.0, 1.0, 0.0]),
    "usable": torch.tensor([True, False, True]),
}


@functools.cache
def ten_clients():
    """400 rows of a linear regression over ten like clients, whose traced steps are kept for the next run."""
    return pf.Federation(line, line_data(rows=400, seed=5), plate="data", num_clients=10)


def exact():
    """Posterior mean and SDs."""
    x, y = line_data(rows=400, seed=5)
    covariance = torch.linalg.inv(x.T @ x + torch.eye(2, dtype=x.dtype))
    return (covariance @ x.T @ y).numpy(), covariance.diagonal().sqrt().numpy()


def run(algorithm, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pf.run(algorithm, options.pop("fed", None) or ten_clients(), **QUIET, **options)


def error(idata):
    """Root mean square error of the mean, in posterior SDs."""
    mean, sd = exact()
    found = idata.posterior["w"].values.mean((0, 1))
    return float(np.sqrt(np.mean(((found - mean) / sd) ** 2)))


@functools.cache
def clean_error(algorithm, combination=None):
    """Of the run that those with an attacker are compared with, made once."""
    return error(run(algorithm, combination=combination, num_rounds=25))


def test_what_stands_in_for_the_messages():
    a = MESSAGES["a"]
    shortened = clip(torch.cat([a, MESSAGES["b"].double().unsqueeze(1)], 1), 5.0)
    expected = {
        Clipped(norm=5.0): shortened.mean(0),
        Median(): torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64),
        TrimmedMean(share=0.3): torch.tensor([0.0, 4.0, 0.0], dtype=torch.float64),
        TrimmedMean(share=0.0): torch.tensor([-99.0, 404 / 3, 1 / 3], dtype=torch.float64),
    }
    for combination, middle in expected.items():
        out = combination(MESSAGES)
        torch.testing.assert_close(out["a"], middle[:2].expand(3, 2))
        torch.testing.assert_close(out["b"], middle[2].float().expand(3))
        assert out["usable"].tolist() == [True] * 3
        assert {name: (v.shape, v.dtype) for name, v in out.items()} == {
            name: (v.shape, v.dtype) for name, v in MESSAGES.items()
        }
    assert torch.equal(shortened.norm(dim=1), torch.tensor([5.0, 1.0, 5.0], dtype=torch.float64))


@pytest.mark.parametrize("share", [0.2, 0.34, 0.49])
@pytest.mark.parametrize("count", range(1, 12))
def test_something_is_left_after_trimming(share, count):
    middle = TrimmedMean(share=share).middle(torch.arange(float(count)).double().unsqueeze(1))
    assert float(middle) == pytest.approx((count - 1) / 2)


def test_without_attackers_like_clients_lose_little():
    assert error(run(FEDSEP)) < 0.05
    for combination in (TrimmedMean(share=0.2), Median()):
        assert error(run(FEDSEP, combination=combination)) < 1.5


@pytest.mark.parametrize(
    ("kind", "combination", "algorithm"),
    [
        ("huge", TrimmedMean(share=0.2), FEDSEP),
        ("huge", Median(), FEDAVG),
        ("nan", TrimmedMean(share=0.2), FEDAVG),
        ("nan", Median(), FEDSEP),
        ("flipped", TrimmedMean(share=0.2), FEDSEP),
        ("flipped", Median(), FEDAVG),
        ("opposite", TrimmedMean(share=0.2), FEDAVG),
        ("opposite", Median(), FEDSEP),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_one_attacker_in_ten(kind, combination, algorithm):
    """1e30, NaN, negative precision, and a lie that passes every gate: within twice the clean error.

    Each lie meets each combination and each algorithm, and each combination each algorithm.
    """
    attacker = Faulty(probability=1.0, kinds=(kind,), clients=(4,))
    attacked = run(algorithm, combination=combination, num_rounds=25, executor=attacker)
    assert error(attacked) < 2 * clean_error(algorithm, combination)
    gated = kind in ("huge", "nan") or (kind == "flipped" and algorithm is FEDSEP)
    assert ("failure_client" in attacked.federation) == gated
    if gated:
        assert set(attacked.federation["failure_client"].values) == {"4"}


def test_without_a_combination_a_lie_that_passes_the_gates_is_believed():
    attacker = Faulty(probability=1.0, kinds=("opposite",), clients=(4,))
    assert error(run(FEDSEP, num_rounds=25, executor=attacker)) > 10 * clean_error(FEDSEP)


def test_clipping_bounds_what_one_client_can_do():
    attacker = Faulty(probability=1.0, kinds=("huge",), clients=(4,))
    clean, attacked = (
        run(FEDAVG, combination=Clipped(norm=0.01), num_rounds=5, executor=e) for e in ("vectorised", attacker)
    )
    moved = clean.posterior["w"].values - attacked.posterior["w"].values
    assert 0 < np.linalg.norm(moved) < 5 * 2 * 0.01


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (pf.FedEP(start="prior"), "FedEP: its clients keep sites .* or FedSEP"),
        (pf.infer.FedSEP(), "FedLaplace, with which FedSEP starts, .* use start='prior'"),
        (pf.DSVGD(), "uses its messages one by one|needs every client"),
        (pf.FSGLD(), "uses its messages one by one|needs every client"),
    ],
)
def test_algorithms_that_cannot_do_with_sums_are_refused(algorithm, words):
    with pytest.raises(pf.errors.SettingError, match=words):
        run(algorithm, combination=Median(), fed=unequal_lines())


def test_the_noise_has_the_size_it_claims():
    """100,000 numbers: the SD's own relative error is 0.0022; five of these are allowed (a false alarm in 2e6)."""
    private = pf.Private(norm=2.0, noise_multiplier=1.5)
    zeros = torch.zeros(10, 100_000, dtype=torch.float64)
    noise = private.middle(zeros)
    assert float(noise.std()) == pytest.approx(1.5 * 2.0 / 10, rel=0.011)
    assert not torch.equal(noise, private.middle(zeros))
    torch.testing.assert_close(
        private.middle(torch.full((10, 4), 100.0).double()), torch.ones(4).double(), atol=1.8, rtol=0
    )


def test_a_private_run_says_what_it_spent_and_nothing_of_single_clients():
    private = pf.Private(norm=0.5, noise_multiplier=0.3, delta=1e-4)
    idata = run(FEDAVG, combination=private, num_rounds=6)
    spent = idata.federation["epsilon"].values
    assert spent.tolist() == [pytest.approx(private.epsilon(i + 1)) for i in range(6)]
    assert (idata.attrs["epsilon"], idata.attrs["delta"]) == (spent[-1], 1e-4)
    assert np.isfinite(idata.posterior["w"].values).all()
    sep = run(FEDSEP, combination=private, num_rounds=3)
    own = {"usable", "cavity_proper"}
    assert not own & set(sep.federation)
    assert own & set(run(FEDSEP, num_rounds=3).federation)


def test_without_a_source_of_secret_noise_nothing_is_private(monkeypatch):
    monkeypatch.setitem(sys.modules, "opendp.measurements", None)
    with pytest.raises(pf.errors.SettingError, match=r"needs opendp.*pip install 'pyro_fed\[privacy\]'"):
        pf.Private(norm=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clipped(norm=0.0),
        lambda: TrimmedMean(share=0.5),
        lambda: pf.Private(norm=-1.0, noise_multiplier=1.0),
        lambda: pf.Private(norm=1.0, noise_multiplier=0.0),
        lambda: pf.Private(norm=1.0, noise_multiplier=1.0, delta=0.0),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(pf.errors.SettingError):
        make()
