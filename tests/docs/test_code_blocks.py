"""What the pages show as code runs, what they show as errors is raised, and what they show as commands the shell knows.

A page's Python blocks run one after the other, in one namespace that begins with what its words suppose (`SUPPOSED`).
Numbers of three digits and more become small ones and runs end after two rounds: it is names, arguments and forms that
are looked at here, not answers.
"""

import contextlib
import dataclasses
import itertools
import linecache
import re
import shlex
import warnings
from pathlib import Path

import click
import pytest

import pyro_fed as pf
from pyro_fed.cli.main import main
from pyro_fed.recipes import recipe

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "benchmark").glob("*.md")]
}

REGRESSION = """
import arviz as az, numpy as np, pyro, pyro.distributions as dist, torch, pyro_fed as pf
from pyro import poutine

def model(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

x = torch.randn(30, 2)
y = x[:, 0] + torch.randn(30)
x1, y1, x2, y2, x_new = x[:10], y[:10], x[10:], y[10:], x[:3]
"""
FEDERATION = REGRESSION + "fed = pf.Federation(model, (x, y), plate='data', num_clients=5)\n"
FITTED = FEDERATION + "idata = pf.run(pf.FedEP(), fed)\nresults = {'one': idata, 'other': idata}\n"

#: What a page's words suppose before its first block, or before each.
SUPPOSED = {
    "docs/index.md": REGRESSION,
    "docs/runs_and_results.md": FEDERATION,
    "docs/from_pyro.md": REGRESSION,
    "docs/devices.md": REGRESSION,
    "docs/checks.md": FITTED,
    "docs/criticism.md": FITTED,
    "docs/models.md": FEDERATION,
    "docs/faults.md": FEDERATION,
    "docs/peer_to_peer.md": FEDERATION,
    "docs/distributed.md": FEDERATION,
    "docs/networks.md": "",
    "docs/data.md": """
import pyro, pyro.distributions as dist, torch, pyro_fed as pf
from pyro import poutine

nan = float("nan")
x, w = torch.tensor([[1.0, 0.0], [2.0, 1.0]]), torch.tensor([1.0, 0.0])
y, age, g = torch.tensor([1.0, nan]), torch.tensor([nan, 50.0]), torch.tensor([0, 1])
m, s, b = torch.tensor(0.0), torch.tensor(1.0), torch.tensor(2.0)

def model(t, c):
    rate = pyro.sample("rate", dist.Gamma(1.0, 1.0))
    with pyro.plate("observed", len(t)):
        pyro.sample("t", dist.Exponential(rate), obs=t)
    with pyro.plate("censored", len(c)):
        pyro.sample("c", dist.Bernoulli(torch.exp(-rate * c)), obs=torch.ones_like(c))

t, c = torch.rand(20) + 0.1, torch.rand(15) + 0.1

import pandas
grades = pandas.Categorical(["low", "medium", "high"] * 8, categories=["low", "medium", "high"], ordered=True)
columns = {"ward": ["A", "B", "C"] * 8, "sex": ["male", "female"] * 12, "stage": ["I", "III", "IV", "I"] * 6}
frame = pandas.DataFrame(columns | {"dose": ["low", "high"] * 12, "severity": grades, "y": torch.randn(24).numpy()})
""",
    "docs/hierarchical.md": (
        """
import pyro, pyro.distributions as dist, torch, pyro_fed as pf

sigma, y = torch.full((8,), 10.0), 10.0 * torch.randn(8)
""",
        """
def model(age, hospital_idx, num_hospitals, y):
    mu, tau = pyro.sample("mu", dist.Normal(0.0, 1.0)), pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("hospital", num_hospitals):
        level = pyro.sample("level", dist.Normal(mu, tau))
    with pyro.plate("patient", len(age)):
        pyro.sample("y", dist.Normal(level[hospital_idx] + age, 1.0), obs=y)

hospital_idx = torch.arange(24) % 12
args = (torch.randn(24), hospital_idx, 12, torch.randn(24))
names = ["Dresden", *"ABCDEFGHIJK"]
x_new, zeros, zeros_and_ones = torch.randn(24), torch.zeros(24).long(), torch.arange(24) % 2
dresden_and_ulm = ["Dresden", "Ulm"] * 12
""",
        "args = (torch.randn(24), hospital_idx, torch.randn(12), torch.randn(24))",
        """
dose, ward = torch.randn(24).where(torch.arange(24) % 3 > 0, torch.nan), torch.arange(24) % 6
study = (torch.randn(24), dose, ward, 6, (torch.arange(24) % 2).float())
""",
    ),
    "docs/benchmark/index.md": "import torch\n",
    "docs/formula.md": """
import numpy as np, pandas as pd, pyro_fed as pf

rng = np.random.default_rng(0)
columns = {"age": rng.normal(60, 10, 30), "sex": ["m", "f"] * 15, "event": ["yes", "no", "no"] * 10}
north, south, west = (pd.DataFrame(columns | {"ward": [f"{n}{i % 2}" for i in range(30)]}) for n in "nsw")
""",
    "docs/estimands.md": """
import arviz as az, numpy as np, pandas as pd, pyro, pyro.distributions as dist, torch, pyro_fed as pf

frame = pd.DataFrame({"age": np.linspace(-1, 1, 24), "treated": [0, 1] * 12, "sex": ["male", "female", "male"] * 8})
frame["time"] = np.linspace(0.5, 2.0, 24)

def model(data):
    intercept, age = (pyro.sample(name, dist.Normal(0.0, 1.0)) for name in ("intercept", "age"))
    shape = pyro.sample("shape", dist.Gamma(2.0, 1.0))
    effect = pyro.sample("effect", dist.Normal(0.0, 1.0)) * data["treated"] * (data["sex"] == "male")
    rate = torch.exp(intercept + age * data["age"] + effect)
    with pyro.plate("rows", len(rate)):
        pyro.sample("time", dist.Weibull(rate ** (-1 / shape), shape), obs=data["time"])

fed = pf.Federation(model, (frame,), plate="rows", num_clients=3)
idata = pf.run(pf.FedEP(), fed)

def logistic(x, died):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("died", dist.Bernoulli(logits=w * x), obs=died)

x, died = torch.linspace(-2, 2, 24), torch.tensor([0.0, 1.0] * 12)
deaths = pf.Federation(logistic, (x, died), plate="rows", num_clients=2)
fitted = pf.run(pf.FedEP(), deaths)
""",
    "docs/survival.md": """
import numpy as np, pandas as pd

whole = pd.DataFrame({"time": np.linspace(0.1, 3.0, 30), "status": [0, 1, 2] * 10, "sex": [0.0, 1.0] * 15})
whole["age"] = np.sin(np.arange(30))
frames = {"north": whole[:18], "south": whole[18:]}
whole["transition"], whole["start"], whole["stop"] = [0, 1, 2] * 10, 0.2 * (whole["status"] > 1), whole["time"] + 0.2
whole["event"] = [1.0, 0.0, 1.0] * 10
spells = {"north": whole[:18], "south": whole[18:]}
""",
}
#: Blocks that are read and not run, by a piece of them, with what stands in the way.
NOT_RUN = {
    "README.md": "test_readme.py runs its program and compares what it prints",
    "CONTRIBUTING.md": "a line of a stub file",
    "docs/common_errors.md": "its blocks raise, which a test of their own looks at",
}
#: Pages whose blocks look at what a whole run leaves behind: their runs are not cut short.
WHOLE = {"docs/runs_and_results.md"}
INSTEAD = {
    "docs/criticism.md": {"pf.sbc(fed, 20": "pf.sbc(fed, 2"},
    "docs/devices.md": {'device="cuda"': 'device="cpu"'},
    "docs/distributed.md": {"pf.executors.Ray(num_workers=4)": "contextlib.nullcontext('sequential')"},
    "docs/benchmark/index.md": {"quick=True, jobs=2": "quick=True, minutes=0"},
}


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


