"""How far a client has moved its chain: its visit's end from that of the same visit to the surrogates."""

import pytest
import torch

import pyro_fed as pf
from pyro_fed.algorithm.contributions import SentMessages

STEPS, SIZE = 3, 0.3
MEAN = torch.tensor([1.0, -2.0], dtype=torch.float64)
ROOTS = {
    "dense": torch.tensor([[2.0, 1.0], [0.0, 0.1]], dtype=torch.float64),
    "diagonal": torch.tensor([5.0, 0.1], dtype=torch.float64),
}


@pytest.mark.parametrize("structure", ROOTS)
@pytest.mark.parametrize("midpoint", [True, False])
@pytest.mark.parametrize("kind", [pf.FSGLD, pf.infer.FALD])
def test_a_visit_to_the_surrogates_is_no_shift_and_one_beyond_is_its_distance_in_sds(structure, midpoint, kind):
    root = ROOTS[structure]
    matrix = root if root.dim() == 2 else root.diag()
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(STEPS, 2, 2, generator=generator, dtype=torch.float64)
    start = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    end = start
    for noise in normal:
        at = end + 0.5 * SIZE**0.5 * noise if midpoint else end
        end = end - 0.5 * SIZE * at + SIZE**0.5 * noise
    beyond = torch.tensor([0.0, 1.5], dtype=torch.float64)
    ends = MEAN + end @ matrix.T + beyond[:, None] * matrix.norm(dim=1)
    shared = {
        "position": MEAN + start @ matrix.T,
        "held_mean": MEAN,
        "held_root": root,
        "steps": torch.tensor(0),
        "step_size": torch.tensor(SIZE, dtype=torch.float64),
        "visit_share": torch.full((2,), 0.5, dtype=torch.float64),
    }
    step = pf.infer.step.Fixed(size=SIZE, midpoint=midpoint)
    contributions = kind(num_chains=2, local_steps=STEPS, thin=STEPS, step=step).contributions()
    clients, noise = torch.arange(2), {"normal": normal}
    one = contributions.client_shift_sds(shared, {}, SentMessages({"position": ends}, clients, 0, 0, noise=noise))
    torch.testing.assert_close(one, beyond, rtol=1e-12, atol=1e-12)
    sent = SentMessages({"position": ends[None]}, clients[None], 0, 0, noise=noise)
    several = contributions.client_shift_sds_of_rounds([shared], {}, sent)
    torch.testing.assert_close(several, beyond[None], rtol=1e-12, atol=1e-12)
