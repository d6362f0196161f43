"""What the Langevin samplers keep, send, refuse and warn of."""

from types import SimpleNamespace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import xarray as xr
from gaussian_case import analytic_surrogates, exact, federation, shards

import pyro_fed as pf
from pyro_fed.algorithm.schedule import Categorical, Explicit, RoundRobin
from pyro_fed.audit.densities import precision
from pyro_fed.runtime import one_round as fused
from pyro_fed.runtime import rounds as loop
from pyro_fed.runtime.messages import encoded_size
from pyro_fed.runtime.safetensors_header import Entry

QUIET = {"progress": False, "log_likelihood": False, "compile": "trace", "audit": False}
pytestmark = pytest.mark.filterwarnings("ignore:only", "ignore:the .* chains disagree")


@pytest.fixture(scope="module")
def x():
    return shards(num_clients=4, rows=20)


@pytest.fixture(scope="module")
def fed(x):
    return federation(x)


def short(algorithm, x, **settings):
    defaults = {
        "surrogates": analytic_surrogates(x),
        "num_chains": 3,
        "local_steps": 4,
        "burn_in": 4,
        "thin": 2,
        "target_ess": None,
        "batch_size": 5,
    }
    return algorithm(**defaults | settings)


@pytest.mark.parametrize("algorithm", [pf.FSGLD, pf.infer.DSGLD, pf.infer.FALD, pf.infer.SGLD])
def test_executors_agree(algorithm, fed, x):
    """Chain by chain and all at once, also where two chains visit one client."""
    sampler = short(algorithm, x, thin=4)
    runs = [pf.run(sampler, fed, num_rounds=6, executor=e, seed=2, **QUIET) for e in ("vectorised", "sequential")]
    draws = [run["posterior"]["mu"].values for run in runs]
    assert draws[0].shape == (3, 5, 2)
    np.testing.assert_allclose(draws[0], draws[1], rtol=1e-8, atol=1e-10)
    assert len(np.unique(draws[0][:, -1, 0])) == 3


@pytest.mark.parametrize("algorithm", [pf.FSGLD, pf.infer.DSGLD, pf.infer.FALD])
def test_several_rounds_at_once_are_the_rounds_one_by_one(algorithm, fed, x, monkeypatch):
    """To the last bit, the record too."""
    sampler, several = short(algorithm, x, thin=4), []

    def noted(*args):
        several.append(fused.run_fused_rounds(*args))
        return several[-1]

    monkeypatch.setattr(loop, "run_fused_rounds", noted)
    at_once = pf.run(sampler, fed, num_rounds=12, seed=2, **QUIET)
    assert sum(len(part) for part in several) > 6
    monkeypatch.setattr(fused, "MAX_FUSED_ROUNDS", 1)
    one_by_one = pf.run(sampler, fed, num_rounds=12, seed=2, **QUIET)
    for group in ("posterior", "sample_stats", "federation"):
        xr.testing.assert_equal(*(run[group].drop_vars("seconds", errors="ignore") for run in (at_once, one_by_one)))


@pytest.mark.parametrize(
    ("steps", "burn_in", "thin", "rounds"), [(4, 0, 1, 5), (4, 6, 3, 6), (1, 10, 5, 30), (6, 5, 4, 7), (5, 0, 20, 9)]
)
def test_burn_in_and_thinning_count_steps(fed, x, steps, burn_in, thin, rounds):
    """Steps t > burn_in that are multiples of thin, whatever the number of local steps."""
    sampler = short(pf.FSGLD, x, local_steps=steps, burn_in=burn_in, thin=thin)
    idata = pf.run(sampler, fed, num_rounds=rounds, **QUIET)
    expected = sum(t > burn_in and t % thin == 0 for t in range(1, steps * rounds + 1))
    assert idata["posterior"].sizes["draw"] == expected
    assert idata["federation"]["kept"].values[-1] == expected


def test_thinning_keeps_the_same_chain(fed, x):
    """The draws kept by a thinned run are among those of the run that keeps all."""
    every = pf.run(short(pf.FSGLD, x, thin=1, burn_in=0), fed, num_rounds=6, **QUIET)["posterior"]["mu"].values
    some = pf.run(short(pf.FSGLD, x, thin=3, burn_in=0), fed, num_rounds=6, **QUIET)["posterior"]["mu"].values
    np.testing.assert_array_equal(some, every[:, 2::3])


