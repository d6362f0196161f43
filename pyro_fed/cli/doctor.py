"""The command ``pyro-fed doctor``: what is installed, and the machine's threads, compiler and GPU."""

from __future__ import annotations

import os
import platform
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import click

from pyro_fed.cli import options
from pyro_fed.conventions.version import VERSION

#: The packages that every run needs.
NEEDED = ("torch", "pyro-ppl", "arviz", "xarray", "numpy", "scipy", "pandas", "matplotlib", "h5netcdf")
#: The extras: the modules that they install, and what these are for.
EXTRAS = {
    "compare": (("jinja2",), "the page of pyro-fed compare and of pf.write_report"),
    "study": (("pandera", "tabulate"), "a study's codebook, pyro-fed check"),
    "agents": (("grpc", "cryptography"), "peers without a server, pyro-fed agent"),
    "formula": (("formulae",), "regressions by a formula, pf.glm"),
    "graphviz": (("graphviz",), "pictures of models, pf.render_model; also the program dot"),
    "files": (("cryptography",), "studies by files that are mailed, pyro-fed study"),
    "flower": (("flwr",), "clients on other machines, pyro-fed flower"),
    "ray": (("ray",), "several processes, --executor ray:N"),
    "privacy": (("opendp",), "noise of differential privacy, pf.Private"),
}


@click.command()
@options.as_json
def doctor(as_json: bool) -> None:
    """Say what is installed here: versions, compiler, threads, GPU, and what each missing extra would add.

    Exit code 1 where something that every run needs is missing.
    """
    machine = _machine()  # first, since it measures how long the import of torch takes
    from pyro_fed.analysis.report import overview

    found = {"versions": _versions(), "machine": machine, "extras": _extras()}
    missing = [name for name, text in found["versions"].items() if text == MISSING]
    if as_json:
        click.echo(overview.as_json(found))
    else:
        for title, entries in found.items():
            click.echo(overview.heading(title.capitalize()))
            for name, text in entries.items():
                click.echo(overview.field(name, text))
    if missing:
        raise click.ClickException(f"missing: {', '.join(missing)}; pip install pyro_fed brings them")


#: Of a package that is not there.
MISSING = "not installed"


def _versions() -> dict[str, str]:
    return {"pyro_fed": VERSION, "python": platform.python_version()} | {name: _version(name) for name in NEEDED}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return MISSING


def _machine() -> dict[str, str]:
    began = time.perf_counter()
    import torch

    spent = time.perf_counter() - began
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    cuda: Any = torch.version.cuda  # without types
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch sees"
    return {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "threads of torch": f"{torch.get_num_threads()}; small problems are fastest with num_threads=1",
        "C++ compiler": compiler or "none: compile='inductor' is not to be had, compile='trace' is what auto takes",
        "GPU": f"{gpu} (torch for {'CUDA ' + cuda if cuda else 'the CPU'}); the CPU computes without device='cuda'",
        "import of torch": f"{spent:.1f} s",
    }


def _extras() -> dict[str, str]:
    return {
        name: "installed" if all(map(find_spec, modules)) else f"pip install 'pyro_fed[{name}]' adds {what}"
        for name, (modules, what) in EXTRAS.items()
    }
