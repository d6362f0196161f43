"""The examples of the public names' docstrings run: their names, arguments and forms are those that there are.

A run is made as far as its first round, where a finished result is returned in its place, so that every check of its
arguments is passed and nothing is computed. What else an example calls is called. What it shows is compared, but where
it depends on data that it does not show (`SUPPOSED`).
"""

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import shutil
import sys
import types
import warnings
from pathlib import Path

import hospital_tables
import pyro
import pyro.distributions as dist
import pytest
import torch
from late import late

import pyro_fed as pf

PAGES = Path(__file__).parents[2] / "docs"
sys.path.append(str(PAGES))  # a page's own module
try:
    from public_names import LINE, names_of
finally:
    sys.path.remove(str(PAGES))

#: What examples suppose: names that each of them may use without saying what they are.
SUPPOSED = {
    *("model", "x", "y", "fed", "idata", "other", "reference", "results", "clients", "x1", "x2", "y1", "y2"),
    *("y_simulated", "hospital", "x_new", "x_test", "y_test", "means", "covariances", "summaries"),
}
#: Lines that are read and not run, by a piece of them, with what stands in the way.
NOT_RUN = {
    "(x_new, hospital_idx, 1, None)": "a model of hospitals, of which docs/hierarchical.md runs the same line",
    "pf.executors.Ray(4)": "starts four processes",
    "Agent(": "certificates and a file of addresses, which tests/deployment/agents make",
    "run_agent(": "likewise",
    "answer_request(": "a request that was mailed, which tests/deployment/files makes",
    "combine(Path(": "likewise, of answers",
    "ask_sites(": "a study with a result, likewise",
    "trial/result.nc": "the result of such a study",
    "Identity.load(": "certificates, as above",
    "load_peers(": "likewise",
    "Flower(grid, roll": "Flower's grid, which tests/deployment/flower makes",
    "guide=my_guide": "a guide of the user's, as tests/guides has many",
    'do={"treated"': "a model with a treatment, as docs/estimands.md has",
    "pf.own_effects(": "a model of groups, which tests/analysis/test_own_effects.py has",
    "pf.glm(": "data frames, as docs/formula.md has",
    "study": "likewise",
    "fed.noncentred": "a model of groups, which tests/density/test_noncentred.py has",
    'plate="group"': "likewise, which tests/density/test_quadrature.py has",
    "client_app(": "an app, which tests/deployment/flower starts",
    "pf.plots.plot_chains(": "a result with chains, which tests/analysis/test_plots.py makes",
    "pf.testing.": "an algorithm of one's own, which tests/testing has",
    "MyAlgorithm()": "likewise",
    "north.parquet": "a Parquet file, which tests/federation/test_rows_in_files.py writes",
    "pf.metrics.steps(": "the result of several algorithms, which tests/runtime/test_stages.py makes",
}


def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    xi = pyro.sample("xi", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + xi), obs=y)


def doors():
    """Modules whose names the documentation shows by a list or one by one, and the package's own door for the rest."""
    pages = (page.read_text() for page in sorted((PAGES / "api").glob("*.md")))
    return [*(found["module"] for page in pages for found in LINE.finditer(page)), "pyro_fed.recipes", "pyro_fed"]


def examples(door):
    """Name → text of its section Example, of all that a door offers, and of the methods of its classes."""
    found = {}
    for name in names_of(door) if door != "pyro_fed" else pf.__all__:
        value = getattr(importlib.import_module(door), name)
        if door == "pyro_fed" and isinstance(value, types.ModuleType):
            inner = {f"{name}.{part}": getattr(value, part) for part in getattr(value, "__all__", ())}
        else:
            inner = {name: value}
        for path, one in inner.items():
            parts = {part: own for part, own in vars(one).items() if part[0] != "_"} if inspect.isclass(one) else {}
            for part, own in {"": one, **parts}.items():
                written = getattr(own, "__func__", own).__doc__  # `getdoc` would take an overridden method's example
                section = inspect.cleandoc(written or "").partition("\nExample:\n")[2]
                if section:
                    found[f"{path}.{part}".rstrip(".")] = section
    return found


class FirstRound(Exception):
    """A run has come as far as its first round."""


