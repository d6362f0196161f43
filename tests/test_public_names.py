"""The public face: every name is there, and none costs an import of torch before it is used."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pyro_fed as pf
from pyro_fed import infer
from pyro_fed.conventions.version import MOVED

#: What users and recipes have been told of.
PROMISED = (
    *("Auto", "DSVGD", "FSGLD", "NUTS", "P2PVI", "FedAIS", "FedAvg", "FedEP", "FedLaplace", "Federation", "Overview"),
    *("Private", "PyroFedError", "Quadrature", "combination", "executors", "graph", "metrics", "partition"),
    *(
        "schedule",
        "errors",
        "infer",
        "papers",
        "plots",
        "codebook",
        "render_model",
        "sbc",
        "loo",
        "prior_predict",
        "losses",
    ),
    *("column_sums", "compare", "fit", "pooled_moments", "power_scale", "predict", "run", "progress"),
)
#: Rooms whose door is a stub.
DOORS = (
    *("pyro_fed", "pyro_fed.infer", "pyro_fed.results", "pyro_fed.testing"),
    *("pyro_fed.analysis", "pyro_fed.analysis.judging", "pyro_fed.analysis.plots", "pyro_fed.analysis.report"),
)
HEAVY = ("torch", "pyro", "arviz", "numpy", "pandas", "scipy", "matplotlib")


def run_python(code: str, **variables: str) -> str:
    """What a fresh process prints that runs the code."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_are_offered(name):
    assert name in pf.__all__
    assert name in dir(pf)


def test_a_misspelt_name_is_answered_with_the_nearest():
    with pytest.raises(AttributeError, match="pyro_fed has no 'FedEp'; did you mean 'FedEP'"):
        pf.FedEp  # noqa: B018


@pytest.mark.parametrize("room", DOORS)
def test_every_name_of_a_door_resolves(room):
    module = importlib.import_module(room)
    assert module.__all__ == sorted(set(module.__all__))
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_public_modules_show_what_they_offer_and_nothing_else():
    """Tab completion asks `dir`: neither modules within nor what a module itself imports stand in it."""
    modules = [value for name in pf.__all__ if isinstance(value := getattr(pf, name), ModuleType)]
    assert {"schedule", "combination", "metrics", "papers", "graph"} <= {one.__name__.split(".")[-1] for one in modules}
    for module in modules:
        assert dir(module) == sorted(set(module.__all__)), module
        shown = {name: getattr(module, name) for name in dir(module)}
        if module is not infer:
            assert not [name for name, one in shown.items() if isinstance(one, ModuleType)], module
        homes = {name: getattr(one, "__module__", "") for name, one in shown.items()}
        foreign = ("pyro_fed.conventions", "torch", "numpy", "pyro_fed.errors")
        assert not [one for one, home in homes.items() if home.startswith(foreign) and home != module.__name__], module


@pytest.mark.parametrize("name", sorted(MOVED))
def test_moved_names_are_given_with_the_new_place(name):
    with pytest.warns(DeprecationWarning, match=rf"pyro_fed.{name} is pyro_fed.{MOVED[name]}.{name} now; version 0.3"):
        old = getattr(pf, name)
    assert old is getattr(getattr(pf, MOVED[name]), name)
    assert name not in dir(pf)


def test_a_name_is_public_where_it_is_moved_to_and_nothing_is_lost():
    shown = {
        *dir(pf),
        *MOVED,
        "P2PSFVI",
        "QLSD",
        "VRFALD",
        "plot_calibration",
        "plot_kaplan_meier",
    }  # which came after the move
    assert set(infer.__all__) <= shown and set(pf.plots.__all__) <= shown
    assert set(pf.papers.__all__) == {name for name, module in MOVED.items() if module == "papers"}
    assert len(dir(pf)) <= 50
    with pytest.raises(AttributeError, match=r"did you mean 'infer\.SGLD'"):
        pf.SGLDD  # noqa: B018


@pytest.mark.parametrize(
    ("path", "room"),
    [("pyro_fed.flower", "pyro_fed.deployment.flower"), ("pyro_fed.runtime.agents", "pyro_fed.deployment.agents")],
)
def test_what_a_deployment_needs_has_the_paths_that_programs_import(path, room):
    pytest.importorskip("flwr" if "flower" in path else "grpc")
    offered, own = importlib.import_module(path), importlib.import_module(room)
    assert offered.__all__ == own.__all__ and set(own.__all__) <= set(dir(offered))
    assert all(getattr(offered, name) is getattr(own, name) for name in own.__all__)


def test_star_import_and_version():
    namespace: dict[str, object] = {}
    exec("from pyro_fed import *", namespace)
    assert set(pf.__all__) <= set(namespace)
    metadata = importlib.import_module("importlib.metadata")
    assert pf.__version__ == metadata.version("pyro_fed")


