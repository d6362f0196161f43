"""Settings as text, and settings within settings: one frozen dataclass for each kind, by an instance or its name.

    pf.FedEP(client=pf.infer.tilted.MCMC(steps=500))      an instance, with settings of its own
    pf.FedEP(client="mcmc")                               its name: the defaults

Names are those of the classes in snake case; no list of them is kept.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import inspect
import re
import typing
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from torch import Tensor

from pyro_fed.conventions import html
from pyro_fed.conventions.calls import Checked
from pyro_fed.conventions.names import MIN_SIMILARITY, closest, snake_case
from pyro_fed.errors import SettingError

#: Under which attribute an instance remembers which settings it was given.
GIVEN = "_given_settings"
#: The section of a docstring that describes settings, an entry of it, the sections after it, and the usual first one.
ARGS = re.compile(r"^Args:\n((?:(?: {4}.*)?\n)*)", re.M)
ENTRY = re.compile(r"^ {4}(\w+): .*\n(?:\n* {5}.*\n)*", re.M)
LATER_SECTIONS = re.compile(r"^(?=(?:Raises|References|Example):$)", re.M)
RAISES = "Raises:\n    SettingError: a setting out of its range, unknown, or without effect beside the others.\n"
Owner = TypeVar("Owner")


class SettingsRepr(metaclass=Checked):
    """Gives dataclasses a `repr` of the fields that differ from their defaults: ``FedEP(damping=0.5)``."""

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
    """All fields of a dataclass, defaults too, as plain values that are equal in every process if the settings are."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(SettingsRepr):
    """Base of settings that are one setting of an algorithm: frozen, keyword-only dataclasses."""

    door: ClassVar[str] = "pf.infer"


class Variant(Settings, ABC):
    """Base of settings that come in kinds, of which an algorithm takes one, by an instance or by its name."""

    what: ClassVar[str]

    @classmethod
    def kinds(cls) -> dict[str, type[Self]]:
        """The classes behind this family's door that its own package defines, by name, in the order of definition."""
        package = cls.__module__.partition(".")[0]
        own = (child for child in _descendants(cls) if child.__module__.partition(".")[0] == package)
        return {child.kind(): child for child in own if child.door == cls.door and not inspect.isabstract(child)}

    @classmethod
    def includes(cls, value: object) -> bool:
        """Whether an object is one of this family, of those behind its door."""
        return isinstance(value, cls) and value.door == cls.door

    @classmethod
    def kind(cls) -> str:
        """The name of this kind: "mcmc"."""
        return snake_case(cls.__name__)


def _descendants(cls: type[Any]) -> Iterator[type[Any]]:
    """Subclasses at any depth, each before its own."""
    for child in cls.__subclasses__():
        yield child
        yield from _descendants(child)


Family = TypeVar("Family", bound=Variant)


def resolve(owner: Any, field: str, family: type[Variant], *, allow_none: bool = False) -> None:
    """Replace a setting's name by an instance; called by the owner's ``__post_init__``.

    Args:
        owner: the frozen dataclass whose setting it is.
        field: the setting.
        family: the family of settings that it must belong to.
        allow_none: whether it may be None.

    Raises:
        SettingError: neither a name nor an instance of the family.
    """
    value = getattr(owner, field)
    if isinstance(value, str):
        object.__setattr__(owner, field, by_name(type(owner), field, family, value))
    elif not family.includes(value) and not (allow_none and value is None):
        raise SettingError(
            f"{type(owner).__name__}: {field} must be one of {family.door}, such as "
            f"{family.door}.{next(iter(family.kinds().values())).__name__}(), or its name, one of "
            f"{list(family.kinds())}, received {value!r}"
        )


def by_name(owner: type, field: str, family: type[Family], name: str) -> Family:
    """The instance that a name stands for: the class's defaults, or the entry of the owner's `shorthands`."""
    kinds = family.kinds()
    if name not in kinds:
        raise SettingError(f"{owner.__name__}: no {family.what} is called {field}={name!r}; {closest(name, kinds)}")
    shorthands: Mapping[str, Mapping[str, Family]] = getattr(owner, "shorthands", {})
    return shorthands.get(field, {}).get(name) or kinds[name]()


def settings_in(hint: Any) -> type[Settings] | None:
    """The class of nested settings that a type hint names, alone or in a union; None if it names none."""
    members = typing.get_args(hint) or (hint,)
    return next((one for one in members if isinstance(one, type) and issubclass(one, Settings)), None)