#: Three sites with tables that agree with the page's own codebook.
SUPPOSED["docs/codebook.md"] = f"""
import pathlib
import numpy as np, pandas as pd, pyro_fed as pf

pathlib.Path("codebook.toml").write_text({blocks(PAGES["docs/codebook.md"], "toml")[0]!r}, encoding="utf-8")
for seed, name in enumerate(("albany", "boston", "chicago")):
    rng = np.random.default_rng(seed)
    rows = {{"patient": np.arange(70), "age": rng.integers(40, 80, 70), "sex": rng.choice(["M", "F"], 70)}}
    rows |= {{"creatinine": rng.normal(80, 12, 70).round(1), "ecog": rng.choice(["0", "1", "2"], 70)}}
    rows |= {{"entry": pd.Timestamp("1988-01-05") + pd.to_timedelta(rng.integers(0, 700, 70), unit="D")}}
    rows |= {{"exit": rows["entry"] + pd.to_timedelta(rng.integers(1, 900, 70), unit="D")}}
    rows |= {{"status": rng.choice(["alive", "dead"], 70)}}
    frame = pd.DataFrame(rows).drop(columns=["creatinine"] * (name == "chicago"))
    frame.to_csv(f"{{name}}.csv", index=False, date_format="%d/%m/%Y")
    book = pf.codebook.read_codebook("codebook.toml")
    checked = pf.codebook.check(book, f"{{name}}.csv")
    assert not checked.findings
    checked.summary.write(f"{{name}}.json")
"""


