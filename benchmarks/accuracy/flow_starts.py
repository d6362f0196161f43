"""Where flows end that begin at their own start, and at FedEP's Gaussian: the KL divergence to a banana and a funnel.

    python -m benchmarks.accuracy.flow_starts [--seeds 5] [--steps 2000]

Two of `AutoIAFNormal`'s affine autoregressive transforms with 12 hidden units, fitted to all rows as by `SFVI`: two
draws a step, Adam at 0.02 with betas 0.9 and 0.99, the rate falling tenfold in the second half of the steps, whose
parameters are averaged. A seed decides the weights at the start and the random numbers of the steps. "From the
Gaussian" makes the first half of the steps towards the Gaussian of FedEP's draws, in place of the posterior. KL
divergences are by 8,000 draws and the evidence on a grid.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import pyro_fed as pf
from benchmarks.helpers.guide_cases import BANANA, F64, FUNNEL, OPTIONS, banana_log_density, funnel_log_density
from benchmarks.helpers.tables import heading, row

DRAWS, RATE, FINAL = 2, 0.02, 0.1
LogDensity = Callable[[Tensor], Tensor]


def fitted_kl(seed: int, steps: int, first: LogDensity, log_density: LogDensity, evidence: float) -> float:
    """KL(flow ‖ posterior) of the flow that makes the first half of its steps towards the log density `first`."""
    torch.manual_seed(seed)
    flow = dist.transforms.iterated(2, dist.transforms.affine_autoregressive, 2, hidden_dims=[12])
    module = torch.nn.ModuleList(list(flow.parts)).double()
    leaves = list(module.parameters())
    optimiser = torch.optim.Adam(leaves, lr=RATE, betas=(0.9, 0.99))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: FINAL ** max(0.0, 2 * step / steps - 1))

    def draws(count: int) -> tuple[Tensor, Tensor]:
        z = torch.randn(count, 2, dtype=F64)
        log_q = dist.Normal(0.0, 1.0).log_prob(z).sum(1)
        for part in flow.parts:
            before, z = z, part(z)
            log_q = log_q - part.log_abs_det_jacobian(before, z).reshape(count, -1).sum(1)
        return z, log_q

    total = torch.zeros(sum(leaf.numel() for leaf in leaves), dtype=F64)
    for step in range(steps):
        z, log_q = draws(DRAWS)
        loss = (log_q - (first if step < steps // 2 else log_density)(z)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
        if step >= steps // 2:
            total += torch.nn.utils.parameters_to_vector(leaves).detach()
    torch.nn.utils.vector_to_parameters(total / (steps - steps // 2), leaves)
    with torch.no_grad():
        z, log_q = draws(8000)
        return evidence + float((log_q - log_density(z)).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pyro.enable_validation(False)
    print(heading("posterior", "seed", "KL from its own start", "KL from the Gaussian"), flush=True)
    cases = (("banana", BANANA, banana_log_density), ("funnel", FUNNEL, funnel_log_density))
    for name, (model, data, exact), log_density in cases:
        fed = pf.Federation(model, data, plate="data", num_clients=min(5, len(data[0]) // 2), dtype=F64)
        posterior = pf.run(pf.FedEP(), fed, **OPTIONS)["posterior"]
        points = torch.stack([torch.as_tensor(posterior[site].values[0]) for site in fed.problem.sites], 1)
        gaussian = dist.MultivariateNormal(points.mean(0), torch.cov(points.T), validate_args=False)
        firsts, evidence = (log_density, gaussian.log_prob), exact()[2]
        for seed in range(options.seeds):
            ends = [fitted_kl(seed, options.steps, first, log_density, evidence) for first in firsts]
            print(row(name, str(seed), *(f"{one:.3f}" for one in ends)), flush=True)


if __name__ == "__main__":
    main()