def test_step_sizes_follow_the_polynomial_schedule(fed, x):
    """h_t = h_0 (1 + t / b)^-γ, t the number of steps before."""
    sampler = short(pf.FSGLD, x, step=pf.infer.step.Fixed(size=0.1, decay=0.55, decay_offset=7.0), thin=1, burn_in=0)
    idata = pf.run(sampler, fed, num_rounds=5, **QUIET)
    expected = 0.1 * (1 + np.arange(20) / 7.0) ** -0.55
    for chain in idata["sample_stats"]["step_size"].values:
        np.testing.assert_allclose(chain, expected, rtol=1e-10)


def test_sample_stats_name_the_clients_that_were_visited(fed, x):
    """Round by round, as the schedule says: each chain at its own."""
    visits = ((0, 2, 1), (3, 3, 0), (1, 0, 2))

    class Planned(Categorical):
        def select(self, round, num_clients, rng):
            return [visits[round][calls.pop(0)]]

    calls = [0, 1, 2] * 3
    sampler = short(pf.FSGLD, x, thin=4, burn_in=0, step=pf.infer.step.Fixed(size=0.1))
    idata = pf.run(sampler, fed, num_rounds=3, schedule=Planned(), **QUIET)
    np.testing.assert_array_equal(idata["sample_stats"]["client"].values.T, visits)
    took_part = idata["federation"]["participated"].values
    np.testing.assert_array_equal(took_part, [[k in row for k in range(4)] for row in visits])
    assert {"lp", "step_size", "gradient_norm"} <= set(idata["sample_stats"])
    assert (idata["sample_stats"]["gradient_norm"].values > 0).all()


def test_kept_draws_stay_at_the_server(fed, x):
    """Bytes down do not grow with the rounds; the positions of a visit travel up, no more."""
    record = pf.run(short(pf.FSGLD, x, step=pf.infer.step.Fixed(size=0.1)), fed, num_rounds=8, **QUIET)["federation"]
    down, up = (np.nanmax(record[name].values, 1) for name in ("bytes_down", "bytes_up"))
    visits = np.array([np.bincount(r, minlength=4).max() for r in _visited(record)])
    assert len(np.unique(down / visits)) == 1 and len(np.unique(up / visits)) == 1
    position, count, number = Entry((2,), x.dtype), Entry((), torch.int64), Entry((), x.dtype)
    sent = {"position": position, "client": count, "steps": count, "step_size": number}
    assert down[0] / visits[0] == encoded_size(sent)
    columns = {name: Entry((2,), x.dtype) for name in ("gradient_norm", "step_size")}
    answer = {"position": position, "client": count, "draws": Entry((2, 2), x.dtype), **columns}
    assert up[0] / visits[0] == encoded_size(answer)


def _visited(record):
    """Clients of each round, repeated by the ratio of their bytes to the least."""
    bytes_down = record["bytes_down"].values
    least = np.nanmin(bytes_down)
    return [np.repeat(np.arange(4), np.nan_to_num(row / least).astype(int)) for row in bytes_down]


@pytest.mark.parametrize("algorithm", [pf.infer.DSGLD, pf.FSGLD, pf.infer.SGLD])
def test_a_step_beyond_stability_is_refused_with_the_largest_safe_one(algorithm, fed, x):
    """h λ >= 4, λ = 1 + n_s / f_s = 81 the curvature that a visit sees, names λ and 4 / λ."""
    precision = 1 / exact(x)[1]

    def sampler(size):
        return short(algorithm, x, step=pf.infer.step.Fixed(size=size, precondition=False), control_variate=False)

    with pytest.raises(pf.errors.SettingError, match=rf"largest stable step is {4 / precision:.3g}"):
        pf.run(sampler(4.1 / precision), fed, num_rounds=2, **QUIET)
    inside = pf.run(sampler(3.5 / precision), fed, num_rounds=30, **QUIET)
    assert np.isfinite(inside["posterior"]["mu"].values).all()


def power(dose, y):
    hill = pyro.sample("hill", dist.LogNormal(dose.new_tensor(0.0), 0.5))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(dose**hill, 0.1), obs=y)


def test_a_step_beyond_stability_is_refused_where_reverse_mode_has_no_curvature():
    """The second derivative of 0 ** hill is NaN by reverse over reverse mode, and no NaN is beyond a limit."""
    dose = torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64).repeat(5)
    fed = pf.Federation(power, (dose, dose**1.3), plate="data", num_clients=2, seed=0)
    with pytest.raises(pf.errors.SettingError, match="from 4 on Langevin steps diverge"):
        pf.run(pf.FSGLD(step=pf.infer.step.Fixed(size=100.0)), fed, num_rounds=2, **QUIET)


