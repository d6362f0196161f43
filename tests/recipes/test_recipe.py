"""Recipes: what a TOML file may say, and what each mistake is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pyro_fed.errors import SettingError
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.components import public_callables, snake_case

ALGORITHM = '''
from __future__ import annotations
import dataclasses
from typing import Literal
from pyro_fed.errors import SettingError

@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """A tiny algorithm."""
    num_particles: int = 10
    step_size: float = 0.5
    batch_size: int | None = None
    mode: Literal["fast", "exact"] = "fast"
    decay: bool = False

    def __post_init__(self):
        if self.num_particles < 2:
            raise SettingError(f"num_particles must be at least 2, received {self.num_particles}.")

not_an_algorithm = 3
'''


SCHEDULES = """
class RoundRobin:
    pass

class UniformRandom:
    def __init__(self, clients_per_round):
        self.clients_per_round = clients_per_round

def ring(num_agents, hops=1):
    return ("ring", num_agents, hops)
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A folder with the module ``tiny_algorithm``; returns a function that writes a recipe there."""
    (tmp_path / "tiny_algorithm.py").write_text(ALGORITHM)
    (tmp_path / "tiny_schedule.py").write_text(SCHEDULES)
    monkeypatch.syspath_prepend(tmp_path)

    def write_recipe(text: str, algorithm: str | None = "tiny_algorithm:Tiny") -> Path:
        path = tmp_path / "tiny.toml"
        head = f'algorithm = "{algorithm}"\n' if algorithm else ""
        path.write_text(head + text, encoding="utf-8")
        return path

    return write_recipe


def test_load_and_build(write):
    path = write(
        'description = "Tiny"\n[settings]\nnum_particles = 7\nstep_size = 1\n'
        '[run]\nnum_rounds = 3\n[source]\npaper = "P"\n'
    )
    loaded = recipe.load(path)
    assert (loaded.name, loaded.description, dict(loaded.source)) == ("tiny", "Tiny", {"paper": "P"})
    assert loaded.run_options(4) == {"num_rounds": 3}
    algorithm = loaded.build({"num_particles": 9, "batch_size": "none"})
    assert dataclasses.asdict(algorithm) == {
        "num_particles": 9,
        "step_size": 1.0,
        "batch_size": None,
        "mode": "fast",
        "decay": False,
    }
    assert isinstance(algorithm.step_size, float)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[settings]\nnum_partcles = 5", ["num_partcles", "tiny.toml [settings]", "Tiny", "'num_particles'"]),
        ("[settings]\nzzz = 5", ["zzz", "valid names: batch_size, decay, mode"]),
        ("[run]\nnum_round = 5", ["num_round", "tiny.toml [run]", "'num_rounds'"]),
        ("[setings]\nnum_particles = 5", ["setings", "tiny.toml", "'settings'"]),
        ("[settings]\nnum_particles = 5.5", ["num_particles", "int", "5.5", "float"]),
        ("[settings]\nnum_particles = true", ["num_particles", "int", "True", "bool"]),
        ('[settings]\nstep_size = "big"', ["step_size", "float", "'big'", "str"]),
        ("[settings]\nstep_size = false", ["step_size", "float", "False"]),
        ("[settings]\nbatch_size = 1.5", ["batch_size", "int or 'none'", "1.5"]),
        ('[settings]\nmode = "slow"', ["mode", "one of 'fast', 'exact'", "'slow'"]),
        ("[settings]\ndecay = 1", ["decay", "bool", "1", "int"]),
        ("settings = 3", ["settings", "dict", "3"]),
        ('[run]\nnum_rounds = "many"', ["num_rounds", "int", "'many'"]),
        ("[source]\npaper = 3", ["paper", "[source]", "str", "3"]),
        ("[settings\n", ["tiny.toml", "not a TOML file", "line 2"]),
    ],
)
def test_mistakes_in_a_recipe(write, text, parts):
    with pytest.raises(SettingError) as caught:
        recipe.load(write(text))
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "parts"),
    [
        (None, ["tiny.toml", "'algorithm' is missing"]),
        ("tiny_algorithm", ["tiny.toml", "module:Class"]),
        ("no_such_module:Tiny", ["tiny.toml", "no_such_module"]),
        ("tiny_algorithm:Tiy", ["'Tiy'", "did you mean 'Tiny'?"]),
        ("tiny_algorithm:not_an_algorithm", ["not a dataclass"]),
    ],
)
def test_mistakes_in_the_algorithm(write, algorithm, parts):
    with pytest.raises(SettingError) as caught:
        recipe.load(write("", algorithm))
    for part in parts:
        assert part in str(caught.value)


def test_overrides_are_checked_as_settings_are(write):
    loaded = recipe.load(write(""))
    with pytest.raises(SettingError, match="unknown key 'step_siez' of Tiny; did you mean 'step_size'"):
        loaded.build({"step_siez": 1.0})
    with pytest.raises(SettingError, match="at least 2, received 1"):
        loaded.build({"num_particles": 1})


def test_components_by_name(write):
    path = write("")
    build = recipe.resolve_component
    assert type(build("tiny_schedule", "round_robin", path)).__name__ == "RoundRobin"
    spec = {"name": "uniform_random", "clients_per_round": 4}
    assert build("tiny_schedule", spec, path).clients_per_round == 4
    assert spec == {"name": "uniform_random", "clients_per_round": 4}
    assert build("tiny_schedule", {"name": "ring", "hops": 2}, path, 5) == ("ring", 5, 2)


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("round_robbin", "did you mean 'round_robin'"),
        ({"clients_per_round": 3}, "lacks a name"),
        ({"name": "round_robin", "k": 3}, "'round_robin' does not take {'k': 3}"),
    ],
)
def test_mistakes_in_components(write, spec, part):
    with pytest.raises(SettingError, match=part):
        recipe.resolve_component("tiny_schedule", spec, write(""))


def test_components_are_what_the_module_defines_itself():
    assert "dataclass" not in public_callables(recipe)
    assert {"recipe", "load"} <= set(public_callables(recipe))


@pytest.mark.parametrize(
    ("name", "snake"),
    [
        ("RoundRobin", "round_robin"),
        ("IID", "iid"),
        ("KSD", "ksd"),
        ("HIPSchedule", "hip_schedule"),
        ("ring", "ring"),
        ("TopK2Of", "top_k2_of"),
    ],
)
def test_snake_case(name, snake):
    assert snake_case(name) == snake


@pytest.mark.parametrize("name", sorted(library.list_recipes()))
def test_every_shipped_recipe_builds(name):
    loaded = recipe.load(name)
    built = loaded.build()
    assert {key: getattr(built, key) for key in loaded.settings} == dict(loaded.settings)
    assert loaded.description
    assert "paper" in loaded.source
    assert loaded.run_options(5).get("num_rounds", 1) >= 1  # none: the algorithm stops by itself


@pytest.mark.parametrize("name", sorted(library.list_recipes()))
def test_every_shipped_setting_cites_its_source(name):
    """Each assignment under [settings] carries a comment on its line."""
    text = library.find_recipe(name).read_text(encoding="utf-8")
    lines = text.split("[settings]")[1].split("\n[")[0].splitlines()
    assignments = [line for line in lines if "=" in line.split("#")[0]]
    assert assignments
    assert all(len(line.partition("#")[2].strip()) > 10 for line in assignments)
