"""The change of the free energy by SVGD: closed forms for Gaussians, finite differences, and that it falls."""

import numpy as np
import pytest
import torch
from conjugate import QUIET, data, exact, federation, model

import pyro_fed as pf
from pyro_fed.errors import SettingError
from pyro_fed.infer.stein.particles import entropy_gain
from pyro_fed.ops.kernels import MEDIAN_RBF, Linear
from pyro_fed.ops.stein import ksd, svgd_direction

#: AdaGrad's step with a fudge that outweighs its history: 0.002 everywhere.
EVEN = {"step_size": 2e9, "fudge": 1e12, "momentum": 0.0}


def cloud(count=30, dim=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64)


def scores(particles):
    return -2.0 * (particles - 0.3)


def test_the_gain_is_that_of_the_map_by_finite_differences():
    particles, rates, width = cloud(), 0.05 + 0.1 * cloud(3).abs().mean(), 1e-6
    fitted = MEDIAN_RBF.fit(particles, scores(particles))

    def mapped(points):
        return points + rates * fitted.velocity(points, particles, scores(particles))

    shifts = width * torch.eye(3, dtype=torch.float64)
    slopes = torch.stack(
        [(mapped(particles + shift) - mapped(particles - shift)) / (2 * width) for shift in shifts], -1
    )
    expected = torch.linalg.slogdet(slopes)[1].mean()
    found = entropy_gain(particles, scores(particles), MEDIAN_RBF, rates)
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("kernel", [MEDIAN_RBF, Linear()], ids=["rbf", "linear"])
def test_the_free_energy_falls_at_the_rate_of_the_discrepancy(kernel):
    """dF/dε = -S(q, p̃), the lemma that the bounds of both papers rest on."""
    particles, width = cloud(), 1e-6
    direction = svgd_direction(particles, scores(particles), kernel)

    def free(step):
        moved = particles + step * direction
        return (moved - 0.3).square().sum(-1).mean() - entropy_gain(particles, scores(particles), kernel, step)

    rate = float(free(width) - free(-width)) / (2 * width)
    assert rate == pytest.approx(-float(ksd(particles, scores(particles), kernel)), rel=1e-6)


def divergence(particles):
    """KL(N(m, C) ‖ posterior) of the particles' own moments."""
    mean, covariance = exact(*data())
    precision, away = torch.linalg.inv(covariance), particles.mean(0) - mean
    own = torch.cov(particles.T, correction=0)
    return 0.5 * float(
        (precision @ own).trace() + away @ precision @ away - len(mean) - torch.logdet(own) + torch.logdet(covariance)
    )


def watched(algorithm, **options):
    """The particles at the end of every round, and the run's record."""
    seen = []

    def keep(idata):
        seen.append(torch.as_tensor(idata.posterior["w"].values[0]))
        return {}

    with pytest.warns(UserWarning):  # not at rest after so few steps
        idata = pf.run(algorithm, federation(), evaluate=keep, **{**QUIET, **options})
    return seen, idata["federation"]


def test_with_a_linear_kernel_it_is_the_change_of_a_gaussians_divergence():
    """The map is affine: what the density of the particles' moments becomes is the Gaussian of their new ones."""
    algorithm = pf.papers.PaperSVGD(kernel=Linear(), num_particles=40, local_steps=10, entropy=True, **EVEN)
    particles, record = watched(algorithm, num_rounds=4)
    falls = np.diff([divergence(part) for part in particles])
    found = record["free_energy_change"].values[:, 0]
    np.testing.assert_allclose(found[1:], falls, rtol=1e-5)
    assert (found < 0).all()


@pytest.mark.parametrize("settings", [(pf.DSVGD, {"start": "prior"}), (pf.papers.UDSVGD, {"kde_floor": 0.0})])
def test_the_global_free_energy_falls_over_the_clients_turns(settings):
    """F = E_q[-log p_0 p] - H[q], with all clients' losses, falls in every turn at a small step.

    Theorem 2 is about U-DSVGD; its bound, which has a supremum over all θ, is not computed.
    """
    problem, (kind, own) = federation().problem, settings
    algorithm = kind(num_particles=30, local_steps=10, step_size=0.01, entropy=True, **own)
    particles, record = watched(algorithm, num_rounds=8)
    energy = [-float((problem.log_prior(part) + problem.log_lik(part)).mean()) for part in particles]
    gains = record["entropy_gain"].values
    gains = gains[~np.isnan(gains)]
    assert len(gains) == 8
    assert (np.diff(energy) - gains[1:] < 0).all()


def test_what_is_measured_changes_nothing():
    runs = []
    for entropy in (False, True):
        algorithm = pf.papers.UDSVGD(num_particles=10, local_steps=5, entropy=entropy)
        with pytest.warns(UserWarning):
            runs.append(pf.run(algorithm, federation(), num_rounds=4, **QUIET))
    np.testing.assert_array_equal(*(run.posterior["w"].values for run in runs))
    assert "entropy_gain" in runs[1]["federation"] and "entropy_gain" not in runs[0]["federation"]


@pytest.mark.parametrize("kind", [pf.infer.ParallelDSVGD, pf.papers.PaperParallelDSVGD])
def test_forms_that_have_no_single_map_refuse(kind):
    with pytest.raises(SettingError, match="entropy=True has no effect"):
        kind(entropy=True)


def advantages(rule, fed):
    """Δ of each round over ε: the bound's mean under the schedule's probabilities less that under equal ones."""
    seen = []

    class Watched(rule):
        def choose(self, importance, rng):
            seen.append(importance)
            return super().choose(importance, rng)

    algorithm = pf.papers.PaperDSVGD(num_particles=10, local_steps=5, distill_steps=5)
    with pytest.warns(UserWarning):  # so short a run
        pf.run(algorithm, fed, schedule=Watched(), num_rounds=5, **QUIET)
    return [float((each / each.sum()) @ each - each.mean()) / each.mean() for each in seen]


@pytest.mark.parametrize("rule", [pf.schedule.KSD, pf.schedule.HIP])
def test_selection_has_the_tighter_bound(rule):
    """Δ_KSD and Δ_HIP of Eq. (18) and (25): positive where clients differ, zero where they are the same."""
    assert min(advantages(rule, federation())) > 1e-3
    x, y = data()
    with pytest.warns(UserWarning, match="identical data"):
        same = pf.Federation.from_clients(model, [(x, y)] * 3, plate="data")
    assert abs(advantages(rule, same)[0]) < 1e-12
