"""Command lines with random options, recipes and model files: each ends with 0, or in a sentence and its exit code.

    python tests/helpers/fuzzing_commands.py --calls 1000 --seed 1

prints how many calls were made and every one that ended in a raw traceback, or not soon. A call takes a valid command
line and changes one to three of its words, or writes a model or a recipe in which a few characters or lines differ.
"""

import argparse
import collections
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from click.testing import CliRunner

from pyro_fed.cli.main import main as command

#: Seconds that a call may take.
LONGEST = 40
#: Exit codes that are meant: success, doubts or refusal by the work, a refusal of the input, Ctrl-C.
MEANT = {0, 1, 2, 130}

MODEL = '''"""A mean."""
import pyro
import pyro.distributions as dist
import torch

PLATE = "data"


def model(y):
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0, dtype=y.dtype), 2.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def load_data():
    return (torch.linspace(-1.0, 1.0, 12),), (torch.zeros(3),)
'''

RECIPE = """description = "a mean of points"
algorithm = "pyro_fed.infer:FedAvg"

[settings]
chain_steps = 1
step_size = 0.01

[run]
num_rounds = 1
"""

WORDS = [
    *("", "0", "1", "3", "-1", "2.5", "nan", "inf", "1e30", "99999999999999999999", "true", "null", "[]", "{}", "None"),
    *(
        "iid",
        "sorted",
        "dirichlet:0.3",
        "dirichlet:x",
        "group",
        "ring",
        "ring:3",
        "erdos_renyi:0.5",
        "sequential",
        "ray",
    ),
    *("ray:0", "vectorised", "nuts", "auto", "fedep", "laplace", "nothing", "--help", "--", "-", "-q", "--json", "-v"),
    *("é", "a" * 500, "x=1", "step_size=", "step_size=x", "=", "step_size=-1", "num_rounds=0", "a.b.c=1", "../x", "/"),
    *("/dev/null", "/dev/null/x", "/proc/1/x", ".", "m.py", "r.toml", "m.py:model", "r.toml.step_size=3", "~"),
]
LINES = [
    *(
        "raise ValueError('no')",
        "import nothing_there",
        "def model():",
        "    pass",
        "return",
        "1/0",
        "x = torch.zeros(3)",
    ),
    *(
        "PLATE = 3",
        "PLATE = 'other'",
        "model = None",
        "load_data = (1, 2)",
        "def load_data(): return None",
        "[run]",
        "[settings]",
    ),
    *(
        "num_rounds = 'x'",
        "algorithm = 3",
        "algorithm = 'os:system'",
        "a = " + "[" * 60,
        "\x00",
        "seed = -1",
        "[[run]]",
    ),
    *("def load_data(): raise SystemExit(3)", "import sys; sys.exit(4)", "COORDS = 3"),
    *("DIMS = {'mu': ['a']}", "def load_data(): return (torch.zeros(0),)", "step_size = nan", "schedule = 'all'"),
]

VALID = [
    ("run", "m.py", "r.toml", "--clients", "3", "--rounds", "1", "--quiet"),
    ("run", "m.py", "r.toml", "--clients", "2", "--set", "chain_steps=2", "--quiet"),
    ("run", "m.py", "r.toml", "--clients", "3", "--partition", "iid", "--set", "step_size=0.1", "--out", "o.nc", "-q"),
    ("run", "m.py", "r.toml", "--checkpoint", "c", "--seed", "1", "--json", "-q", "--executor", "sequential"),
    ("run", "m.py", "r.toml", "--report", "o.html", "--parameters", "2", "--max-seconds", "5", "-q"),
    ("compare", "m.py", "r.toml", "r.toml", "--clients", "3", "--report", "o.html", "-q"),
    ("compare", "m.py", "r.toml", "--reference", "r.toml", "--out", "d", "--set", "r.step_size=0.1", "-q"),
    ("show", "r.toml"),
    ("show", "fedep"),
    ("list",),
    ("bench", "--cases", "gaussian_mean", "--partitions", "iid/2", "--algorithms", "r.toml", "--minutes", "0", "-q"),
    ("agent", "m.py", "r.toml", "--name", "a", "--data", "y.npz", "--peers", "p.toml", "--certificates", "k"),
    ("certificates", "k", "a", "b", "--days", "3"),
    ("doctor", "--help"),
    ("flower", "new", "app", "--model", "m.py", "--recipe", "r.toml"),
]  # fmt: skip


class TooLong(BaseException):
    """A call that does not end."""


def altered(rng, text):
    """A text with a line more, less, or with other characters."""
    lines = text.splitlines()
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        at = rng.randrange(len(lines))
        what = rng.choice(["add", "drop", "cut", "swap", "junk"])
        if what == "add":
            lines.insert(at, rng.choice(LINES))
        elif what == "drop" and len(lines) > 1:
            del lines[at]
        elif what == "cut":
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif what == "swap":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = lines[at] + rng.choice(["'", ")", "\\", " = ", "\t", "é", "\x0c", "}"])
    return "\n".join(lines) + "\n"


def words(rng):
    """A command line with a few words that are others."""
    found = list(rng.choice(VALID))
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        at = rng.randrange(len(found))
        what = rng.choice(["replace", "replace", "insert", "drop", "twice"])
        if what == "replace":
            found[at] = rng.choice(WORDS)
        elif what == "insert":
            found.insert(at, rng.choice(WORDS))
        elif what == "twice":
            found.insert(at, found[at])
        elif len(found) > 1:
            del found[at]
    return found


def called(rng, ended):
    """The words of one call, what it was on, and what was wrong with its end; `ended` counts exit codes."""
    line, model, recipe = words(rng), altered(rng, MODEL), altered(rng, RECIPE)
    before = os.getcwd()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        Path("m.py").write_text(model, encoding="utf-8")
        Path("r.toml").write_text(recipe, encoding="utf-8")
        for name in ("o.nc", "d", "k", "y.npz", "p.toml"):
            if rng.random() < 0.1:
                Path(name).write_bytes(rng.randbytes(20))
        was = signal.signal(signal.SIGALRM, late)
        signal.alarm(LONGEST)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = CliRunner().invoke(command, line)
        except TooLong as error:
            return line, model, recipe, error
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, was)
            os.chdir(before)
    raised = result.exception
    if raised is not None and not isinstance(raised, SystemExit):
        return line, model, recipe, raised
    ended[result.exit_code] += 1
    fine = result.exit_code in MEANT and "Traceback" not in result.output
    return line, model, recipe, None if fine else f"exit code {result.exit_code}: {result.output[-300:]}"


def late(*_):
    raise TooLong(f"more than {LONGEST} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    began, kinds, ended, bad = time.monotonic(), collections.Counter(), collections.Counter(), 0
    for _ in range(given.calls):
        line, model, recipe, how = called(rng, ended)
        if how is None:
            continue
        bad += 1
        where = "" if isinstance(how, str) else "".join(traceback.format_tb(how.__traceback__)[-2:])
        kind = how if isinstance(how, str) else f"{type(how).__name__}: {how}"
        kinds[kind] += 1
        if kinds[kind] == 1:
            texts = ((model, MODEL), (recipe, RECIPE))
            changed = [one for text, was in texts for one in text.splitlines() if one not in was]
            print(f"{line}\n  {changed}\n  {kind}\n{where}", flush=True)
    took = f"{given.calls} command lines in {time.monotonic() - began:.0f} s"
    print(f"{took}, exit codes {dict(ended)}: {bad} wrong, {len(kinds)} kinds")


if __name__ == "__main__":
    main()
