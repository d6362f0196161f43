"""The house: storeys whose imports point down, no circle between modules, rooms with doors.

Imports are read from the source, nothing is imported: those inside functions and under `TYPE_CHECKING` count, those of
stubs (`__init__.pyi`, the names that a door offers), and modules that are named by a string. Where an arrow points up,
move what both sides need further down, or hand it in as an argument; do not add to the tables below.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import pytest

HOUSE = Path(__file__).parents[1] / "pyro_fed"

#: Bottom to top. A storey imports from those before it; storeys in one line stand beside each other, and neither
#: imports the other. `door` is the package's own `__init__`, with its stub.
STOREYS = """
    errors
    ops
    conventions
    graph
    codes
    density
    federation
    algorithm codebook
    guides
    infer recipes
    policy
    results
    audit
    runtime
    analysis formula testing
    door
    deployment
    flower
    cli
"""

#: Modules that are only another path to a module, by which programs may import it: they count as that module.
PATHS = {"pyro_fed.runtime.agents": "pyro_fed.deployment.agents"}

#: The same for the rooms of a storey. Those of density/ share one file, `problem.py`, and have no order of their own.
ROOMS = {
    "pyro_fed": STOREYS,
    "pyro_fed.infer": """
        sites
        averaging
        laplace
        ep
        peers pooled
        stein subposteriors surrogates
        langevin variational
        papers
        auto
        door
    """,
    "pyro_fed.analysis": """
        numbers
        judging
        predicting
        criticism
        metrics
        plots
        report
        bench
        door
    """,
    "pyro_fed.deployment": """
        claimed_federation limits review rows signing_keys
        policy
        remote
        agents flower files
        door
    """,
}

#: A door's docstring has at least so many words.
DOOR_WORDS = 4


class Import(NamedTuple):
    """One import: of which module, by which, and where."""

    source: str
    target: str
    place: str

    def __str__(self):
        return f"{self.place}: {self.source} imports {self.target}"


def modules_of(house):
    """Module → its files, a package's stub beside its `__init__.py`."""
    found = {}
    for file in sorted([*house.rglob("*.py"), *house.rglob("*.pyi")]):
        parts = file.relative_to(house.parent).with_suffix("").parts
        found.setdefault(".".join(parts).removesuffix(".__init__"), []).append(file)
    return found


def imports_of(house):
    """Every import of one of the package's modules by another."""
    modules = modules_of(house)
    found = [
        Import(source, target, f"{file.relative_to(house.parent)}:{line}")
        for source, files in modules.items()
        for file in files
        for target, line in _imported(file, source, modules)
        if target != source
    ]
    return list(dict.fromkeys(found))


def _imported(file, module, modules):
    package = module if file.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            home = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                yield next((t for t in (f"{home}.{name.name}", home) if t in modules), None) or module, node.lineno
        elif isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names if name.name in modules)
        elif isinstance(node, ast.Constant) and node.value in modules and "." in node.value:
            yield node.value, node.lineno


def levels_of(table):
    """Room → its level, 0 for the lowest."""
    return {room: level for level, line in enumerate(table.split("\n")) for room in line.split()}


def upward(imports, rooms):
    """Imports that point up or sideways between the rooms of a package, and rooms that the table does not have."""
    faults = []
    for package, table in rooms.items():
        levels = levels_of(table)
        for found in imports:
            source, target = (_room(module, package) for module in (found.source, found.target))
            if source is None or target is None or source == target:
                continue
            if unknown := {source, target} - levels.keys():
                faults.append(f"{found}: {unknown} is not in the table of {package}")
            elif levels[target] >= levels[source]:
                faults.append(f"{found}: in {package}, {target} is not below {source}")
    return faults


def _room(module, package):
    module = PATHS.get(module, module)
    if module == package:
        return "door"
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else None


