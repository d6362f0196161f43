"""Hamiltonian chains over sums of clients' scores: the recursion in NumPy, its invariants, and exact posteriors."""

import functools
import re
import warnings

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from conjugate import NOISE_SD, PRIOR_SD, data, model
from short_runs import quiet
from torch.func import grad, jacfwd, vmap

import pyro_fed as pf
from pyro_fed.conventions import seeding
from pyro_fed.errors import SettingError
from pyro_fed.infer.langevin.trajectories import Trajectory, first_step, retuned_factor, retuned_step

SEED, CHAINS = 3, 5
PARTS = [list(range(10)), list(range(10, 25)), list(range(25, 60))]
QUIET = {"progress": False, "log_likelihood": False, "audit": False, "seed": SEED, "compile": "off"}


@functools.cache
def federation():
    return pf.Federation(model, data(), plate="data", partition=pf.partition.Explicit(PARTS))


def given(dim=3, clients=3):
    """Surrogates whose Gaussian is far from the posterior, and correlated."""
    root = np.random.default_rng(5).normal(size=(clients, dim, dim))
    precision = root @ root.transpose(0, 2, 1) + 20 * np.eye(dim)
    return pf.infer.Given(torch.tensor(precision), torch.tensor(precision[:, 0] * 0.3))


def draws_of(algorithm, fed, rounds, **options):
    """All kept draws, (M, n, D), after so many rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # short chains
        idata = pf.run(algorithm, fed, num_rounds=rounds, num_draws=10_000, **{**QUIET, **options})
    return idata.posterior["w"].values


# -- the recursion ------------------------------------------------------------------------------------------------


def test_draws_are_those_of_the_recursion_written_out():
    """Neal's Eq. (5.18)-(5.20) with his accept step, windows and tuning, on a run's own random numbers."""
    x, y = (part.numpy() for part in data())
    algorithm = pf.infer.FedHMC(num_chains=CHAINS, surrogates=given(), target_ess=10**6, length=1.3, target_accept=0.7)
    generator = seeding.torch_generator(SEED, seeding.SERVER, 0)
    shared, _ = algorithm.init(federation().problem, 3, generator, None)
    key, a = int(shared["key"]), shared["factor"].numpy()
    precision = given().precision.sum(0).numpy() + np.eye(3) / PRIOR_SD**2
    np.testing.assert_allclose(a @ a.T, np.linalg.inv(precision), rtol=1e-9)

    def f(w):
        return -((y - w @ x.T) ** 2).sum(-1) / (2 * NOISE_SD**2) - (w**2).sum(-1) / (2 * PRIOR_SD**2)

    def score(w):
        return (y - w @ x.T) @ x / NOISE_SD**2 - w / PRIOR_SD**2

    normal = torch.distributions.Normal(0.0, 1.0)

    def quantile(probability):
        return float(normal.icdf(torch.tensor(probability, dtype=torch.float64)))

    w, step = shared["position"].numpy(), (64 / 3) ** 0.25 * np.sqrt(-quantile(0.35))
    step, kept, sums, rounds, window, done = min(step, 1.5), [], 0.0, 1, 0, 0

    def numbers(number):
        source = torch.Generator().manual_seed(key + number)
        parts = [torch.rand(CHAINS, generator=source, dtype=torch.float64)]
        parts.append(torch.randn(CHAINS, 3, generator=source, dtype=torch.float64))
        parts.append(2 * torch.rand(CHAINS, 1, generator=source, dtype=torch.float64) - 1)
        return [part.numpy() for part in parts]

    for number in range(40):
        _, r, jitter = numbers(number)
        n = max(1, round(1.3 / step))
        eps = step * (1 + 0.2 * jitter)
        h, end = (r**2).sum(-1) / 2 - f(w), w
        for _ in range(n):
            r = r + eps / 2 * score(end) @ a
            end = end + eps * r @ a.T
            r = r + eps / 2 * score(end) @ a
        chance = np.exp(np.minimum(0.0, h - ((r**2).sum(-1) / 2 - f(end))))
        w = np.where((numbers(number + 1)[0] < chance)[:, None], end, w)
        kept, sums, rounds, done = [*kept, w], sums + chance.mean(), rounds + n, done + 1
        ends = done == 8 * 2**window
        if window == 0 or ends:
            observed = min(max(chance.mean() if window == 0 else sums / done, 1e-300), 1 - 1e-15)
            step *= min(max(np.sqrt(quantile(0.35) / quantile(observed / 2)), 0.5), 2.0)
            step = min(step, 1.5)
        if ends:
            recent = np.concatenate(kept[-done:])
            share = len(recent) / 4 / (len(recent) / 4 + 3)
            a = np.linalg.cholesky(share * np.cov(recent.T, bias=True) + (1 - share) * a @ a.T)
            kept, sums, window, done = kept[-done:] if window else [], 0.0, window + 1, 0
    found = draws_of(algorithm, federation(), rounds)
    assert found.shape == (CHAINS, 32, 3)  # two windows of 8 and 16 trajectories, and 16 of the third
    np.testing.assert_allclose(found, np.stack(kept, 1), rtol=1e-8)


def banana(z):
    """A log density that is no Gaussian, with a wall."""
    return -(z[0] ** 2) / 2 - (z[1] - z[0] ** 2) ** 2 - torch.cos(z[0] * z[1])


def test_a_trajectory_is_its_own_inverse_and_preserves_volume():
    factor = torch.tensor([[1.3, 0.0], [0.4, 0.7]], dtype=torch.float64)
    step, count = torch.tensor([[0.31]], dtype=torch.float64), 7
    at = lambda z: (vmap(banana)(z), vmap(grad(banana))(z))  # noqa: E731

    def end(both):
        """Place and momentum after a trajectory from (4,), and H - H'."""
        place, momentum = both[None, :2], both[None, 2:]
        value, score = at(place)
        t = Trajectory.waiting(place)._replace(value=value, score=score).launched(momentum, step, count, factor)
        while int(t.steps_left) > 1:
            t = t.stepped(at(t.point)[1], factor)
        value, score = at(t.point)
        last = t.momentum + step / 2 * score @ factor
        return torch.cat([t.point[0], last[0]]), t.energy_gain(value, score, factor)[0]

    began = torch.tensor([0.4, -0.3, 0.9, -1.1], dtype=torch.float64)
    ended, gain = end(began)
    turned = ended * torch.tensor([1.0, 1.0, -1.0, -1.0])
    back, loss = end(turned)
    assert (ended - began).abs().max() > 0.5
    torch.testing.assert_close(back * torch.tensor([1.0, 1.0, -1.0, -1.0]), began, rtol=0, atol=1e-12)
    h = [float(both[2:].square().sum() / 2 - banana(both[:2])) for both in (began, ended)]
    assert float(gain) == pytest.approx(h[0] - h[1], abs=1e-12)
    assert float(loss) == pytest.approx(-float(gain), abs=1e-12)
    assert float(torch.linalg.det(jacfwd(lambda z: end(z)[0])(began)).abs()) == pytest.approx(1.0, abs=1e-11)


