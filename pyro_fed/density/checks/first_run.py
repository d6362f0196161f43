"""The first run of a model, on all rows with Pyro's validation, at a point for later checks.

It shows the plates' sizes, the sites, and, without enumeration, the densities that `factorisation` compares with those
of some rows. The point is near zero, not at zero, where a dependence may vanish: at w = 0 a regression does not depend
on its covariates. If distributions are not defined there, such as a Beta with a mean and too large an SD, the point is
a draw of the priors at which they are defined.
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

#: The warning of `pyro.module` on a frozen weight at every run of the model: such a weight is intentionally constant.
FROZEN = r".* was not registered in the param store because requires_grad=False"


def check_modules(model: Callable[..., Any]) -> None:
    """Refuse batch normalisation by the current batch, in a module or in one that a function refers to."""
    for module in _modules_of(model):
        if any(not weight.requires_grad for weight in module.parameters()):
            warnings.filterwarnings("ignore", FROZEN, UserWarning)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or not layer.track_running_stats):
                raise ModelError(
                    f"layer '{name or type(layer).__name__}' of the model is a {type(layer).__name__}, which scales a "
                    "row by the mean and SD of the other rows in its batch, which differ between clients: the "
                    "likelihood is not a product over rows. Use a GroupNorm or LayerNorm, which depend on one row, "
                    "or fix its statistics by the module's .eval()"
                )


def _modules_of(model: Callable[..., Any]) -> Iterator[nn.Module]:
    """The model if it is a module, the module whose method it is, and those that a function refers to."""
    owner = getattr(model, "__self__", model)
    if isinstance(owner, nn.Module):
        yield owner
    elif inspect.isfunction(model):
        variables = inspect.getclosurevars(model)
        yield from (
            value for value in {**variables.globals, **variables.nonlocals}.values() if isinstance(value, nn.Module)
        )


class FirstRun(NamedTuple):
    """A run of the model on all of its rows."""

    execution: Execution  # its trace and the plates that it declared
    point: dict[str, Tensor]  # unconstrained values of the latent sites, in the order of the model
    spread: float  # of that point; 0 is zero


@contextmanager
def refusing_writes(names: Sequence[str], leaves: Sequence[Any]) -> Iterator[None]:
    """Refuse a model that changes one of its arguments in place, since every run would change it again."""
    tensors = {name: leaf for name, leaf in zip(names, leaves, strict=True) if isinstance(leaf, Tensor)}
    versions = {name: leaf._version for name, leaf in tensors.items() if not leaf.is_inference()}
    yield
    if changed_names := [name for name, version in versions.items() if tensors[name]._version != version]:
        raise ModelError(
            f"the model writes to its argument '{changed_names[0]}', so that each run would start from the values of "
            "the previous run: make a new tensor, such as x = x * 2 in place of x *= 2 or x.mul_(2), or x = x.clone() "
            "before x[:, 0] = 0"
        )


def first_run(run: Callable[[Source], Execution], dtype: torch.dtype) -> FirstRun:
    """A validated run near zero, or at zero or a draw of the priors if that fails (such as p + q < 1)."""
    try:
        return _run_near_zero(run, NEAR_ZERO_SD, dtype)
    except PyroFedError:
        raise
    except (ValueError, RuntimeError) as near:
        try:
            return _run_near_zero(run, 0.0, dtype)
        except PyroFedError:
            raise
        except (ValueError, LinAlgError):
            run_at_draw = _at_a_prior_draw(run, dtype)
            if run_at_draw is None:
                raise near from None
            return run_at_draw


def prior_draw(msg: Message, transform: Any) -> Tensor:
    """An unconstrained draw of the prior of a site's message; standard normal if the prior cannot be sampled."""
    shape = transform.inverse_shape(msg["fn"].shape())
    try:
        value: Tensor = transform.inv(msg["fn"].sample())
    except (NotImplementedError, RuntimeError, ValueError):  # such as an improper prior
        return torch.randn(shape)
    return value.nan_to_num(0.0).clamp(-MAX_PRIOR_DRAW, MAX_PRIOR_DRAW)


def _at_a_prior_draw(run: Callable[[Source], Execution], dtype: torch.dtype) -> FirstRun | None:
    """A run at the first draw of the priors at which the model is defined; None if there is none."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for _ in range(MAX_TRIES):
            with suppress(ValueError, LinAlgError):
                return _run(run, lambda msg, transform: prior_draw(msg, transform).to(dtype), 1.0)
    return None


def _run_near_zero(run: Callable[[Source], Execution], spread: float, dtype: torch.dtype) -> FirstRun:
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
    first run was at a random point, the first point is that point.
    """
    generator = torch.Generator().manual_seed(0)
    near = NEAR_ZERO_SD * torch.randn(problem.dim, generator=generator, dtype=torch.float64)
    if initial_run.spread:
        near = torch.cat([near[:0], *(initial_run.point[name].flatten().double() for name in problem.sites)])
    middle, far = (
        torch.cat([near[:0], *(_prior_draw_of_site(initial_run, site, generator) for site in problem.sites.values())])
        for _ in range(2)
    )
    return torch.stack([near, middle.clamp(-RADIUS, RADIUS), far.clamp(-MAX_PRIOR_DRAW, MAX_PRIOR_DRAW)])


def _prior_draw_of_site(initial_run: FirstRun, site: Site, generator: torch.Generator) -> Tensor:
    """A draw of a site's prior, unconstrained and flat; uniform if the prior cannot be sampled."""
    msg = initial_run.execution.trace.nodes[site.name]
    uniform = RADIUS * (2 * torch.rand(site.size, generator=generator, dtype=torch.float64) - 1)
    with torch.random.fork_rng(devices=[]):  # torch.manual_seed would query all devices, which takes 0.3 ms
        torch.default_generator.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        try:
            drawn = unconstraining(msg).inv(msg["fn"].sample()).flatten().double()
        except (NotImplementedError, RuntimeError, ValueError):  # such as an improper prior
            return uniform
    return torch.where(drawn.isfinite(), drawn, uniform)


def local_points(problem: RowDensities, initial_run: FirstRun, at: Tensor) -> Tensor:
    """Unconstrained latents (3, n, d), float64, of the rows with numbers `at` (n,), at the three points."""
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(3, len(at), problem.local_dim, generator=generator, dtype=torch.float64)
    draws[0] *= NEAR_ZERO_SD
    if initial_run.spread:
        blocks: list[Any] = [site.by_rows(initial_run.point[name])[at] for name, site in problem.layout.local.items()]
        draws[0] = torch.cat([draws[0, :, :0], *blocks], -1)
    return draws