def circles(imports):
    """One circle of each knot of modules that import each other, with the place of every import."""
    graph = nx.DiGraph()
    for found in imports:
        graph.add_edge(found.source, found.target, found=found)
    knots = [graph.subgraph(knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    return [
        f"{len(knot)} modules in circles, one of them:\n  "
        + "\n  ".join(str(knot.edges[arrow]["found"]) for arrow in nx.find_cycle(knot))
        for knot in knots
    ]


def rooms_without_doors(house):
    """Folders of modules without an `__init__.py` whose docstring says what is in the room."""
    faults = []
    for folder in sorted({file.parent for file in house.rglob("*.py")}):
        door = folder / "__init__.py"
        said = ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) if door.is_file() else None
        if said is None:
            faults.append(f"{door}: " + ("no docstring" if door.is_file() else "no such file"))
        elif len(said.split()) < DOOR_WORDS:
            faults.append(f"{door}: the docstring {said!r} does not say what is in the room")
    return faults


@pytest.fixture(scope="module")
def imports():
    return imports_of(HOUSE)


def test_imports_point_down(imports):
    faults = upward(imports, ROOMS)
    assert not faults, "\n".join(faults)


def test_no_module_imports_itself_in_a_circle(imports):
    found = circles(imports)
    assert not found, "\n".join(found)


def test_the_core_does_not_import_what_a_deployment_needs(imports):
    """Only the command line does, and the two paths by which programs import it."""
    paths = {"pyro_fed.flower", *PATHS}
    users = {found.source for found in imports if _room(found.target, "pyro_fed") in ("deployment", "flower")}
    users = {source for source in users if not source.startswith("pyro_fed.deployment")}
    commands = {f"pyro_fed.cli.{name}" for name in ("check", "network", "node", "study")}
    assert users == commands | paths


def test_a_module_that_is_another_path_counts_as_that_module():
    assert _room("pyro_fed.runtime.agents", "pyro_fed") == "deployment"
    up = [Import("pyro_fed.runtime.run", "pyro_fed.runtime.agents", "run.py:1")]
    assert upward(up, ROOMS) == [f"{up[0]}: in pyro_fed, deployment is not below runtime"]


def test_every_room_has_a_door():
    faults = rooms_without_doors(HOUSE)
    assert not faults, "\n".join(faults)


def test_the_parser_sees_the_imports_that_are_there(imports):
    """Against what would make the tests above pass by seeing nothing."""
    pairs = {(found.source, found.target) for found in imports}
    assert ("pyro_fed.runtime.run", "pyro_fed.runtime.rounds") in pairs
    assert ("pyro_fed", "pyro_fed.infer") in pairs  # by the stub
    assert {found.source.split(".")[1] for found in imports if "." in found.source} > {"cli", "density", "infer"}


def made_up(folder, files):
    """A package `house` of one-line files."""
    for name, text in files.items():
        file = folder / "house" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "house"


@pytest.mark.parametrize(
    "line",
    [
        "from house.roof import tiles",
        "from house.roof.tiles import red",
        "import house.roof.tiles",
        "from ..roof import tiles",
        "def f():\n    from house.roof import tiles",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.roof.tiles import red",
        "import importlib\nimportlib.import_module('house.roof.tiles')",
    ],
    ids=["module", "name", "plain", "relative", "in a function", "for types", "by a string"],
)
def test_an_arrow_upwards_is_found(tmp_path, line):
    files = {"__init__.py": "", "cellar/__init__.py": "", "roof/__init__.py": "", "roof/tiles.py": "red = 1"}
    house = made_up(tmp_path, {**files, "cellar/wine.py": line})
    (fault,) = upward(imports_of(house), {"house": "cellar\nroof\ndoor"})
    last = line.count("\n") + 1
    assert fault == (
        f"house/cellar/wine.py:{last}: house.cellar.wine imports house.roof.tiles: in house, roof is not below cellar"
    )
    assert upward(imports_of(house), {"house": "roof\ncellar\ndoor"}) == []
    assert len(upward(imports_of(house), {"house": "roof cellar\ndoor"})) == 1  # beside is not below
    assert "not in the table" in upward(imports_of(house), {"house": "cellar\ndoor"})[0]


def test_an_arrow_upwards_of_a_stub_is_found(tmp_path):
    files = {"__init__.py": "", "cellar/__init__.py": "", "cellar/__init__.pyi": "from ..roof import *"}
    house = made_up(tmp_path, {**files, "roof/__init__.py": ""})
    (fault,) = upward(imports_of(house), {"house": "cellar\nroof\ndoor"})
    assert fault.startswith("house/cellar/__init__.pyi:1: house.cellar imports house.roof")


def test_a_circle_is_found_with_its_imports(tmp_path):
    house = made_up(
        tmp_path,
        {
            "a.py": "from house.b import x",
            "b.py": "def f():\n    from house import c",
            "c.py": "import house.a",
            "d.py": "from house import a, b, c",
        },
    )
    (found,) = circles(imports_of(house))
    assert found.startswith("3 modules")
    for place in ("house/a.py:1", "house/b.py:2", "house/c.py:1"):
        assert place in found
    assert "house.d" not in found
    (house / "c.py").write_text("")
    assert circles(imports_of(house)) == []


def test_rooms_without_doors_are_found(tmp_path):
    said = '"""What is in this room."""'
    files = {"__init__.py": said, "bare/one.py": "", "short/__init__.py": '"""."""', "none/__init__.py": ""}
    house = made_up(tmp_path, files)
    assert [fault.rpartition("house/")[2].split(":")[0] for fault in rooms_without_doors(house)] == [
        "bare/__init__.py",
        "none/__init__.py",
        "short/__init__.py",
    ]
