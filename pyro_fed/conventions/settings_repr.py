"""Settings as text: what differs from the defaults, for people; all of it, for files, which outlive defaults."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from typing import Any

from torch import Tensor

from pyro_fed.conventions import html
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.spelling import snake_case


class SettingsRepr(metaclass=Checked):
    """Gives dataclasses a `repr` of the fields that differ from their defaults: ``FedEP(damping=0.5)``.

    Every class derived from it has this `repr`, in place of the one that `dataclass` would write, or its own.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Steps(SettingsRepr):
        ...     count: int = 10
        ...     size: float = 0.1
        >>> Steps(size=0.5)
        Steps(size=0.5)
    """

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "__repr__" not in vars(cls):
            cls.__repr__ = SettingsRepr.__repr__  # type: ignore[method-assign]  # before `dataclass` looks for one

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={_text(value)}" for name, value in changed_settings(self).items())
        return f"{type(self).__name__}({settings})"

    def _repr_html_(self) -> str:
        """In a notebook: the class, the settings that differ from their defaults, and folded those that do not."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        differs = changed_settings(self)
        default = {field.name: _text(default_of(field)) for field in fields}
        rows = [[name, _text(value), default[name]] for name, value in differs.items()]
        same = [[field.name, default[field.name]] for field in fields if field.name not in differs]
        said = (inspect.getdoc(type(self)) or "").split("\n")[0]
        return html.block(
            type(self).__name__,
            html.text(said),
            html.table(["setting", "here", "default"], rows),
            html.details_block(f"{len(same)} settings at their defaults", html.table(["setting", "default"], same)),
        )


def changed_settings(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass whose values are not their defaults, name → value."""
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    return {
        field.name: values[field.name]
        for field in dataclasses.fields(settings)
        if not _same_setting(values[field.name], default_of(field))
    }


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default, made by its factory if it has one; `dataclasses.MISSING` if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _same_setting(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and _plain_setting(value) == _plain_setting(default))


def _text(value: Any) -> str:
    return _name(value) if _has_name(value) else repr(value)


def all_settings(settings: Any) -> dict[str, Any]:
    """All fields of a dataclass, defaults too, as plain values: numbers, text, and lists and dictionaries of these.

    A dataclass within is a dictionary with its class's name under ``name``, as recipes write it; a function or class
    is its qualified name, a tensor its shape and a hash of its values. Equal settings give equal values in every
    process.

    Example:
        >>> all_settings(pf.infer.tilted.Newton())
        {'steps': 1}
    """
    return {field.name: _plain_setting(getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def settings_line(settings: Any) -> str:
    """A dataclass and all its fields as one line of text, on which two processes agree: a run and the one resumed."""
    fields = ", ".join(f"{name}={value!r}" for name, value in all_settings(settings).items())
    return f"{type(settings).__name__}({fields})"


def _plain_setting(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if _has_name(value):
        return _name(value)
    if dataclasses.is_dataclass(value):
        return {"name": snake_case(type(value).__name__), **all_settings(value)}
    if isinstance(value, Tensor):
        digest = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"{value.dtype} {tuple(value.shape)} {digest}"
    if type(value) in (list, tuple):
        return type(value)(_plain_setting(item) for item in value)
    if type(value) is dict:
        return {key: _plain_setting(item) for key, item in value.items()}
    return repr(value)


def _has_name(value: Any) -> bool:
    return hasattr(value, "__qualname__") and hasattr(value, "__module__")


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"