def test_the_first_step_has_the_wanted_acceptance_on_a_gaussian():
    """10⁴ trajectories in 50 dimensions: Eq. (2), a leading term, gives ε within 5 %, of which 0.5 % are chance."""
    generator = torch.Generator().manual_seed(0)
    place, momentum = torch.randn(2, 10_000, 50, generator=generator, dtype=torch.float64)
    for wanted in (0.6, 0.8, 0.95):
        step = first_step(50, wanted)
        count = round(np.pi / 2 / step)
        t = Trajectory.waiting(place)._replace(value=-place.square().sum(-1) / 2, score=-place)
        eye, each = torch.eye(50, dtype=torch.float64), torch.full((10_000, 1), np.pi / 2 / count).double()
        t = t.launched(momentum, each, count, eye)
        while int(t.steps_left) > 1:
            t = t.stepped(-t.point, eye)
        gain = t.energy_gain(-t.point.square().sum(-1) / 2, -t.point, eye)
        accepted = float(gain.exp().clamp(max=1).mean())
        assert retuned_step(np.pi / 2 / count, accepted, wanted) == pytest.approx(step, rel=0.05)


def test_a_diagonal_factor_has_the_draws_variances():
    draws = torch.randn(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2.0
    full, diagonal = (retuned_factor(old, draws) for old in (torch.eye(3).double(), torch.ones(3).double()))
    torch.testing.assert_close((full @ full.T).diagonal(), diagonal.square())


def waiting_at(values):
    """Two chains of two dimensions whose densities are known, with a score that is beyond all numbers in the second."""
    score = torch.tensor([[0.3, -0.2], [1e200, 0.0]], dtype=torch.float64)
    start = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    return Trajectory.waiting(start)._replace(value=torch.tensor(values, dtype=torch.float64), score=score)


def test_a_trajectory_beyond_all_numbers_stands_still_and_diverges():
    t, eye = waiting_at([-1.0, -1.0]), torch.eye(2, dtype=torch.float64)
    begun = t.launched(torch.ones_like(t.start), torch.full((2, 1), 0.1, dtype=torch.float64), 3, eye)
    assert torch.equal(begun.point[1], t.start[1]) and not torch.equal(begun.point[0], t.start[0])
    gain = begun.stepped(t.score.clamp(max=1.0), eye).energy_gain(t.value, t.score.clamp(max=1.0), eye)
    assert float(gain[1]) == -2000 and abs(float(gain[0])) < 1


def test_chains_where_the_density_is_zero_begin_where_others_do():
    moved = waiting_at([-1.0, -float("inf")]).inside()
    assert moved.start.tolist() == [[1.0, 2.0], [1.0, 2.0]] and moved.value.tolist() == [-1.0, -1.0]
    nowhere = waiting_at([-float("inf")] * 2)
    assert nowhere.inside() is nowhere


# -- exact posteriors ---------------------------------------------------------------------------------------------


def within_four_errors(values, mean, sd, ess):
    """Means and SDs within four Monte Carlo standard errors, those of `ess` draws, of a kurtosis of at most six."""
    assert np.all(np.abs(values.mean(0) - mean) < 4 * sd / ess**0.5)
    assert np.all(np.abs(values.std(0) / sd - 1) < 4 * (5 / 4 / ess) ** 0.5)


def test_the_chain_is_that_of_a_conjugate_posterior():
    """Six numbers within four standard errors: a false alarm once in 2,600 seeds."""
    x, y = (part.numpy() for part in data())
    covariance = np.linalg.inv(x.T @ x / NOISE_SD**2 + np.eye(3) / PRIOR_SD**2)
    idata = pf.run(pf.infer.FedHMC(surrogates=given()), federation(), **{**QUIET, "compile": "auto"})
    found = idata.posterior["w"].values
    mean = covariance @ x.T @ y / NOISE_SD**2
    within_four_errors(found.reshape(-1, 3), mean, covariance.diagonal() ** 0.5, 1000)
    assert idata.attrs["converged"] == 1
    assert idata.attrs["doubts"] == ""


def curved(y):
    """Two parameters whose posterior is bent, and skewed."""
    a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=y.dtype), 1.0))
    b = pyro.sample("b", dist.Normal(a**2 / 2, 0.7))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(a + b, torch.exp(b / 2)), obs=y)


