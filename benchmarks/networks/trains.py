"""Whether large networks train by default: a convolutional one of 10⁵ parameters, and a plain one of 10⁶.

    python -m benchmarks.networks.trains convolutional
    python -m benchmarks.networks.trains plain --rounds 3

The digits and the ten clients of `benchmarks.networks`, `FedEP()` from its start (40 rounds of averaging) and so many
rounds of its own; accuracy and log density on 360 rows, seconds of the processor on one thread, and the most memory
that the process had (Linux alone). The convolutional network is a plain `torch.nn.Module` with N(0, 0.3²) on all
parameters: two layers of 3 × 3 with `GroupNorm`, pooling, a layer of 80 units; the plain one has 13,333 hidden units
and N(0, 1).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroSample
from pyro.nn.module import to_pyro_module_
from torch import Tensor, nn

import pyro_fed as pf
from benchmarks.networks.__main__ import federation, quiet
from benchmarks.networks.cost import resident

PLAIN, PRIOR = 13_333, 0.3


def convolutional() -> Callable[[Tensor, Tensor], None]:
    """The model of digits as images of 8 × 8."""
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        *(nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1024, 80), nn.ReLU(), nn.Linear(80, 10)),
    )
    to_pyro_module_(net)
    for module in net.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            prior = dist.Normal(torch.zeros_like(value), PRIOR).to_event(value.dim())
            setattr(module, name, PyroSample(prior))

    def model(x: Tensor, y: Tensor) -> None:
        logits = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


def main() -> None:
    """Train one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=["convolutional", "plain"])
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.network == "plain":
        fed, test = federation(PLAIN, 0)
    else:
        fed, test = federation(1, 0, model=convolutional())
    began = time.process_time()
    with quiet():
        idata = pf.run(pf.FedEP(), fed, num_rounds=given.rounds, num_draws=20, seed=0, progress=False)
    seconds, peak = time.process_time() - began, resident("VmHWM") / 1e9
    found = pf.metrics.test_metrics(idata, fed, test)
    print(
        f"{given.network}, {fed.problem.dim:,} parameters, {given.rounds} rounds: accuracy {found['accuracy']:.3f}, "
        f"log density {found['log_predictive_density']:.3f}, {seconds:.0f} s, {peak:.2f} GB"
    )


if __name__ == "__main__":
    main()
