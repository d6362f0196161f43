"""Consensus Monte Carlo by Pyro's NUTS at each client (Scott et al. 2016), averages by inverse covariances.

Every client samples its rows' likelihood times the prior to the power 1/K; the server averages the draws, W_k the
inverse sample covariance, on the unconstrained scale: x = (Σ W_k)⁻¹ Σ W_k x_k. One round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.poutine.messenger import Messenger
from torch.distributions import biject_to

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

DRAWS, WARMUP = 400, 200


class _Prior(Messenger):
    """Raise the density of each latent to a power."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def _pyro_sample(self, msg: Any) -> None:
        if not msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.power


def run(model: Any, clients: Clients) -> Any:
    """One chain a client, then the weighted average."""

    def part(*args: Any) -> Any:
        with _Prior(1 / len(clients)):
            return model(*args)

    chains, supports = [], _supports(model, clients)
    for args in clients:
        kernel = NUTS(part, full_mass=True, jit_compile=True, ignore_jit_warnings=True)
        mcmc = MCMC(kernel, num_samples=DRAWS, warmup_steps=WARMUP, disable_progbar=True)
        mcmc.run(*args)
        samples = mcmc.get_samples()
        chains.append({name: biject_to(support).inv(samples[name]) for name, support in supports.items()})
    shapes = {name: value.shape for name, value in chains[0].items()}
    if any(value.shape != shapes[name] for chain in chains for name, value in chain.items()):
        raise ValueError("a site has another shape at each client: latents of rows have no average")
    flat = torch.stack([torch.cat([v.reshape(DRAWS, -1) for v in chain.values()], 1) for chain in chains])
    weights = torch.stack([torch.linalg.inv(torch.cov(one.T).reshape(one.shape[1], -1)) for one in flat])
    average = torch.linalg.solve(weights.sum(0), torch.einsum("kij,ksj->is", weights, flat)).T
    draws, start = {}, 0
    for name, support in supports.items():
        count = math.prod(shapes[name][1:])
        draws[name] = biject_to(support)(average[:, start : start + count].reshape(shapes[name]))[None]
        start += count
    sent = flat.nelement() * flat.element_size()
    settings = f"{DRAWS} draws after {WARMUP} at each client"
    return clients.result(draws, draws_are="independent", rounds=1, bytes_sent=sent, settings=settings)


def _supports(model: Any, clients: Clients) -> dict[str, Any]:
    """Supports of the latents, by site."""
    trace = poutine.trace(model).get_trace(*clients[0])
    return {
        name: site["fn"].support
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and type(site["fn"]).__name__ != "_Subsample"
    }
