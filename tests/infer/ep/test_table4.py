"""Table 4 of Guo et al. on 20 draws, and what it says of FedPA and FedAvg; Eq. 3 against its recursion in NumPy."""

import numpy as np
import pytest
from late import late

table4 = late("benchmarks.papers.table4")


@pytest.fixture(scope="module")
def found():
    answers = table4.answers(20, ("FedPA", "FedEP"))
    return {name: distance for name, (distance, _) in answers.items()}


def test_fedep_finds_the_true_mean(found):
    assert float(found["FedEP"].mean()) <= 1e-6


def moment_matching(means, covariances, rounds):
    """Mean and variances of q after parallel rounds of Eq. 3, diagonal sites and a prior of precision 1e-8.

    A client takes the moments of cavity × likelihood, both Gaussian, and keeps the variances.
    """
    precision, eta = np.zeros((2, 2)), np.zeros((2, 2))
    prior, likelihood = table4.FLAT_SD**-2, np.linalg.inv(covariances)
    for _ in range(rounds):
        other, pull = prior + precision[::-1], eta[::-1]  # with two clients: the prior and the other's site
        covariance = np.linalg.inv(likelihood + other[:, None] * np.eye(2))
        mean = np.einsum("kij,kj->ki", covariance, np.einsum("kij,kj->ki", likelihood, means) + pull)
        variance = covariance.diagonal(axis1=1, axis2=2)
        precision, eta = 1 / variance - other, mean / variance - pull
    total = prior + precision.sum(0)
    return eta.sum(0) / total, 1 / total


@pytest.mark.parametrize("draw", range(3))
def test_moments_of_the_tilted_density_are_equation_3(draw):
    """Round by round the recursion, and in the end the true mean: the other divergence has that too, sooner."""
    means, covariances = (part[:, draw] for part in table4.draw_clients(3, seed=1))
    algorithm, _ = table4.METHODS[table4.MOMENTS]
    fed = table4.federation(means, covariances)
    with pytest.warns(UserWarning, match="not converged after 6 rounds"):
        mean, variance = table4.gaussian_answer(algorithm, fed, num_rounds=6)
    wanted = moment_matching(means.numpy(), covariances.numpy(), 6)
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-9)
    np.testing.assert_allclose(variance, wanted[1], rtol=1e-9)
    truth = table4.true_mean(means, covariances).numpy()
    assert np.abs(moment_matching(means.numpy(), covariances.numpy(), 3000)[0] - truth).max() < 1e-6


def test_one_shot_methods_are_biased_and_fedpa_less_than_fedavg(found):
    """Means over 20 draws; the paper has 0.26 and 0.54 over 200."""
    assert 0.1 < float(found["FedPA"].mean()) < float(found["FedAvg"].mean()) < 1.5
