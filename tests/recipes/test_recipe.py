"""Recipes: what a TOML file may say, and what each mistake is told."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

from pyro_fed.conventions.names import snake_case
from pyro_fed.errors import SettingError
from pyro_fed.recipes import library, recipe
from pyro_fed.recipes.values import public_callables

ALGORITHM = '''
from __future__ import annotations
import dataclasses
import importlib
import sys
from typing import ClassVar, Literal
from pyro_fed.conventions.nested_settings import Settings, Variant, resolve
from pyro_fed.errors import SettingError

class Inner(Variant):
    what: ClassVar[str] = "inner thing"
    door: ClassVar[str] = "tiny"

@dataclasses.dataclass(frozen=True, kw_only=True)
class Plain(Inner):
    steps: int = 3

    def __post_init__(self):
        if self.steps < 1:
            raise SettingError(f"Plain: steps must be at least 1, received {self.steps}")

@dataclasses.dataclass(frozen=True, kw_only=True)
class Fancy(Inner):
    steps: int = 5
    step_size: float = 0.1

@dataclasses.dataclass(frozen=True, kw_only=True)
class Control(Settings):
    memory: int | None = None
    reach: float = 1.0

@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiny:
    """A tiny algorithm."""
    num_particles: int = 10
    step_size: float = 0.5
    batch_size: int | None = None
    mode: Literal["fast", "exact"] = "fast"
    decay: bool = False
    inner: Inner | Literal["plain", "fancy"] = Plain(steps=4)
    other: Inner | Literal["plain", "fancy"] | None = None
    control: Control = Control()
    shorthands: ClassVar[dict[str, dict[str, Inner]]] = {"inner": {"plain": Plain(steps=4)}}

    def __post_init__(self):
        resolve(self, "inner", Inner)
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
    importlib.invalidate_caches()
    importlib.import_module("tiny_algorithm")  # as the model file, or who reads the recipe, does

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
        "inner": {"steps": 4},
        "other": None,
        "control": {"memory": None, "reach": 1.0},
    }
    assert isinstance(algorithm.step_size, float)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[settings]\nnum_partcles = 5", ["num_partcles", "tiny.toml [settings]", "Tiny", "'num_particles'"]),
        ("[settings]\nzzz = 5", ["zzz", "valid names: batch_size, control, decay"]),
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
        ('[settings]\ninner = "fanci"', ["tiny.toml [settings]", "'fanci'", "did you mean 'fancy'?"]),
        ("[settings]\ninner = 3", ["tiny.toml [settings]", "'inner' of Tiny", "a table or one of 'plain'", "3 (int)"]),
        ("[settings.inner]\nsteps = 3", ["tiny.toml [settings.inner]", "the name is missing", "name = 'plain'"]),
        ('[settings.inner]\nname = "fanci"', ["tiny.toml [settings.inner]", "did you mean 'fancy'?"]),
        (
            '[settings.inner]\nname = "fancy"\nstep_siz = 3.0',
            ["tiny.toml [settings.inner]", "unknown key 'step_siz' of Fancy", "'step_size'"],
        ),
        (
            '[settings.inner]\nname = "plain"\nrate = 3.0',
            ["[settings.inner]", "unknown key 'rate' of Plain", "valid names: steps"],
        ),
        (
            '[settings.inner]\nname = "fancy"\nstep_size = "big"',
            ["tiny.toml [settings.inner]", "'step_size' of Fancy expects float", "'big' (str)"],
        ),
        (
            '[settings.inner]\nname = "plain"\nsteps = 0',
            ["tiny.toml [settings.inner]", "Plain: steps must be at least 1, received 0"],
        ),
        ('[settings]\ncontrol = "x"', ["tiny.toml [settings]", "'control' of Tiny expects a table", "'x' (str)"]),
        ("[settings.control]\nreech = 1", ["tiny.toml [settings.control]", "'reech' of Control", "'reach'"]),
        ("[settings.num_particles]\na = 1", ["'num_particles' of Tiny expects int", "(dict)"]),
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


@pytest.mark.parametrize("reference", ["harmful:Tiny", "harmful.inner:Tiny", "pyro_fed.infer.harmful:Tiny"])
def test_a_recipe_imports_nothing_of_others(write, tmp_path, reference):
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')")
    with pytest.raises(SettingError, match=r"a recipe imports nothing but pyro_fed\.infer, since an import runs code"):
        recipe.load(write("", reference))
    assert "harmful" not in sys.modules
    assert recipe.load(write("", "pyro_fed.infer:FedEP")).algorithm.__name__ == "FedEP"


def test_overrides_are_checked_as_settings_are(write):
    loaded = recipe.load(write(""))
    with pytest.raises(SettingError, match="unknown key 'step_siez' of Tiny; did you mean 'step_size'"):
        loaded.build({"step_siez": 1.0})
    with pytest.raises(SettingError, match=r"tiny\.toml \[settings\] and overrides: num_particles .* received 1"):
        loaded.build({"num_particles": 1})


def test_a_value_that_the_algorithm_refuses_is_told_with_its_file(write):
    with pytest.raises(SettingError, match=r"tiny\.toml \[settings\]: num_particles must be at least 2, received 1"):
        recipe.load(write("[settings]\nnum_particles = 1")).build()


NESTED = """
[settings]
other = "plain"
[settings.inner]
name = "fancy"
steps = 7
[settings.control]
memory = 4
"""


def test_tables_and_names_of_nested_settings(write):
    built = recipe.load(write(NESTED)).build()
    assert repr(built.inner) == "Fancy(steps=7)"
    assert repr(built.other) == "Plain()"
    assert repr(built.control) == "Control(memory=4)"
    texts = ('[settings.inner]\nname = "plain"', '[settings]\ninner = "plain"', "")
    assert [repr(recipe.load(write(text)).build().inner) for text in texts] == ["Plain(steps=4)"] * 3
    assert recipe.load(write('[settings]\nother = "none"')).build().other is None


@pytest.mark.parametrize(
    ("overrides", "shown"),
    [
        ({"inner.step_size": 1}, "Fancy(steps=7, step_size=1.0)"),
        ({"inner": "plain"}, "Plain(steps=4)"),
        ({"inner": "fancy"}, "Fancy()"),
        ({"inner": "plain", "inner.steps": 9}, "Plain(steps=9)"),
        ({"inner.name": "fancy", "inner.step_size": 1.0}, "Fancy(step_size=1.0)"),
        ({"inner": {"name": "fancy", "steps": 2}}, "Fancy(steps=2)"),
    ],
)
def test_overrides_of_nested_settings_change_what_the_recipe_has(write, overrides, shown):
    assert repr(recipe.load(write(NESTED)).build(overrides).inner) == shown


def test_overrides_of_nested_settings_without_a_recipe_change_the_default(write):
    loaded = recipe.load(write(""))
    assert repr(loaded.build({"inner.steps": 9}).inner) == "Plain(steps=9)"
    assert repr(loaded.build({"control.reach": 2}).control) == "Control(reach=2.0)"
    with pytest.raises(SettingError, match="--set other: the name is missing"):
        loaded.build({"other.steps": 9}, where="--set")
    with pytest.raises(SettingError, match="--set inner: unknown key 'stps' of Plain; did you mean 'steps'"):
        loaded.build({"inner.stps": 9}, where="--set")
    with pytest.raises(SettingError, match="unknown key 'iner' of Tiny; did you mean 'inner'"):
        loaded.build({"iner.steps": 9})


def test_what_a_recipe_leaves_out(write):
    left = recipe.load(write(NESTED)).left_out()
    assert not left.keys() & {"inner.steps", "inner.name", "other.name", "control.memory"}
    assert left["inner.step_size"] == "0.1"
    assert left["control.reach"] == "1.0"
    assert recipe.load(write("")).left_out()["inner.name"] == '"plain"'


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
    assert loaded.description, f'{loaded.path}: no description: add description = "..." at the top'
    assert "paper" in loaded.source, f'{loaded.path}: no paper: add a table [source] with paper = "..."'
    assert loaded.run_options(5).get("num_rounds", 1) >= 1  # none: the algorithm stops by itself


@pytest.mark.parametrize("name", sorted(library.list_recipes()))
def test_every_shipped_setting_cites_its_source(name):
    """Each assignment under [settings] carries a comment on its line."""
    path = library.find_recipe(name)
    lines = path.read_text(encoding="utf-8").splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("[settings")), len(lines))
    last = next((i for i, line in enumerate(lines) if line.strip() in ("[run]", "[source]")), len(lines))
    given = {i: line for i, line in enumerate(lines[first:last], first + 1) if "=" in line.split("#")[0]}
    assert given, f"{path}: [settings] is empty; say the settings that make the recipe"
    bare = [f"{path}:{i}: {line}" for i, line in given.items() if len(line.partition("#")[2].strip()) <= 10]
    assert not bare, "no source behind the value: add a comment such as `# Table 7` or `# ours: why`\n" + "\n".join(
        bare
    )


@pytest.mark.parametrize(
    ("name", "key", "place"),
    [
        ("fsgld", "step_size", r"step\.size, with step\.name = 'fixed'"),
        ("fsgld", "visit_error", r"step\.visit_error, with step\.name = 'measured'"),
        ("fsgld", "trust", r"conducive\.trust$"),
        ("dsvgd", "max_passes", r"end\.max_passes$"),
        ("fedep", "server_optimiser", r"that of optimisers=pf\.infer\.Optimisers\(server=\.\.\.\)$"),
    ],
)
def test_the_key_of_a_setting_that_has_another_place_is_said(name, key, place):
    with pytest.raises(SettingError, match=f"unknown key '{key}' of .*; it is {place}"):
        recipe.load(name).build({key: 1.0})
