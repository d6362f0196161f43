"""Discrete latents inside the partitioned plate: summed out of each row's likelihood, drawn afterwards.

    p(y_i | z) = Σ_{k_i} p(k_i | z) p(y_i | k_i, z)

for every row i, and for any number of dependent discrete sites k_i of a row. Pyro's `poutine.enum` runs the model on
all their values at once. Its tensor variable elimination (`pyro.ops.contract`) sums the values out, including plates
within the row. The ring is defined here, since Pyro's ring has a hand-written gradient that `torch.func` does not
support.

Source: Obermeyer, Bingham, Jankowiak, Chiu, Pradhan, Rush and Goodman, Tensor variable elimination for plated
factor graphs (2019).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro.ops import packed
from pyro.ops.contract import contract_to_tensor
from pyro.ops.rings import LogRing
from pyro.poutine.enum_messenger import EnumMessenger
from torch import Tensor

from pyro_fed.errors import ModelError


def is_discrete(msg: Any) -> bool:
    """Whether a site's support is discrete."""
    return bool(getattr(msg["fn"].support, "is_discrete", False))


def first_value(msg: Any, inside: bool) -> Tensor:
    """A value of a discrete latent site; ModelError if the site cannot be summed out."""
    name, fn = msg["name"], msg["fn"]
    kind = type(fn).__name__
    if not inside:
        raise ModelError(
            f"latent site '{name}' ({kind}) is discrete and outside the partitioned plate: all clients would share "
            "it, and it has no gradient. Sum it out of the model, for example by `dist.MixtureSameFamily`, or compare "
            "models, one for each of its values"
        )
    if msg["infer"].get("enumerate") != "parallel":
        raise ModelError(
            f"latent site '{name}' ({kind}) is discrete: only continuous latents have a gradient. If these are "
            "data, its `pyro.sample` lacks obs=...; otherwise sum it out by `model = "
            "pyro.infer.config_enumerate(model)`, or mark only this site by infer={'enumerate': 'parallel'}; "
            "or write the sum explicitly, for example by `dist.MixtureSameFamily`"
        )
    try:
        values: Tensor = fn.enumerate_support(expand=True)
    except NotImplementedError as error:
        raise ModelError(
            f"latent site '{name}' ({kind}) cannot be summed out: its support is not a finite list of values"
        ) from error
    return values[0]


class Enumerate(EnumMessenger):
    """Pyro's handler, extended to sites with values from an inner handler, and to `vmap`, which forbids `.data`."""

    def _pyro_sample(self, msg: Any) -> None:
        given = msg["value"] is not None
        super()._pyro_sample(msg | {"done": False, "is_observed": True} if given else msg)

    def _pyro_post_sample(self, msg: Any) -> None:
        shape_alone = torch.empty(msg["value"].shape, device="meta")
        super()._pyro_post_sample(msg | {"value": shape_alone})


def sum_out(
    trace: Any, inside: Mapping[str, str], sizes: Mapping[str, int]
) -> tuple[set[str], dict[str, tuple[str, Tensor]]]:
    """The sites that depend on discrete latents, and rows' terms (m,) after summation, with their plates."""
    summed = _dependent(trace)
    out = {}
    for names, dims in _components(summed):
        plates = {inside.get(name) for name in names}
        plate = inside.get(names[0])
        if len(plates) > 1 or plate is None:
            other = next(name for name in names if inside.get(name) != plate or plate is None)
            raise ModelError(f"site '{other}', outside plate '{plate}', depends on a discrete latent inside it")
        row = trace.plate_to_symbol[plate]
        ring = _SumOut(dim_to_size={row: sizes[plate]})
        total = contract_to_tensor(_tree(trace, names), dims, frozenset(row), ring=ring)
        label = "_".join(name for name in names if trace.nodes[name]["is_observed"]) or "_".join(names)
        out[label] = plate, total.expand(sizes[plate])
    return set(summed), out