def moments_on_grid(log_density, *axes):
    """Means and SDs of a density on a grid."""
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    values = log_density(grid)
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    mean = weights @ grid
    return mean, (weights @ (grid - mean) ** 2) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_chain_is_that_of_a_bent_posterior(dtype):
    """Four numbers within four standard errors, in each dtype: a false alarm once in 2,000 seeds."""
    y = torch.tensor([0.3, 1.5, -0.4, 2.0, 0.9], dtype=dtype)

    def log_density(z):
        a, b = z.T
        rows = -((y.double().numpy()[:, None] - a - b) ** 2) / (2 * np.exp(b)) - b / 2
        return -(a**2) / 2 - (b - a**2 / 2) ** 2 / (2 * 0.49) + rows.sum(0)

    mean, sd = moments_on_grid(log_density, np.linspace(-5, 5, 601), np.linspace(-4, 8, 601))
    fed = pf.Federation(curved, (y,), plate="data", num_clients=2)
    idata = quiet(pf.infer.FedHMC(target_ess=2000, surrogates="laplace"), fed, num_rounds=5000)
    found = np.stack([idata.posterior[name].values.reshape(-1) for name in ("a", "b")], -1)
    within_four_errors(found, mean, sd, 2000)


def walled(y):
    """A scale that bounds its rows: the likelihood of one client is zero below that client's largest row."""
    scale = pyro.sample("scale", dist.Normal(y.new_zeros(()), 5.0))
    with pyro.plate("data", len(y)):
        pyro.factor("y", torch.where(y < scale, -torch.log(scale.clamp_min(1e-3)), y.new_tensor(-torch.inf)))


