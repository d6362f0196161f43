"""The first run of a model: all rows, with Pyro's validation, at a point that later checks can use.

It gives the plates' sizes, the sites, and, if nothing is enumerated, the densities that `factorisation` compares with
those of some rows. The point is near zero, but not at it, where much of a model does not show: at w = 0 a regression is
the same whatever its covariates. If distributions are not defined there, such as a Beta by a mean and an SD that is too
large, the point is a draw of the priors at which they are.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.linalg import LinAlgError  # type: ignore[attr-defined]  # it is there

from pyro_fed.density.bound import RowDensities
from pyro_fed.density.checks.lookups import NegativeLookups
from pyro_fed.density.checks.points import MAX_PRIOR_DRAW, MAX_TRIES, NEAR_ZERO_SD, RADIUS
from pyro_fed.density.layout import Site
from pyro_fed.density.running.handlers import Execution, Source
from pyro_fed.density.running.trace_sites import Message, unconstraining
from pyro_fed.errors import ModelError, PyroFedError

#: The warning of `pyro.module` on each frozen weight at every run of the model: it is not a parameter, as intended.
FROZEN = r".* was not registered in the param store because requires_grad=False"


def check_modules(model: Callable[..., Any]) -> None:
    """Refuse batch normalisation by the batch at hand, in a module or in one that a function refers to."""
    for module in _modules_of(model):
        if any(not weight.requires_grad for weight in module.parameters()):
            warnings.filterwarnings("ignore", FROZEN, UserWarning)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not layer.track_running_stats):
                raise ModelError(
                    f"layer '{name or type(layer).__name__}' of the model is a {type(layer).__name__}, which scales a "
                    "row by the mean and SD of the rows that happen to stand beside it, others at each client: the "
                    "likelihood is no product over rows. Take a GroupNorm or LayerNorm, which look at the row alone, "
                    "or hold its statistics fixed, by the module's .eval()"
                )


def _modules_of(model: Callable[..., Any]) -> Iterator[nn.Module]:
    """The model if it is a module, the module whose method it is, and those that a function refers to."""
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(model):
        found = inspect.getclosurevars(model)
        yield from (value for value in {**found.globals, **found.nonlocals}.values() if isinstance(value, nn.Module))


class FirstRun(NamedTuple):
    """A run of the model on all of its rows."""

    execution: Execution  # its trace and the plates that it declared
    point: dict[str, Tensor]  # unconstrained values of the latent sites, in the order in which the model met them
    spread: float  # of that point; 0 is zero


@contextmanager
def refusing_writes(names: Sequence[str], leaves: Sequence[Any]) -> Iterator[None]:
    """Refuse a model that changes one of its arguments in place, which every run would change again."""
    tensors = {name: leaf for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, Tensor)}
    versions = {name: leaf._version for name, leaf in tensors.items() if not leaf.is_inference()}
    yield
    if written := [name for name, before in versions.items() if tensors[name]._version != before]:
        raise ModelError(
            f"the model writes to its argument '{written[0]}', so that each run would start from what the one before "
            "has left: make a new tensor, such as x = x * 2 in place of x *= 2 or x.mul_(2), or x = x.clone() before "
            "x[:, 0] = 0"
        )


def first_run(run: Callable[[Source], Execution], dtype: torch.dtype) -> FirstRun:
    """A validated run near zero; at zero or a draw of the priors if that is refused (such as p + q < 1)."""
    try:
        return _run_at(run, NEAR_ZERO_SD, dtype)
    except PyroFedError:
        raise
    except (ValueError, RuntimeError) as near:
        try:
            return _run_at(run, 0.0, dtype)
        except PyroFedError:
            raise
        except (ValueError, LinAlgError):
            found = _at_a_prior_draw(run, dtype)
            if found is None:
                raise near from None
            return found


def prior_draw(msg: Message, transform: Any) -> Tensor:
    """An unconstrained draw of the prior of a site's message; near zero if its prior cannot be drawn from."""
    shape = transform.inverse_shape(msg["fn"].shape())
    try:
        drawn: Tensor = transform.inv(msg["fn"].sample())
    except (NotImplementedError, RuntimeError, ValueError):  # such as an improper prior
        return torch.randn(shape)
    return drawn.nan_to_num(0.0).clamp(-MAX_PRIOR_DRAW, MAX_PRIOR_DRAW)