def test_long_enough_runs_stop_by_themselves(fed, x):
    """R-hat and effective draws are those of the returned chains."""
    step = pf.infer.step.Measured(visit_time=2.0)
    sampler = short(pf.FSGLD, x, num_chains=4, target_ess=400, step=step, thin=4)
    idata = pf.run(sampler, fed, num_rounds=2_000, num_draws=100_000, **QUIET)
    record = idata["federation"]
    assert idata.attrs["converged"] == 1
    assert len(record["round"]) < 2_000
    assert float(record["ess"][-1]) >= 400 and float(record["r_hat"][-1]) <= 1.01


@pytest.mark.filterwarnings("default:the .* chains disagree", "default:only")
def test_chains_that_disagree_are_reported(fed, x):
    """Tiny steps leave the chains where they started."""
    sampler = short(pf.FSGLD, x, step=pf.infer.step.Fixed(size=1e-6), burn_in=0, thin=1)
    with pytest.warns(UserWarning, match="3 chains disagree: R-hat is") as caught:
        pf.run(sampler, fed, num_rounds=8, **QUIET)
    assert any("effective draws of the slowest coordinate" in str(w.message) for w in caught)


@pytest.mark.filterwarnings("default:the .* chains disagree", "default:only")
def test_too_few_draws_for_an_r_hat_are_said_to_be_that(fed, x):
    """As of a run that is interrupted: chains were said to disagree, with an R-hat that is nan."""
    with pytest.warns(UserWarning, match=r"only \d draws of a chain are kept, too few for R-hat") as caught:
        pf.run(short(pf.FSGLD, x, burn_in=0, thin=1, local_steps=2), fed, num_rounds=1, **QUIET)
    assert not any("nan" in str(w.message) for w in caught)


@pytest.mark.filterwarnings("default:the .* chains disagree", "default:only")
def test_chains_that_stand_still_have_no_r_hat_and_say_why(fed, x):
    """NaN was said to be too large, and float32 to be the cause."""
    with pytest.warns(UserWarning, match="did not move at all.*a step of size=1e-40 is too small") as caught:
        sampler = short(pf.FSGLD, x, step=pf.infer.step.Fixed(size=1e-40), burn_in=0, thin=1)
        idata = pf.run(sampler, fed, num_rounds=8, **QUIET)
    assert not any("R-hat is nan" in str(w.message) or "only nan" in str(w.message) for w in caught)
    single = SimpleNamespace(dtype=torch.float32)  # nothing of it is looked at
    assert precision(SimpleNamespace(problem=single, draws=torch.tensor(idata["posterior"]["mu"].values))) == []


def test_a_run_that_ends_within_burn_in_says_so(fed, x):
    with pytest.warns(UserWarning, match="no draw was kept: the run ended within burn_in=100"):
        idata = pf.run(short(pf.FSGLD, x, burn_in=100), fed, num_rounds=2, **QUIET)
    assert idata["posterior"].sizes["draw"] == 1