def shared_settings(settings: Any, kind: type[Any]) -> dict[str, Any]:
    """The values of those settings that a kind has too, with which one of that kind can be made."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.name in names}


def setting_hints(owner: type) -> dict[str, Any]:
    """The settings of a dataclass, field name to type hint."""
    hints = typing.get_type_hints(owner)
    return {field.name: hints[field.name] for field in dataclasses.fields(owner) if field.init}


def refuse_unused(owner: Any, reason: str, *names: str) -> None:
    """Refuse settings that are not at their defaults and have no effect beside the others; `reason` has the cure."""
    defaults = {field.name: field.default for field in dataclasses.fields(owner)}
    for name in names:
        value = getattr(owner, name)
        if value != defaults[name]:
            raise SettingError(f"{type(owner).__name__}: {name}={value!r} has no effect: {reason}")


def explains_unknown(cls: type[Owner]) -> type[Owner]:
    """Decorator of a dataclass of settings, above `dataclass`: an unknown setting is refused with the cure.

    A setting is described once, in the docstring of the class that has the field; `help` shows it for derived classes
    too, unless these describe it anew, and the section Raises for classes without one of their own.
    """
    init: Callable[..., None] = cls.__init__

    @functools.wraps(init)
    def __init__(self: Any, *values: Any, **settings: Any) -> None:
        known = {field.name for field in dataclasses.fields(self)}
        for name in settings:
            if name not in known:
                raise SettingError(_unknown(type(self), name, settings[name]))
        object.__setattr__(self, GIVEN, frozenset(settings))
        init(self, *values, **settings)

    cls.__init__ = __init__  # type: ignore[method-assign]  # the same one, whose names are checked
    _complete_docstring(cls)
    return cls


def _complete_docstring(cls: type[Any]) -> None:
    """Add to a docstring what bases say of settings, in the order of the fields, and the usual section Raises."""
    described = dict[str, str]()
    for base in reversed(cls.__mro__):
        described |= _described_settings(base)
    entries = [described[field.name] for field in dataclasses.fields(cls) if field.init and field.name in described]
    before, *after = LATER_SECTIONS.split(ARGS.sub("", inspect.cleandoc(cls.__doc__ or "") + "\n"), maxsplit=1)
    args = ["Args:\n" + "".join(entries)] if entries else []
    raises = [] if after and after[0].startswith("Raises:") else [RAISES]
    cls.__doc__ = "\n".join([f"{before.rstrip()}\n", *args, *raises, *after])


def _described_settings(cls: type[Any]) -> dict[str, str]:
    """The entries of a class's own section Args, setting to text."""
    section = ARGS.search(inspect.cleandoc(vars(cls).get("__doc__") or "") + "\n")
    return {entry[1]: entry[0] for entry in ENTRY.finditer(section[1])} if section else {}


def explicit_settings(settings: Any) -> frozenset[str]:
    """The settings that a user has written, also with their default values, as far as that is known."""
    names: frozenset[str] | None = getattr(settings, GIVEN, None)
    if names is None:
        return frozenset(changed_settings(settings))
    fields = {field.name for field in dataclasses.fields(settings) if field.init}
    return frozenset(changed_settings(settings)) if names >= fields else names


def chosen_setting(owner: Any, name: str) -> Any:
    """A setting that is chosen for the model before an algorithm is run; SettingError if it has not been chosen yet."""
    value = getattr(owner, name)
    if value in ("auto", None):
        raise SettingError(
            f"{type(owner).__name__}: {name}={value!r} has not been chosen yet: `run` does that by "
            "`pyro_fed.policy.resolve(algorithm, problem.traits)`; do the same where you call an algorithm yourself"
        )
    return value


class _Place(NamedTuple):
    """The place of a setting: in a setting of the owner, in a class of nested settings, under a name there."""

    field: str
    within: type[Settings]
    name: str


def _unknown(owner: type, name: str, value: Any) -> str:
    """The message for an unknown setting: why there is none, where it belongs, or which names are similar."""
    if why := _reasons(owner).get(name):
        return f"{owner.__name__} has no setting {name!r}: {why}"
    places = _places(owner)
    hits = places.get(name, [])
    if not hits:
        own = [field.name for field in dataclasses.fields(owner)]
        near = difflib.get_close_matches(name, [*own, *places], n=1, cutoff=MIN_SIMILARITY)
        if not near or near[0] in own:
            return f"{owner.__name__} has no setting {name!r}; {closest(name, own)}"
        place = _setting_place(owner, places[near[0]][0], value)
        return f"{owner.__name__} has no setting {name!r}; did you mean {place}?"
    homes = " or ".join(dict.fromkeys(_home(place) for place in hits))
    return (
        f"{owner.__name__} has no setting {name!r}, which is a setting of {homes}: write "
        f"{_setting_place(owner, hits[0], value)}"
    )


def recipe_place(owner: type, name: str) -> str:
    """Where recipes have an unknown setting, such as "it is step.size, with step.name = 'fixed'"; "" if nowhere."""
    if why := _reasons(owner).get(name):
        return why
    place = next(iter(_places(owner).get(name, [])), None)
    if place is None:
        return ""
    kind = f", with {place.field}.name = {place.within.kind()!r}" if issubclass(place.within, Variant) else ""
    return f"it is {place.field}.{place.name}{kind}"


def _reasons(owner: type) -> dict[str, str]:
    """The class attributes `without` of an owner and its bases."""
    return {name: why for one in reversed(owner.__mro__) for name, why in vars(one).get("without", {}).items()}


def _setting_place(owner: type, place: _Place, value: Any) -> str:
    """The setting in its place: "FedEP(client=pf.infer.tilted.SVI(steps=5))"."""
    return f"{owner.__name__}({place.field}={place.within.door}.{place.within.__name__}({place.name}={value!r}))"


def _home(place: _Place) -> str:
    within = place.within
    return f"the {within.what} {within.kind()!r}" if issubclass(within, Variant) else place.field


def _places(owner: type) -> dict[str, list[_Place]]:
    """The places of settings of an owner's settings, by their names alone and after their class's: "svi_steps"."""
    plain: dict[str, list[_Place]] = {}
    prefixed: dict[str, list[_Place]] = {}
    for field, hint in setting_hints(owner).items():
        family = settings_in(hint)
        if family is None:
            continue
        for within in family.kinds().values() if issubclass(family, Variant) else (family,):
            families = [c for c in within.__mro__ if issubclass(c, family)]
            for inner in dataclasses.fields(within):
                place = _Place(field, within, inner.name)
                plain.setdefault(inner.name, []).append(place)
                for one in families:
                    prefixed.setdefault(f"{snake_case(one.__name__)}_{inner.name}", []).append(place)
    # An exact name precedes one prefixed by its class: `fisher_steps` is the setting of NGVI, not Fisher's `steps`.
    return {name: [*plain.get(name, []), *prefixed.get(name, [])] for name in {**plain, **prefixed}}
