"""One form in which people write a model or hold their data, and how it is tried.

A form is accepted and right if the density of the federation, client by client, is Pyro's own of the same model on the
same data, in float32 and in float64. It is refused and cured if the refusal's words name what they should, and the form
that they lead to is accepted and right. Else it is open.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyro
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from torch.distributions import biject_to
from torch.utils import _pytree as pytree

import pyro_fed as pf

#: Relative difference of densities that is rounding, in float64 and float32.
ROUNDING = {torch.float64: 1e-9, torch.float32: 2e-5}
CLIENTS = 3


@dataclass(frozen=True)
class Form:
    """A model and its data.

    Attributes:
        name: what is special about it.
        model: as one writes it.
        args: positional arguments, a tuple or as one gives them.
        options: of `Federation`; with `clients` the data are apart and go to `from_clients`.
        pyro: the model and arguments that stand for it in Pyro alone, where that cannot take these.
        refused: what the refusal must say, a regular expression; None where the form is to be accepted.
        cured: the form that the refusal's words lead to.
        warns: what a warning must say.
    """

    name: str
    model: Callable[..., Any]
    args: Any = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    pyro: tuple[Callable[..., Any] | None, Any] = (None, None)
    refused: str | None = None
    cured: Form | None = None
    warns: str | None = None


def outcome(form: Form) -> tuple[str, str]:
    """`("accepted" | "cured" | "open", what there is to say)`."""
    if form.refused is None:
        return _accepted(form)
    try:
        _federation(form, torch.float64)
    except pf.errors.PyroFedError as error:
        if not re.search(form.refused, str(error), re.DOTALL):
            return "open", f"refused in other words: {error}"
    except Exception as error:
        return "open", f"crashed: {type(error).__name__}: {error}"
    else:
        return "open", "accepted, though it should be refused"
    if form.cured is None:
        return "open", "refused, and no cure known"
    result, words = _accepted(form.cured)
    return ("cured", words) if result == "accepted" else ("open", f"the cure does not work: {words}")


def _accepted(form: Form) -> tuple[str, str]:
    worst = 0.0
    for dtype in (torch.float64, torch.float32):
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                error = _difference(form, dtype)
        except Exception as problem:
            return "open", f"{type(problem).__name__}: {problem}"
        if form.warns and not any(re.search(form.warns, str(one.message)) for one in said):
            return "open", f"no warning of '{form.warns}', but {[str(one.message) for one in said]}"
        if not error <= ROUNDING[dtype]:
            return "open", f"another density in {dtype}: relative difference {error:.2g}"
        worst = max(worst, error)
    return "accepted", f"{worst:.1e}"


def _federation(form: Form, dtype: torch.dtype) -> pf.Federation:
    pyro.clear_param_store()
    options = {"plate": "data", "dtype": dtype, **form.options}
    if "clients" in options:
        return pf.Federation.from_clients(form.model, options.pop("clients"), **options)
    if "partition" not in options:
        options |= {"num_clients": options.get("num_clients", CLIENTS)}
    return pf.Federation(form.model, form.args, seed=1, **options)


def _difference(form: Form, dtype: torch.dtype) -> float:
    """Relative difference of the federation's density from Pyro's, at two points."""
    fed = _federation(form, dtype)
    fed = fed.joint if fed.problem.local_dim else fed
    problem = fed.problem
    model, args = form.pyro
    model = form.model if model is None else model
    args = form.args if args is None else args
    args = args if isinstance(args, tuple) else (args,)
    generator = torch.Generator().manual_seed(0)
    found = []
    for scale in (0.1, 0.5):
        z = (scale * torch.randn(problem.dim, generator=generator, dtype=torch.float64)).to(dtype)
        ours = float(problem.log_prior(z)) + sum(float(problem.log_lik(z, batch)) for batch in _batches(fed))
        values = {name: value for name, value in problem.constrain(z).items() if name in problem.sites}
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            theirs, size = _of_pyro(model, pytree.tree_map(lambda leaf: _cast(leaf, dtype), args), values, problem)
        finally:
            torch.set_default_dtype(before)
        found.append(abs(ours - theirs) / (1 + size))
    return max(found)


def _batches(fed: pf.Federation) -> Iterator[Any]:
    for client in range(fed.num_clients):
        yield pytree.tree_map(lambda leaf: leaf[0], fed.client_data([client]).full_batch())


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    if isinstance(leaf, pd.DataFrame):
        name = str(dtype).removeprefix("torch.")
        return leaf.astype({column: name for column in leaf if leaf[column].dtype.kind == "f"})
    if isinstance(leaf, np.ndarray) and not isinstance(leaf, np.ma.MaskedArray) and leaf.dtype.kind in "biuf":
        leaf = torch.as_tensor(leaf)
    return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _of_pyro(model: Callable[..., Any], args: tuple[Any, ...], values: dict[str, Any], problem: Any) -> Any:
    """Pyro's log density at these values with the transforms' Jacobians, and the size of what is summed."""
    conditioned = poutine.condition(model, data=values)
    with torch.random.fork_rng(devices=[]):
        trace = poutine.trace(conditioned).get_trace(*args)
        trace.compute_log_prob()
    sites = {
        name: site
        for name, site in trace.nodes.items()
        if site["type"] == "sample" and not name.endswith("_unobserved")
    }
    total = sum(float(site["log_prob_sum"]) for site in sites.values())
    size = sum(float(site["log_prob"].abs().sum()) for site in sites.values())
    if problem.layout.discrete:
        total = -TraceEnum_ELBO(max_plate_nesting=problem.layout.nesting).loss(
            config_enumerate(conditioned), lambda *_: None, *args
        )
    for name in values:
        transform = biject_to(sites[name]["fn"].support)
        inner = transform.inv(values[name])
        total += float(transform.log_abs_det_jacobian(inner, values[name]).sum())
    return total, size


def variant(form: Form, **changes: Any) -> Form:
    """The same with some attributes changed."""
    return replace(form, **changes)
