"""What `help` shows of every public algorithm and of the settings within its settings: all of them, and an example."""

import ast
import dataclasses
import inspect
import re

import pytest

import pyro_fed as pf
from pyro_fed import infer
from pyro_fed.conventions.nested_settings import Settings, Variant, setting_hints, settings_in

ALGORITHMS = [value for name in infer.__all__ if inspect.isclass(value := getattr(infer, name))]


def nested(owner):
    """The classes of settings that an owner's settings take."""
    if owner is pf.infer.Given:
        return
    for hint in setting_hints(owner).values():
        family = settings_in(hint)
        if family is not None:
            yield from family.kinds().values() if issubclass(family, Variant) else (family,)


PUBLIC = list(dict.fromkeys([*ALGORITHMS, *(inner for owner in ALGORITHMS for inner in nested(owner))]))


def sections(cls):
    """Heading → text of a Google docstring."""
    text = inspect.getdoc(cls) or ""
    parts = re.split(r"^(Args|Raises|References|Example):$", text, flags=re.M)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(cls):
    """The settings that the section Args describes, in its order."""
    return re.findall(r"^    (\w+): \S", sections(cls).get("Args", ""), flags=re.M)


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__qualname__)
def test_every_setting_is_described(cls):
    fields = {field.name for field in dataclasses.fields(cls) if field.init}
    assert sorted(described(cls)) == sorted(fields)
    assert "as for" not in inspect.getdoc(cls).lower()


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__qualname__)
def test_there_is_an_example_that_is_python(cls):
    lines = [line.strip() for line in sections(cls).get("Example", "").splitlines()]
    code = "\n".join(
        line.removeprefix(">>> ").removeprefix("... ") for line in lines if line.startswith((">>>", "..."))
    )
    assert code
    ast.parse(code)


@pytest.mark.parametrize("cls", ALGORITHMS, ids=lambda cls: cls.__qualname__)
def test_there_is_a_source(cls):
    assert sections(cls).get("References", "").strip()


@pytest.mark.parametrize("cls", ALGORITHMS, ids=lambda cls: cls.__qualname__)
def test_the_signature_is_the_settings(cls):
    shown = inspect.signature(cls).parameters
    assert list(shown) == [field.name for field in dataclasses.fields(cls) if field.init]
    assert len(shown) <= 22


def test_the_settings_within_settings_are_found():
    assert (
        issubclass(pf.infer.update.SVI, Settings) and pf.infer.update.SVI in PUBLIC and pf.infer.tilted.MCMC in PUBLIC
    )
