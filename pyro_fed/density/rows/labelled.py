"""Columns of text and categories during a run: codes with labels, which are not numbers.

    sex == "male", stage.isin(["III", "IV"])      comparisons with labels; other values are refused
    level[hospital], F.one_hot(stage, 3)          lookups, by the codes 0, 1, ... of the labels in their order
    dose.map({"low": 1.0, "high": 4.0})           numbers, or latents, for labels
    severity >= "medium"                          if the categories are ordered
    stage.cat.codes                               the codes as numbers

Other operations, such as arithmetic, are refused: the codes of text are in alphabetical order, which has no meaning in
the model. `federation.labels` checks by the model's density whether the numbering matters nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_fed.conventions.names import closest
from pyro_fed.errors import LISTED, listed, shown


class Labels(tuple[Any, ...]):
    """The labels of the codes 0, 1, ...; `ordered` if the user has specified their order."""

    ordered: bool

    def __new__(cls, labels: Collection[Any] = (), ordered: bool = False) -> Labels:
        self = super().__new__(cls, labels)
        self.ordered = ordered
        return self


class Categories(NamedTuple):
    """`series.cat` of a column."""

    codes: Tensor
    categories: Labels
    ordered: bool


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Functions of a tensor's shape, of the number of its labels, or of missing values.
FACTS = _names("""
    size dim ndimension numel nelement __len__ stride is_contiguous is_floating_point is_complex get_device element_size
    max amax unique isnan isfinite isinf
""")
#: Functions that return the same column in another shape.
FORMS = _names("""
    __get__ __getitem__ reshape reshape_as view view_as unsqueeze squeeze expand expand_as broadcast_to flatten clone
    detach contiguous to type long int cpu cuda movedim transpose permute t index_select repeat select narrow
""")
#: Functions that look up, count or add up by codes; in the former the codes are not the first argument.
BY_CODES = _names("""
    __getitem__ __setitem__ index_select gather take take_along_dim index_add index_add_ scatter_add scatter_add_
    scatter scatter_ index_put index_put_ index_copy scatter_reduce