def test_no_draw_is_behind_a_wall():
    """One number within four standard errors: a false alarm once in 16,000 seeds."""
    y = torch.tensor([0.5, 1.0, 1.2, 0.9, 0.3, 1.1], dtype=torch.float64)
    (mean,), (sd,) = moments_on_grid(
        lambda z: np.where(z > 1.2, -6 * np.log(z.clip(1e-3)) - z**2 / 50, -np.inf)[:, 0], np.linspace(1.2, 40, 400_001)
    )
    fed = pf.Federation(walled, (y,), plate="data", num_clients=3)
    start = pf.infer.Given(torch.full((3, 1, 1), 2.0).double(), torch.full((3, 1), 3.2).double())
    idata = quiet(pf.infer.FedHMC(target_ess=200, surrogates=start), fed, num_rounds=1000)
    found = idata.posterior["scale"].values
    assert found.min() > 1.2
    assert abs(found.mean() - mean) < 4 * sd / 200**0.5


# -- a run --------------------------------------------------------------------------------------------------------


def test_clients_that_take_turns_are_refused():
    with pytest.raises(SettingError, match=re.escape("FedHMC adds up the scores of all 3 clients in every round")):
        quiet(pf.infer.FedHMC(surrogates=given()), federation(), schedule=pf.schedule.RoundRobin(), num_rounds=3)


def test_noise_of_privacy_is_refused():
    with pytest.raises(SettingError, match="FedHMC has no differential privacy"):
        quiet(pf.infer.FedHMC(surrogates=given()), federation(), combination=pf.Private(norm=1.0, noise_multiplier=1.0))


def test_a_large_model_is_refused():
    def wide(y):
        pyro.sample("w", dist.Normal(torch.zeros(5001), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    with pytest.raises(SettingError, match="FedHMC takes at most"):
        pf.explain(pf.infer.FedHMC(), pf.Federation(wide, (torch.ones(4),), plate="data", num_clients=2))


def test_the_rounds_are_said_before():
    """As many as a Gaussian posterior needs; a run on one has so many within a factor of two."""
    text = str(pf.explain(pf.infer.FedHMC(surrogates="laplace"), federation()))
    told = int(re.search(r"about (\d+) rounds, more where", text)[1])
    phases = pf.run(pf.infer.FedHMC(surrogates="laplace"), federation(), **QUIET).federation["phase"]
    rounds = int((phases == "FedHMC").sum())
    assert told / 2 < rounds < 2 * told
