"""Chains on many densities at once: exact Gaussians, Pyro's adaptation, and the tree that grows leaf by leaf."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pyro.ops.dual_averaging import DualAveraging
from pyro.ops.welford import WelfordCovariance

from pyro_fed.infer.pooled.nuts_kernel import Chains, Potential
from pyro_fed.infer.subposteriors import lanes as module
from pyro_fed.infer.subposteriors.lanes import Walk

SDS = np.array([1.0, 0.1, 5.0])


def settings(**changed):
    usual = {"num_samples": 200, "warmup_steps": 150, "target_accept_prob": 0.8, "max_tree_depth": 8}
    return Chains(**{**usual, "full_mass": False, "potential": Potential(), **changed})


def leapfrog(z, r, gradient, root, step, energy):
    """Of independent normals with SDs `SDS`, for a diagonal or a dense root of the inverse mass."""
    dense = root.ndim == 3
    half = r - 0.5 * step[:, None] * gradient
    velocity = np.einsum("lji,ljk,lk->li", root, root, half) if dense else root**2 * half
    z = z + step[:, None] * velocity
    gradient = z / SDS**2
    r = half - 0.5 * step[:, None] * gradient
    unscaled = np.einsum("lij,lj->li", root, r) if dense else root * r
    potential = 0.5 * (z * gradient).sum(-1)
    error = potential + 0.5 * (unscaled**2).sum(-1) - energy
    accepted = np.minimum(np.exp(-error), 1.0)
    return SimpleNamespace(
        z=z, r=r, unscaled=unscaled, gradient=gradient, potential=potential, error=error, acceptance=accepted
    )


def walk(how, seeds):
    start = np.stack([np.random.default_rng(seed).uniform(-2, 2, 3) for seed in seeds])
    chains = Walk(how, start, start / SDS**2, 0.5 * (start**2 / SDS**2).sum(-1), list(seeds))
    while chains.has_unfinished_lanes:
        chains.step(leapfrog, lambda _: None)
    return chains


@pytest.mark.parametrize("full_mass", [False, True])
def test_draws_of_normals_of_any_scale(full_mass):
    """Means and squares over 24 chains, by their own spread: six of t(23) beyond six standard errors once in 4·10^4."""
    chains = walk(settings(num_samples=150, warmup_steps=100, full_mass=full_mass), range(24))
    draws = chains.kept["draws"]
    for found, exact in ((draws.mean(1), 0 * SDS), ((draws**2).mean(1), SDS**2)):
        assert (abs(found.mean(0) - exact) < 6 * found.std(0, ddof=1) / 24**0.5).all()
    scales = np.linalg.norm(chains.root, axis=1) if full_mass else chains.root
    assert abs(np.log(np.median(scales, 0) / SDS)).max() < 0.3  # of some tens of draws each
    assert 0.75 < chains.kept["acceptance_rate"].mean() < 0.97 and not chains.kept["diverging"].any()
    assert (chains.kept["n_steps"] <= 2 ** chains.kept["tree_depth"] - 1).all()


def test_a_chain_does_not_depend_on_the_others():
    how = settings(num_samples=30, warmup_steps=30)
    together, alone = walk(how, [3, 4, 5]), walk(how, [4])
    np.testing.assert_array_equal(together.kept["draws"][1], alone.kept["draws"][0])


def test_each_subtree_is_checked_once_against_its_first_leaf(monkeypatch):
    """A tree of 32 leaves: its ends, and the sums in between, of all subtrees of two leaves and more."""
    seen = []

    def never(first, last, momentum):
        seen.extend((int(a[0]), int(b[0]), float(c[0])) for a, b, c in zip(first, last, momentum, strict=True))
        return np.zeros(len(first), bool)

    how = settings(warmup_steps=0)
    chains = Walk(how, np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1), [0])
    monkeypatch.setattr(module, "turning", never)
    nothing = {name: np.zeros((1, 1)) for name in ("z", "r", "gradient")}
    scalars = {name: np.zeros(1) for name in ("potential", "error", "acceptance")}
    for leaf in range(1, 33):
        chains._add(SimpleNamespace(**nothing, **scalars, unscaled=np.full((1, 1), float(leaf))), np.ones(1))
    trees = [(last - size + 1, last) for last in range(1, 33) for size in (2, 4, 8, 16, 32) if last % size == 0]
    assert sorted(seen) == sorted((first, last, float(sum(range(first, last + 1)))) for first, last in trees)


def test_adaptation_is_pyros():
    """Step sizes by dual averaging, and the root of a window's shrunk variances."""
    rng = np.random.default_rng(0)
    how = settings(warmup_steps=150)
    chains = Walk(how, np.zeros((1, 3)), np.zeros((1, 3)), np.zeros(1), [0])
    averaging = DualAveraging(prox_center=np.log(10 * 0.3))
    chains.searching[:], chains.pull[:] = False, np.log(10 * 0.3)
    (_, first), (begin, end) = chains.windows[:2]
    welford = WelfordCovariance(diagonal=True)
    for done in range(end):
        accepted = rng.uniform(size=1)
        chains.z = rng.normal(size=(1, 3)) * SDS
        chains.done[:] = done
        chains._adapt(np.arange(1), accepted)
        averaging.step(0.8 - float(accepted[0]))
        assert chains.size[0] == pytest.approx(np.exp(averaging.get_state()[0]), rel=1e-12)
        if done >= begin:
            welford.update(torch.tensor(chains.z[0]))
    chains.done[:] = end
    chains._adapt(np.arange(1), accepted)
    welford.update(torch.tensor(chains.z[0]))
    np.testing.assert_allclose(chains.root[0], welford.get_covariance(regularize=True).sqrt().numpy(), rtol=1e-12)
    assert begin == first + 1 and chains.searching.all()
