"""Which argument, in which row, has a NaN or an infinity from which the model cannot predict."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_fed.density.rows.arguments import Arguments
from pyro_fed.density.running.site_values import mask_of
from pyro_fed.errors import DataError


def has_finite_predictions(first: dict[str, Any]) -> bool:
    """Whether the predictions of a run are finite, apart from masked entries."""
    for site in first.values():
        value = site["value"]
        if not site["redrawn"] or not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        finite, mask = torch.isfinite(value), mask_of(site)
        if not bool((finite if mask is None else finite | ~mask.bool()).all()):
            return False
    return True


def not_finite(arguments: Arguments, works: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> DataError | None:
    """The error for the first argument whose NaN or infinity the model does not handle; None if there is none.

    Not every NaN is an error: the argument for the observations is ignored, and the model may handle NaN in others. So
    the model is run with each argument as it is and zeros for the NaN and infinities of all other arguments.
    """
    found = [i for i, leaf in enumerate(arguments.leaves) if not _is_finite_leaf(leaf)]
    for i in found:
        others = [_without_nan(leaf) if at in found and at != i else leaf for at, leaf in enumerate(arguments.leaves)]
        if not works(*replace(arguments, leaves=tuple(others)).call_arguments()):
            return _not_finite_error(arguments.names[i], arguments.leaves[i])
    return None


def _is_finite_leaf(leaf: Any) -> bool:
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(torch.isfinite(leaf).all())
    return not isinstance(leaf, float) or math.isfinite(leaf)


def _without_nan(leaf: Any) -> Any:
    """The argument with zeros for NaN and infinities."""
    return leaf.nan_to_num(0.0, 0.0, 0.0) if isinstance(leaf, Tensor) else 0.0


def _not_finite_error(name: str, leaf: Any) -> DataError:
    value = torch.as_tensor(leaf)
    bad = ~torch.isfinite(value)
    position = bad.nonzero()[0].tolist()
    kind = "NaN" if bool(value[tuple(position)].isnan()) else "infinite"
    where = f"[{', '.join(map(str, position))}]" if position else ""
    rows = (
        f" ({int(bad.flatten(1).any(1).sum() if bad.dim() > 1 else bad.sum())} of {len(bad)} rows)" if position else ""
    )
    return DataError(
        f"predict: argument '{name}'{where} is {kind}{rows}, and the model can predict nothing from it. Drop or impute "
        f"these rows, or let the model handle them: `torch.where(torch.isfinite({name}), {name}, latent)` with a "
        "latent in the plate"
    )
