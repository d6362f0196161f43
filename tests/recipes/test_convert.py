"""Values from TOML and the command line: what fits a type hint, and what does not."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest

from pyro_fed.errors import SettingError
from pyro_fed.recipes.values import Mismatch, convert, describe, parse_assignment, to_toml


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("num_particles=50", "num_particles", 50),
        ("rate=1e-3", "rate", 1e-3),
        (" flag = true ", "flag", True),
        ('name="x y"', "name", "x y"),
        ("mode=fast", "mode", "fast"),
        ("sizes=[1, 2]", "sizes", [1, 2]),
        ("path=a=b", "path", "a=b"),
    ],
)
def test_assignments_have_the_type_of_their_text(text, key, value):
    parsed = parse_assignment(text)
    assert parsed == (key, value)
    assert type(parsed[1]) is type(value)


@pytest.mark.parametrize("text", ["num_particles", "=3", "num_particles=", ""])
def test_mistakes_in_assignments(text):
    with pytest.raises(SettingError, match="expected key=value"):
        parse_assignment(text)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1, 2], list[float], [1.0, 2.0]),
        ([1, "a"], tuple, (1, "a")),
        ("none", float | None, None),
        ("none", str, "none"),
        ("none", Any, None),
        (2, Literal[1, 2], 2),
    ],
)
def test_convert(value, hint, expected):
    converted = convert(value, hint)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, Literal[1]),
        ([1], tuple[int, int]),
        (["a"], tuple[int, ...]),
        ("x", int | None),
        (3, str),
        (1, Path),
    ],
)
def test_convert_refuses(value, hint):
    with pytest.raises(Mismatch):
        convert(value, hint)
    assert describe(hint)


@pytest.mark.parametrize("value", [True, 3, -2.5, 1e-9, float("inf"), 'a "b" ü\n', [1, 2], [[1.0], ["x"]]])
def test_to_toml_round_trip(value):
    assert tomllib.loads(f"v = {to_toml(value)}")["v"] == value