def _at_a_prior_draw(run: Callable[[Source], Execution], dtype: torch.dtype) -> FirstRun | None:
    """A run at the first draw of the priors at which the model is defined; None if there is none."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for _ in range(MAX_TRIES):
            with suppress(ValueError, LinAlgError):
                return _run(run, lambda msg, transform: prior_draw(msg, transform).to(dtype), 1.0)
    return None


def _run_at(run: Callable[[Source], Execution], spread: float, dtype: torch.dtype) -> FirstRun:
    generator = torch.Generator().manual_seed(0)

    def value_near_zero(msg: Message, transform: Any) -> Tensor:
        shape = transform.inverse_shape(msg["fn"].shape())
        return spread * torch.randn(shape, generator=generator, dtype=dtype)

    return _run(run, value_near_zero, spread)


def _run(run: Callable[[Source], Execution], latent: Source, spread: float) -> FirstRun:
    point: dict[str, Tensor] = {}

    def source(msg: Message, transform: Any) -> Tensor:
        point[msg["name"]] = latent(msg, transform)
        return point[msg["name"]]

    with NegativeLookups() as lookups:
        execution = run(source)
    lookups.warn()
    return FirstRun(execution, point, spread)


def points(problem: RowDensities, initial_run: FirstRun) -> Tensor:
    """Three unconstrained points (3, D), float64: near zero, within `RADIUS` of it, and a draw of the priors.

    The priors are those of the first run: a prior whose parameters are latents is used with these near zero. If the
    first run was spread, the first point is its own.
    """
    generator = torch.Generator().manual_seed(0)
    near = NEAR_ZERO_SD * torch.randn(problem.dim, generator=generator, dtype=torch.float64)
    if initial_run.spread:
        near = torch.cat([near[:0], *(initial_run.point[name].flatten().double() for name in problem.sites)])
    middle, far = (
        torch.cat([near[:0], *(_draw(initial_run, site, generator) for site in problem.sites.values())])
        for _ in range(2)
    )
    return torch.stack([near, middle.clamp(-RADIUS, RADIUS), far.clamp(-MAX_PRIOR_DRAW, MAX_PRIOR_DRAW)])


def _draw(initial_run: FirstRun, site: Site, generator: torch.Generator) -> Tensor:
    """A draw of a site's prior, unconstrained and flat; uniform if it cannot be drawn from."""
    msg = initial_run.execution.trace.nodes[site.name]
    uniform = RADIUS * (2 * torch.rand(site.size, generator=generator, dtype=torch.float64) - 1)
    with torch.random.fork_rng(devices=[]):  # torch.manual_seed would ask every kind of device, for 0.3 ms
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            drawn = unconstraining(msg).inv(msg["fn"].sample()).flatten().double()
        except (NotImplementedError, RuntimeError, ValueError):  # such as an improper prior
            return uniform
    return torch.where(drawn.isfinite(), drawn, uniform)


def local_points(problem: RowDensities, initial_run: FirstRun, at: Tensor) -> Tensor:
    """Unconstrained latents (3, n, d), float64, of the rows with numbers `at` (n,), at the three points."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, len(at), problem.local_dim, generator=generator, dtype=torch.float64)
    drawn[0] *= NEAR_ZERO_SD
    if initial_run.spread:
        own: list[Any] = [site.by_rows(initial_run.point[name])[at] for name, site in problem.layout.local.items()]
        drawn[0] = torch.cat([drawn[0, :, :0], *own], -1)
    return drawn
