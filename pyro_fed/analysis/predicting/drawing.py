"""Run the model at posterior draws: latents take their posterior values, and all other random sites are drawn anew.

All draws are made together by `vmap`, or one by one if the model or a sampler does not allow `vmap`.

Or the observed sites take the means of their distributions (`expected`), and nothing but new groups' latents is drawn.

A site that is observed outside the plates whose rows lie at clients keeps its observed value. Examples are a latent
that `pyro.condition` has fixed, and an earlier study's estimate: they belong to the model, and are no client's rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from pyro.distributions import Unit
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_fed.analysis.predicting.groups import Groups
from pyro_fed.density.problem import Problem
from pyro_fed.density.rows.batches import Members
from pyro_fed.density.running.handlers import run_model
from pyro_fed.density.running.trace_sites import is_deterministic, row_axis
from pyro_fed.errors import DataError
from pyro_fed.federation.pooling import parts_of
from pyro_fed.ops.batched import loop_map, vmap

#: Number of draws mapped in one call. It bounds the memory, and changes no distribution, but it decides which random
#: numbers a draw takes: with another one a seed has other predictions.
DRAWS_AT_ONCE = 256


def split_plates(problem: Problem) -> frozenset[str]:
    """Names of the plates whose rows lie at clients: the partitioned plate and the plates nested in it."""
    return frozenset((*(parts_of(problem.plate) or (problem.plate,)), *problem.arguments.nested_plates))


def flat(value: np.ndarray, dtype: torch.dtype) -> Tensor:
    """Draws (chain, draw, ...) as a tensor (chain * draw, ...). Whole numbers, of discrete latents, keep their type."""
    tensor = torch.as_tensor(value.reshape(-1, *value.shape[2:]))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class PooledPlateSizes(NamedTuple):
    """A client's rows, for a model whose plates have the sizes of all clients' rows together."""

    plate: str
    indices: Tensor
    members: Mapping[str, Members]


@dataclass(eq=False)
class ModelRun:
    """The model on fixed arguments, as a function from latent values to predictions."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dtype: torch.dtype  # default of floating-point numbers while the model runs
    hidden: frozenset[str] = frozenset()  # latents inside the partitioned plate, drawn without a value, not predicted
    constants: dict[str, Any] | None = None  # values that the model has kept by `pyro_fed.shared`
    split: frozenset[str] | None = None  # plates whose rows lie at clients; None: any plate may be one
    here: PooledPlateSizes | None = None  # the rows of one client; None for all rows of the arguments
    expected: bool = False  # whether observed sites take the means of their distributions in place of draws
    reported: tuple[str, ...] = ()  # sites that the model computes, which are predicted too
    partly: dict[str, Tensor] = field(default_factory=dict)  # masks of known groups, of latents that lack some

    def trace(self, values: dict[str, Tensor]) -> tuple[Any, _Redraw]:
        """Run the model once with the latents at `values`; returns the trace and the handler that drew the sites."""
        handler = _Redraw(values, self.hidden, self.constants, self.split, self.partly, self.expected)
        options: dict[str, Any] = {"indices": None}
        if self.here is not None:
            handler.plate = self.here.plate
            options = {"indices": self.here.indices, "members": self.here.members}
        execution = run_model(self.model, self.args, self.kwargs, handler, dtype=self.dtype, **options)
        return execution.trace, handler

    def first(self, values: dict[str, Tensor]) -> dict[str, Any]:
        """Pyro's messages of the random sites, with `redrawn` (predicted) and `given` (the observed value)."""
        with torch.random.fork_rng(devices=[]):
            trace, handler = self.trace(values)
        if not handler.drawn:
            factors = [name for name, site in trace.nodes.items() if isinstance(site.get("fn"), Unit)]
            raise DataError(
                "the model has no observed site on these arguments: there is nothing to predict"
                + (
                    f". Its likelihood is pyro.factor('{factors[0]}', ...), a number from which nothing can be "
                    "drawn: write it as a distribution, pyro.sample(..., obs=y)"
                    if factors
                    else ""
                )
            )
        outside = [name for name in handler.drawn if not trace.nodes[name]["cond_indep_stack"]]
        unknown = [name for name in outside if name not in handler.given]
        if unknown:
            raise DataError(f"the posterior has no values for the latent sites {unknown}; it has {sorted(values)}")
        names = [*handler.drawn, *(name for name in self.hidden if name in trace.nodes)]
        return {
            name: {**trace.nodes[name], "given": handler.given.get(name), "redrawn": name in handler.drawn}
            for name in names
        }

    def keep(self, first: dict[str, Any], groups: Groups, posterior: xr.Dataset) -> dict[str, Tensor]:
        """The fitted groups' values (S, ...) of the latents inside the plate; sets `partly` if some groups are new."""
        found = {}
        for name in sorted(self.hidden & first.keys()):
            axis = row_axis(first[name], groups.plate.name)
            if axis is None:
                continue
            value = first[name]["value"]
            kept, mask = groups.of(posterior[name], axis - value.dim())
            if kept.shape[2:] != value.shape:
                raise DataError(
                    f"latent site '{name}' has the shape {tuple(value.shape)} on the new data, and that of the fitted "
                    f"groups would be {tuple(kept.shape[2:])}: was the posterior fitted on another model?"
                )
            found[name] = flat(kept.numpy(), self.dtype)
            if not bool(mask.all()):
                self.partly[name] = mask
        return found

    def __call__(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        trace, handler = self.trace(values)
        return {name: trace.nodes[name]["value"] for name in (*handler.drawn, *self.reported)}


class _Redraw(Messenger):
    """Put the latents at given values, and draw all other random sites, observed or not.

    Latents in `hidden` that have no value are drawn too, but are not listed in `drawn`. Latents in `partly` take their
    values where the mask is true, and are drawn elsewhere. An observed site that is in none of the plates `split` (in
    no plate at all, if `split` is None) keeps its observed value.
    """

    plate: str | None = None

    def __init__(
        self,
        values: dict[str, Tensor],
        hidden: frozenset[str],
        constants: dict[str, Any] | None,
        split: frozenset[str] | None,
        partly: Mapping[str, Tensor],
        expected: bool = False,
    ) -> None:
        super().__init__()
        self.values, self.hidden, self.constants, self.partly = values, hidden, constants, partly
        self.split, self.expected = split, expected
        self.drawn: list[str] = []
        self.given: dict[str, Any] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        name = msg["name"]
        if name in self.values and not is_deterministic(msg):
            value, mask = self.values[name], self.partly.get(name)
            msg["value"], msg["done"] = value if mask is None else torch.where(mask, value, msg["fn"].sample()), True
        elif not is_deterministic(msg) and not isinstance(msg["fn"], Unit) and not self._stays(msg):
            if msg["is_observed"]:
                self.given[name] = msg["value"]
            mean = self.expected and msg["is_observed"]
            msg["value"] = msg["fn"].mean if mean else msg["fn"].sample()
            msg["done"], msg["is_observed"] = True, False
            if name not in self.hidden:
                self.drawn.append(name)

    def _stays(self, msg: dict[str, Any]) -> bool:
        """Whether the site is observed outside the plates whose rows lie at clients."""
        plates = {frame.name for frame in msg["cond_indep_stack"]}
        return msg["is_observed"] and not (plates if self.split is None else plates & self.split)


def draw(
    run: Callable[[dict[str, Tensor]], dict[str, Tensor]], values: dict[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """The sites to predict, (S, ...) by name, at each posterior draw; torch's global generator is unchanged."""
    batched: Callable[..., Any] = vmap(run, randomness="different")
    seed = int(torch.randint(2**62, (), generator=generator))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if not _maps(batched, {name: value[:2] for name, value in values.items()}):
            batched = loop_map(run, 0)
        torch.manual_seed(seed)
        count = len(next(iter(values.values())))
        pieces = [
            batched({name: value[i : i + DRAWS_AT_ONCE] for name, value in values.items()})
            for i in range(0, count, DRAWS_AT_ONCE)
        ]
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _maps(batched: Callable[..., Any], values: dict[str, Tensor]) -> bool:
    """Whether `vmap` can draw from the model. Some samplers, such as Student's t, do not support it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch only warns if a sampler under `vmap` writes outside its memory
            batched(values)
    except (RuntimeError, ValueError, TypeError, UserWarning):
        return False
    return True
