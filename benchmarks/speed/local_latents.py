"""What latents inside the plate cost: processor time of a compiled Langevin step, beside the same model without them.

python -m benchmarks.speed.local_latents

"with": one effect a group, integrated out by quadrature (1 + J latents of the joint model, and their spread);
"without": no effects, the same data. "per parameter" divides each by its number of latents.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyro
import pyro.distributions as dist
import torch

import pyro_fed as pf
from pyro_fed.algorithm.contract import Start
from pyro_fed.density.compiling.compiler import Compiler
from pyro_fed.infer.sites.gaussian_sites import as_state, flat_site
from pyro_fed.ops.gaussian import FullGaussian
from pyro_fed.runtime.executors.base import Work
from pyro_fed.runtime.executors.local import Vectorised

STEPS, CLIENTS = 1000, 8


def number(value):
    """A scalar in the dtype of the computation."""
    return torch.tensor(float(value))


def population():
    """Mean and spread of the effects."""
    return pyro.sample("mu", dist.Normal(number(0), 5.0)), pyro.sample("tau", dist.HalfCauchy(number(5)))


def normal_with(sd, y):
    """Eight schools, non-centred."""
    mu, tau = population()
    with pyro.plate("group", len(sd)):
        z = pyro.sample("z", dist.Normal(number(0), 1.0))
        pyro.sample("y", dist.Normal(mu + tau * z, sd), obs=y)


def normal_without(sd, y):
    """The schools pooled."""
    mu, tau = population()
    with pyro.plate("group", len(sd)):
        pyro.sample("y", dist.Normal(mu, (sd**2 + tau**2).sqrt()), obs=y)


def binomial_with(trials, y):
    """Groups of binary outcomes, logit effects."""
    mu, tau = population()
    with pyro.plate("group", len(trials)):
        z = pyro.sample("z", dist.Normal(number(0), 1.0))
        pyro.sample("y", dist.Binomial(trials, logits=mu + tau * z), obs=y)


def binomial_without(trials, y):
    """The groups pooled."""
    mu, _ = population()
    with pyro.plate("group", len(trials)):
        pyro.sample("y", dist.Binomial(trials, logits=mu), obs=y)


def seconds_a_step(model, args, visits=3):
    """Processor seconds of one step of all chains together, the best of several visits, compiled by Inductor."""
    fed = pf.Federation(model, args, plate="group", num_clients=CLIENTS)
    algorithm, problem = pf.infer.DSGLD(local_steps=STEPS, batch_size=None), fed.problem
    problem = replace(problem, compiler=Compiler("inductor"))
    with torch.no_grad(), pyro.validation_enabled(False):
        sites = as_state(flat_site(problem, "full", CLIENTS))
        start = Start(as_state(FullGaussian.from_moments(torch.zeros(2), torch.eye(2))), sites)
        shared, local = algorithm.init(problem, CLIENTS, torch.Generator().manual_seed(0), start)
        local["ready"][:] = True  # the stability check is no part of a step
        executor, times = Vectorised(), []
        executor.start(algorithm, problem, fed.client_data(), local)
        clients = list(range(algorithm.num_chains))
        at = torch.tensor(clients)
        for visit in range(1 + visits):
            work = Work(visit, 0, clients, algorithm.download(shared, at))
            began = time.process_time()
            executor.execute(work)
            times.append(time.process_time() - began)
    return min(times[1:]) / STEPS


def main():
    """One line a model and number of groups."""
    print("model     groups   without      with    ratio   per parameter")
    for groups in (8, 80, 800):
        generator = torch.Generator().manual_seed(0)
        sd = 5 + 10 * torch.rand(groups, generator=generator, dtype=torch.float64)
        y = sd * torch.randn(groups, generator=generator, dtype=torch.float64)
        trials = torch.full((groups,), 20.0, dtype=torch.float64)
        counts = torch.randint(0, 21, (groups,), generator=generator).double()
        for name, models, args in (
            ("normal", (normal_without, normal_with), (sd, y)),
            ("binomial", (binomial_without, binomial_with), (trials, counts)),
        ):
            without, with_local = (seconds_a_step(model, args) for model in models)
            ratio = with_local / without
            print(
                f"{name:8s} {groups:7d} {1e6 * without:7.1f} us {1e6 * with_local:7.1f} us {ratio:7.1f} "
                f"{ratio * 2 / (2 + groups):10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