BAD = [
    ({"num_chains": 0}, "num_chains must be a whole number of at least 1"),
    ({"local_steps": 0}, "local_steps must be"),
    ({"thin": 0}, "thin must be"),
    ({"burn_in": -1}, "burn_in must be"),
    ({"batch_size": 0}, "batch_size must be"),
    ({"probabilities": (0.5, 0.6)}, "probabilities must be positive and sum to one"),
    ({"probabilities": (1.0, 0.0)}, "probabilities must be positive and sum to one"),
    ({"surrogates": None}, "give step="),
    ({"surrogates": None, "step": "fixed"}, "need surrogates"),
    ({"conducive": None}, "use DSGLD"),
    ({"conducive": 1.0}, "conducive must be a pf.infer.Conducive"),
    ({"step": "derived"}, "step must be pf.infer.step.Fixed or pf.infer.step.Measured"),
    ({"step": 0.1}, "step must be one of pf.infer.step"),
    ({"step_size": 0.1}, r"write FSGLD\(step=pf.infer.step.Fixed\(size=0.1\)\)"),
    ({"visit_error": 0.1}, r"write FSGLD\(step=pf.infer.step.Measured\(visit_error=0.1\)\)"),
    ({"trust": None}, r"write FSGLD\(conducive=pf.infer.Conducive\(trust=None\)\)"),
    ({"surrogates": "newton"}, "surrogates must be one of"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.FSGLD(**settings)


PARTS_OUT_OF_RANGE = [
    (lambda: pf.infer.step.Fixed(size=0.0), "size must be positive"),
    (lambda: pf.infer.step.Fixed(size=-1.0), "size must be positive"),
    (lambda: pf.infer.step.Fixed(decay=1.5), "decay must lie in"),
    (lambda: pf.infer.step.Fixed(decay_offset=2.0), "decay_offset=2.0 has no effect: the step is constant"),
    (lambda: pf.infer.step.ForVisits(visit_time=0.0), "visit_time must be positive"),
    (lambda: pf.infer.step.Measured(visit_error=0.0), "visit_error must be positive"),
    (lambda: pf.infer.step.Derived(largest=2.0), "largest must lie in"),
    (lambda: pf.infer.Conducive(alpha=0.0), "alpha must be positive"),
    (lambda: pf.infer.Conducive(trust=-1.0), "trust must be positive"),
]


@pytest.mark.parametrize(("part", "message"), PARTS_OUT_OF_RANGE)
def test_parts_out_of_range_are_refused(part, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        part()


def test_fald_refuses_what_it_cannot_average():
    with pytest.raises(pf.errors.SettingError, match="multiple of local_steps=5"):
        pf.infer.FALD(thin=7)


@pytest.mark.parametrize(
    ("settings", "schedule", "message"),
    [
        ({"probabilities": (0.5, 0.5)}, None, "2 probabilities for 4 clients"),
        ({"surrogates": pf.infer.Given(torch.ones(3, 2), torch.ones(3, 2))}, None, "3 surrogates for 4 clients"),
        (
            {"surrogates": pf.infer.Given(torch.ones(4, 3), torch.ones(4, 3))},
            None,
            "expected surrogates of the model's dimension 2, received 3",
        ),
        ({}, Explicit([[0, 1]]), "visits one client a round, but the schedule named 6 in all"),
    ],
)
def test_what_does_not_fit_the_federation_is_refused(fed, x, settings, schedule, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.run(short(pf.FSGLD, x, **settings), fed, num_rounds=1, schedule=schedule, **QUIET)


def test_any_schedule_of_one_client_serves(fed, x):
    """Round robin: all chains at the same client, with noise of their own."""
    idata = pf.run(short(pf.FSGLD, x, thin=4, burn_in=0), fed, num_rounds=5, schedule=RoundRobin(), **QUIET)
    np.testing.assert_array_equal(idata["sample_stats"]["client"].values[0], [0, 1, 2, 3, 0])
    assert len(np.unique(idata["posterior"]["mu"].values[:, -1, 0])) == 3


@pytest.mark.parametrize(
    ("precision", "eta", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 2), r"received \(2, 2\) and \(2, 3\)"),
        (torch.ones(2), torch.ones(2), "expected eta"),
        (torch.ones(2, 2), torch.tensor([[1.0, 2.0], [float("nan"), 0.0]]), r"clients \[1\] are not finite"),
    ],
)
def test_given_surrogates_are_checked(precision, eta, message):
    with pytest.raises(pf.errors.SettingError, match=message):
        pf.infer.Given(precision, eta)


def test_surrogates_from_moments_are_those_in_natural_parameters(fed, x):
    given = pf.infer.Given.from_moments(x.mean(1), torch.eye(2, dtype=x.dtype).expand(4, 2, 2) / 20)
    torch.testing.assert_close(given.precision, 20 * torch.eye(2, dtype=x.dtype).expand(4, 2, 2))
    torch.testing.assert_close(given.eta, x.sum(1))


def test_surrogates_that_leave_a_direction_free_are_refused_before_sampling():
    """A flat prior, and nothing known of one coordinate: no proper product."""
    import pyro
    import pyro.distributions as dist

    def flat(y):
        z = pyro.sample("z", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(z[0], 1.0), obs=y)

    y = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = pf.infer.Given(torch.tensor([[5.0, 0.0], [5.0, 0.0]]), torch.zeros(2, 2))
    fed = pf.Federation(flat, (y,), plate="data", num_clients=2)
    with pytest.raises(pf.errors.ModelError, match="the posterior is improper"):
        pf.run(pf.FSGLD(surrogates=given), fed, num_rounds=1, **QUIET)


def test_sweeps_take_every_client_once(fed, x):
    """A chain's visits: a permutation of the clients in each sweep, another one in the next, and for the next chain."""
    idata = pf.run(
        short(pf.FSGLD, x, thin=4, burn_in=0, step=pf.infer.step.Fixed(size=0.1)), fed, num_rounds=24, **QUIET
    )
    visits = idata["sample_stats"]["client"].values.reshape(3, 6, 4)
    np.testing.assert_array_equal(np.sort(visits, -1), np.broadcast_to(np.arange(4), (3, 6, 4)))
    assert len({tuple(sweep) for sweep in visits.reshape(-1, 4)}) > 6


@pytest.mark.parametrize("settings", [{"sweeps": False}, {"probabilities": (0.1, 0.2, 0.3, 0.4)}])
def test_clients_are_drawn_anew_as_published(fed, x, settings):
    """36 times four visits: all of them permutations with probability below 1e-36."""
    sampler = short(pf.FSGLD, x, thin=4, burn_in=0, step=pf.infer.step.Fixed(size=0.1), **settings)
    idata = pf.run(sampler, fed, num_rounds=48, **QUIET)
    visits = idata["sample_stats"]["client"].values.reshape(-1, 4)
    assert any(len(set(sweep)) < 4 for sweep in visits)


@pytest.mark.filterwarnings("default:the .* chains disagree", "default:only")
def test_a_derived_step_that_is_too_long_where_a_chain_is_becomes_shorter():
    """log r of Gamma(0.1) counts, all of them zero, is as steep as exp on its right: λ is 53 where it was 11."""

    def zeros(y):
        r = pyro.sample("r", dist.Gamma(0.1, 0.1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(r), obs=y)

    fed = pf.Federation(zeros, (torch.zeros(10).double(),), plate="data", num_clients=2, seed=0)
    idata = pf.run(pf.FSGLD(burn_in=5), fed, num_rounds=40, seed=0, **QUIET)
    steps = idata["sample_stats"]["step_size"].values
    assert 0 < steps[0, -1] < 0.0757 and (steps[:, -1] == steps[0, -1]).all()  # 4 / λ, and one step for all chains
    assert np.isfinite(idata["posterior"]["r"].values).all()


STEEP = 9.0  # of a Gaussian client's score, in preconditioned coordinates: steps of the default length diverge there


def steep(algorithm, number, schedule=None, **settings):
    """Draws' steps of a run in which one of four clients, the last, is far steeper than the surrogates say.

    x_k ~ N(mu, 1 / precision) with surrogates of precision 1 each, and a prior of variance one.
    """

    def gaussian(x, precision):
        mu = pyro.sample("mu", dist.Normal(torch.zeros((), dtype=x.dtype), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mu, precision.rsqrt()), obs=x)

    one = torch.ones(1, dtype=torch.float64)
    clients = [(0.1 * k * one, (STEEP if k == 3 else 1.0) * one) for k in range(4)]
    fed = pf.Federation.from_clients(gaussian, clients, plate="data")
    given = pf.infer.Given(torch.ones(4, 1, 1), torch.zeros(4, 1))
    # A chain's score at the last client has the curvature 1 + 4 STEEP + 4 - 4 in units of C = 1 / 5.
    sampler = algorithm(surrogates=given, **{"target_ess": None, "local_steps": 1, "thin": 1} | settings)
    idata = pf.run(sampler, fed, num_rounds=number, schedule=schedule, seed=0, **QUIET)
    return idata["sample_stats"]["step_size"].values, (4 * STEEP + 1) / 5


@pytest.mark.filterwarnings("ignore:clients")
@pytest.mark.parametrize("decay", [{}, {"decay": 0.3, "decay_offset": 5.0}])
def test_all_clients_of_a_round_have_the_step_that_the_steepest_needs(decay):
    """FALD: θ' is the average of clients' steps, so that unequal ones would weigh their scores by them."""
    steps, curvature = steep(
        pf.infer.FALD, 60, burn_in=0, step=pf.infer.step.Measured(visit_time=0.9, largest=0.9, **decay)
    )
    taken = torch.arange(1, 60, dtype=torch.float64)
    expected = (1 + taken / 5) ** -0.3 / curvature if decay else torch.ones(59) / curvature
    np.testing.assert_allclose(steps[:, 1:], expected.expand(4, -1), rtol=1e-6)


@pytest.mark.parametrize("decay", [{}, {"decay": 0.3, "decay_offset": 5.0}])
def test_a_client_that_is_first_visited_late_shortens_the_others_steps_too(decay):
    """DSGLD on a user's schedule that comes to the last client after 40 rounds."""
    late = Explicit([[k % 3] for k in range(40)] + [[k % 4] for k in range(3, 23)])
    step = pf.infer.step.ForVisits(visit_time=0.9, largest=0.9, **decay)
    steps, curvature = steep(pf.infer.DSGLD, 60, late, burn_in=0, step=step)
    taken = torch.arange(60, dtype=torch.float64)
    expected = torch.where(taken < 40, 0.9, 1 / curvature) * ((1 + taken / 5) ** -0.3 if decay else 1)
    np.testing.assert_allclose(steps, expected.expand(4, -1), rtol=1e-6)
