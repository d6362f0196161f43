"""What one-shot methods share: each client's own posterior, on the unconstrained scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.infer.mcmc.util import initialize_model
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import biject_to

if TYPE_CHECKING:
    from pyro_fed.analysis.bench.clients import Clients

DRAWS, WARMUP = 400, 200


class Subposteriors:
    """The clients' unconstrained draws (K, S, D), and the way back to an answer."""

    def __init__(self, model: Any, clients: Clients, draws: Tensor) -> None:
        self.model, self.clients, self.draws = model, clients, draws

    def result(self, answer: Tensor, bytes_sent: int | None = None, settings: str = "") -> Any:
        """The result of unconstrained draws of the answer, (S, D); each client has sent its own draws by default."""
        draws, start = {}, 0
        for name, (support, shape) in latents(self.model, self.clients[0]).items():
            transform = biject_to(support)
            inner = transform.inverse_shape(shape)
            part = answer[:, start : start + math.prod(inner)]
            draws[name] = transform(part.reshape(len(answer), *inner))[None]
            start += math.prod(inner)
        sent = self.draws.nelement() * self.draws.element_size() if bytes_sent is None else bytes_sent
        settings = settings or f"{DRAWS} draws after {WARMUP} at each client"
        return self.clients.result(draws, draws_are="independent", rounds=1, bytes_sent=sent, settings=settings)


class _Powers(Messenger):
    """Raise the densities of the rows' observations, and all others, to powers."""

    def __init__(self, prior: float, likelihood: float) -> None:
        super().__init__()
        self.prior, self.likelihood = prior, likelihood

    def _pyro_sample(self, msg: Any) -> None:
        of_rows = msg["is_observed"] and msg["cond_indep_stack"]  # what is observed outside of plates is the prior's
        msg["scale"] = msg["scale"] * (self.likelihood if of_rows else self.prior)


def tempered_model(model: Any, prior: float, likelihood: float) -> Any:
    """The model with powers of its prior and of its likelihood."""

    def part(*args: Any) -> Any:
        with _Powers(prior, likelihood):
            return model(*args)

    return part


def latents(model: Any, args: Any) -> dict[str, tuple[Any, torch.Size]]:
    """Support and shape of each latent site, in the order of the model."""
    return {
        name: (site["fn"].support, site["value"].shape)
        for name, site in poutine.trace(model).get_trace(*args).nodes.items()
        if site["type"] == "sample" and not site["is_observed"] and type(site["fn"]).__name__ != "_Subsample"
    }


def _flat(values: dict[str, Tensor], sites: dict[str, tuple[Any, torch.Size]], lead: int) -> Tensor:
    """Constrained values with so many leading axes as unconstrained vectors, (*lead, D)."""
    parts = [biject_to(support).inv(values[name]) for name, (support, _) in sites.items()]
    return torch.cat([part.reshape(*part.shape[:lead], -1) for part in parts], -1)


def _check_shapes(model: Any, clients: Clients) -> None:
    shapes = [[shape for _, shape in latents(model, args).values()] for args in clients]
    if any(one != shapes[0] for one in shapes):
        raise ValueError("a site has another shape at each client: latents of rows have no average")


def nuts_at_clients(
    model: Any, clients: Clients, *, prior: float = 1.0, likelihood: Sequence[float] = ()
) -> Subposteriors:
    """One chain of Pyro's NUTS a client, on its rows' likelihood, each to its power, and the prior to its own."""
    _check_shapes(model, clients)
    sites, chains = latents(model, clients[0]), []
    for args, power in zip(clients, likelihood or [1.0] * len(clients), strict=True):
        kernel = NUTS(tempered_model(model, prior, power), full_mass=True, jit_compile=True, ignore_jit_warnings=True)
        mcmc = MCMC(kernel, num_samples=DRAWS, warmup_steps=WARMUP, disable_progbar=True)
        mcmc.run(*args)
        chains.append(_flat(mcmc.get_samples(), sites, 1))
    return Subposteriors(model, clients, torch.stack(chains))


def inverse_covariances(draws: Tensor) -> Tensor:
    """Of each client's draws (K, S, D), (K, D, D)."""
    return torch.stack([torch.linalg.inv(torch.cov(one.T).reshape(one.shape[1], -1)) for one in draws])


def densities(model: Any, clients: Clients, *, prior: float) -> Iterator[tuple[Callable[[Tensor], Tensor], Tensor]]:
    """Each client's negative log density of unconstrained vectors (D,), and a start where it is finite."""
    _check_shapes(model, clients)
    for args in clients:
        start, potential, *_ = initialize_model(tempered_model(model, prior, 1.0), model_args=args)
        shapes = {name: value.shape for name, value in start.items()}

        def of_vector(z: Tensor, potential: Any = potential, shapes: Any = shapes) -> Tensor:
            parts = z.split([math.prod(shape) for shape in shapes.values()])
            value: Tensor = potential(
                {name: part.reshape(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
            )
            return value

        yield of_vector, torch.cat([value.detach().reshape(-1) for value in start.values()])
