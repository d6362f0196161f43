"""What would be published, checked: source distribution and wheel, their metadata and contents, and a fresh install.

    python tests/helpers/release.py          (`make release-check`)

Builds both by `build`, checks their metadata by `twine`, has rattler-build's own reader render the conda recipe, looks
into them, and installs the wheel with the extra `compare` in an empty environment, where it must run README's first
program, list its models and write a page. Nothing is uploaded.
"""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

from pythons import ROOT, run, sample

#: Files that have to be there. Of the wheel: what is no Python, and what comes from other folders.
IN_WHEEL = (
    "pyro_fed/py.typed",
    "pyro_fed/__init__.pyi",
    "pyro_fed/analysis/report/templates/report.html",
    "pyro_fed/deployment/policy/templates/law.html",
    "pyro_fed/_library/models/logistic_regression.py",
    "pyro_fed/_library/inference/fedep.toml",
)
IN_SOURCE = ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "Makefile", "tests/conftest.py")
#: Folders that neither may have: what is built, and what belongs to one machine.
NOWHERE = ("out/", ".venv/", "docs/_build/", "docs/_executed/", "docs/_tutorials/", "__pycache__/")
#: What is left over from a template.
PLACEHOLDERS = re.compile(r"example\.(com|org)|TODO|<your|your-name|github\.com/(user|org|owner)/", re.IGNORECASE)
#: Reads and renders the recipe as rattler-build does, which refuses what it does not know.
RENDER = """
import sys
from rattler_build import Stage0Recipe, VariantConfig
(made,) = Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig())
assert str(made.recipe.package.version) == sys.argv[2], made.recipe.package.version
"""
TOOLS = ("build", "twine", "py-rattler-build")
PAGE = ("compare", "gaussian_mean", "fedep", "--clients", "3", "--quiet", "--report", "page.html")


def faults(folder: Path) -> list[str]:
    """What is wrong with the files in a folder, in a line each."""
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        licensed = any("LICENSE" in name for name in names)
    with tarfile.open(source) as archive:
        inside = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    found = [f"the wheel has no {name}" for name in IN_WHEEL if name not in names]
    found += [f"the source distribution has no {name}" for name in IN_SOURCE if name not in inside]
    found += [f"{name} is not to be published" for name in [*names, *inside] if any(one in name for one in NOWHERE)]
    found += [f"the wheel has {name} at its top" for name in names if not name.startswith("pyro_fed")]
    return found + ([] if licensed else ["the wheel has no license"]) + _metadata_faults(metadata)


def _metadata_faults(text: str) -> list[str]:
    metadata = Parser().parsestr(text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    found = []
    if not metadata["Version"] == project["version"] == (cited[1] if cited else None):
        cff = cited[1] if cited else "none"
        found.append(f"versions differ: {metadata['Version']}, pyproject {project['version']}, CITATION.cff {cff}")
    if not (metadata["Author"] or metadata["Author-email"]):
        found.append("the metadata name no author")
    head = text[: text.index("\n\n")]
    return found + [f"a placeholder in the metadata: {one[0]}" for one in PLACEHOLDERS.finditer(head)]


def main() -> None:
    """All steps; exit code 1 where one failed."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sample.py").write_text(sample())
        tools, own = folder / "tools" / "bin" / "python", folder / "own" / "bin"
        made, constraints = folder / "dist", str(ROOT / "constraints.txt")
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        steps = {
            "tools": [sys.executable, "-m", "venv", "tools"],
            "build, twine, rattler": [
                str(tools),
                "-m",
                "pip",
                "install",
                "--quiet",
                "build",
                "twine",
                "py-rattler-build",
            ],
            "conda recipe": [str(tools), "-c", RENDER, str(ROOT / "conda" / "recipe.yaml"), version],
            "sdist and wheel": [str(tools), "-m", "build", "--outdir", str(made), str(ROOT)],
        }
        good = all(run(step, command, folder) for step, command in steps.items())
        files = sorted(map(str, made.glob("*"))) if good else []
        good = good and run("metadata", [str(tools), "-m", "twine", "check", "--strict", *files], folder)
        wrong = faults(made) if good else []
        print("\n         ".join([f"  {'FAILED' if wrong else 'ok    '} contents", *wrong]), flush=True)
        wheel = next((name for name in files if name.endswith(".whl")), "")
        steps = {
            "environment": [sys.executable, "-m", "venv", "own"],
            "install": [str(own / "python"), "-m", "pip", "install", "--quiet", "-c", constraints, f"{wheel}[compare]"],
            "dependencies agree": [str(own / "python"), "-m", "pip", "check"],
            "README's sample": [str(own / "python"), "sample.py"],
            "pyro-fed list": [str(own / "pyro-fed"), "list"],
            "pyro-fed compare": [str(own / "pyro-fed"), *PAGE],
        }
        good = good and not wrong and all(run(step, command, folder) for step, command in steps.items())
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
