"""The wheel in fresh environments of every Python here: README's sample, the shell's `run`, and the contract's draws.

    python tests/helpers/pythons.py [3.12 ...] [--oldest | --newest]       (`make test-pythons`)

For each Python from 3.11 on an environment with the newest versions that pip takes, and one with the oldest that
`pyproject.toml` allows. Each is made in a folder of its own and deleted again: where pip takes torch with CUDA's
libraries, as it does on Linux unless it is told of an index of CPU builds (PIP_EXTRA_INDEX_URL), it has 5 GB.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The first Python that is supported, and how far to look.
FIRST, LAST = 11, 20
#: Seconds that one step may take: installing takes longest.
LIMIT = 1800
#: What is run of the tests: every algorithm on small federations, and what ArviZ makes of results.
TESTS = ("tests/algorithm/test_contract_draws.py", "tests/results", "tests/conventions")
SHELL = "run", "logistic_regression", "fedep", "--clients", "3", "--rounds", "3", "--out", "result.nc"
#: What takes long is left out; so are, with torch 2.6, draws that begin at starting points: its `multinomial` without
#: replacement takes others. What the oldest packages say of the newest ones below them is theirs, not an error of ours.
NEW = ("-k", "not hierarchy and not NUTS")
STARTED = "test_the_same_draws and (SVGD or SVI or NPV)"
OLD = ("-k", f"{NEW[1]} and not ({STARTED})", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
VERSIONS = """
import sys
from importlib.metadata import version
print(", ".join([f"Python {sys.version.split()[0]}", *(f"{n} {version(n)}" for n in sys.argv[1:])]))
"""


def interpreters(wanted: list[str]) -> dict[str, str]:
    """Interpreters by version, such as 3.12; those on the path, and those of pyenv."""
    found: dict[str, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(FIRST, LAST):
        name = f"3.{minor}"
        candidates = [*map(str, pyenv.glob(f"{name}.*/bin/python3")), shutil.which(f"python{name}")]
        for candidate in filter(None, candidates):
            if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                found[name] = candidate
                break
    missing = set(wanted) - found.keys()
    if missing:
        raise SystemExit(f"no Python {sorted(missing)} here; there are {sorted(found)}")
    return {name: path for name, path in found.items() if not wanted or name in wanted}


def oldest() -> str:
    """Constraints that ask for the lower bounds of the dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", one) for one in project["dependencies"]]
    return "\n".join(f"{bound[1]}=={bound[2]}.*" for bound in bounds if bound)


def sample() -> str:
    """README's first program."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found, "README.md has no program"
    return found[1]


def run(step: str, command: list[str], folder: Path) -> bool:
    """Run one step in a folder, and say how it went and how long it took; its output where it failed."""
    began = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, timeout=LIMIT, capture_output=True, text=True, check=False
    )
    print(f"  {'ok    ' if done.returncode == 0 else 'FAILED'} {step}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", flush=True)
    elif step == "versions":
        print(f"         {done.stdout.strip()}", flush=True)
    return done.returncode == 0


def check(python: str, wheel: Path, constraints: str, folder: Path) -> bool:
    """All steps in an environment of their own."""
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's settings
    (folder / "sample.py").write_text(sample())
    (folder / "versions.py").write_text(VERSIONS)
    (folder / "constraints.txt").write_text(constraints)
    own = str(folder / "env" / "bin" / "python")
    shell = [str(folder / "env" / "bin" / "pyro-fed")]
    wanted = [own, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", str(wheel), "pytest", "pytest-xdist"]
    judged = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words = OLD if constraints else NEW
    steps = {
        "environment": [python, "-m", "venv", "env"],
        "install": wanted,
        "versions": [own, "versions.py", "arviz", "torch", "numpy", "xarray", "pandas", "scipy"],
        "README's sample": [own, "sample.py"],
        "pyro-fed run": [*shell, *SHELL],
        "tests": [*judged, *words, *TESTS],
    }
    return all(run(step, command, folder) for step, command in steps.items())


def main() -> None:
    """Every Python with the newest and the oldest dependencies; exit code 1 where a step failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", metavar="3.N")
    parser.add_argument("--newest", action="store_true", help="without the oldest dependencies")
    parser.add_argument("--oldest", action="store_true", help="with the oldest dependencies alone")
    given = parser.parse_args()
    sets = {"newest": "", "oldest": oldest()}
    if given.newest != given.oldest:
        sets = {name: sets[name] for name in ("newest", "oldest") if getattr(given, name)}
    good = True
    with tempfile.TemporaryDirectory() as place:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", place, str(ROOT)]
        subprocess.run(build, check=True)
        (wheel,) = Path(place).glob("*.whl")
        for name, python in interpreters(given.pythons).items():
            for which, constraints in sets.items():
                print(f"Python {name}, the {which} dependencies", flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    good &= check(python, wheel, constraints, Path(folder))
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
