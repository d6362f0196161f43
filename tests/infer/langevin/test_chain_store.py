"""Long chains are judged by some of their draws, to the same verdict."""

import numpy as np
import torch

from pyro_fed.infer.langevin.chains import JUDGED_DRAWS, ChainStore, Draws
from pyro_fed.ops.arviz_versions import ess, rhat


def autoregressive(chains, draws, correlations):
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(chains, draws, len(correlations)))
    path = np.zeros_like(noise)
    for t in range(1, draws):
        path[:, t] = correlations * path[:, t - 1] + np.sqrt(1 - correlations**2) * noise[:, t]
    return torch.from_numpy(path)


def test_effective_draws_of_the_slowest_coordinate_are_those_of_all_draws():
    draws = autoregressive(3, 3 * JUDGED_DRAWS, np.array([0.0, 0.9, 0.98]))
    found = ChainStore.begin(draws[:, 0]).append(Draws(draws, *[draws[..., 0]] * 3))
    want = ess(draws.numpy()).min()
    assert abs(float(found.ess) / want - 1) < 0.05
    assert abs(float(found.r_hat) - rhat(draws.numpy()).max()) < 0.005


def test_as_many_draws_are_judged_as_a_large_target_needs():
    draws = autoregressive(2, 2 * JUDGED_DRAWS, np.array([0.0, 0.1]))
    more = Draws(draws, *[draws[..., 0]] * 3)
    for wanted, all_of_them in ((None, False), (4 * JUDGED_DRAWS, True)):
        found = float(ChainStore.begin(draws[:, 0]).append(more, wanted).ess)
        assert (found > 2.5 * JUDGED_DRAWS) == all_of_them