@pytest.fixture
def short(monkeypatch):
    """Runs of two rounds with few draws, and nothing that looks at their answers."""
    run = pf.run

    def quickly(algorithm, federation, **options):
        if isinstance(algorithm, pf.NUTS):
            algorithm = dataclasses.replace(algorithm, num_samples=10, warmup_steps=5, num_chains=2)
            return run(algorithm, federation, **{"audit": False, "progress": False} | options)
        limits = {"num_rounds": 2, "num_draws": 50, "audit": False, "progress": False, "compile": "off"}
        return run(algorithm, federation, **limits | options)

    monkeypatch.setattr(pf, "run", quickly)
    monkeypatch.setattr(pf, "fit", lambda federation, **options: quickly(pf.FedEP(), federation, **options))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(PAGES[page], "python") and page not in NOT_RUN])
@pytest.mark.usefixtures("close_figures")
def test_a_pages_blocks_run(page, tmp_path, monkeypatch, request):
    if page not in WHOLE:
        request.getfixturevalue("short")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page", "contextlib": contextlib}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        supposed = SUPPOSED[page]
        before = supposed if isinstance(supposed, tuple) else (supposed,)
        for block, supposed in itertools.zip_longest(blocks(PAGES[page], "python"), before, fillvalue=""):
            exec(compile(supposed, f"what {page} supposes", "exec"), names)
            for shown, taken in INSTEAD.get(page, {}).items():
                block = block.replace(shown, taken)
            block = re.sub(r"\b\d{4,}\b|\b500\b", "10", block)
            exec(compile(block, page, "exec"), names)


@pytest.fixture(scope="module")
def errors_page():
    """The blocks of the page of errors, each with what it says it raises, and the names that its first block makes."""
    text = PAGES["docs/common_errors.md"]
    first, *shown = re.findall(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.DOTALL | re.MULTILINE)
    names = {"__name__": "page"}
    exec(REGRESSION.split("def model")[0] + first[0], names)
    return dict(shown), names


ERRORS = re.findall(r"^```text\n(.*?)^```", PAGES["docs/common_errors.md"], re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("short")
@pytest.mark.filterwarnings("ignore:not converged after 2 rounds")
@pytest.mark.parametrize("said", ERRORS, ids=[said[:60] for said in ERRORS])
def test_the_errors_shown_are_raised(said, errors_page, tmp_path, monkeypatch):
    shown, names = errors_page
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block, here in shown.items() if here == said]
    with pytest.raises(pf.PyroFedError) as raised:
        exec(_with_lines(block), dict(names))
    parts = [re.escape(part.strip()) for part in said.split("...")]
    found = f"{type(raised.value).__name__}: {raised.value}"
    assert re.match(".*".join(parts) + "$", found), found


def _with_lines(block):
    """The block as code whose lines an error can quote."""
    linecache.cache["common_errors.py"] = (len(block), None, block.splitlines(True), "common_errors.py")
    return compile(block, "common_errors.py", "exec")


def test_every_wrong_block_has_its_error(errors_page):
    assert all(errors_page[0].values())


def test_the_warnings_named_are_ones_that_runs_give():
    table = PAGES["docs/common_errors.md"].split("| the warning says |")[1]
    sources = "".join(path.read_text() for path in (ROOT / "pyro_fed").rglob("*.py"))
    for words in re.findall(r"^\| ([a-z].*?) \|", table, re.MULTILINE):
        assert words in sources, words


def commands():
    """Every `pyro-fed` line of the pages' shell blocks, with the page."""
    for page, text in PAGES.items():
        for block in blocks(text, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.split(" # ")[0].removeprefix("$ ").strip()
                if line.startswith("pyro-fed "):
                    yield page, line


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_the_shell_knows_the_command(page, line):
    words, command, context = shlex.split(line)[1:], main, click.Context(main, info_name="pyro-fed")
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        context = click.Context(command, parent=context, info_name=name)
    given, left, _ = command.make_parser(context).parse_args(words)
    assert not left
    required = {one.name for one in command.params if one.required}
    assert required <= {name for name, value in given.items() if value is not None}, line


@pytest.mark.parametrize("text", blocks(PAGES["docs/recipes.md"], "toml"))
def test_the_recipes_shown_are_read(text, tmp_path):
    path = tmp_path / "shown.toml"
    if "algorithm" not in text:  # a part of one
        text = 'description = "a part"\nalgorithm = "pyro_fed.infer:FedEP"\n' + text
    path.write_text(text)
    recipe.load(str(path)).build()