@pytest.fixture(scope="module")
def supposed():
    """The names that examples suppose, with results of real runs among them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator)
    y = (x[:, 0] + torch.randn(60, generator=generator) > 0).float()
    clients = {f"hospital_{k}": (x[k::5], y[k::5]) for k in range(5)}
    fed = pf.Federation.from_clients(model, clients, plate="data")
    quiet = {"progress": False, "audit": False, "compile": "off"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idata = pf.run(pf.FedEP(), fed, num_rounds=2, num_draws=100, **quiet)
        reference = pf.run(pf.FedLaplace(), fed, num_rounds=2, num_draws=1000, **quiet)
        traced = pf.run(pf.P2PVI(trace=True), fed, num_rounds=2, num_draws=20, graph=pf.graph.ring(5), **quiet)
    idata.attrs |= {"epsilon": 1.0, "log_evidence": -40.0, "log_evidence_se": 0.1}
    return {
        "traced": traced,
        "fed": fed,
        "model": model,
        "x": x,
        "y": y,
        "y_simulated": 1 - y,
        "x_new": x[:3],
        "x_test": x[:20],
        "y_test": y[:20],
        "x1": x[:30],
        "y1": y[:30],
        "x2": x[30:],
        "y2": y[30:],
        "clients": [(x[:30], y[:30]), (x[30:], y[30:])],
        "hospital": torch.arange(60) % 5,
        "means": torch.zeros(5, 3),
        "covariances": torch.eye(3).expand(5, 3, 3),
        "idata": idata,
        "other": idata,
        "reference": reference,
        "results": {"NUTS": reference, "FedEP": idata},
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with a codebook, the tables of three hospitals and their summaries, and the names for these."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "codebook.toml").write_text(hospital_tables.CODEBOOK, encoding="utf-8")
    book = pf.codebook.read_codebook(folder / "codebook.toml")
    summaries = []
    for hospital in hospital_tables.HOSPITALS[:3]:
        hospital_tables.table(0, hospital).to_csv(folder / f"{hospital}.csv", index=False)
        summaries.append(pf.codebook.check(book, folder / f"{hospital}.csv").summary)
        summaries[-1].write(folder / f"{hospital}.json")
    pf.codebook.constants(summaries).write(folder / "constants.json")
    frame = pf.codebook.read_rows(book, folder / "albany.csv")
    return folder, {"book": book, "summaries": summaries, "frame": frame}


@pytest.fixture
def names(supposed, study, monkeypatch, tmp_path):
    """What an example may name, with runs that end before their first round."""

    def stop(*_, **__):
        raise FirstRound

    def as_far_as_the_first_round(function):
        def call(*args, **options):
            with contextlib.suppress(FirstRound), pytest.MonkeyPatch.context() as patch:
                for part in ("run_phases", "run_stages"):
                    patch.setattr(f"pyro_fed.runtime.run.{part}", stop)
                function(*args, **{"progress": False, "compile": "off", **options})
            return supposed["traced" if getattr(args[0], "trace", False) else "idata"]

        return call

    for name in ("run", "fit"):
        monkeypatch.setattr(pf, name, as_far_as_the_first_round(getattr(pf, name)))
    monkeypatch.setattr("pyro_fed.analysis.criticism.sbc.run", pf.run)
    monkeypatch.setattr(pf.progress, "set_progress", lambda progress: None)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(study[0], tmp_path, dirs_exist_ok=True)
    imported = {"np": "numpy", "numpy": "numpy", "nx": "networkx", "networkx": "networkx", "az": "arviz"}
    return {
        "pf": pf,
        "Path": Path,
        "torch": torch,
        "pyro": pyro,
        "dist": dist,
        **{short: late(module) for short, module in imported.items()},
        **{name: getattr(pf.metrics, name) for name in pf.metrics.__all__},
        "AutoDiagonalNormal": pyro.infer.autoguide.AutoDiagonalNormal,
        **supposed,
        **study[1],
    }


@pytest.mark.parametrize("door", doors())
@pytest.mark.usefixtures("close_figures")
def test_examples_run(door, names):
    found = examples(door)
    assert found
    for name, text in found.items():
        steps = doctest.DocTestParser().get_examples(inspect.cleandoc(text))
        assert steps, f"{name}: its example has no line that begins with >>>"
        _run(name, steps, names | vars(importlib.import_module(door)) | names)


def _run(name, steps, known):
    own = set()
    for step in steps:
        if any(piece in step.source for piece in NOT_RUN):
            continue
        own |= {node.id for node in ast.walk(ast.parse(step.source)) if isinstance(node, ast.Name)}
        said = io.StringIO()
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exec(compile(step.source, "<example>", "single"), known)
            except Exception as error:
                raise AssertionError(f"{name}: {step.source}") from error
        if step.want and not own & SUPPOSED:
            assert said.getvalue() == step.want, name
