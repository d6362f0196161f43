"""One model a feature of Pyro, each with a plain reference model of the same density.

A `reference` is the model itself unless Pyro needs another form of it to evaluate the pooled density: a plate
that subsamples, a reparameterised site, imputed entries.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam, TransformReparam
from zoo_data import CLASSES, COUNTS, GROUP, POSITIVE, SEEN, N, X, Y
from zoo_rows import (
    closure,
    closure_subsampled,
    given_rows,
    images,
    imputed,
    imputed_counts,
    imputed_counts_reference,
    imputed_reference,
    keywords,
    make_subsampled,
    masked,
    masked_off,
    named_as_plate,
    nested,
    observed_outside,
    rows_on_dim_2,
    scaled,
    schools,
    schools_noncentred,
    sequential_groups,
    several,
    sized,
    star,
    tables,
    twice,
)
from zoo_sites import (
    Net,
    binomial,
    categorical,
    correlated,
    dependent,
    deterministic,
    factors,
    horseshoe,
    improper,
    linear,
    lognormal,
    lognormal_base,
    mixture,
    ordinal,
    simplex,
    student,
    with_param,
    written,
)

import pyro_fed as pf


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and how the pooled density is found without this package."""

    name: str
    model: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    shard: Any = None
    warns: str | None = None
    reported: tuple[str, ...] = ()


REPARAM = poutine.reparam(schools, config={"theta": LocScaleReparam(0.0)})
TRANSFORM = poutine.reparam(lognormal, config={"a": TransformReparam()})
PANDAS = pd.DataFrame(X.numpy(), columns=list("abc"))

CASES = [
    Case("linear", linear, (X, Y)),
    Case("improper", improper, (X, Y)),
    Case("subsample_size", make_subsampled(5), (X, Y), reference=make_subsampled(None)),
    Case("int_size", sized, (X, Y, N)),
    Case("given_rows", given_rows, (X, Y, N), reference=lambda x, y, n: given_rows(x, y, n, False)),
    Case("closure", closure, ()),
    Case("closure_subsampled", closure_subsampled, (), reference=lambda: closure_subsampled(False)),
    Case("pyro_module", Net(), (X, Y)),
    Case("factor", factors, (X, Y)),
    Case("mask", masked, (X, Y, SEEN)),
    Case("mask_off", masked_off, (X, Y)),
    Case("scale", scaled, (X, Y, POSITIVE)),
    Case("obs_mask", imputed, (X, Y, SEEN), reference=imputed_reference),
    Case("obs_mask_counts", imputed_counts, (COUNTS, SEEN), reference=imputed_counts_reference),
    Case("deterministic", deterministic, (X, Y), reported=("norm", "mu", "centred")),
    Case("param", with_param, (X, Y), warns="pyro.param"),
    Case("groups", schools, (Y, GROUP)),
    Case("loc_scale_reparam", REPARAM, (Y, GROUP), reference=schools_noncentred, reported=("theta",)),
    Case("transform_reparam", TRANSFORM, (Y,), reference=lognormal_base, reported=("a",)),
    Case("mixture", mixture, (Y,)),
    Case("horseshoe", horseshoe, (X, Y)),
    Case("student", student, (X, Y)),
    Case("binomial", binomial, (X, COUNTS.clamp(max=5))),
    Case("categorical", categorical, (X, CLASSES)),
    Case("ordinal", ordinal, (X, CLASSES)),
    Case("written", written, (X, Y)),
    Case("dirichlet", simplex, (CLASSES,), reference=None),
    Case("lkj", correlated, (X,)),
    Case("nested", nested, (Y, GROUP)),
    Case("dependent", dependent, (Y,)),
    Case("rows_of_matrices", images, (torch.stack([X, X.flip(0)], 1), X[:, :2])),
    Case("rows_on_dim_2", rows_on_dim_2, (X,)),
    Case("keywords", keywords, (X,), kwargs={"y": Y, "prior_sd": torch.tensor([1.0, 2.0, 3.0]).double()}),
    Case("containers", tables, ({"x": X, "y": Y}, [2.0, 0.5])),
    Case("star", star, (X[:, 0], X[:, 1], Y)),
    Case("numpy", linear, (X.numpy(), Y.numpy())),
    Case("pandas", linear, (PANDAS, pd.Series(Y.numpy()))),
    Case("mixed_dtypes", linear, (X.float(), Y)),
    Case("integers", categorical, (X, CLASSES.int())),
    Case("argument_named_as_plate", named_as_plate, (X,)),
    Case("several_observed", several, (X, Y, COUNTS)),
    Case("observed_outside", observed_outside, (Y, torch.tensor(0.2).double())),
    Case("plate_twice", twice, (X, Y, COUNTS)),
    Case("sequential_groups", sequential_groups, (Y, GROUP)),
]


def federation(case, num_clients=1, **options):
    """The case's federation in float64, without the warning that it is expected to give."""
    with warnings.catch_warnings():
        if case.warns:
            warnings.filterwarnings("ignore", message=case.warns)
        return pf.Federation(
            case.model,
            case.args,
            case.kwargs,
            plate="data",
            num_clients=num_clients,
            shard=case.shard,
            dtype=torch.float64,
            **options,
        )


def point(problem, seed=1):
    """A vector of the problem's dimension, the same for the same seed."""
    return 0.4 * torch.randn(problem.dim, generator=torch.Generator().manual_seed(seed), dtype=problem.dtype)


def case_named(name):
    """One of `CASES`."""
    return next(case for case in CASES if case.name == name)