""")
OF_CODES = ("one_hot", "embedding", "bincount")
EQUAL = {"eq": True, "__eq__": True, "ne": False, "__ne__": False}


class Labelled(Tensor):
    """Codes (n, ...) of labels, as a model receives them."""

    labels: Labels  # empty if the codes number the present groups
    argument: str  # name of the argument, for messages
    #: The original tensor of codes, from which all results are computed: the recorder of operations identifies tensors
    #: by identity, and would record a copy as a constant.
    codes: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        one = next((part for part in args if isinstance(part, Labelled)), None)
        with torch._C.DisableTorchFunctionSubclass():
            if name in EQUAL and one is not None:
                return _equal(one, args[1] if one is first else first, EQUAL[name])
            codes, options = pytree.tree_map(plain, (args, kwargs or {}))
            if name in FACTS or name in OF_CODES or (name in BY_CODES and one is not first):
                return func(*codes, **options)
            if name in FORMS and isinstance(first, Labelled):
                result = func(*codes, **options)
                if not isinstance(result, Tensor):
                    return result
                if not result.is_floating_point():
                    return labelled(result, first.labels, first.argument)
        column = one if one is not None else _labelled_argument((args, kwargs or {}))
        column.refuse(f"computes with it as a number ({name}):")

    def refuse(self, what: str) -> NoReturn:
        """Raise an error with cures for this column; `what` is the model's use of it."""
        if not self.labels:
            raise ValueError(
                f"argument '{self.argument}' holds each row's group, and the model {what} it may only be used to "
                f"index, level[{self.argument}]; for other uses pass the column again, as another argument"
            )
        label = self.labels[-1] if len(self.labels) <= LISTED else "..."
        raise ValueError(
            f"argument '{self.argument}' is text or categories, {self.names}, and the model {what} compare "
            f"it with a label, ({self.argument} == {label!r}), look up by it, level[{self.argument}], give each label "
            f"a number, {self.argument}.map({{{label!r}: 1.0, ...}}), or take the codes, {self.argument}.cat.codes"
        )

    @property
    def names(self) -> str:
        """The labels for a message, or their number if they are many and may identify rows."""
        return f"[{listed(self.labels)}]" if len(self.labels) <= LISTED else f"{len(self.labels)} labels"

    def code(self, label: Any) -> int:
        """The code of a label."""
        is_label = isinstance(label, str | bool | int | float) and label in self.labels
        if not self.labels or isinstance(label, Tensor):
            self.refuse("compares it with numbers:" if isinstance(label, Tensor) else "compares it with labels:")
        if not is_label:
            suggestion = closest(str(label), map(str, self.labels))
            hint = f"; {suggestion.rstrip('?')}" if suggestion.startswith("did") and len(self.labels) <= LISTED else ""
            raise ValueError(
                f"argument '{self.argument}' is compared with {shown(label)}, which is not one of its labels, "
                f"{self.names}{hint}. Include labels without rows by "
                f"pandas.Categorical({self.argument}, categories=[...])"
            )
        return self.labels.index(label)

    def __eq__(self, other: Any) -> Any:
        return _equal(self, other, True)

    def __ne__(self, other: Any) -> Any:
        return _equal(self, other, False)

    def __lt__(self, other: Any) -> Any:
        return self._ranks("<") < self.code(other)

    def __le__(self, other: Any) -> Any:
        return self._ranks("<=") <= self.code(other)

    def __gt__(self, other: Any) -> Any:
        return self._ranks(">") > self.code(other)

    def __ge__(self, other: Any) -> Any:
        return self._ranks(">=") >= self.code(other)

    def _ranks(self, sign: str) -> Tensor:
        if not self.labels.ordered:
            self.refuse(f"compares it by {sign}, though its labels have no order:")
        ranks: Tensor = plain(self)
        return ranks

    eq, ne, lt, le, gt, ge = __eq__, __ne__, __lt__, __le__, __gt__, __ge__  # type: ignore[assignment]

    def isin(self, labels: Collection[Any]) -> Tensor:
        """Whether each entry is one of some labels."""
        codes = [self.code(label) for label in labels]
        table = [number in codes for number in range(len(self.labels))]
        return torch.as_tensor(table, device=self.device)[plain(self)]

    def map(self, values: Mapping[Any, Any] | Callable[[Any], Any]) -> Tensor:
        """The value of each row's label, a number or a latent."""
        if not self.labels:
            self.refuse("maps its labels:")
        if not callable(values):
            missing = [label for label in self.labels if label not in values]
            if missing:
                raise ValueError(
                    f"{self.argument}.map(...) has no value for {len(missing)} of its labels, {self.names}"
                )
            for label in values:
                self.code(label)
        mapped_values = [values(label) if callable(values) else values[label] for label in self.labels]
        table = [torch.as_tensor(one, device=self.device) for one in mapped_values]
        widest = table[0].dtype
        for one in table:
            widest = torch.promote_types(widest, one.dtype)
        return torch.stack([one.to(widest) for one in table])[plain(self)]

    @property
    def cat(self) -> Categories:
        """Codes as numbers, the labels, and whether the user has specified their order."""
        return Categories(plain(self), self.labels, self.labels.ordered)

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:
        """The column itself for text or categories; `dtype` as for pandas."""
        if dtype in ("category", "str", "object", str, object):
            return self
        if dtype in (int, "int", "int64", "long", torch.int64):
            return self.long()
        self.refuse(f"converts it to {getattr(dtype, '__name__', dtype)}:")

    def __iter__(self) -> Iterator[Any]:
        return iter([self[row] for row in range(len(self))])

    def __hash__(self) -> int:
        self.refuse("looks it up in a dictionary or set:")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<column '{self.argument}' of text, {self.names}, shape {tuple(self.shape)}>"

    def __format__(self, _: str) -> str:
        return repr(self)

    def __deepcopy__(self, _: Any) -> Labelled:
        return self.clone()  # type: ignore[return-value]

    def __reduce_ex__(self, _: Any) -> Any:
        return labelled, (plain(self), self.labels, self.argument)


def labelled(codes: Tensor, labels: Labels, argument: str) -> Labelled:
    """Codes, integers from 0 of any shape, as a `Labelled` column."""
    column = codes.as_subclass(Labelled)
    column.labels, column.argument, column.codes = labels, argument, plain(codes)
    return column


def plain(value: Any) -> Any:
    """Codes as a tensor of numbers; any other value unchanged."""
    return value.codes if isinstance(value, Labelled) else value


def _equal(one: Labelled, other: Any, equal: bool) -> Tensor:
    codes = plain(one)
    if isinstance(other, Labelled):
        if not one.labels or one.labels != other.labels:
            one.refuse(f"compares it with argument '{other.argument}', which has {other.names}:")
        code: Any = plain(other)
    elif isinstance(other, Tensor) and codes.shape[-1:] == (1,) and other.dim() == 1:
        code = other  # one-hot: with all numbers from 0
    else:
        code = one.code(other)
    result: Tensor = codes == code if equal else codes != code
    return result


def _labelled_argument(parts: Any) -> Labelled:
    """The labelled column among a function's arguments, possibly in lists."""
    found: Labelled = next(part for part in torch.utils._pytree.tree_leaves(parts) if isinstance(part, Labelled))
    return found