def log_weights(trace: Any, name: str) -> Tensor:
    """Unnormalised log weights (*batch shape, values) of a discrete site's values; other sites are summed out."""
    summed, node = _dependent(trace), trace.nodes[name]
    dims, symbol = set().union(*summed.values()), node["infer"]["_enumerate_symbol"]
    frames = {trace.plate_to_symbol[frame.name]: frame for frame in node["cond_indep_stack"] if frame.vectorized}
    ring = _SumOut(dim_to_size={s: frame.size for s, frame in frames.items()})
    total = contract_to_tensor(_tree(trace, summed), dims, _ordinal(trace, name), {symbol} & dims, ring=ring)
    order = [*sorted(frames, key=lambda s: frames[s].dim), symbol]
    axes = [total._pyro_dims.index(s) for s in order if s in total._pyro_dims]
    weights: Tensor = total.permute(axes).reshape(*node["fn"].batch_shape, -1)
    return weights


def _dependent(trace: Any) -> dict[str, set[str]]:
    """The sites whose density has dimensions of discrete latents, and the symbols of these dimensions."""
    try:
        trace.pack_tensors()
    except ValueError as error:  # Pyro's message starts with the site and ends with a table of all shapes
        lines = [line.strip() for line in str(error).splitlines()]
        name = lines[0].split("'")[1]
        raise ModelError(
            f"site '{name}' has dimensions that belong to no plate and no discrete latent: discrete latents take "
            f"dimensions left of all plates, so index by them from the right ({' '.join(lines[1:4])})"
        ) from error
    names = [name for name, node in trace.nodes.items() if node["type"] == "sample" and "log_prob" in node]
    dims = {name: set(trace.nodes[name]["packed"]["log_prob"]._pyro_dims) - _ordinal(trace, name) for name in names}
    return {name: found for name, found in dims.items() if found}


def _ordinal(trace: Any, name: str) -> frozenset[str]:
    """Symbols of a site's plates; a plate of one row has no dimension in packed tensors."""
    frames = trace.nodes[name]["cond_indep_stack"]
    return frozenset(trace.plate_to_symbol[frame.name] for frame in frames if frame.vectorized and frame.size > 1)


def _tree(trace: Any, names: Iterable[str]) -> OrderedDict[frozenset[str], list[Tensor]]:
    """The log densities of sites, by their plates."""
    tree: OrderedDict[frozenset[str], list[Tensor]] = OrderedDict()
    for name in names:
        tree.setdefault(_ordinal(trace, name), []).append(trace.nodes[name]["packed"]["log_prob"])
    return tree


def _components(summed: Mapping[str, set[str]]) -> list[tuple[list[str], set[str]]]:
    """Groups of sites with common dimensions, in the order of the model, with these dimensions."""
    components: list[tuple[list[str], set[str]]] = []
    for name, dims in summed.items():
        disjoint = [one for one in components if not one[1] & dims]
        joined = [one for one in components if one[1] & dims]
        names = [part for names, _ in joined for part in names] + [name]
        components = [*disjoint, (names, dims.union(*(d for _, d in joined)))]
    order = list(summed)
    return [(sorted(names, key=order.index), dims) for names, dims in components]


class _SumOut(LogRing):
    """Sums of log densities and `logsumexp` over one dimension at a time, the cheapest first."""

    def __init__(self, dim_to_size: Mapping[str, int]) -> None:
        ring: Any = super()  # without types
        ring.__init__(dim_to_size=dict(dim_to_size))

    def sumproduct(self, terms: Iterable[Tensor], dims: Iterable[str]) -> Tensor:
        remaining: list[Any] = list(terms)
        pending = set(dims)
        while pending:
            dim = min(
                sorted(pending), key=lambda d: len(set().union(*(t._pyro_dims for t in _terms_with_dim(remaining, d))))
            )
            joined = _add(_terms_with_dim(remaining, dim))
            remaining = [term for term in remaining if dim not in term._pyro_dims]
            remaining.append(
                _with_dims(joined.logsumexp(joined._pyro_dims.index(dim)), joined._pyro_dims.replace(dim, ""))
            )
            pending.remove(dim)
        total: Tensor = _add(remaining)
        return total


def _terms_with_dim(terms: list[Any], dim: str) -> list[Any]:
    return [term for term in terms if dim in term._pyro_dims]


def _add(terms: list[Any]) -> Any:
    broadcast = packed.broadcast_all(*terms)
    return _with_dims(sum(broadcast[1:], broadcast[0] + 0), broadcast[0]._pyro_dims)


def _with_dims(tensor: Any, dims: str) -> Any:
    tensor._pyro_dims = dims
    return tensor