def test_programs_beside_the_package_use_names_that_there_are():
    """In annotations, too, which no run looks up."""
    root = Path(__file__).parents[1]
    used = [
        (path, node)
        for folder in ("benchmarks", "tutorials")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pf"
    ]
    assert len({path for path, _ in used}) > 50
    assert [f"{path.name}:{node.lineno}: pf.{node.attr}" for path, node in used if not hasattr(pf, node.attr)] == []


MODULES_BY_NAME = """
import pyro_fed.plots, pyro_fed.infer, pyro_fed.infer.tilted
from pyro_fed.papers import PMD
import pyro_fed as pf
print(pyro_fed.plots is pf.plots, pf.papers.PMD is PMD, pf.plots.__spec__.name == pf.plots.__name__)
"""


def test_a_public_module_is_imported_by_its_name():
    assert run_python(MODULES_BY_NAME) == "True True True\n"
    for name in MODULES:
        assert importlib.import_module(f"pyro_fed.{name}") is getattr(pf, name)
    with pytest.raises(ModuleNotFoundError, match=r"pyro_fed\.plot'"):
        importlib.import_module("pyro_fed.plot")


def test_packages_with_doors_of_their_own_are_attributes_and_not_listed():
    assert {pf.testing, pf.results, pf.formula} & {getattr(pf, name) for name in dir(pf) if name.islower()} == set()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        pf.no_such_name  # noqa: B018


@pytest.mark.parametrize("room", DOORS)
def test_stubs_re_export_each_name_for_type_checkers(room):
    """`from .x import Y` without `as Y` is private in a stub (PEP 484)."""
    stub = Path(str(importlib.import_module(room).__file__)).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    private = [alias.name for node in imports for alias in node.names if alias.name not in ("*", alias.asname)]
    assert private == []


@pytest.mark.parametrize(
    "code",
    [
        "import pyro_fed; pyro_fed.__version__; dir(pyro_fed); pyro_fed.errors.SettingError",
        "import pyro_fed.cli.main",
        "from pyro_fed.cli.main import main; main(['--help'], standalone_mode=False)",
        "from pyro_fed.cli.main import main; main(['run', '--help'], standalone_mode=False)",
        "from pyro_fed.cli.main import main; main(['compare', '--help'], standalone_mode=False)",
        "from pyro_fed.cli.main import main; main(['flower', 'new', '--help'], standalone_mode=False)",
    ],
)
def test_names_version_and_help_load_nothing_heavy(code):
    printed = run_python(f"import sys\n{code}\nprint([name for name in {HEAVY} if name in sys.modules])")
    assert printed.splitlines()[-1] == "[]"


LATE = ("sympy", "networkx", "pyro_fed.analysis", "pyro_fed.infer.stein", "ray", "flwr", "jinja2")
MODULES = (
    *("codebook", "combination", "errors", "executors", "graph", "infer", "losses", "metrics", "papers", "partition"),
    *("plots", "progress", "schedule"),
)
#: What each fresh process prints in its last line; `pf.combination` is a module that the door of its room does not
#: import.
FRESH = {
    "late": f"""
import pyro_fed as pf
pf.run, pf.FedEP, pf.Federation, pf.partition, pf.graph, pf.executors
print([name for name in {LATE} if name in sys.modules])
""",
    "apps": f"""
import pyro_fed.flower
print([name for name in ("flwr", "grpc", *{LATE}) if name in sys.modules])
""",
    "modules": f"""
import pyro_fed as pf
print([getattr(pf, name).__name__.split(".")[-1] for name in {MODULES}])
""",
    "eager": """
os.environ["EAGER_IMPORT"] = "1"
import pyro_fed
print([name for name in pyro_fed.__all__ if name not in vars(pyro_fed)])
""",
}


@pytest.fixture(scope="module")
def fresh():
    """By name, what is printed by processes that know torch and Pyro alone, forks of one that has imported them."""
    code = f"""
import os, sys
import pyro
assert not any(name.startswith("pyro_fed") for name in sys.modules)
for name, code in {FRESH!r}.items():
    child = os.fork()
    if child == 0:
        print(name, end=": ")
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
    lines = dict(line.split(": ", 1) for line in run_python(code, CUDA_VISIBLE_DEVICES="").splitlines() if ": " in line)
    return {name: ast.literal_eval(lines[name]) for name in FRESH}


def test_what_a_run_needs_loads_nothing_that_it_may_not(fresh):
    assert fresh["late"] == []
    assert fresh["apps"] == []


def test_modules_among_the_names_need_nothing_loaded_before(fresh):
    assert fresh["modules"] == list(MODULES)


def test_eager_import_loads_everything(fresh):
    assert set(fresh["eager"]) <= {*MODULES}
